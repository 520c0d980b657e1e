package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/bench"
	"github.com/belfryio/belfry/internal/bench/report"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/gctune"
)

// workloadFlags are the flags of every workload.
type workloadFlags struct {
	config   bench.Config
	profile  string
	on       string
	repeat   int
	jsonFile string
	plotFile string
	htmlFile string
}

func (t *tool) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "belfry-bench",
		Short: "Measure Belfry: adds a second, lateness, bursts, callbacks, pending timers",
		Long: `Measure Belfry. Without --nats-url belfry-bench starts servers and a node in temporary
folders, and removes them afterwards: by default a node with an embedded server in this
process, with --on server a nats-server process, with --on cluster three.

Every run accounts for its timers. It fails if a timer is lost, fires twice or early,
whatever its figures are.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: cmdline.Group,
	}
	root.SetFlagErrorFunc(cmdline.FlagError)
	for _, w := range bench.Workloads() {
		root.AddCommand(t.workloadCommand(w))
	}
	root.AddCommand(t.tableCommand(), t.curvesCommand(), t.childCommand())
	return root
}

func (t *tool) workloadCommand(w bench.Workload) *cobra.Command {
	b := &workloadFlags{}
	var defaults bench.Config
	w.Defaults(&defaults)
	cmd := &cobra.Command{
		Use:   w.Name(),
		Short: w.About(),
		Args:  cmdline.Exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), w, b) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&b.config.NATSURL, "nats-url", "", "measure the Belfry at this server (default: a new node)")
	f.StringVar(&b.config.Creds, "creds", "", "NATS credentials file for nats-url")
	f.StringVar(&b.on, "on", string(bench.OnEmbedded), "what to start: embedded, server (a nats-server process), or cluster (three, and three replicas)")
	f.StringVar(&b.profile, "profile", string(app.ProfileSafe), "of the servers: safe syncs every write, fast every two minutes")
	f.StringVar(&b.config.Dir, "dir", "", "where the servers' folders are made (default: the system's for temporary files)")
	f.BoolVar(&b.config.Keep, "keep", false, "leave the servers' folders behind, and say where they are")
	f.IntVar(&b.config.Shards, "shards", 0, "shards of the store")
	f.IntVar(&b.config.Rate, "rate", 0, "timers due a second, or single adds begun a second"+defaultText(defaults.Rate))
	f.IntVar(&b.config.Seconds, "seconds", 0, "how long"+defaultText(defaults.Seconds))
	f.IntVar(&b.config.Count, "count", 0, "how many timers"+defaultText(defaults.Count))
	f.IntVar(&b.config.Size, "size", bench.DefaultSize, "bytes of data of an event")
	f.IntVar(&b.config.Workers, "workers", 0, fmt.Sprintf("how many add at the same time, each on a connection of its own (default %d; %d with one add at a time)", bench.DefaultWorkers, bench.DefaultSingles))
	f.StringVar(&b.config.Via, "via", bench.ViaPublish, "how to add: publish (timers.add, many under way), batch (timers.add, an atomic batch of 500 at a time and worker), single (timers.add, one at a time and worker), api (timers.api.add, one at a time and worker), or client (the Go client's Add, which asks the API, one call at a time and worker)")
	f.StringVar(&b.config.Callback, "callback", defaults.Callback, "what timers call back, for day and callback: http or nats")
	f.Var(cmdline.Duration(&b.config.Lead), "lead", "how far ahead of its due time a timer is added (default: chosen)")
	f.Var(cmdline.Duration(&b.config.Retention), "retention", "how long the records of concluded timers are kept; they are verified beside the run then (default: the node's)")
	f.BoolVar(&b.config.Ahead, "ahead", false, "steady: add all timers before the first is due, so that only firing them is measured")
	f.IntVar(&b.config.Services, "services", 1, "services that the timers of steady, burst, day and callback are for, in turn")
	f.BoolVar(&b.config.Apart, "apart", false, "start the node in a process of its own, too, so that its CPU, memory and disk are measured alone (without HTTP callbacks)")
	f.IntVar(&b.config.Beside, "beside", 0, "pending: timers due a second while the others wait")
	f.BoolVar(&b.config.LoadFast, "load-fast", false, "pending: add the timers in the fast profile, whatever the profile is that is measured then")
	f.IntVar(&b.config.Warmup, "warmup", bench.DefaultWarmup, "timers let through before anything is measured; -1 for none")
	f.IntVar(&b.config.Raw, "raw", defaults.Raw, "raw JetStream operations of each kind to measure on the same server after the run")
	f.IntVar(&b.repeat, "repeat", 1, "runs, each on a new node; prints median, minimum and maximum")
	f.StringVar(&b.jsonFile, "json", "", "write the results to this file")
	f.StringVar(&b.plotFile, "plot", "", "draw the results into this file: .svg or .png")
	f.StringVar(&b.htmlFile, "html", "", "write a report with plots to this file")
	f.StringVar(&b.config.CPUProfile, "cpuprofile", "", "write a CPU profile of what is measured, of the first run, to this file")
	f.StringVar(&b.config.MemProfile, "memprofile", "", "write a profile of what was allocated until the end of the first run to this file")
	cmdline.AddOutput(cmd, &t.format)
	return cmd
}

func defaultText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (default %d)", n)
}

// run runs a workload, and prints and writes its results, also those of a run that was
// not sound.
func (t *tool) run(ctx context.Context, w bench.Workload, b *workloadFlags) error {
	if b.plotFile != "" {
		if err := report.CheckPlot(b.plotFile); err != nil {
			return err
		}
	}
	b.config.Profile, b.config.On = app.Profile(b.profile), bench.Topology(b.on)
	if err := t.prepare(&b.config); err != nil {
		return err
	}
	defer gctune.Start(ctx)()
	results, err := bench.Run(ctx, w, b.config, b.repeat)
	return errors.Join(err, t.output(b, results))
}

// prepare fills in how progress is shown, and how this program runs a node or a
// nats-server in a process of its own.
func (t *tool) prepare(config *bench.Config) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config.Progress, config.Live = t.err, cmdline.IsTerminal(t.err)
	config.Child = func(spec string) *exec.Cmd { return exec.Command(self, childName, spec) }
	return nil
}

const childName = "child"

// childCommand is the hidden command of the processes that a run starts.
func (t *tool) childCommand() *cobra.Command {
	return &cobra.Command{
		Use: childName + " SPEC", Short: "A node or a nats-server that the other commands started", Hidden: true, Args: cmdline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.RunChild(cmd.Context(), args[0], os.Stdin)
		},
	}
}

func (t *tool) output(b *workloadFlags, results []*bench.Result) error {
	if len(results) == 0 {
		return nil
	}
	if t.json() {
		if err := bench.JSON(t.out, results); err != nil {
			return err
		}
	} else {
		for _, r := range results {
			if err := r.Text(t.out); err != nil {
				return err
			}
		}
		if err := bench.Summary(t.out, results); err != nil {
			return err
		}
	}
	if b.jsonFile != "" {
		if err := writeFile(b.jsonFile, func(w io.Writer) error { return bench.JSON(w, results) }); err != nil {
			return err
		}
	}
	if b.htmlFile != "" {
		if err := writeFile(b.htmlFile, func(w io.Writer) error { return report.HTML(w, results) }); err != nil {
			return err
		}
	}
	if b.plotFile != "" {
		return report.Plot(b.plotFile, results)
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
