package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) runsCommand() *cobra.Command {
	ref, rows, decisions := &timerRef{}, 0, false
	cmd := &cobra.Command{
		Use:   "runs ID",
		Short: "List the runs of a schedule, newest first",
		Long: `List the runs of a schedule with their outcomes, newest first. A run with a callback has
a record of its own until it expires; "belfry get <timer id>.<run>" shows it.

"-" stands for a value that Belfry does not keep. A run without a record has its time of firing
only if it is the last of a range of decisions. Scheduled times are kept for recent runs.

With --decisions the command lists the last decisions instead: ranges of nominal times that
fired or were skipped. ID is a timer id, or a CloudEvent's id with --source.`,
		Args: exactly(1),
	}
	ref.add(cmd.Flags())
	cmd.Flags().IntVarP(&rows, "limit", "n", schemas.DefaultRuns, "maximum number of runs; 0 for all")
	cmd.Flags().BoolVar(&decisions, "decisions", false, "list the decisions about the last nominal times, as ranges")
	check := func(args []string) error {
		if err := checkRows(rows); err != nil {
			return err
		}
		return ref.resolve(args)
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		if decisions {
			return ref.explain(c.printDecisions(ctx, s, ref.id))
		}
		t := table{c.out, []int{8, c.zone.width(), c.zone.width(), 9, 8}}
		return ref.explain(printRows(c, s, t, rows, s.Runs(ctx, ref.id), []string{"RUN", "SCHEDULED", "FIRED", "STATE", "ATTEMPTS", "NOTE"}, func(r belfry.ScheduleRun) []string {
			state, attempts := "fired", fmt.Sprint(r.Attempts)
			if r.State != 0 {
				state = r.State.String()
			}
			if r.Timer.IsZero() {
				attempts = "-"
			}
			return []string{fmt.Sprint(r.Run), cmp.Or(c.zone.show(r.Scheduled), "-"), cmp.Or(c.zone.show(r.Fired), "-"), state, attempts, runNote(r)}
		}))
	})
}

// runNote describes an unusual run: its trigger, missed times, and the outcome of its callback.
func runNote(r belfry.ScheduleRun) string {
	note := r.Trigger
	switch {
	case !r.Timer.IsZero():
	case r.State == schemas.StateSuccess:
		note = joined(note, "no callback")
	default:
		note = joined(note, "its record has expired")
	}
	if r.Missed > 0 {
		note = joined(note, "also for "+strconv.Itoa(int(r.Missed))+" missed")
	}
	if r.Overdue {
		note = joined(note, "overdue")
	}
	if o := r.Outcome; o != nil {
		note = joined(note, o.Text())
	}
	return cut(note, 100)
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func (c *cli) printDecisions(ctx context.Context, s session, id schemas.TimerID) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	list, err := s.Decisions(ctx, id)
	if err != nil {
		return err
	}
	t := table{c.out, []int{10, c.zone.width(), c.zone.width(), 8}}
	for i, d := range list {
		if c.json() {
			err = c.printJSON(d)
		} else {
			if i == 0 {
				err = t.row("DECISION", "FROM", "TO", "COUNT", "RUN")
			}
			run := ""
			if d.Run != 0 {
				run = fmt.Sprint(d.Run)
			}
			if err == nil {
				err = t.row(d.Kind, c.zone.show(d.From), c.zone.show(d.To), fmt.Sprint(d.Count), run)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
