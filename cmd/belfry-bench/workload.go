package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	index    bool
	repeat   int
	jsonFile string
	plotFile string
	htmlFile string
}

func (t *tool) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "belfry-bench",
		Short: "Measure Belfry: adds per second, lateness, bursts, callbacks, pending timers",
		Long: `Measure Belfry. Without --nats-url belfry-bench starts servers and a node in temporary
folders, and removes them afterwards: by default a node with an embedded server, with
--on server a nats-server process and a node, with --on cluster three servers and a node.

Belfry is measured from outside: the node runs in a process of its own, and the clients
connect over TCP. --in-process runs server, node and clients in one process instead, which
makes the figures better than those of a deployment; the results say so.

"belfry-bench peer" measures NATS's own message schedules by the same workloads,
"belfry-bench floor" measures only the JetStream operations of the data model, and
"belfry-bench compare" measures several systems in turns.

Every run accounts for its timers. It fails if a timer is lost, fires twice or early.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: cmdline.Group,
	}
	root.SetFlagErrorFunc(cmdline.FlagError)
	for _, w := range bench.Workloads() {
		root.AddCommand(t.workloadCommand(w, bench.Belfry))
	}
	root.AddCommand(t.peerCommand(), t.floorCommand(), t.compareCommand(), t.tableCommand(), t.curvesCommand(), t.childCommand())
	return root
}

// workloadCommand is the command that measures a system with one workload. Some flags are for
// Belfry only.
func (t *tool) workloadCommand(w bench.Workload, system bench.System) *cobra.Command {
	b := &workloadFlags{}
	b.config.System = system
	defaults := bench.Config{System: system}
	w.Defaults(&defaults)
	cmd := &cobra.Command{
		Use:   w.Name(),
		Short: w.About(),
		Args:  cmdline.Exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), w, b) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	via := cmp.Or(defaults.Via, bench.ViaPublish)
	if system == bench.Belfry {
		b.belfryFlags(f, defaults)
		f.StringVar(&b.on, "on", string(bench.OnEmbedded), "servers to start: embedded, server (one nats-server process), or cluster (three processes, three replicas)")
		f.StringVar(&b.config.Via, "via", via, "how each worker adds timers: publish (timers.add, many publishes without waiting), batch (timers.add, atomic batches of 500), single (timers.add, one publish at a time), api (timers.api.add, one request at a time), client (the Go client's Add, one call at a time), clientasync (its AddAsync, without waiting), clientbatch (its AddBatch, 500 a call), http (POST /v1/timers, one request at a time), or httpbatch (POST /v1/events, batches of 500)")
	} else {
		if system == bench.NATSSchedules {
			f.StringVar(&b.on, "on", string(bench.OnServer), "servers to start: server (one nats-server process), or cluster (three processes, three replicas)")
		}
		f.StringVar(&b.config.Via, "via", via, "how each worker adds timers: publish (many publishes without waiting), batch (atomic batches of 500), or single (one publish at a time)")
	}
	f.StringVar(&b.profile, "profile", string(app.ProfileSafe), "profile of the servers: safe syncs every write, fast every two minutes")
	f.StringVar(&b.config.Dir, "dir", "", "folder for the servers' data (default: the system's folder for temporary files)")
	f.BoolVar(&b.config.Keep, "keep", false, "keep the data folders after the run and print their paths")
	f.IntVar(&b.config.Rate, "rate", 0, "timers due per second; with one add at a time, adds started per second"+defaultText(defaults.Rate))
	f.IntVar(&b.config.Seconds, "seconds", 0, "duration of the measurement in seconds"+defaultText(defaults.Seconds))
	f.IntVar(&b.config.Count, "count", 0, "number of timers"+defaultText(defaults.Count))
	f.IntVar(&b.config.Size, "size", bench.DefaultSize, "bytes of data of an event")
	f.IntVar(&b.config.Workers, "workers", 0, fmt.Sprintf("number of concurrent workers that add timers, each with its own connection (default %d; %d with one add at a time)", bench.DefaultWorkers, bench.DefaultSingles))
	f.IntVar(&b.config.Callers, "callers", 0, "cancel: number of concurrent callers, each with its own connection"+defaultText(defaults.Callers))
	f.Var(cmdline.Duration(&b.config.Lead), "lead", "time from the add of a timer to its due time (default: depends on the workload)")
	f.BoolVar(&b.config.Ahead, "ahead", false, "steady: add all timers before the first is due, to measure only firing")
	f.IntVar(&b.config.Services, "services", 1, "number of services over which the timers of steady, burst, day and callback are spread")
	f.IntVar(&b.config.Beside, "beside", 0, "pending: timers due per second while the others wait")
	f.BoolVar(&b.config.LoadFast, "load-fast", false, "pending: add the timers in the fast profile, then measure in the profile of --profile")
	f.Var(cmdline.Duration(&b.config.Settle), "settle", "pending: time after the adds at which their memory is measured (default 1m)")
	f.IntVar(&b.config.Warmup, "warmup", bench.DefaultWarmup, "timers that fire before the measurement; -1 for none")
	f.IntVar(&b.repeat, "repeat", 1, "number of runs, each with new processes; prints median, minimum and maximum")
	f.StringVar(&b.jsonFile, "json", "", "write the results to this file")
	f.StringVar(&b.plotFile, "plot", "", "draw the results into this file: .svg or .png")
	f.StringVar(&b.htmlFile, "html", "", "write a report with plots to this file")
	cmdline.AddOutput(cmd, &t.format)
	return cmd
}

// belfryFlags adds the flags that a peer does not have.
func (b *workloadFlags) belfryFlags(f *pflag.FlagSet, defaults bench.Config) {
	f.StringVar(&b.config.NATSURL, "nats-url", "", "measure the Belfry at this server (default: a new node)")
	f.StringVar(&b.config.Creds, "creds", "", "NATS credentials file for nats-url")
	f.BoolVar(&b.config.InProcess, "in-process", false, "run the node in this process, and connect the clients to its server without TCP; the figures are better than those of a deployment")
	f.BoolVar(&b.index, "search-index", true, "run the search index (role visibility) in the node, as belfry serve does")
	f.IntVar(&b.config.Shards, "shards", 0, "shards of the store")
	f.StringVar(&b.config.Callback, "callback", defaults.Callback, "kind of callback of the timers of day and callback: http or nats")
	f.Var(cmdline.Duration(&b.config.Retention), "retention", "how long the node keeps records of finished timers; if set, the run verifies the records before they expire (default: the node's)")
	f.Var(cmdline.Duration(&b.config.Every), "every", "schedules: period of the schedules, 1s or more (default 1s)")
	f.IntVar(&b.config.Daily, "daily", 0, "schedules: instead measure the cost of this many schedules that wait, each due once a day")
	f.IntVar(&b.config.Instant, "instant", 0, "schedules: instead measure this many schedules that are due at one instant, then as many one-shot timers")
	f.IntVar(&b.config.Keys, "keys", 0, "flow: instead measure the cost of this many flow keys without work, and of the polls of limits and calendars")
	f.IntVar(&b.config.Raw, "raw", defaults.Raw, "raw JetStream operations of each kind to measure on the same server after the run")
	f.StringVar(&b.config.CPUProfile, "cpuprofile", "", "with --in-process: write a CPU profile of the first run's measurement to this file")
	f.StringVar(&b.config.MemProfile, "memprofile", "", "with --in-process: write a profile of the allocations up to the end of the first run to this file")
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
	b.config.NoSearchIndex = b.config.System == bench.Belfry && !b.index
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
		Use: childName + " SPEC", Short: "A node, a nats-server or the floor, started by another command", Hidden: true, Args: cmdline.Exactly(1),
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
