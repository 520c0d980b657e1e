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
		Short: "List refused adds",
		Long: `An add that is published to timers.add is stored before it is checked. One that
is refused then is kept with its bytes and the reason, and nobody is told: request
timers.api.add instead to get the verdict as an answer.`,
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
		Short:   "List refused adds, oldest first",
		Long: fmt.Sprintf(`List the adds that were refused, oldest first, with the reason. With -o json each
has the first %d bytes of its data; all of it, and its headers, are in stream
TIMERS_REJECTED under the sequence that is shown.`, schemas.MaxRejectedData),
		Args: exactly(0),
	}
	cmd.Flags().IntVarP(&rows, "limit", "n", defaultRows, "at most so many; 0 for all")
	check := func([]string) error { return checkRows(rows) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		t := table{c.out, []int{8, 24, 16, 20, 20}}
		return printRows(c, s, t, rows, s.Rejections(ctx), []string{"SEQUENCE", "REJECTED", "SOURCE", "ID", "CODE", "REASON"}, func(r schemas.RejectedInfo) []string {
			return []string{fmt.Sprint(r.Sequence), r.Rejected, cut(r.Source, 40), cut(r.ID, 40), string(r.Code), cut(r.Error, 160)}
		})
	})
}
