package main

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) rescheduleCommand() *cobra.Command {
	ref, due, by := &timerRef{}, &dueFlags{}, &byFlag{}
	cmd := &cobra.Command{
		Use:   "reschedule ID --in DURATION | --at TIME",
		Short: "Give a pending timer another due time",
		Long:  "Give a pending timer another due time. ID is a timer id, or a CloudEvent's id with --source.",
		Args:  exactly(1),
	}
	ref.add(cmd.Flags())
	due.add(cmd.Flags())
	by.add(cmd.Flags())
	var when belfry.When
	check := func(args []string) error {
		err := cmp.Or(by.check(), ref.resolve(args))
		if err == nil {
			when, err = due.when(c)
		}
		return err
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := atRun(ctx, s, ref, func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error) {
			return s.Reschedule(ctx, id, when, by.option())
		})
		if err != nil {
			return err
		}
		return c.printTimer(t)
	})
}

// when reads the flags; see read.
func (f *dueFlags) when(c *cli) (belfry.When, error) {
	if err := f.read(c); err != nil {
		return belfry.When{}, err
	}
	if f.in != "" {
		d, err := schemas.ParseDuration(f.in)
		return belfry.After(d), err
	}
	ms, err := schemas.ParseTime(f.at)
	return belfry.At(time.UnixMilli(ms)), err
}
