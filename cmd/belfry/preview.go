package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// previewFlags are the flags of preview.
type previewFlags struct {
	calendarFlags
	from        string
	exclude     []string
	excludeFile string
	id, source  string
	count       int
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

It needs no server and changes nothing. H and --jitter are derived from the timer ID (see
--id). "belfry add" adds a schedule with the same flags, but its --exclude takes the names of
calendars, not dates. With ID the command asks the server about a stored schedule: ID is a
timer id, or a CloudEvent's id with --source.

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
	f.add(fs, "with --every, --from")
	fs.StringVar(&f.from, "from", "", "show runs at or after this RFC 3339 time (default: now)")
	fs.StringSliceVar(&f.exclude, "exclude", nil, "dates without runs, in the zone: 2027-12-25,2028-01-01 (may be repeated)")
	fs.StringVar(&f.excludeFile, "exclude-file", "", "file with dates without runs, one per line; # begins a comment")
	fs.StringVar(&f.id, "id", "", "the CloudEvent's id, from which H and jitter are derived")
	fs.StringVar(&f.source, "source", defaultSource, "the CloudEvent's source, with --id or ID")
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
		for _, name := range append(f.names(), "exclude", "exclude-file", "id") {
			if fs.Changed(name) {
				return usagef("--%s is for a schedule that is not stored: give either it or ID", name)
			}
		}
		switch {
		case fs.Changed("source"):
			ref.source = f.source
		case strings.ContainsAny(args[0], " *@"):
			return usagef("%q looks like a cron expression: give it as --cron", args[0])
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
	limit, err := f.maxRuns()
	if err != nil {
		return err
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
	if limit > 0 {
		count = min(count, limit)
	}
	jitter := spec.Jitter > 0
	return c.printPreview(recurrence.Preview(s, fromMs, count, jitter), jitter, f)
}

// maxRuns reads --limit; 0 means no limit.
func (f *previewFlags) maxRuns() (int, error) {
	if f.limit == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(f.limit, 10, 32)
	if err != nil {
		return 0, usagef("--limit %q: must be a number of runs, at most %d; 0 means no limit", f.limit, uint32(math.MaxUint32))
	}
	return int(n), nil
}

// spec reads the flags. Times are checked here, and everything else by calendar.New.
func (f *previewFlags) spec(fromMs int64) (calendar.Spec, error) {
	spec := calendar.Spec{Cron: f.cron, Every: f.every, Zone: f.tz, DST: f.dst, Days: f.days, ExcludeShift: f.excludeShift}
	if (f.cron == "") == (f.every == "") {
		return spec, usagef("give either --cron or --every")
	}
	if f.id != "" {
		spec.ID = schemas.NewTimerID(f.source, f.id).String()
	}
	var err error
	if f.jitter != "" {
		if spec.Jitter, err = cmdline.ParseDuration(f.jitter); err != nil || spec.Jitter < 0 {
			return spec, usagef("--jitter %q: %v", f.jitter, cmp.Or(err, errors.New("must not be negative")))
		}
	}
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

	run schemas.PreviewRun // for text, which has the times in the zone of --time-zone
}

// previewLines returns the lines of a preview.
func previewLines(reply schemas.PreviewReply) []previewLine {
	var lines []previewLine
	for _, r := range reply.Runs {
		line := previewLine{At: showTime(r.At), Local: r.Local, Due: showTime(r.Due), Skipped: r.Skipped, Why: []calendar.Reason{}, run: r}
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
		_, err := c.out.Write(c.previewPage(reply, lines, jitter, f))
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
func (c *cli) previewPage(reply schemas.PreviewReply, lines []previewLine, jitter bool, f *previewFlags) []byte {
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
			number, due = fmt.Sprint(runs), c.zone.show(o.run.Due)
		}
		var why []string
		if o.Skipped {
			why = append(why, "skipped")
		}
		for _, r := range o.Why {
			why = append(why, r.String())
		}
		cells := []any{number, c.zone.show(o.run.At), due, o.Local, strings.Join(why, "; ")}
		if !jitter {
			cells = append(cells[:2], cells[3:]...)
		}
		return cells
	})
	switch {
	case runs == f.count:
	case strconv.Itoa(runs) == f.limit:
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
