package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) whyCommand() *cobra.Command {
	ref, at := &timerRef{}, ""
	cmd := &cobra.Command{
		Use:   "why ID",
		Short: "Explain why a timer or schedule fired, or did not",
		Long: `Explain a timer: when it fired or will fire, what its callback answered, or why it did not
fire. For a schedule, explain the last nominal time that is decided and the next one. With
--at, explain that time of a schedule: it fired, it was skipped and why, or the schedule has
no run then. --at is an RFC 3339 time, or in the schedule's zone a local time or a date. For
a date the command explains each nominal time of that date. ID is a timer id, or a
CloudEvent's id with --source.`,
		Example: `  belfry why order-17 --source /shop
  belfry why nightly --source /reports --at 2027-03-28
  belfry why nightly --source /reports --at 2027-03-28T01:00:00Z`,
		Args: exactly(1),
	}
	ref.add(cmd.Flags())
	cmd.Flags().StringVar(&at, "at", "", "a time of a schedule: RFC 3339, or in the schedule's zone a date such as 2027-03-28 or a time such as 2027-03-28T02:30")
	check := func(args []string) error {
		s, err := calendar.New(calendar.Spec{Cron: "@daily"}) // any zone
		if err != nil {
			return err
		}
		if _, _, ok := s.Period(at); at != "" && !ok {
			return usagef("--at %q: write an RFC 3339 time, or in the schedule's zone a date such as 2027-03-28 or a local time such as 2027-03-28T02:30", at)
		}
		return ref.resolve(args)
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		reply, err := s.Why(ctx, ref.id, at)
		if err != nil {
			return ref.explain(err)
		}
		for _, a := range reply.Answers {
			if c.json() {
				err = c.printJSON(a)
			} else {
				err = c.printAnswer(a)
			}
			if err != nil {
				return err
			}
		}
		if reply.More {
			_, err = fmt.Fprintf(c.err, "only the first %d are shown; --at with a time of day shows others\n", len(reply.Answers))
		}
		return err
	})
}

// printAnswer prints the explanation of a time.
func (c *cli) printAnswer(a schemas.Answer) error {
	if _, err := fmt.Fprintf(c.out, "%s  %s\n", printable(a.Local), printable(a.Text)); err != nil {
		return err
	}
	for _, n := range a.Notes {
		if _, err := fmt.Fprintf(c.out, "  %s\n", printable(n)); err != nil {
			return err
		}
	}
	return nil
}
