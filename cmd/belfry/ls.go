package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// defaultRows is the default number of rows in a list.
const defaultRows = 100

func (c *cli) lsCommand() *cobra.Command {
	var q belfry.ListQuery
	var search searchFlags
	var states []string
	var rows int
	var schedule bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List timers",
		Long:    "List timers, selected by state, service and group. The order is that of the store: shard by shard, by the last change. The flags of a search ask the search index of a node with role visibility instead, which also has timers whose records have expired; their order is that of due or done.",
		Example: `  belfry ls --state pending --svc orders
  belfry ls --search order-17
  belfry ls -n 0 -o json | jq -r .timer`,
		Args: exactly(0),
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&states, "state", nil, "only timers in these states: pending, delivered, retrying, success, fail, cancelled, paused, completed")
	fs.StringVar(&q.Service, "svc", "", "only this service")
	fs.StringVar(&q.Group, "group", "", "only this group")
	fs.BoolVar(&schedule, "schedule", false, "only schedules; --schedule=false: no schedules (default: both)")
	fs.IntVarP(&rows, "limit", "n", defaultRows, "maximum number of timers; 0 for all")
	search.add(fs)
	check := func([]string) error {
		for _, word := range states {
			state, err := schemas.ParseState(strings.TrimSpace(word))
			if err != nil {
				return usagef("--state: %v", err)
			}
			q.States = append(q.States, state)
		}
		if fs.Changed("schedule") {
			q.OnlySchedules, q.NoSchedules = schedule, !schedule
		}
		if err := search.check(&q); err != nil {
			return err
		}
		return checkRows(rows)
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		switch {
		case search.counts:
			return c.countTimers(ctx, s, q.Service)
		case search.asks():
			return c.searchTimers(ctx, s, search.q, rows)
		}
		return c.listTimers(ctx, s, q, rows)
	})
}

func checkRows(rows int) error {
	if rows < 0 {
		return usagef("--limit must not be negative")
	}
	return nil
}

func (c *cli) listTimers(ctx context.Context, s session, q belfry.ListQuery, rows int) error {
	return printRows(c, s, c.timerTable(), rows, s.List(ctx, q), timerColumns, c.timerRow)
}

// timerColumns is the header of a table of timers.
var timerColumns = []string{"TIMER", "STATE", "DUE", "SERVICE", "ATTEMPTS", "ID"}

// timerTable returns a table with timerColumns.
func (c *cli) timerTable() table {
	return table{c.out, []int{schemas.TimerIDLength, 9, c.zone.width(), 12, 8}}
}

// timerRow returns the cells of a timer for timerColumns.
func (c *cli) timerRow(timer belfry.Timer) []string {
	due, id := timer.Due, timer.ID
	if timer.Schedule != nil {
		due = timer.Schedule.Next // the next nominal time
	}
	if timer.Schedule != nil && timer.Schedule.Problem != "" {
		id += " (" + cut(timer.Schedule.Problem, 120) + ")"
	}
	if timer.PauseNote != "" {
		id += " (paused: " + cut(timer.PauseNote, 60) + ")"
	}
	return []string{timer.Timer.String(), timer.State.String(), c.zone.show(due), schemas.TenantService(timer.Tenant, timer.Service), fmt.Sprint(timer.Attempts), id}
}

// more prints a note that the list has further rows.
func (c *cli) more(rows int) error {
	_, err := fmt.Fprintf(c.err, "only the first %d are shown; -n 0 shows all\n", rows)
	return err
}
