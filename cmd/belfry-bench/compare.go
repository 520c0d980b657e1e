package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/bench"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/gctune"
)

const (
	defaultTurns = 3
	// quickScale makes a comparison of one turn that takes about ten minutes.
	quickScale = 0.25
	// quickWarmup is the number of timers that fire before each of its runs.
	quickWarmup = 500
)

// compareCommand is the command that makes the table of docs/benchmarks.md.
func (t *tool) compareCommand() *cobra.Command {
	c := &bench.Comparison{}
	var profile, before, out string
	var quick, index, floor bool
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Measure Belfry and NATS's own message schedules in turns, and print the table of docs/benchmarks.md",
		Long: `Measure Belfry and NATS's own message schedules in turns: the same workloads, the same
measuring code, the same version of the NATS server. Each system runs in a process of its
own, and the clients connect over TCP. The table has the median, minimum and maximum of
the turns, and the CPU that other processes used meanwhile. The command takes about an
hour, with --quick about ten minutes, in which the machine should do nothing else. With
--out the files have every row that is finished, also if the command is interrupted.`,
		Args: cmdline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Profiles, c.NoSearchIndex = profiles(profile), !index
			c.Contenders = []bench.Contender{{System: bench.Belfry}, {System: bench.NATSSchedules}}
			if before != "" {
				path, err := filepath.Abs(before)
				if err != nil {
					return err
				}
				c.Contenders = append(c.Contenders, bench.Contender{
					Name: "Belfry before", System: bench.Belfry,
					Child: func(spec string) *exec.Cmd { return exec.Command(path, childName, spec) },
				})
			}
			if floor {
				c.Contenders = append(c.Contenders, bench.Contender{System: bench.Floor})
			}
			if quick {
				for name, set := range map[string]func(){
					"repeat": func() { c.Repeat = 1 }, "scale": func() { c.Scale = quickScale }, "warmup": func() { c.Warmup = quickWarmup },
				} {
					if !cmd.Flags().Changed(name) {
						set()
					}
				}
			}
			if err := t.prepareFolder(&c.Config, out); err != nil {
				return err
			}
			if out != "" {
				c.Each = func(r *bench.ComparisonResult) error { return writeFiles(filepath.Join(out, "compare"), r) }
			}
			defer gctune.Start(cmd.Context())()
			r, err := c.Run(cmd.Context())
			if r == nil {
				return err
			}
			write := r.Markdown
			if t.json() {
				write = r.JSON
			}
			return errors.Join(err, write(t.out))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&quick, "quick", false, "one turn of a quarter of the counts and durations")
	f.StringVar(&profile, "profile", "both", "safe, fast or both")
	f.IntVar(&c.Repeat, "repeat", defaultTurns, "number of turns (with --quick 1)")
	f.Float64Var(&c.Scale, "scale", 1, "factor up to 1 for counts and durations (with --quick 0.25)")
	f.StringSliceVar(&c.Only, "only", nil, "rows to run: "+strings.Join(bench.CompareRowNames(), ", "))
	f.StringVar(&before, "before", "", "the belfry-bench of another commit, whose node takes part as a third system")
	f.BoolVar(&floor, "floor", false, `also measure the floor (only the JetStream operations), which takes half as long again; see "belfry-bench floor"`)
	f.BoolVar(&index, "search-index", true, "run the search index in the node, as belfry serve does")
	f.StringVar(&c.Dir, "dir", "", "folder for the servers' data (default: the system's folder for temporary files)")
	f.IntVar(&c.Size, "size", bench.DefaultSize, "bytes of data of an event")
	f.IntVar(&c.Warmup, "warmup", bench.DefaultWarmup, "timers that fire before each run (with --quick 500); -1 for none")
	f.StringVar(&out, "out", "", "folder for compare.json and compare.md, which are written after each row")
	cmdline.AddOutput(cmd, &t.format)
	return cmd
}

// writeFiles writes a result as path.json and path.md.
func writeFiles(path string, r manyRuns) error {
	return errors.Join(writeFile(path+".json", r.JSON), writeFile(path+".md", r.Markdown))
}

// peerCommand is the group of the workloads that measure NATS's message schedules.
func (t *tool) peerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer",
		Short: "Measure NATS's own message schedules by the same workloads",
		Long: `Measure NATS's own message schedules (streams with allow_msg_schedules) by the workloads
that measure Belfry: a nats-server of the same version in a process of its own, with the
same sync settings, clients over TCP, and the same measuring code. A run fails if a timer
is lost, fires twice or early. A cancel is a purge of the timer's subject.

"belfry-bench compare" measures both in turns.`,
		Args: cobra.ArbitraryArgs,
		RunE: cmdline.Group,
	}
	for _, w := range bench.WorkloadsOf(bench.NATSSchedules) {
		cmd.AddCommand(t.workloadCommand(w, bench.NATSSchedules))
	}
	return cmd
}

// floorCommand is the group of the workloads that measure the floor.
func (t *tool) floorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "floor",
		Short: "Measure a reference program with the JetStream operations of Belfry's data model",
		Long: `Measure the floor: a reference program that does the JetStream operations of Belfry's data
model and nothing else. Add: the event is stored in a stream and delivered; an index entry
and a key are stored, the key by compare-and-set. Fire: the key is replaced (claimed), the
event is published, the key is replaced again (concluded). Cancel: a request, a
compare-and-set, a reply. The floor validates nothing, has no search index or leases,
retries nothing, and keeps pending timers only in memory. The distance to Belfry's figures
is the cost of what the floor leaves out. The floor is no lower bound.

"belfry-bench compare --floor" measures it in turns with Belfry and NATS's own schedules.`,
		Args: cobra.ArbitraryArgs,
		RunE: cmdline.Group,
	}
	for _, w := range bench.WorkloadsOf(bench.Floor) {
		cmd.AddCommand(t.workloadCommand(w, bench.Floor))
	}
	return cmd
}
