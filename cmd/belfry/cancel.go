package main

import (
	"context"

	"github.com/spf13/cobra"
)

func (c *cli) cancelCommand() *cobra.Command {
	ref := &timerRef{}
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a timer that waits",
		Long: `Cancel a timer that waits: once this has succeeded it never fires. One that has
fired is refused. ID is a timer id, or a CloudEvent's id with --source.`,
		Args: exactly(1),
	}
	ref.add(cmd.Flags())
	return c.talking(cmd, ref.resolve, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := s.Cancel(ctx, ref.id)
		if err != nil {
			return err
		}
		return c.printTimer(t)
	})
}
