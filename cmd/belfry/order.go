package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/schemas"
)

func (c *cli) orderCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "order",
		Short: "List the ordering keys that have events",
		Long: `The callbacks of one ordering key (add --key) and one service are called one at a time, in
due order: while one fails and is tried again, those behind it wait.`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(c.orderListCommand())
	return cmd
}

func (c *cli) orderListCommand() *cobra.Command {
	var rows int
	var service string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the ordering keys that have events, and the timer whose turn it is",
		Long: `List the ordering keys that have events, the longest unchanged first: the timer whose turn it
is, since when, its state, and how many timers wait behind it. STATE is calling, retrying
until its next attempt, waiting for its call, or ended. "belfry why" of the timer says more.
An idle key is not listed. A key that changes meanwhile may be missing.`,
		Example: `  belfry order ls
  belfry order ls --svc invoices -n 0 -o json`,
		Args: exactly(0),
	}
	cmd.Flags().StringVar(&service, "svc", "", "only this service")
	cmd.Flags().IntVarP(&rows, "limit", "n", defaultRows, "maximum number of keys; 0 for all")
	check := func([]string) error { return checkRows(rows) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		t := table{c.out, []int{20, 12, schemas.TimerIDLength, 39, c.zone.width(), 7, 8}}
		return printRows(c, s, t, rows, s.OrderedKeys(ctx, service), []string{"KEY", "SERVICE", "HEAD", "STATE", "SINCE", "WAITING", "ATTEMPTS", "ERROR"}, c.orderRow)
	})
}

// orderRow describes an ordering key.
func (c *cli) orderRow(k schemas.OrderKeyInfo) []string {
	waiting := strconv.Itoa(k.Waiting)
	if k.More {
		waiting += "+"
	}
	row := []string{k.Key, schemas.TenantService(k.Tenant, k.Service), "", "", "", waiting, "", ""}
	if h := k.Head; h != nil {
		row[2], row[3], row[4], row[6], row[7] = h.Timer.String(), h.State, c.zone.show(h.Since), strconv.Itoa(int(h.Attempts)), cut(h.Error, 120)
		if !h.Until.IsZero() {
			row[3] += " until " + c.zone.show(h.Until)
		}
	}
	return row
}
