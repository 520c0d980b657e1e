package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/schemas"
)

func (c *cli) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List and replay dead letters",
		Long:  "Dead letters are events of timers whose callback failed permanently or used up its attempts.",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(c.deadLsCommand(), c.deadReplayCommand())
	return cmd
}

func (c *cli) deadLsCommand() *cobra.Command {
	var service string
	var rows int
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List dead letters, oldest first",
		Args:    exactly(0),
	}
	cmd.Flags().StringVar(&service, "svc", "", "only this service")
	cmd.Flags().IntVarP(&rows, "limit", "n", defaultRows, "maximum number of dead letters; 0 for all")
	check := func([]string) error { return checkRows(rows) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		t := table{c.out, []int{schemas.TimerIDLength + 4, 24, 12, 8, 16}}
		return printRows(c, s, t, rows, s.DeadLetters(ctx, service), []string{"TIMER", "DIED", "SERVICE", "ATTEMPTS", "CODE", "REASON"}, func(dead schemas.DeadInfo) []string {
			return []string{deadName(dead), showTime(dead.Died), schemas.TenantService(dead.Tenant, dead.Service), fmt.Sprint(dead.Attempts), dead.ErrorCode, cut(dead.ErrorData, 100)}
		})
	})
}

// deadName names the timer or the run of a dead letter as "dead replay" takes it.
func deadName(dead schemas.DeadInfo) string {
	if dead.Schedule.IsZero() {
		return dead.Timer.String()
	}
	return schemas.RunID{Timer: dead.Schedule, Run: dead.Run}.String()
}

// printRows prints at most limit rows (0 for all) of a list, as a table with a header or
// as one JSON object per line.
func printRows[T any](c *cli, s session, t table, limit int, list iter.Seq2[T, error], head []string, row func(T) []string) error {
	n := 0
	for item, err := range list {
		if err != nil {
			return s.far(err, "%d were listed", n)
		}
		if n == limit && limit > 0 {
			return c.more(limit)
		}
		n++
		if c.json() {
			err = c.printJSON(item)
		} else {
			if n == 1 {
				err = t.row(head...)
			}
			if err == nil {
				err = t.row(row(item)...)
			}
		}
		if err != nil {
			return err
		}
	}
	if n == 0 && !c.json() {
		return c.empty()
	}
	return nil
}

// empty tells the user on stderr that a list has no items. Its standard output is empty.
func (c *cli) empty() error {
	_, err := fmt.Fprintln(c.err, "the list is empty")
	return err
}

func (c *cli) deadReplayCommand() *cobra.Command {
	ref, by := &timerRef{}, &byFlag{}
	var service string
	cmd := &cobra.Command{
		Use:   "replay ID | --svc SERVICE",
		Short: "Call back again, with a new set of attempts",
		Long:  "Replay one dead letter, by timer id or by CloudEvent id with --source, or all dead letters of a service.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == (service != "") {
				return usagef("give either one timer or --svc; usage: %s", cmd.UseLine())
			}
			return nil
		},
	}
	ref.add(cmd.Flags())
	by.add(cmd.Flags())
	cmd.Flags().StringVar(&service, "svc", "", "all dead letters of this service")
	check := func(args []string) error {
		if err := by.check(); service != "" || err != nil {
			return err
		}
		return ref.resolve(args)
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		n := 1
		if service != "" {
			var err error
			if n, err = s.ReplayService(ctx, service, by.option()); err != nil {
				return s.far(err, "%d were replayed; the same command replays the rest", n)
			}
		} else {
			ctx, cancel := s.call(ctx)
			defer cancel()
			if err := s.Replay(ctx, ref.id, by.option()); err != nil {
				return ref.explain(err)
			}
		}
		if c.json() {
			return c.printJSON(map[string]int{"replayed": n})
		}
		return c.printText("replayed", fmt.Sprint(n))
	})
}
