package main

import (
	"context"

	"github.com/spf13/cobra"
)

func (c *cli) getCommand() *cobra.Command {
	ref := &timerRef{}
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show what became of a timer",
		Long:  "Show what is known of a timer. ID is a timer id, or a CloudEvent's id with --source.",
		Args:  exactly(1),
	}
	ref.add(cmd.Flags())
	return c.talking(cmd, func(ctx context.Context, s session, args []string) error {
		id, err := ref.resolve(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := s.Get(ctx, id)
		if err != nil {
			return err
		}
		return c.printTimer(t)
	})
}
