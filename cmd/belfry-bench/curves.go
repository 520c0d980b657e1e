package main

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/bench"
	"github.com/belfryio/belfry/internal/bench/report"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/gctune"
)

// curvesCommand is the command that measures how cost grows.
func (t *tool) curvesCommand() *cobra.Command {
	g := &bench.Growth{}
	var profile, out string
	cmd := &cobra.Command{
		Use:   "curves",
		Short: "Measure how cost grows with pending timers, shards, services, payload and replicas",
		Long: `Measure the cost and the lateness of a timer at several numbers of pending timers,
shards, services and replicas, and several sizes of events. The node runs in a
separate process. The result shows the power with which each cost grows, and names
the costs that grow faster than allowed. The command takes about a quarter of an
hour, in which the machine should do nothing else.`,
		Args: cmdline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			g.Profiles = profiles(profile)
			if err := t.prepareFolder(&g.Config, out); err != nil {
				return err
			}
			defer gctune.Start(cmd.Context())()
			r, err := g.Run(cmd.Context())
			if r == nil {
				return err
			}
			if out != "" {
				err = errors.Join(err, report.CurvePlots(out, r))
			}
			return errors.Join(err, t.report("curves", out, r, func(w io.Writer) error { return report.Curves(w, r) }))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&profile, "profile", "both", "safe, fast or both")
	f.StringVar(&g.Dir, "dir", "", "folder for the servers' data (default: the system's folder for temporary files)")
	f.IntVar(&g.Size, "size", bench.DefaultSize, "bytes of data of an event, except in the curve payload")
	f.IntVar(&g.Seconds, "seconds", bench.DefaultGrowthSeconds, "duration of each measurement in seconds")
	f.IntVar(&g.Warmup, "warmup", bench.DefaultGrowthWarmup, "timers that fire before each measurement; -1 for none")
	f.IntVar(&g.MaxPending, "max-pending", bench.DefaultMaxPending, "greatest number of pending timers, up to 10,000,000; they are added in the fast profile")
	f.Float64Var(&g.Scale, "scale", 1, "factor up to 1 for counts, rates and durations, for a quick test of the tool")
	f.StringSliceVar(&g.Only, "only", nil, "curves to measure: "+strings.Join(bench.CurveNames(), ", "))
	f.StringVar(&out, "out", "", "folder for curves.json, curves.md, curves.html and a picture of each curve")
	cmdline.AddOutput(cmd, &t.format)
	return cmd
}
