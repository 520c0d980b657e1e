package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/schemas"
)

func (c *cli) rejectedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rejected",
		Short: "List rejected adds",
		Long: `JetStream stores an add to timers.add before Belfry checks it, so its publisher
does not learn of a rejection. Belfry keeps rejected adds with their bytes and the
reason. Send a request to timers.api.add to get the result as an answer.`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(c.rejectedLsCommand())
	return cmd
}

func (c *cli) rejectedLsCommand() *cobra.Command {
	var rows int
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List rejected adds, oldest first",
		Long: fmt.Sprintf(`List rejected adds, oldest first, with the reason. With -o json each
has the first %d bytes of its data. All data and headers are in stream
TIMERS_REJECTED under the sequence shown.`, schemas.MaxRejectedData),
		Args: exactly(0),
	}
	cmd.Flags().IntVarP(&rows, "limit", "n", defaultRows, "maximum number of rejected adds; 0 for all")
	check := func([]string) error { return checkRows(rows) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		t := table{c.out, []int{8, c.zone.width(), 16, 20, 20}}
		return printRows(c, s, t, rows, s.Rejections(ctx), []string{"SEQUENCE", "REJECTED", "SOURCE", "ID", "CODE", "REASON"}, func(r schemas.RejectedInfo) []string {
			return []string{fmt.Sprint(r.Sequence), c.zone.show(r.Rejected), cut(r.Source, 40), cut(r.ID, 40), string(r.Code), cut(r.Error, 160)}
		})
	})
}
