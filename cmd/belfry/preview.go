package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// previewFlags are the attributes of a schedule as flags.
type previewFlags struct {
	cron, every, tz, dst, days string
	from, start, end           string
	jitter                     time.Duration
	exclude                    []string
	excludeFile, excludeShift  string
	id, source                 string
	limit, count               int
}

// maxDatesFile bounds a file of excluded dates, in bytes: MaxDates lines with comments.
const maxDatesFile = 1 << 20

func (c *cli) previewCommand() *cobra.Command {
	f, ref := &previewFlags{}, &timerRef{}
	cmd := &cobra.Command{
		Use:   "preview --cron EXPR | --every PERIOD | ID",
		Short: "Show when a schedule would run, and why",
		Long: `Show when a cron expression or a period would run, in UTC and in local time, with
the reason for each time that daylight saving, an excluded date or jitter changed.

It needs no server and changes nothing. "belfry add" adds a schedule with the same flags,
but its --exclude takes the names of calendars, not dates. With ID the command asks the server about a stored schedule: ID is a timer id, or a CloudEvent's id
with --source.

With -o json each run is a line: at (UTC), local, due with --jitter, and why, a list of
code and text. Skipped times are lines with "skipped": true, and do not count for -n.
Warnings are lines on standard error.`,
		Example: `  belfry preview --cron '30 2 * * *' --tz Europe/Berlin --from 2027-03-26T12:00:00Z -n 5
  belfry preview --cron '0 9 * * MON#1' --tz America/New_York
  belfry preview --every P1M --start 2027-01-31T09:00:00Z
  belfry preview nightly --source /reports -n 3
  belfry preview --cron '0 9 * * 1-5' --exclude 2027-12-24,2027-12-31 --exclude-shift previous`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("got %d arguments; usage: %s", len(args), cmd.UseLine())
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.cron, "cron", "", "cron expression of 5 fields, or 6 with seconds first")
	fs.StringVar(&f.every, "every", "", "period: 90m and PT90M are elapsed time; P1D, P2W, P1M step the wall clock")
	fs.StringVar(&f.tz, "tz", "UTC", "IANA time zone, for example Europe/Berlin")
	fs.StringVar(&f.from, "from", "", "show runs at or after this RFC 3339 time (default: now)")
	fs.StringVar(&f.start, "start", "", "no run before this RFC 3339 time; --every counts from it (default with --every: --from)")
	fs.StringVar(&f.end, "end", "", "no run after this RFC 3339 time")
	fs.IntVar(&f.limit, "limit", 0, "end after this many runs (default: no limit)")
	fs.Var(cmdline.Duration(&f.jitter), "jitter", "delay each run by up to this duration, derived from the timer ID (see --id)")
	fs.StringVar(&f.dst, "dst", "auto", "daylight saving: auto, or gap=shift|skip and overlap=first|last|both")
	fs.StringVar(&f.days, "days", "", "how to combine day of month and day of week if the expression restricts both: \"and\" or \"or\"")
	fs.StringSliceVar(&f.exclude, "exclude", nil, "dates without runs, in the zone: 2027-12-25,2028-01-01 (may be repeated)")
	fs.StringVar(&f.excludeFile, "exclude-file", "", "file with dates without runs, one per line; # begins a comment")
	fs.StringVar(&f.excludeShift, "exclude-shift", "skip", "for a run on an excluded date: skip it, or move it to the next or previous date (skip, next, previous)")
	fs.StringVar(&f.id, "id", "", "the CloudEvent's id, from which H and jitter are derived")
	fs.StringVar(&f.source, "source", "belfry-cli", "the CloudEvent's source, with --id or ID")
	fs.IntVarP(&f.count, "count", "n", 10, fmt.Sprintf("number of runs, at most %d", calendar.MaxExplained))
	check := func(args []string) error {
		if f.count < 1 || f.count > calendar.MaxExplained {
			return usagef("-n %d: must be 1 to %d", f.count, calendar.MaxExplained)
		}
		if len(args) == 0 {
			return nil
		}
		if _, err := timeFlag("--from", f.from, 0); err != nil {
			return err
		}
		for _, name := range []string{"cron", "every", "tz", "start", "end", "limit", "jitter", "dst", "days", "exclude", "exclude-file", "exclude-shift", "id"} {
			if fs.Changed(name) {
				return usagef("--%s is for a schedule that is not stored: give either it or ID", name)
			}
		}
		if fs.Changed("source") {
			ref.source = f.source
		}
		return ref.resolve(args)
	}
	return c.connected(cmd, check, func(ctx context.Context, cf *clientFlags) error {
		if ref.id.IsZero() {
			return c.preview(f)
		}
		return cf.connect(ctx, func(ctx context.Context, s session) error { return c.previewStored(ctx, s, ref.id, f) })
	})
}

// previewStored shows the runs of a stored schedule.
func (c *cli) previewStored(ctx context.Context, s session, id schemas.TimerID, f *previewFlags) error {
	var from time.Time
	if f.from != "" {
		ms, err := timeFlag("--from", f.from, 0)
		if err != nil {
			return err
		}
		from = schemas.TimeOf(ms)
	}
	ctx, cancel := s.call(ctx)
	defer cancel()
	reply, err := s.Preview(ctx, id, from, f.count)
	if err != nil {
		return err
	}
	jitter := slices.ContainsFunc(reply.Runs, func(r schemas.PreviewRun) bool { return !r.Due.IsZero() })
	return c.printPreview(reply, jitter, f)
}

func (c *cli) preview(f *previewFlags) error {
	if f.limit < 0 {
		return usagef("--limit %d: must not be negative; 0 means no limit", f.limit)
	}
	fromMs, err := timeFlag("--from", f.from, time.Now().UnixMilli())
	if err != nil {
		return err
	}
	spec, err := f.spec(fromMs)
	if err != nil {
		return err
	}
	s, err := calendar.New(spec)
	if err != nil {
		return usagef("%v", err)
	}
	count := f.count
	if f.limit > 0 {
		count = min(count, f.limit)
	}
	jitter := spec.Jitter > 0
	return c.printPreview(recurrence.Preview(s, fromMs, count, jitter), jitter, f)
}

// spec reads the flags. Times are checked here, and everything else by calendar.New.
func (f *previewFlags) spec(fromMs int64) (calendar.Spec, error) {
	spec := calendar.Spec{Cron: f.cron, Every: f.every, Zone: f.tz, Jitter: f.jitter, DST: f.dst, Days: f.days, ExcludeShift: f.excludeShift}
	if (f.cron == "") == (f.every == "") {
		return spec, usagef("give either --cron or --every")
	}
	if f.id != "" {
		spec.ID = schemas.NewTimerID(f.source, f.id).String()
	}
	var err error
	if f.every != "" {
		spec.StartMs = fromMs
	}
	if spec.StartMs, err = timeFlag("--start", f.start, spec.StartMs); err != nil {
		return spec, err
	}
	if spec.EndMs, err = timeFlag("--end", f.end, 0); err != nil {
		return spec, err
	}
	var calendars []calendar.Dates
	if len(f.exclude) > 0 {
		dates, err := calendar.NewDates("--exclude", f.exclude...)
		if err != nil {
			return spec, usagef("%v", err)
		}
		calendars = append(calendars, dates)
	}
	if f.excludeFile != "" {
		dates, err := datesFile(f.excludeFile)
		if err != nil {
			return spec, usagef("--exclude-file: %v", err)
		}
		calendars = append(calendars, dates)
	}
	if len(calendars) > 0 {
		spec.Exclude = calendar.Join(calendars...)
	}
	return spec, nil
}

// timeFlag reads an RFC 3339 time, or returns the default for an empty flag.
func timeFlag(name, text string, defaultMs int64) (int64, error) {
	if text == "" {
		return defaultMs, nil
	}
	at, err := schemas.ParseTime(text)
	if err != nil {
		return 0, usagef("%s %q: %v", name, text, err)
	}
	return at, nil
}

// datesFile reads a file of dates as a calendar with the name of the file.
func datesFile(path string) (calendar.Dates, error) {
	dates, err := readDates(path)
	if err != nil {
		return calendar.Dates{}, err
	}
	return calendar.NewDates(filepath.Base(path), dates...)
}

// readDates reads a file with one date a line, of at most maxDatesFile bytes. Text after # is
// a comment.
func readDates(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	var dates []string
	lines := bufio.NewScanner(io.LimitReader(file, maxDatesFile+1))
	read := 0
	for lines.Scan() {
		read += len(lines.Bytes()) + 1
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text != "" {
			dates = append(dates, text)
		}
	}
	if lines.Err() != nil {
		return nil, lines.Err()
	}
	if read > maxDatesFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxDatesFile)
	}
	return dates, nil
}

// previewLine is a run or a skip in JSON.
type previewLine struct {
	At      string            `json:"at"`
	Local   string            `json:"local"`
	Due     string            `json:"due,omitempty"`
	Skipped bool              `json:"skipped,omitempty"`
	Why     []calendar.Reason `json:"why"`
}

// previewLines returns the lines of a preview.
func previewLines(reply schemas.PreviewReply) []previewLine {
	var lines []previewLine
	for _, r := range reply.Runs {
		line := previewLine{At: showTime(r.At), Local: r.Local, Due: showTime(r.Due), Skipped: r.Skipped, Why: []calendar.Reason{}}
		for _, w := range r.Why {
			line.Why = append(line.Why, calendar.Reason{Code: calendar.Code(w.Code), Text: w.Text})
		}
		lines = append(lines, line)
	}
	return lines
}

// printPreview prints a preview. With jitter it prints the due time of each run.
func (c *cli) printPreview(reply schemas.PreviewReply, jitter bool, f *previewFlags) error {
	lines := previewLines(reply)
	if !c.json() {
		_, err := c.out.Write(previewPage(reply, lines, jitter, f))
		return err
	}
	for _, w := range reply.Warnings {
		fmt.Fprintf(c.err, "belfry: warning: %s\n", printable(w)) //nolint:errcheck // stderr is the last resort
	}
	for _, line := range lines {
		if err := c.printJSON(line); err != nil {
			return err
		}
	}
	return nil
}

// previewPage returns the preview as text.
func previewPage(reply schemas.PreviewReply, lines []previewLine, jitter bool, f *previewFlags) []byte {
	p := &page{}
	p.line("%s (time zone data %s)", printable(reply.Description), printable(reply.Zones))
	if reply.Resolved != "" {
		p.line("H resolved: %s", printable(reply.Resolved))
	}
	for _, w := range reply.Warnings {
		p.line("warning: %s", printable(w))
	}
	header, runs := "RUN\tAT\tLOCAL\tWHY", 0
	if jitter {
		header = "RUN\tAT\tDUE\tLOCAL\tWHY"
	}
	columns(p, header, lines, func(o previewLine) []any {
		number, due := "-", "-"
		if !o.Skipped {
			runs++
			number, due = fmt.Sprint(runs), o.Due
		}
		var why []string
		if o.Skipped {
			why = append(why, "skipped")
		}
		for _, r := range o.Why {
			why = append(why, r.String())
		}
		cells := []any{number, o.At, due, o.Local, strings.Join(why, "; ")}
		if !jitter {
			cells = append(cells[:2], cells[3:]...)
		}
		return cells
	})
	switch {
	case runs == f.count:
	case runs == f.limit && f.limit > 0:
		p.line("\nNo further run: the limit is reached.")
	case len(lines) == 2*calendar.MaxExplained:
		p.line("\nThe list is cut after %d lines.", len(lines))
	case f.end != "":
		p.line("\nNo further run before the end.")
	case f.cron == "" && f.every == "":
		p.line("\nNo further run.") // of a stored schedule
	default:
		p.line("\nNo further run before 2200.")
	}
	return p.Bytes()
}
