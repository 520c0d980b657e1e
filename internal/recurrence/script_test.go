package recurrence_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/zonetest"
	"github.com/belfryio/belfry/schemas"
)

// TestScripts runs the scripts in testdata. A script adds a schedule and drives it:
//
//	add at=TIME         the lines below are its recurrence: an attribute without "timer" and
//	                    its value each; "callback" gives it a callback
//	update at=TIME      the same, as an update
//	advance to=TIME     takes the turns at the times at which they are due
//	jump to=TIME down   takes no turn before TIME, as in an outage, then all that are due;
//	                    with down none, because the outage goes on
//	hold, conclude      from now on callbacks have no result; the last callback has one
//	pause, resume catchup=POLICY, trigger allow, backfill from=TIME to=TIME every=D again allow
//	calendar name=NAME  sets the dates of a calendar, one a line; the schedule follows it from
//	                    its next turn on, or from replan on
//	state               what is in the record
//	why at=TEXT         the answers for a date, local time or instant
//
// Operations take place at the time that was reached. Each line of the output is an effect; the
// middle of many is left out.
func TestScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, s.run)
	})
}

// TestZoneScripts runs the scripts in testdata/zones, which have two commands more:
//
//	build release=NAME  from now on a build with this zone data decides; each line below is a
//	                    zone and the zone whose rules it has
//	replan              the owner plans the schedule again
//
// It must not be parallel: it changes the zone data of the process.
func TestZoneScripts(t *testing.T) {
	release := calendar.ZoneDataVersion
	t.Cleanup(func() { calendar.UseZoneData(release, nil) })
	datadriven.Walk(t, "testdata/zones", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "add":
				calendar.UseZoneData(release, nil)
			case "build":
				s.build(t, d)
				return ""
			}
			return s.run(t, d)
		})
	})
}

// build changes the zone data.
func (s *script) build(t *testing.T, d *datadriven.TestData) {
	var release string
	d.ScanArgs(t, "release", &release)
	rules := map[string]string{}
	for line := range strings.Lines(d.Input) {
		name, rule, _ := strings.Cut(strings.TrimSpace(line), " ")
		rules[name] = rule
	}
	calendar.UseZoneData(release, zonetest.Archive(t, rules))
	s.compile(t)
}

// script is the state of one script.
type script struct {
	rec  schemas.Record
	plan *recurrence.Plan
	now  int64
	cals calendars
	held bool // callbacks have no result
	open bool // the last run's callback has no result
	// done has the time of the success of each run that has succeeded.
	done map[uint32]int64
	// turns counts the turns.
	turns int
	out   strings.Builder
}

var scriptID = schemas.NewTimerID("/test", "schedule")

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	var err error
	switch d.Cmd {
	case "add":
		*s = script{rec: s.parse(t, d), now: s.time(t, d, "at"), done: map[uint32]int64{}, cals: s.cals}
		s.compile(t)
		err = s.plan.Begin(&s.rec)
	case "update":
		at, next := s.time(t, d, "at"), s.parse(t, d)
		if _, err = s.plan.Update(&s.rec, &next, at, schemas.Caller{}, s.cals); err == nil {
			s.compile(t)
		}
		s.now = max(s.now, at)
	case "advance":
		for to := s.time(t, d, "to"); ; {
			if !s.rec.Queued || s.rec.DueMs > to {
				s.now = to
				break
			}
			s.now = max(s.now, s.rec.DueMs)
			s.turn(t)
		}
		s.shorten()
	case "jump":
		s.now = s.time(t, d, "to")
		for !d.HasArg("down") && s.rec.Queued && s.rec.DueMs <= s.now {
			s.turn(t)
		}
		s.shorten()
	case "calendar":
		var name string
		d.ScanArgs(t, "name", &name)
		s.cals = s.cals.with(t, s.now, name, strings.Fields(d.Input)...)
		if s.plan != nil {
			s.compile(t)
		}
	case "hold":
		s.held = true
	case "conclude":
		s.open, s.held = false, d.HasArg("hold")
		s.done[s.rec.Schedule.Last.Run] = s.now
		if s.rec.Schedule.Waiting != nil || s.rec.Schedule.Backfill != nil || len(s.rec.Schedule.Manual) > 0 {
			s.turn(t)
		}
	case "pause":
		note := ""
		d.MaybeScanArgs(t, "note", &note)
		_, err = s.plan.Pause(&s.rec, s.now, note, schemas.Caller{By: "alice"})
	case "resume":
		var word string
		d.ScanArgs(t, "catchup", &word)
		policy, bad := schemas.ParseMisfire(word)
		if bad != nil {
			d.Fatalf(t, "%v", bad)
		}
		_, err = s.plan.Resume(&s.rec, s.now, policy, schemas.Caller{})
	case "trigger":
		_, err = s.plan.Trigger(&s.rec, s.now, 0, d.HasArg("allow"), schemas.Caller{})
	case "backfill":
		q := recurrence.BackfillRequest{FromMs: s.time(t, d, "from"), ToMs: s.time(t, d, "to"), Again: d.HasArg("again"), Allow: d.HasArg("allow")}
		if every := ""; d.MaybeScanArgs(t, "every", &every) {
			q.Every, _ = time.ParseDuration(every)
		}
		var times []int64
		times, err = s.plan.Backfill(&s.rec, s.now, q, schemas.Caller{})
		for _, at := range times {
			s.line("backfills %s", show(at))
		}
	case "replan":
		if s.plan.Replan(&s.rec, s.now) {
			s.line("next %s, due %s", show(s.rec.Schedule.NextMs), show(s.rec.DueMs))
		} else {
			s.line("stays")
		}
	case "state":
	case "why":
		s.why(t, d)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if err != nil {
		return fmt.Sprintln(err)
	}
	if d.Cmd == "state" {
		s.state()
	}
	if s.rec.State.Final() || s.rec.State == schemas.StateDelivered {
		s.line("%s", s.rec.State)
	}
	return s.out.String()
}

// shorten leaves out the middle of a long output.
func (s *script) shorten() {
	const few = 12
	if lines := strings.SplitAfter(s.out.String(), "\n"); len(lines) > few {
		s.out.Reset()
		s.out.WriteString(lines[0] + fmt.Sprintf("%d lines\n", len(lines)-few+1) + strings.Join(lines[len(lines)-few+2:], ""))
	}
}

func (s *script) line(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// parse makes the record of an add or update from the lines of a command.
func (s *script) parse(t *testing.T, d *datadriven.TestData) schemas.Record {
	r := schemas.Recurrence{}
	callback := ""
	for line := range strings.Lines(d.Input) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		ms := func() int64 {
			v, err := time.ParseDuration(value)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return v.Milliseconds()
		}
		var err error
		switch key {
		case "cron":
			r.Cron = value
		case "every":
			r.Every = value
		case "tz":
			r.Zone = value
		case "start":
			r.StartMs = parse(t, d, value)
		case "end":
			r.EndMs = parse(t, d, value)
		case "limit":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 32)
			r.Limit = uint32(n)
		case "jitter":
			r.JitterMs = ms()
		case "grace":
			r.GraceMs = ms()
		case "expect":
			r.ExpectMs = ms()
		case "misfire":
			r.Misfire, err = schemas.ParseMisfire(value)
		case "overlap":
			r.Overlap, err = schemas.ParseOverlap(value)
		case "exclude":
			r.Exclude = strings.Split(value, ",")
		case "shift":
			r.ExcludeMode = value
		case "callback":
			callback = "nats:call"
		default:
			d.Fatalf(t, "unknown attribute %s", key)
		}
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	return record(r, callback, s.time(t, d, "at"))
}

// record makes the record of an add.
func record(r schemas.Recurrence, callback string, addedMs int64) schemas.Record {
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: addedMs, Source: "/test", EventID: "schedule", Service: "svc", Callback: callback},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1},
		Schedule:   &schemas.Schedule{Recurrence: r, Progress: schemas.Progress{AnchorMs: addedMs}},
	}
	if r.StartMs != 0 {
		rec.Schedule.AnchorMs = r.StartMs
	}
	return rec
}

func (s *script) compile(t *testing.T) {
	var err error
	if s.plan, err = recurrence.Compile(scriptID, &s.rec.Schedule.Recurrence, s.rec.Schedule.AnchorMs, s.cals); err != nil {
		t.Fatal(err)
	}
}

// calendars are calendars by name, and the number and the time of the last change.
type calendars struct {
	dates    map[string]calendar.Dates
	revision uint64
	sinceMs  int64
}

// with returns the calendars after a change of one.
func (c calendars) with(t *testing.T, nowMs int64, name string, dates ...string) calendars {
	d, err := calendar.NewDates(name, dates...)
	if err != nil {
		t.Fatal(err)
	}
	next := calendars{map[string]calendar.Dates{name: d}, c.revision + 1, nowMs}
	for n, old := range c.dates {
		if n != name {
			next.dates[n] = old
		}
	}
	return next
}

// Exclusions implements recurrence.Calendars.
func (c calendars) Exclusions(names []string) (*calendar.Exclusions, error) {
	var all []calendar.Dates
	for _, name := range names {
		d, ok := c.dates[name]
		if !ok {
			return nil, fmt.Errorf("no calendar %s", name)
		}
		all = append(all, d)
	}
	x := calendar.Join(all...)
	x.Revision, x.SinceMs = c.revision, c.sinceMs
	return x, nil
}

// maxTurns bounds the turns of a script: a schedule that is always due is an error.
const maxTurns = 10_000

// turn takes one turn and prints its effects.
func (s *script) turn(t *testing.T) {
	if s.turns++; s.turns > maxTurns {
		t.Fatal("the schedule is due without end")
	}
	c := recurrence.Claim{Epoch: 1, Before: 1}
	if n := recurrence.NeedsResult(&s.rec, s.now); n != 0 {
		c.Result = &recurrence.Result{Run: n, State: schemas.StateRetrying}
		if at, ok := s.done[n]; ok {
			c.Result.State, c.Result.DoneMs = schemas.StateSuccess, at
		}
	}
	got := s.plan.Turn(&s.rec, s.now, s.open, c)
	s.rec = got.Record
	if o := got.Overdue; o != nil {
		text := fmt.Sprintf("%s: overdue %s", show(s.now), show(o.FromMs))
		if o.Count > 1 {
			text += fmt.Sprintf(" to %s, %d", show(o.ToMs), o.Count)
		}
		word, _ := recurrence.OverdueReason(&s.rec)
		s.line("%s, deadline %s (%s)", text, show(o.DeadlineMs), word)
	}
	for _, d := range got.Skipped {
		s.line("%s: %s", show(s.now), decision(&d))
	}
	if r := got.Run; r != nil {
		text := fmt.Sprintf("%s: run %d of %s", show(s.now), r.Number, show(r.NominalMs))
		if r.Missed > 0 {
			text += fmt.Sprintf(", missed %d", r.Missed)
		}
		if r.Trigger != schemas.TriggerSchedule {
			text += ", " + r.Trigger.String()
		}
		s.line("%s", text)
		if s.open = s.held && s.rec.Callback != ""; !s.open {
			s.done[r.Number] = s.now
		}
	}
	if got.EndsRun != 0 {
		s.line("%s: run %d gets no further attempt", show(s.now), got.EndsRun)
	}
}

func decision(d *schemas.Decision) string {
	text := fmt.Sprintf("%s %s", d.Kind, show(d.FromMs))
	if d.Count > 1 {
		text += fmt.Sprintf(" to %s, %d", show(d.ToMs), d.Count)
	}
	if d.Run != 0 {
		text += fmt.Sprintf(", run %d", d.Run)
	}
	return text
}

// state prints the record's progress.
func (s *script) state() {
	p := &s.rec.Schedule.Progress
	s.line("%s, next run %d", s.rec.State, s.rec.Run)
	if p.NextMs != 0 {
		s.line("next %s", show(p.NextMs))
	}
	if s.rec.Queued {
		s.line("due %s", show(s.rec.DueMs))
	}
	if w := p.Waiting; w != nil {
		s.line("waits: %s, missed %d", show(w.NominalMs), w.Missed)
	}
	for _, e := range p.Expected {
		s.line("expects %s to %s, %d, run %d, by %s", show(e.FromMs), show(e.ToMs), e.Count, e.Run, show(e.DeadlineMs))
	}
	for _, d := range p.Decisions {
		s.line("%s", decision(&d))
	}
	if p.KnownFromMs != 0 {
		s.line("forgotten: %s to %s", show(p.ForgottenMs), show(p.KnownFromMs))
	}
}

// why prints the answers about a period.
func (s *script) why(t *testing.T, d *datadriven.TestData) {
	var text string
	d.ScanArgs(t, "at", &text)
	from, to, ok := s.plan.Calendar().Period(text)
	if !ok {
		d.Fatalf(t, "not a time: %s", text)
	}
	answers, more := s.plan.WhyBetween(&s.rec, s.now, from, to, 5)
	for _, a := range answers {
		line := a.Local + " " + a.Fate
		if a.Reason != "" {
			line += " (" + a.Reason + ")"
		}
		if a.Run != 0 {
			line += fmt.Sprintf(" run %d", a.Run)
		}
		s.line("%s: %s", line, a.Text)
		for _, n := range a.Notes {
			s.line("  %s", n)
		}
	}
	if more {
		s.line("and more")
	}
}

func (s *script) time(t *testing.T, d *datadriven.TestData, name string) int64 {
	var value string
	d.ScanArgs(t, name, &value)
	return parse(t, d, value)
}

// parse parses a UTC time without the zone, such as 2027-03-28T01:00.
func parse(t *testing.T, d *datadriven.TestData, value string) int64 {
	for _, layout := range []string{"2006-01-02T15:04:05.999", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if at, err := time.Parse(layout, value); err == nil {
			return at.UnixMilli()
		}
	}
	d.Fatalf(t, "not a time: %s", value)
	return 0
}

// show formats a time in UTC.
func show(ms int64) string {
	return strings.TrimSuffix(time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999"), ":00")
}
