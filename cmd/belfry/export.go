package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// exportPage is the number of timers that export asks for at a time.
const exportPage = 500

func (c *cli) exportCommand() *cobra.Command {
	x := &exporter{c: c, seen: map[schemas.TimerID]struct{}{}}
	x.query.Limit = exportPage
	var states []string
	var schedule bool
	var file string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the events of timers, one JSON line each, for import",
		Long: `Write the events of pending and paused timers and schedules, one a line, as JSON in
structured mode. Each line can be published again, also without this program. "belfry
import" does that, and pauses what was paused.

A one-shot timer has its due time as timerat. A schedule without timerstart whose period
counts from its add gets that time as timerstart; timerlimit is the number of runs that are
left. What an event cannot say is counted on stderr: attempts, the numbers of runs, history.

Timers may be added, changed and cancelled meanwhile: each timer that is selected all the
time is exported once. The lines have the data and the callbacks with their credentials:
keep the file like a password.`,
		Example: `  belfry export --file timers.ndjson
  belfry export --group ops --schedule > ops.ndjson
  belfry export --tenant acme | belfry import --context acme-of-the-other-cluster`,
		Args: exactly(0),
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&states, "state", nil, "only timers in these states: pending, paused, retrying, delivered (default pending and paused)")
	fs.StringVar(&x.query.Service, "svc", "", "only this service")
	fs.StringVar(&x.query.Group, "group", "", "only this group")
	fs.BoolVar(&schedule, "schedule", false, "only schedules; --schedule=false: no schedules (default: both)")
	fs.StringVar(&x.query.Tenant, "tenant", "", "the timers of this tenant, for Belfry's own account (default: those of the account itself)")
	fs.StringVar(&file, "file", "", "write to this new file, which only its owner may read, instead of standard output")
	complete(cmd, "state", "pending", "paused", "retrying", "delivered")
	check := func([]string) error {
		for _, word := range states {
			state, err := schemas.ParseState(strings.TrimSpace(word))
			if err != nil {
				return usagef("--state: %v", err)
			}
			x.query.States = append(x.query.States, state)
		}
		if fs.Changed("schedule") {
			x.query.OnlySchedules, x.query.NoSchedules = schedule, !schedule
		}
		return nil
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		if file == "" {
			return x.run(ctx, s, c.out)
		}
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return usagef("--file: %v", err)
		}
		err = x.run(ctx, s, out)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("%w; %s is not complete", err, file)
		}
		return nil
	})
}

// exporter writes the events of timers.
type exporter struct {
	c     *cli
	query belfry.ExportQuery
	// seen has the timers that are written: a timer that changes meanwhile comes again.
	seen map[schemas.TimerID]struct{}

	paused, runs, unread int
	lost                 map[string]int
	skipped              []schemas.ExportSkip
}

// exportSummary is what export prints to stderr with -o json.
type exportSummary struct {
	Exported int                  `json:"exported"`
	Paused   int                  `json:"paused"`
	Lost     map[string]int       `json:"lost,omitempty"`
	Runs     int                  `json:"runs,omitempty"`
	Unread   int                  `json:"unread,omitempty"`
	Skipped  []schemas.ExportSkip `json:"skipped,omitempty"`
}

func (x *exporter) run(ctx context.Context, s session, out io.Writer) error {
	w := bufio.NewWriterSize(out, 64<<10)
	x.lost = map[string]int{}
	for {
		page, err := x.page(ctx, s)
		if err == nil {
			err = x.write(w, &page)
		}
		if err == nil {
			err = w.Flush()
		}
		if err != nil {
			return s.far(err, "%d timers were exported", len(x.seen))
		}
		if x.query.Cursor = page.Cursor; page.Cursor == "" {
			return x.report()
		}
	}
}

// page reads the next page, again after an error that may pass.
func (x *exporter) page(ctx context.Context, s session) (belfry.ExportPage, error) {
	return persist(ctx, func() (belfry.ExportPage, error) {
		ctx, cancel := s.call(ctx)
		defer cancel()
		return s.Export(ctx, x.query)
	})
}

// The pauses of persist: patience is their sum.
const (
	persistFirst    = 100 * time.Millisecond
	persistLongest  = 5 * time.Second
	persistPatience = 30 * time.Second
)

// persist repeats a call that may be repeated while its error is unavailable, for persistPatience.
func persist[T any](ctx context.Context, call func() (T, error)) (T, error) {
	wait := persistFirst
	for waited := time.Duration(0); ; waited += wait {
		v, err := call()
		if !errors.Is(err, belfry.ErrUnavailable) || waited >= persistPatience || ctx.Err() != nil {
			return v, err
		}
		if wait = min(2*wait, persistLongest); sleep(ctx, wait) != nil {
			return v, err
		}
	}
}

// sleep waits, or returns the reason why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (x *exporter) write(w *bufio.Writer, page *belfry.ExportPage) error {
	x.runs, x.unread = x.runs+page.Runs, x.unread+page.Unread
	for _, skip := range page.Skipped {
		if _, again := x.seen[skip.Timer]; !again {
			x.skipped = append(x.skipped, skip)
		}
	}
	for i := range page.Timers {
		t := &page.Timers[i]
		if _, again := x.seen[t.Timer]; again {
			continue
		}
		x.seen[t.Timer] = struct{}{}
		if t.State == schemas.StatePaused {
			x.paused++
		}
		for _, name := range t.Lost {
			x.lost[name]++
		}
		if _, err := w.Write(append(t.Event, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// lostText explains the values of ExportInfo.Lost, for a line that begins with the number of timers.
var lostText = map[string]string{
	schemas.LostAttempts: "have fired and have no result: an import fires them again, with all their attempts",
	schemas.LostBackfill: "have a backfill under way, which an import does not continue",
	schemas.LostHeaders:  "have headers of their message that are no attributes; they are not exported",
	schemas.LostHistory:  "have a history, which is not exported",
	schemas.LostMissed:   "have nominal times that are due and not decided; an import begins with the next",
	schemas.LostRuns:     "are schedules that have fired: after an import their runs are numbered from 1 again",
	schemas.LostSpaces:   "have JSON data with line breaks; its white space is not exported",
	schemas.LostTriggers: "have runs that were asked for and have not fired; they are not exported",
	schemas.LostWaiting:  "have a run that waits for the previous one; it is not exported",
}

// report prints the counts to stderr. Skipped timers and unreadable records make the export fail.
func (x *exporter) report() error {
	var p page
	if x.c.json() {
		e := json.NewEncoder(&p.Buffer)
		e.SetEscapeHTML(false)
		if err := e.Encode(exportSummary{len(x.seen), x.paused, x.lost, x.runs, x.unread, x.skipped}); err != nil {
			return err
		}
	} else {
		p.line("exported %d, of them %d paused", len(x.seen), x.paused)
		for _, name := range slices.Sorted(maps.Keys(x.lost)) {
			p.line("  %d %s", x.lost[name], lostText[name])
		}
		if x.runs > 0 {
			p.line("  %d runs of schedules were left out: their schedules are exported", x.runs)
		}
		for _, skip := range x.skipped {
			p.line("  not exported: %s of %s (%s): %s", printable(skip.ID), printable(skip.Source), skip.Timer, printable(skip.Error))
		}
	}
	if _, err := x.c.err.Write(p.Bytes()); err != nil {
		return err
	}
	switch {
	case len(x.skipped) > 0:
		return schemas.Errorf(x.skipped[0].Code, "%d timers were not exported", len(x.skipped))
	case x.unread > 0:
		return schemas.Errorf(schemas.CodeUnknownFormat, "%d records of a newer version of Belfry were not exported: export from a node of that version", x.unread)
	}
	return nil
}
