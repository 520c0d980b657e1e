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
	ref, many, due, by := &timerRef{}, &bulkFlags{}, &dueFlags{}, &byFlag{}
	cmd := &cobra.Command{
		Use:   "reschedule (ID | --svc SERVICE | --group GROUP) (--in DURATION | --at TIME)",
		Short: "Give pending timers another due time",
		Long: `Give a pending timer another due time. ID is a timer id, or a CloudEvent's id with --source.

With --svc and --group, instead of an ID, all pending and paused timers that both select, and
no schedules, become due at the one time; --in counts from the first of them. Try it first
with --dry-run, which lists them and moves none.`,
		Example: `  belfry reschedule order-17 --source /shop --in 30m
  belfry reschedule --svc reminders --group customer-42 --at "tomorrow 9:00" --dry-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 0) != many.selects() {
				return usagef("name one timer, or select timers with --svc or --group; usage: %s", cmd.UseLine())
			}
			return nil
		},
	}
	ref.add(cmd.Flags())
	many.add(cmd.Flags(), "pending and paused timers", "move")
	due.add(cmd.Flags())
	by.add(cmd.Flags())
	var when belfry.When
	check := func(args []string) error {
		err := cmp.Or(by.check(), many.checkRef(cmd.Flags(), ref))
		if err == nil && !many.selects() {
			err = ref.resolve(args)
		}
		if err == nil {
			when, err = due.when(c)
		}
		return err
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		if many.selects() {
			return c.bulkTimers(s, s.BulkReschedule(ctx, many.query, when, by.option()), many.query.DryRun, "rescheduled")
		}
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
