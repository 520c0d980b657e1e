package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
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
		t, err := s.Get(ctx, ref.id)
		if run := ref.run; run.Run != 0 && errors.Is(err, belfry.ErrNotFound) {
			// The run of a one-shot timer is in the timer's record.
			timer, other := s.Get(ctx, run.Timer)
			if other == nil && timer.Schedule == nil && max(timer.Run, 1) == run.Run {
				t, err = timer, nil
			}
		}
		if err != nil {
			return err
		}
		return c.printTimer(t)
	})
}
