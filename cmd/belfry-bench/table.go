package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/bench"
	"github.com/belfryio/belfry/internal/bench/report"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/gctune"
)

// tableCommand is the command that measures every figure that Belfry must reach.
func (t *tool) tableCommand() *cobra.Command {
	table := &bench.Table{}
	var profile, on, out string
	var index bool
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Measure every figure that Belfry must reach on two cores, in both profiles",
		Long: `Measure every figure that Belfry must reach on two cores, in both profiles, and
compare it with the required value. The command takes about a quarter of an hour, in
which the machine should do nothing else.`,
		Args: cmdline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			table.On, table.NoSearchIndex = bench.Topology(on), !index
			table.Profiles = profiles(profile)
			if err := t.prepareFolder(&table.Config, out); err != nil {
				return err
			}
			defer gctune.Start(cmd.Context())()
			r, err := table.Run(cmd.Context())
			if r == nil {
				return err
			}
			return errors.Join(err, t.report("table", out, r, func(w io.Writer) error { return report.Table(w, r) }))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&profile, "profile", "both", "safe, fast or both")
	f.StringVar(&on, "on", string(bench.OnEmbedded), "servers to start: embedded, server, or cluster")
	f.BoolVar(&table.InProcess, "in-process", false, "run the node in this process, and connect the clients to its server without TCP; the figures are better than those of a deployment")
	f.BoolVar(&index, "search-index", true, "run the search index in the node, as belfry serve does")
	f.StringVar(&table.Dir, "dir", "", "folder for the servers' data (default: the system's folder for temporary files)")
	f.IntVar(&table.Size, "size", bench.DefaultSize, "bytes of data of an event")
	f.IntVar(&table.Warmup, "warmup", bench.DefaultWarmup, "timers that fire before each measurement; -1 for none")
	f.IntVar(&table.Raw, "raw", 20_000, "raw JetStream operations of each kind to measure after each run; 0 for none")
	f.IntVar(&table.Repeat, "repeat", 1, "number of runs of each row; the median is compared with the required value")
	f.Float64Var(&table.Scale, "scale", 1, "factor up to 1 for counts, rates and durations, for a quick test of the tool")
	f.StringSliceVar(&table.Only, "only", nil, "rows to run: "+strings.Join(bench.RowNames(), ", "))
	f.StringVar(&out, "out", "", "folder for table.json, table.md and table.html")
	cmdline.AddOutput(cmd, &t.format)
	return cmd
}

// profiles returns the profiles for a value of the flag --profile: safe, fast or both.
func profiles(flag string) []app.Profile {
	if flag == "both" {
		return []app.Profile{app.ProfileSafe, app.ProfileFast}
	}
	return []app.Profile{app.Profile(flag)}
}

// prepareFolder calls prepare and creates the folder for the results, so that an error of the
// folder comes before the long measurement.
func (t *tool) prepareFolder(config *bench.Config, out string) error {
	if err := t.prepare(config); err != nil || out == "" {
		return err
	}
	return os.MkdirAll(out, 0o755)
}

// manyRuns is a result of many runs.
type manyRuns interface {
	JSON(io.Writer) error
	Markdown(io.Writer) error
}

// report prints a result and, with a folder, writes its files there. html writes its
// page.
func (t *tool) report(name, out string, r manyRuns, html func(io.Writer) error) error {
	var err error
	if out != "" {
		for ending, write := range map[string]func(io.Writer) error{".json": r.JSON, ".md": r.Markdown, ".html": html} {
			err = errors.Join(err, writeFile(filepath.Join(out, name+ending), write))
		}
	}
	if t.json() {
		return errors.Join(err, r.JSON(t.out))
	}
	return errors.Join(err, r.Markdown(t.out))
}
