package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/bench"
	"github.com/belfryio/belfry/internal/gctune"
)

// fullBench is the command for the complete tool, a separate program because of its plot
// library.
const fullBench = "go run ./cmd/belfry-bench, in a clone of the repository"

func (c *cli) benchCommand() *cobra.Command {
	var config bench.Config
	var profile string
	var quick bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine quickly: adds per second, lateness, a burst",
		Long: `Measure Belfry on this machine in less than a minute: adds per second, lateness
at 1,000 timers per second, and a burst of 10,000 timers. Each runs on a new node with an
embedded server in a temporary folder, which is removed afterwards.

Every run accounts for its timers. It fails if a timer is lost, fires twice or early.

The full tool is belfry-bench: more workloads, callbacks, clusters, growth, plots. Get
it with: ` + fullBench + `.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("belfry bench takes no argument, got %q; to choose a workload, use the full tool belfry-bench (%s)", args[0], fullBench)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !quick {
				return usagef("belfry bench has only the quick measurement; for others use the full tool belfry-bench (%s)", fullBench)
			}
			config.Profile = app.Profile(profile)
			return c.bench(cmd.Context(), config)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&quick, "quick", true, "the short measurement; this program has no other")
	f.StringVar(&profile, "profile", string(app.ProfileSafe), "profile of the server: safe syncs every write, fast every two minutes")
	f.StringVar(&config.Dir, "dir", "", "folder for the servers' data, on the disk to measure (default: the system's folder for temporary files)")
	return c.printing(cmd)
}

// bench prints the measurements, also if a run failed.
func (c *cli) bench(ctx context.Context, config bench.Config) error {
	config.Progress, config.Live = c.err, isTerminal(c.err)
	defer gctune.Start(ctx)()
	results, err := bench.Quick(ctx, config)
	if len(results) == 0 {
		return err
	}
	if c.json() {
		return errors.Join(err, bench.JSON(c.out, results))
	}
	if err = errors.Join(err, bench.QuickText(c.out, results)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "more: %s\n", fullBench)
	return err
}
