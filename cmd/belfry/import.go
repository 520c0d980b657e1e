package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

const (
	// importWorkers is the number of adds that an import has in flight, and importQueue the number
	// of lines that wait for each of them.
	importWorkers = 32
	importQueue   = 8
	// maxImportLine bounds a line, in bytes. An event is shorter: the server's limit is lower, and
	// base64 and escapes make it at most a few times longer.
	maxImportLine = 8 << 20
	// maxRejectedLines bounds the rejected lines that an import shows one by one.
	maxRejectedLines = 100
	// importNoteEvery is the least time between two notes about limits on stderr.
	importNoteEvery = 10 * time.Second
)

// The values of --past.
const (
	pastFire = "fire"
	pastSkip = "skip"
	pastFail = "fail"
)

func (c *cli) importCommand() *cobra.Command {
	m := newImporter(c)
	by := &byFlag{}
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Add the events of an export",
		Long: `Add the events of a file of "belfry export", or of standard input: CloudEvents in
structured mode, one a line. Timers that were paused are paused again.

The import may be repeated: an event that was added before is a duplicate, which is not an
error. If it is interrupted, it says from which line to continue. A line that cannot be
added is rejected and does not stop the others; the command then fails. Where a limit of
adds is reached, the command waits as long as Belfry says.

An event that was due in the past fires at once. --past skip leaves such events out,
--past fail rejects them. A paused timer stays paused. --dry-run checks the lines without a
server and adds nothing; it cannot know what the server has, or allows.`,
		Example: `  belfry import timers.ndjson --dry-run
  belfry import timers.ndjson --past skip
  belfry export --nats-url nats://old:4222 | belfry import --nats-url nats://new:4222`,
		Args: atMost(1),
	}
	fs := cmd.Flags()
	fs.StringVar(&m.past, "past", m.past, "events that were due in the past: fire fires them at once, skip leaves them out, fail rejects their lines")
	fs.BoolVar(&m.dryRun, "dry-run", false, "check the lines without a server, and add nothing")
	fs.IntVar(&m.from, "from-line", m.from, "begin with this line, as an interrupted import says")
	complete(cmd, "past", pastFire, pastSkip, pastFail)
	by.add(fs)
	var file string
	check := func(args []string) error {
		if len(args) == 1 && args[0] != "-" {
			file = args[0]
		}
		switch m.past {
		case pastFire, pastSkip, pastFail:
		default:
			return usagef("--past %.40q: it must be fire, skip or fail", m.past)
		}
		if m.from < 1 {
			return usagef("--from-line must be 1 or more")
		}
		m.by = by.option()
		return by.check()
	}
	run := func(ctx context.Context, s session) error {
		in := c.in
		if file != "" {
			f, err := os.Open(file)
			if err != nil {
				return usagef("%v", err)
			}
			defer f.Close() //nolint:errcheck // only read
			in = f
		}
		return m.run(ctx, s, in)
	}
	c.talking(cmd, check, run)
	connected := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !m.dryRun {
			return connected(cmd, args)
		}
		if err := check(args); err != nil {
			return err
		}
		return run(cmd.Context(), session{})
	}
	return cmd
}

// importer adds the events of lines. Lines with the same event are added in their order, by one worker.
type importer struct {
	c      *cli
	past   string
	dryRun bool
	from   int
	by     belfry.ControlOption
	now    func() time.Time

	mu     sync.Mutex
	counts importCounts
	// low is the last line before which all are done; done has lines after it.
	low  int
	done map[int]struct{}
	// fatal ends the import; noted is the time of the last note about a limit.
	fatal error
	noted time.Time
}

func newImporter(c *cli) *importer {
	return &importer{c: c, past: pastFire, from: 1, by: new(byFlag).option(), now: time.Now, done: map[int]struct{}{}}
}

// importCounts are the results of an import. Their JSON is part of the interface.
type importCounts struct {
	Accepted  int `json:"accepted"`
	Duplicate int `json:"duplicate"`
	// Skipped counts events that were due in the past, with --past skip; Past counts the others.
	Skipped int `json:"skipped"`
	Past    int `json:"past"`
	// Paused counts timers that the import paused.
	Paused   int `json:"paused"`
	Rejected int `json:"rejected"`
	// Lines are the first rejected lines, at most maxRejectedLines.
	Lines []rejectedLine `json:"lines,omitempty"`
}

type rejectedLine struct {
	Line  int          `json:"line"`
	Code  schemas.Code `json:"code"`
	Error string       `json:"error"`
}

// importLine is an event of a line.
type importLine struct {
	number int
	event  event.Event
	due    time.Time // of an event with timerat; otherwise zero
	paused bool
	note   string
}

func (m *importer) run(ctx context.Context, s session, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queues := make([]chan importLine, importWorkers)
	var workers sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan importLine, importQueue)
		workers.Go(func() {
			for line := range queues[i] {
				if ctx.Err() == nil && m.one(ctx, s, &line) != nil {
					cancel()
				}
			}
		})
	}
	m.low = m.from - 1
	err := m.read(ctx, in, func(line importLine) {
		h := fnv.New32a()
		h.Write([]byte(line.event.Source() + "\x00" + line.event.ID()))
		select {
		case queues[h.Sum32()%importWorkers] <- line:
		case <-ctx.Done():
		}
	})
	for _, q := range queues {
		close(q)
	}
	workers.Wait()
	return m.report(cmp.Or(m.fatal, err))
}

// read passes the events of the lines to next, and rejects lines without one.
func (m *importer) read(ctx context.Context, in io.Reader, next func(importLine)) error {
	lines := readLines(ctx, in)
	for number := 1; ; number++ {
		var l inputLine
		select {
		case l = <-lines:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		last := errors.Is(l.err, io.EOF)
		if l.err != nil && !last {
			return fmt.Errorf("line %d: %w", number, l.err)
		}
		text := bytes.TrimSpace(l.text)
		switch {
		case number < m.from:
		case !l.whole:
			m.reject(number, schemas.Errorf(schemas.CodeTooLarge, "the line has more than %d bytes", maxImportLine))
		case len(text) == 0:
			m.finish(number, nil)
		default:
			if line, perr := parseImport(number, text); perr != nil {
				m.reject(number, perr)
			} else {
				next(line)
			}
		}
		if last {
			return nil
		}
	}
}

// inputLine is what readLine returns.
type inputLine struct {
	text  []byte
	whole bool
	err   error
}

// readLines reads lines until the end, an error, or the end of ctx. Its goroutine may stay in a read that
// does not return, such as that of a terminal, so that an interrupt ends the command.
func readLines(ctx context.Context, in io.Reader) <-chan inputLine {
	lines := make(chan inputLine, importQueue)
	go func() {
		r := bufio.NewReaderSize(in, 64<<10)
		for {
			text, whole, err := readLine(r)
			select {
			case lines <- inputLine{text, whole, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return lines
}

// readLine returns the next line, in a buffer of its own. It returns only the beginning of a line that
// is too long, and whole is false. The error is that of the reader; io.EOF may come with a line.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	whole = true
	for {
		part, err := r.ReadSlice('\n')
		if whole = whole && len(line)+len(part) <= maxImportLine; whole {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, whole, err
		}
	}
}

func parseImport(number int, text []byte) (importLine, error) {
	line := importLine{number: number}
	e, err := schemas.Body{Mode: schemas.ModeStructured, Data: text}.Event()
	if err != nil {
		return line, err
	}
	take := func(name string) string {
		value, _ := e.Extensions()[name].(string)
		e.SetExtension(name, nil)
		return value
	}
	switch state := take(schemas.AttrExportState); state {
	case "":
	case schemas.ExportPaused:
		line.paused = true
	default:
		return line, schemas.Errorf(schemas.CodeInvalidAttribute, "%s %.40q: it must be %q", schemas.AttrExportState, state, schemas.ExportPaused)
	}
	line.note = take(schemas.AttrExportNote)
	if at, ok := e.Extensions()[schemas.AttrAt].(string); ok {
		ms, err := schemas.ParseTime(at)
		if err != nil {
			return line, schemas.Errorf(schemas.CodeInvalidAttribute, "%s %.80q: %w", schemas.AttrAt, at, err)
		}
		line.due = schemas.TimeOf(ms)
	}
	line.event = *e
	return line, nil
}

// A paused timer whose due time has passed, or is near, would fire before it can be paused. An import
// adds it with a later due time, pauses it, and moves it back. The later time depends on the due time
// alone for a year, so that a repeated import finds a duplicate. parkMargin must be longer than an add
// and a pause take, with the tries of persist; the wait for a limit of adds comes before it.
const (
	parkMargin = 10 * time.Minute
	parkStep   = 365 * 24 * time.Hour
)

// parkedAt returns the due time with which a paused timer is added.
func parkedAt(due, now time.Time) time.Time {
	for due.Before(now.Add(parkMargin)) {
		due = due.Add(parkStep)
	}
	return due
}

// eventAt returns the event of the line as an add at now must have it, and whether that is the parked form.
func (l *importLine) eventAt(now time.Time) (e event.Event, parked bool) {
	if !l.paused || l.due.IsZero() || !l.due.Before(now.Add(parkMargin)) {
		return l.event, false
	}
	e = l.event.Clone()
	e.SetExtension(schemas.AttrAt, showTime(parkedAt(l.due, now)))
	return e, true
}

// parkedBy reports whether e is a parked form of the line, and gives e the due time of the line if it is.
func (l *importLine) parkedBy(e *importLine) bool {
	if later := e.due.Sub(l.due); !l.paused || l.due.IsZero() || later <= 0 || later%parkStep != 0 {
		return false
	}
	e.event.SetExtension(schemas.AttrAt, l.event.Extensions()[schemas.AttrAt])
	return true
}

// one adds the event of a line. An error ends the import; the line is then not done.
func (m *importer) one(ctx context.Context, s session, line *importLine) error {
	now := m.now()
	past := !line.due.IsZero() && line.due.Before(now) && !line.paused
	if past && m.past == pastSkip {
		m.finish(line.number, func(n *importCounts) { n.Skipped++ })
		return nil
	}
	if past && m.past == pastFail {
		m.reject(line.number, schemas.Errorf(schemas.CodeInvalidAttribute, "due in the past: %s", showTime(line.due)))
		return nil
	}
	var r belfry.Receipt
	var err error
	var paused, parked bool
	if m.dryRun {
		e, _ := line.eventAt(now)
		paused, err = line.paused, checkAdd(e)
	} else if r, parked, err = m.add(ctx, s, line); err == nil && line.paused {
		paused, err = m.pause(ctx, s, &r, line, parked)
	}
	switch code := schemas.CodeOf(err); {
	case err == nil:
		m.finish(line.number, func(n *importCounts) {
			switch {
			case r.Duplicate:
				n.Duplicate++
			default:
				n.Accepted++
				n.Past += count(past)
			}
			n.Paused += count(paused)
		})
		return nil
	case code == "" || code == schemas.CodeUnavailable || code == schemas.CodeStoreFull || ctx.Err() != nil:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.fatal = cmp.Or(m.fatal, fmt.Errorf("line %d: %w", line.number, err))
		return err
	}
	m.reject(line.number, err)
	return nil
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// checkAdd checks an event as the server does, as far as that needs no server.
func checkAdd(e event.Event) error {
	hdr, data, err := schemas.EncodeEvent(e, schemas.ModeStructured)
	if err == nil {
		_, _, err = recurrence.ParseAdd(hdr, data, time.Now().UnixMilli(), schemas.Limits{MaxHorizon: noMaxAhead}, recurrence.UnknownCalendars)
	}
	return err
}

// add adds the event of a line, or its parked form; parked says which. It waits while a limit of adds is
// reached. Each try looks at the clock: the due time of a paused timer may pass meanwhile.
func (m *importer) add(ctx context.Context, s session, line *importLine) (r belfry.Receipt, parked bool, err error) {
	for {
		r, err = persist(ctx, func() (belfry.Receipt, error) {
			ctx, cancel := s.call(ctx)
			defer cancel()
			var e event.Event
			e, parked = line.eventAt(m.now())
			return s.Add(ctx, e)
		})
		if errors.Is(err, belfry.ErrConflict) {
			return m.same(ctx, s, line, err)
		}
		limited, ok := errors.AsType[*belfry.Error](err)
		if !ok || !errors.Is(err, belfry.ErrLimited) {
			return r, parked, err
		}
		m.notice(line.number, err)
		if err := sleep(ctx, max(limited.RetryAfter, persistFirst)); err != nil {
			return r, parked, err
		}
	}
}

// same returns a duplicate if the timer with which a line is in conflict would be exported as this line.
// That is the timer of which the line was exported, if it was added with a relative time, or moved, or a
// timer that an earlier import added and may have left without its pause: then with another due time, if it is parked.
// Otherwise it returns the conflict.
func (m *importer) same(ctx context.Context, s session, line *importLine, conflict error) (r belfry.Receipt, parked bool, err error) {
	t, found, err := stored(ctx, s, identity{line.event.Source(), line.event.ID()})
	switch {
	case err != nil:
		return r, false, err
	case !found || t.Event == nil:
		return r, false, conflict
	}
	have, err := parseImport(line.number, t.Event)
	if err != nil {
		return r, false, conflict
	}
	parked = line.parkedBy(&have)
	a, errA := hashOf(have.event)
	b, errB := hashOf(line.event)
	if errA != nil || errB != nil || a != b {
		return r, false, conflict
	}
	return belfry.Receipt{Timer: t.Timer, Duplicate: true, State: t.State}, parked, nil
}

// notice prints on stderr what the import waits for, at most once per interval.
func (m *importer) notice(line int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.noted) < importNoteEvery {
		return
	}
	m.noted = time.Now()
	fmt.Fprintf(m.c.err, "belfry: line %d waits: %s\n", line, printable(err.Error())) //nolint:errcheck // stderr is the last resort
}

// pause pauses an added timer, and moves a parked one to its due time. Of a duplicate it does what an
// interrupted import left: a timer that was resumed since stays as it is.
func (m *importer) pause(ctx context.Context, s session, r *belfry.Receipt, line *importLine, parked bool) (changed bool, err error) {
	do := func(f func(context.Context) (belfry.Timer, error)) (belfry.Timer, error) {
		return persist(ctx, func() (belfry.Timer, error) {
			ctx, cancel := s.call(ctx)
			defer cancel()
			return f(ctx)
		})
	}
	var t belfry.Timer
	if r.Duplicate {
		if t, err = do(func(ctx context.Context) (belfry.Timer, error) { return s.Get(ctx, r.Timer) }); err != nil {
			return false, err
		}
		if t.State != schemas.StatePending && t.State != schemas.StatePaused {
			return false, nil
		}
	}
	did := func(op schemas.OperationKind) bool {
		return slices.ContainsFunc(t.History, func(o schemas.OperationInfo) bool { return o.Op == op.String() })
	}
	if t.State != schemas.StatePaused && !did(schemas.OperationPause) && !did(schemas.OperationResume) {
		if _, err = do(func(ctx context.Context) (belfry.Timer, error) { return s.Pause(ctx, r.Timer, line.note, m.by) }); err != nil {
			return false, fmt.Errorf("added, but not paused: %w", err)
		}
		changed = true
	}
	if parked && !did(schemas.OperationReschedule) && !did(schemas.OperationResume) {
		if _, err = do(func(ctx context.Context) (belfry.Timer, error) {
			return s.Reschedule(ctx, r.Timer, belfry.At(line.due), m.by)
		}); err != nil {
			return changed, fmt.Errorf("added and paused, but not moved to its due time: %w", err)
		}
	}
	return changed, nil
}

// finish notes that a line is done, and its result.
func (m *importer) finish(line int, result func(*importCounts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if result != nil {
		result(&m.counts)
	}
	m.done[line] = struct{}{}
	for {
		if _, ok := m.done[m.low+1]; !ok {
			return
		}
		m.low++
		delete(m.done, m.low)
	}
}

func (m *importer) reject(line int, err error) {
	m.finish(line, func(n *importCounts) {
		n.Rejected++
		if len(n.Lines) < maxRejectedLines {
			n.Lines = append(n.Lines, rejectedLine{line, schemas.CodeOf(err), err.Error()})
		}
	})
}

// report prints the counts. err is why the import did not reach the end.
func (m *importer) report(err error) error {
	n := &m.counts
	slices.SortFunc(n.Lines, func(a, b rejectedLine) int { return cmp.Compare(a.Line, b.Line) })
	if m.c.json() {
		if perr := m.c.printJSON(n); perr != nil {
			return perr
		}
	} else if perr := m.reportText(); perr != nil {
		return perr
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w (not finished: --from-line %d continues)", err, m.low+1)
	case n.Rejected > 0:
		first := n.Lines[0]
		return schemas.Errorf(cmp.Or(first.Code, schemas.CodeInvalidEvent), "%d lines were rejected; the first is line %d: %s", n.Rejected, first.Line, printable(first.Error))
	}
	return nil
}

func (m *importer) reportText() error {
	n := &m.counts
	var p page
	for _, l := range n.Lines {
		p.line("line %d rejected: %s: %s", l.Line, l.Code, printable(l.Error))
	}
	if more := n.Rejected - len(n.Lines); more > 0 {
		p.line("%d more lines rejected", more)
	}
	if _, err := m.c.err.Write(p.Bytes()); err != nil {
		return err
	}
	accepted := "accepted"
	if m.dryRun {
		accepted = "valid"
	}
	return m.c.printText(accepted, strconv.Itoa(n.Accepted), "duplicate", strconv.Itoa(n.Duplicate), "paused", number(n.Paused),
		"due in the past", number(n.Past), "skipped", number(n.Skipped), "rejected", strconv.Itoa(n.Rejected))
}
