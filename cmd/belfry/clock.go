package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) clockCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clock",
		Short: "Show or move the clock of a development node",
		Long: `Show the clock of a node that "belfry dev" runs. The subcommands move it. Everything that
becomes due fires in order: the clock waits at each due time until the callbacks have a
result, or wait for a later attempt. It moves only forward.`,
		Args: exactly(0),
	}
	c.showing(cmd)
	show := c.showing(&cobra.Command{Use: "show", Short: "Show the clock, the number of timers ahead, and the next due time", Args: exactly(0)})
	cmd.AddCommand(show, c.clockAdvanceCommand(), c.clockToCommand(), c.clockIdleCommand())
	return cmd
}

// showing makes cmd a command that shows the clock.
func (c *cli) showing(cmd *cobra.Command) *cobra.Command {
	return c.talking(cmd, func([]string) error { return nil }, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		r, err := s.Clock(ctx)
		if err != nil {
			return err
		}
		return c.printClock(&r, false)
	})
}

func (c *cli) clockAdvanceCommand() *cobra.Command {
	var d time.Duration
	cmd := &cobra.Command{
		Use:     "advance DURATION",
		Short:   "Move the clock ahead by a duration, such as 30d",
		Example: "  belfry clock advance 30d",
		Args:    exactly(1),
	}
	check := func(args []string) (err error) {
		if d, err = cmdline.ParseDuration(args[0]); err != nil {
			return usagef("%v", err)
		}
		return nil
	}
	return c.moving(cmd, check, func(ctx context.Context, s session) (belfry.Clock, error) { return s.AdvanceClock(ctx, d) })
}

func (c *cli) clockToCommand() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "to TIME",
		Short: "Move the clock to a time, such as 2027-03-28T02:30Z",
		Long: `Move the clock to a time: RFC 3339, or a date and a time of day in the zone of this computer.
Times such as "tomorrow 9:00" and "in 15m" count from the time that the clock shows.`,
		Example: "  belfry clock to 2027-03-28T01:00:00Z\n  belfry clock to 2027-03-28T04:30",
		Args:    exactly(1),
	}
	check := func(args []string) error {
		at = args[0]
		if _, _, err := cmdline.ParseTime(at, time.Now()); err != nil {
			return usagef("%v", err)
		}
		return nil
	}
	return c.moving(cmd, check, func(ctx context.Context, s session) (belfry.Clock, error) {
		t, err := s.onClock(ctx, at)
		if err != nil {
			return belfry.Clock{}, err
		}
		return s.MoveClock(ctx, t)
	})
}

func (c *cli) clockIdleCommand() *cobra.Command {
	until, most := "", schemas.DefaultClockSteps
	var opts []belfry.ClockOption
	cmd := &cobra.Command{
		Use:   "run-until-idle",
		Short: "Move the clock from one due time to the next, until none is left",
		Long: `Move the clock from one due time to the next, until no timer has a due time ahead. A schedule
without an end never comes to that: the command ends with an error after --max due times, or
without one at --until.`,
		Example: "  belfry clock run-until-idle\n  belfry clock run-until-idle --until 2027-03-28T12:00:00Z",
		Args:    exactly(0),
	}
	cmd.Flags().StringVar(&until, "until", "", "stop at this time, written as for \"belfry clock to\"")
	cmd.Flags().IntVar(&most, "max", most, "stop after this number of due times")
	check := func([]string) error {
		if most < 1 || most > schemas.MaxClockSteps {
			return usagef("--max is %d; it must be 1 to %d", most, schemas.MaxClockSteps)
		}
		opts = append(opts, belfry.ClockMax(most))
		if until != "" {
			if _, _, err := cmdline.ParseTime(until, time.Now()); err != nil {
				return usagef("--until: %v", err)
			}
		}
		return nil
	}
	return c.moving(cmd, check, func(ctx context.Context, s session) (belfry.Clock, error) {
		if until != "" {
			t, err := s.onClock(ctx, until)
			if err != nil {
				return belfry.Clock{}, err
			}
			opts = append(opts, belfry.ClockUntil(t))
		}
		return s.RunClockUntilIdle(ctx, opts...)
	})
}

// onClock parses a time, which may count from the time that the moved clock shows.
func (s session) onClock(ctx context.Context, text string) (time.Time, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.Clock(ctx)
	if err != nil {
		return time.Time{}, err
	}
	t, _, err := cmdline.ParseTime(text, r.Now.Local())
	if err != nil {
		return t, usagef("%v", err)
	}
	return t, nil
}

// moving makes cmd a command that moves the clock.
func (c *cli) moving(cmd *cobra.Command, check func([]string) error, move func(context.Context, session) (belfry.Clock, error)) *cobra.Command {
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		r, err := move(ctx, s)
		if err != nil {
			return s.far(err, "%d events have fired", r.Fired)
		}
		return c.printClock(&r, true)
	})
}

// printClock prints a clock, and the effect of a move.
func (c *cli) printClock(r *belfry.Clock, moved bool) error {
	if c.json() {
		return c.printJSON(r)
	}
	next, steps, fired, state := "none", "", "", "runs"
	if !r.Next.IsZero() {
		next = c.zone.show(r.Next)
	}
	if moved {
		steps, fired = strconv.Itoa(r.Steps), strconv.Itoa(r.Fired)
	}
	if r.Frozen {
		state = "frozen"
	}
	return c.printText("now", c.zone.show(r.Now), "clock", state, "due times passed", steps, "events fired", fired, "timers ahead", strconv.Itoa(r.Pending), "next", next)
}
