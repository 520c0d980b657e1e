package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/bench"
)

// benchFlags are those of every workload.
type benchFlags struct {
	config   bench.Config
	profile  string
	repeat   int
	jsonFile string
	plotFile string
}

func (c *cli) benchCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "bench",
		Short: "Measure: adds a second, lateness, bursts, what pending timers cost",
		Long: `Measure Belfry. Without --nats-url it starts a node with an embedded server of its
own in this process, in a temporary folder, and removes it afterwards.

Every run accounts for its timers: one that lost a timer, fired one twice or early
fails, whatever its figures are.`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	for _, w := range bench.Workloads() {
		root.AddCommand(c.benchWorkload(w))
	}
	return root
}

func (c *cli) benchWorkload(w bench.Workload) *cobra.Command {
	b := &benchFlags{}
	var defaults bench.Config
	w.Defaults(&defaults)
	cmd := &cobra.Command{
		Use:   w.Name(),
		Short: w.About(),
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return c.bench(cmd.Context(), w, b) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&b.config.NATSURL, "nats-url", "", "measure the Belfry at this server (default: an embedded one)")
	f.StringVar(&b.config.Creds, "creds", "", "NATS credentials file for nats-url")
	f.StringVar(&b.profile, "profile", string(app.ProfileSafe), "of the embedded server: safe syncs every write, fast every two minutes")
	f.StringVar(&b.config.Dir, "dir", "", "where the embedded server's folder is made (default: the system's for temporary files)")
	f.IntVar(&b.config.Shards, "shards", 0, "shards of the embedded server")
	f.IntVar(&b.config.Rate, "rate", 0, "timers due a second"+defaultText(defaults.Rate))
	f.IntVar(&b.config.Seconds, "seconds", 0, "how long"+defaultText(defaults.Seconds))
	f.IntVar(&b.config.Count, "count", 0, "how many timers"+defaultText(defaults.Count))
	f.IntVar(&b.config.Size, "size", bench.DefaultSize, "bytes of data of an event")
	f.IntVar(&b.config.Workers, "workers", bench.DefaultWorkers, "how many add at the same time, each on a connection of its own")
	f.StringVar(&b.config.Via, "via", bench.ViaPublish, "how to add: publish (timers.add), or api (timers.api.add, one at a time and worker)")
	f.Var(durationValue{&b.config.Lead}, "lead", "how far ahead of its due time a timer is added (default: chosen)")
	f.IntVar(&b.repeat, "repeat", 1, "runs, each afresh; the median is told")
	f.StringVar(&b.jsonFile, "json", "", "write the results to this file")
	f.StringVar(&b.plotFile, "plot", "", "draw the results into this file: .svg or .png")
	return c.printing(cmd)
}

func defaultText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (default %d)", n)
}

// bench runs a workload and prints and writes what it measured, also that of a
// run which was not sound.
func (c *cli) bench(ctx context.Context, w bench.Workload, b *benchFlags) error {
	if b.plotFile != "" {
		if err := bench.CheckPlot(b.plotFile); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.config.Profile = app.Profile(b.profile)
	b.config.Progress, b.config.Live = c.err, isTerminal(c.err)
	b.config.Serve = func(data, nats, http string) *exec.Cmd {
		cmd := exec.Command(self, "serve", "--data", data, "--nats-listen", nats, "--http", http, "--profile", b.profile)
		// Settings that the environment has for a node are not the measured one's.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envPrefix) })
		return cmd
	}
	results, err := bench.Run(ctx, w, b.config, b.repeat)
	return errors.Join(err, c.benchOutput(b, results))
}

func (c *cli) benchOutput(b *benchFlags, results []*bench.Result) error {
	if len(results) == 0 {
		return nil
	}
	if c.json() {
		if err := bench.JSON(c.out, results); err != nil {
			return err
		}
	} else {
		for _, r := range results {
			if err := r.Text(c.out); err != nil {
				return err
			}
		}
		if err := bench.Summary(c.out, results); err != nil {
			return err
		}
	}
	if b.jsonFile != "" {
		f, err := os.Create(b.jsonFile)
		if err != nil {
			return err
		}
		if err := errors.Join(bench.JSON(f, results), f.Close()); err != nil {
			return err
		}
	}
	if b.plotFile != "" {
		return bench.Plot(b.plotFile, results)
	}
	return nil
}
