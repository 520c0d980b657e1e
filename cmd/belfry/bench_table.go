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
	"github.com/belfryio/belfry/internal/gctune"
)

// benchTable is the command that measures all that Belfry must reach.
func (c *cli) benchTable() *cobra.Command {
	t := &bench.Table{}
	var profile, on, out string
	cmd := &cobra.Command{
		Use:   "table",
		Short: "All of it: every figure that Belfry must reach on two cores, in both profiles",
		Long: `Measure every figure that Belfry must reach on two cores, in both profiles, and hold
it against what is wanted. It takes about a quarter of an hour, and the machine
should do nothing else.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			t.On = bench.Topology(on)
			t.Profiles = benchProfiles(profile)
			if err := c.benchPrepare(&t.Config, out); err != nil {
				return err
			}
			defer gctune.Start(cmd.Context())()
			r, err := t.Run(cmd.Context())
			if r == nil {
				return err
			}
			return errors.Join(err, c.benchReport("table", out, r))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&profile, "profile", "both", "safe, fast or both")
	f.StringVar(&on, "on", string(bench.OnEmbedded), "what to start: embedded, server, or cluster")
	f.StringVar(&t.Dir, "dir", "", "where the servers' folders are made (default: the system's for temporary files)")
	f.IntVar(&t.Size, "size", bench.DefaultSize, "bytes of data of an event")
	f.IntVar(&t.Warmup, "warmup", bench.DefaultWarmup, "timers let through before each run; -1 for none")
	f.IntVar(&t.Raw, "raw", 20_000, "raw JetStream operations of each kind to measure after each run; 0 for none")
	f.IntVar(&t.Repeat, "repeat", 1, "runs of each row; the median is held against what is wanted")
	f.Float64Var(&t.Scale, "scale", 1, "make counts, rates and durations smaller by this, to try it out")
	f.StringSliceVar(&t.Only, "only", nil, "rows to run: "+strings.Join(bench.RowNames(), ", "))
	f.StringVar(&out, "out", "", "folder for table.json, table.md and table.html")
	return c.printing(cmd)
}

// benchProfiles are those that the flag --profile of a command that measures much
// names.
func benchProfiles(flag string) []app.Profile {
	if flag == "both" {
		return []app.Profile{app.ProfileSafe, app.ProfileFast}
	}
	return []app.Profile{app.Profile(flag)}
}

// benchPrepare fills in the config, and makes the folder for the results before a
// quarter of an hour is spent.
func (c *cli) benchPrepare(config *bench.Config, out string) error {
	if err := c.benchChildren(config); err != nil || out == "" {
		return err
	}
	return os.MkdirAll(out, 0o755)
}

// report is a result of many runs.
type report interface {
	JSON(io.Writer) error
	Markdown(io.Writer) error
	HTML(io.Writer) error
}

// benchReport prints a report and, with a folder, writes its files there.
func (c *cli) benchReport(name, out string, r report) error {
	var err error
	if out != "" {
		for ending, write := range map[string]func(io.Writer) error{".json": r.JSON, ".md": r.Markdown, ".html": r.HTML} {
			err = errors.Join(err, writeFile(filepath.Join(out, name+ending), write))
		}
	}
	if c.json() {
		return errors.Join(err, r.JSON(c.out))
	}
	return errors.Join(err, r.Markdown(c.out))
}
