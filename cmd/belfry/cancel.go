package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) cancelCommand() *cobra.Command {
	ref, by := &timerRef{}, &byFlag{}
	cmd := &cobra.Command{
		Use:     "cancel ID",
		Aliases: []string{"delete"},
		Short:   "Cancel a waiting timer or schedule",
		Long: `Cancel a waiting or paused timer or schedule. After the command has succeeded, it never
fires. The command fails if the timer has fired already. ID is a timer id, a run of a
schedule (<timer id>.<run>), or a CloudEvent's id with --source. A run is cancelled only
while it waits for its next attempt.`,
		Args: exactly(1),
	}
	ref.add(cmd.Flags())
	by.add(cmd.Flags())
	check := func(args []string) error { return cmp.Or(by.check(), ref.resolve(args)) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := atRun(ctx, s, ref, func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error) {
			return s.Cancel(ctx, id, by.option())
		})
		if err != nil {
			return err
		}
		return c.printTimer(t)
	})
}
