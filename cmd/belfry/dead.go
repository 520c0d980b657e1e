package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, replay and discard dead letters",
		Long:  "Dead letters are events of timers whose callback failed permanently or used up its attempts.",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(c.deadLsCommand(), c.deadReplayCommand(), c.deadRmCommand())
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
		return printRows(c, s, deadTable(c), rows, s.DeadLetters(ctx, service), deadColumns, c.deadRow)
	})
}

// deadColumns is the header of a table of dead letters.
var deadColumns = []string{"TIMER", "DIED", "SERVICE", "ATTEMPTS", "CODE", "REASON"}

// deadTable returns a table with deadColumns.
func deadTable(c *cli) table {
	return table{c.out, []int{schemas.TimerIDLength + 4, c.zone.width(), 12, 8, 16}}
}

// deadRow returns the cells of a dead letter for deadColumns.
func (c *cli) deadRow(dead schemas.DeadInfo) []string {
	return []string{deadName(dead), c.zone.show(dead.Died), schemas.TenantService(dead.Tenant, dead.Service), fmt.Sprint(dead.Attempts), dead.ErrorCode, cut(dead.ErrorData, 100)}
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
	f, by := &deadFlags{}, &byFlag{}
	cmd := &cobra.Command{
		Use:   "replay ID | --svc SERVICE | --code CODE",
		Short: "Call back again, with a new set of attempts",
		Long: `Replay one dead letter, by timer id or by CloudEvent id with --source, or all dead letters of a
service, or with a reason, or both. Dead letters that cannot be replayed stay. With --rate the
callbacks come one after the other: the command puts all back, and does not wait for them.`,
		Example: `  belfry dead replay order-17 --source /shop
  belfry dead replay --svc orders --rate 10/s
  belfry dead replay --svc orders --code http_status --dry-run`,
		Args: f.args,
	}
	f.add(cmd.Flags(), "replay")
	cmd.Flags().StringVar(&f.query.Rate, "rate", "", "calls in a duration: 10/s, 100/m (default: all at once)")
	by.add(cmd.Flags())
	check := func(args []string) error { return cmp.Or(by.check(), f.checkRate(), f.resolve(cmd.Flags(), args)) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		if f.selects() || f.query.DryRun || f.query.Rate != "" {
			return c.runDead(ctx, s, f, "replayed", func(ctx context.Context, q belfry.DeadQuery) iter.Seq2[belfry.BulkDeadPage, error] {
				return s.BulkReplay(ctx, q, by.option())
			})
		}
		ctx, cancel := s.call(ctx)
		defer cancel()
		if err := s.Replay(ctx, f.id, by.option()); err != nil {
			return f.explain(err)
		}
		if c.json() {
			return c.printJSON(map[string]int{"replayed": 1})
		}
		return c.printText("replayed", "1")
	})
}

func (c *cli) deadRmCommand() *cobra.Command {
	f, by := &deadFlags{}, &byFlag{}
	cmd := &cobra.Command{
		Use:   "rm ID | --sequence NUMBER | --svc SERVICE | --code CODE",
		Short: "Discard dead letters for good",
		Long: `Discard the dead letters of one timer, by timer id or by CloudEvent id with --source; one dead
letter by its sequence, as "dead ls -o json" shows it; or all dead letters of a service, or
with a reason, or both. They can then not be replayed. The records of their timers stay
as they are. The log of a node has who discarded them. Try it first with --dry-run.`,
		Example: `  belfry dead rm order-17 --source /shop
  belfry dead rm --svc orders --code http_status --dry-run`,
		Args: f.args,
	}
	f.add(cmd.Flags(), "discard")
	cmd.Flags().Uint64Var(&f.query.Sequence, "sequence", 0, "the dead letter with this sequence, instead of an ID")
	by.add(cmd.Flags())
	check := func(args []string) error { return cmp.Or(by.check(), f.resolve(cmd.Flags(), args)) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		return c.runDead(ctx, s, f, "discarded", func(ctx context.Context, q belfry.DeadQuery) iter.Seq2[belfry.BulkDeadPage, error] {
			return s.BulkDiscard(ctx, q, by.option())
		})
	})
}
