package main

import (
	"context"

	"github.com/spf13/cobra"
)

func (c *cli) getCommand() *cobra.Command {
	ref := &timerRef{}
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a timer's state, times, attempts and history",
		Long:  "Show a timer's state, times, attempts and history. ID is a timer id, a run of a schedule (<timer id>.<run>), or a CloudEvent's id with --source.",
		Args:  exactly(1),
	}
	ref.add(cmd.Flags())
	return c.talking(cmd, ref.resolve, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := atRun(ctx, s, ref, s.Inspect)
		if err != nil {
			return err
		}
		return c.printTimer(t)
	})
}
