package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) backfillCommand() *cobra.Command {
	ref, by, allow := &timerRef{}, &byFlag{}, &allowFlag{}
	var from, to string
	var p belfry.BackfillPeriod
	cmd := &cobra.Command{
		Use:   "backfill ID --from TIME --to TIME",
		Short: "Run the nominal times of a past period",
		Long: `Run the nominal times of a past period, oldest first: those from --from to --to, both
inclusive, at most 10,000. A nominal time that has fired does not fire again without
--again. A schedule has one backfill at a time. --dry-run only prints the nominal times.
ID is a timer id, or a CloudEvent's id with --source.`,
		Example: `  belfry backfill nightly --source /reports --from 2027-03-01T00:00:00Z --to 2027-03-07T00:00:00Z --dry-run
  belfry backfill nightly --source /reports --from 2027-03-01T00:00:00Z --to 2027-03-07T00:00:00Z --rate 5m`,
		Args: exactly(1),
	}
	fs := cmd.Flags()
	ref.add(fs)
	by.add(fs)
	allow.add(fs)
	fs.StringVar(&from, "from", "", "first nominal time, RFC 3339")
	fs.StringVar(&to, "to", "", "last nominal time, RFC 3339")
	fs.Var(cmdline.Duration(&p.Every), "rate", "least time between two runs")
	fs.BoolVar(&p.Again, "again", false, "fire nominal times even if they have fired")
	fs.BoolVar(&p.DryRun, "dry-run", false, "change nothing and print the nominal times")
	check := func(args []string) error {
		if from == "" || to == "" {
			return usagef("--from and --to are required")
		}
		for _, x := range []struct {
			name, text string
			at         *time.Time
		}{{"--from", from, &p.From}, {"--to", to, &p.To}} {
			ms, err := timeFlag(x.name, x.text, 0)
			if err != nil {
				return err
			}
			*x.at = schemas.TimeOf(ms)
		}
		if p.Every < 0 {
			return usagef("--rate must not be negative")
		}
		return cmp.Or(by.check(), ref.resolve(args))
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		b, err := s.Backfill(ctx, ref.id, p, allow.options(by)...)
		if err != nil {
			return ref.explain(err)
		}
		if c.json() {
			return c.printJSON(b)
		}
		if err := c.printText("runs", fmt.Sprint(b.Count)); err != nil || !p.DryRun {
			return err
		}
		for _, at := range b.Times {
			if _, err := fmt.Fprintln(c.out, c.zone.show(at)); err != nil {
				return err
			}
		}
		if n := b.Count - len(b.Times); n > 0 {
			_, err = fmt.Fprintf(c.err, "%d more do not fit one answer\n", n)
		}
		return err
	})
}
