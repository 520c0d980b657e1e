package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// The rules for schedules.
const (
	NominalTwice Rule = "nominal-twice" // a nominal time fired more than once
	RunTwice     Rule = "run-twice"     // a run number fired more than once
	RunGap       Rule = "run-gap"       // a run number is missing
	Undecided    Rule = "undecided"     // a nominal time has no decision
	DecidedTwice Rule = "decided-twice" // a nominal time has two decisions
	WrongCount   Rule = "wrong-count"   // a decision counts other nominal times than the calendar
	Unexplained  Rule = "unexplained"   // a run fired, but the record has no such decision
	NoEvent      Rule = "no-event"      // the record says that a run fired, but there is no such event
	AfterPause   Rule = "after-pause"   // claimed after an acknowledged pause
	AfterUpdate  Rule = "after-update"  // claimed after an acknowledged update, with the old contents
	NotAsked     Rule = "not-asked"     // runs that nobody asked for, or fewer than were asked for
	Behind       Rule = "behind"        // a nominal time is due and undecided, though the low watermark has passed it
	OverLimit    Rule = "over-limit"    // more runs than timerlimit

	// The rules for timerexpect.
	NoOverdue    Rule = "no-overdue"    // a nominal time without success by its deadline has no overdue event
	NotOverdue   Rule = "not-overdue"   // an overdue event for a nominal time that must have none
	OverdueTwice Rule = "overdue-twice" // a nominal time has two overdue events

	// The rules for timerexclude.
	FiredExcluded Rule = "fired-excluded"  // claimed on an excluded date after the calendar was acknowledged
	NotExcluded   Rule = "not-excluded"    // recorded as excluded, though no calendar ever had the date
	CalendarInUse Rule = "calendar-in-use" // a calendar was deleted although a schedule excludes it
)

// ScheduleReport counts what schedules did.
type ScheduleReport struct {
	Schedules, Operations, Acknowledged int
	// Runs counts the events, Judged the nominal times whose decision was found, Skipped those
	// of them that were skipped.
	Runs, Judged, Skipped int
	// Asked counts the runs that somebody asked for, Backfilled those of backfills.
	Asked, Backfilled int
	// Forgotten counts nominal times whose decision the record had dropped before a client read it.
	Forgotten int
	// Overdue counts the overdue events, Deadlines the deadlines that were judged exactly.
	Overdue, Deadlines int
	// Calendars counts the acknowledged changes of calendars.
	Calendars int
	// Kinds counts the nominal times by decision.
	Kinds map[schemas.DecisionKind]int
	// Done counts the operations that were acknowledged by kind.
	Done map[Kind]int
}

func (r *ScheduleReport) print(b *strings.Builder) {
	if r.Schedules == 0 {
		return
	}
	fmt.Fprintf(b, "\nschedules %d: %d runs (%d asked for, %d backfilled), %d nominal times judged, %d skipped, %d forgotten;",
		r.Schedules, r.Runs, r.Asked, r.Backfilled, r.Judged, r.Skipped, r.Forgotten)
	for k := schemas.DecisionFired; k <= schemas.DecisionExcluded; k++ {
		if n := r.Kinds[k]; n > 0 {
			fmt.Fprintf(b, " %s %d", k, n)
		}
	}
	fmt.Fprintf(b, "\n%d deadlines judged, %d overdue events; %d changes of calendars acknowledged", r.Deadlines, r.Overdue, r.Calendars)
	fmt.Fprintf(b, "\noperations on schedules %d: acknowledged %d;", r.Operations, r.Acknowledged)
	for _, k := range []Kind{Pause, Resume, Trigger, Backfill, Update, Cancel} {
		fmt.Fprintf(b, " %s %d", k, r.Done[k])
	}
}

// outcome is what a client knows about the effect of a call.
type outcome int

const (
	maybe  outcome = iota // not answered: it may take effect at any time
	never                 // refused
	always                // acknowledged
)

// operation is a call for a schedule.
type operation struct {
	call    Event
	answer  Event
	outcome outcome
	// passedMs is the time of the last Passed before the call.
	passedMs int64
}

func (o *operation) answered(e Event) {
	o.answer = e
	switch {
	case e.Kind == Unknown || !e.OK && mayHaveHappened(e.Code):
	case e.OK:
		o.outcome = always
	default:
		o.outcome = never
	}
}

// schedule is the state of one schedule in the history.
type schedule struct {
	source, id string
	key        string // of its runs, with the dot
	adds, ops  []*operation
	stored     []Event
	fired      []Event
	called     []Event
	overdue    []Event
	// results has the last Result of each run.
	results map[uint32]Event
	// passedMs is the time of the last Passed before the last Stored.
	passedMs int64

	// The rest is set by judgeSchedule.
	byRun    map[uint32]Event
	versions []version
	fates    map[int64]fate
	// excludedMs has the time at which a nominal time was recorded as excluded, or a later one.
	excludedMs map[int64]int64
	// forgotten counts nominal times whose decision no client has read.
	forgotten int
}

// fate is what became of a nominal time.
type fate struct {
	kind schemas.DecisionKind
	run  uint32
}

// takeSchedule takes the events of schedules. It returns false for all others.
func (c *checker) takeSchedule(e Event) bool {
	if e.Kind == Passed {
		c.passedMs = e.TimeNs / 1_000_000
		return true
	}
	key := [2]string{e.Source, e.ID}
	s := c.schedules[key]
	if s == nil {
		if e.Kind != Add || e.Recurrence == nil {
			return false
		}
		s = &schedule{source: e.Source, id: e.ID, results: map[uint32]Event{}}
		s.key = schemas.NewTimerID(e.Source, e.ID).String() + "."
		c.schedules[key] = s
		c.recurring = append(c.recurring, s)
	}
	switch {
	case e.Kind == Add:
		s.adds = append(s.adds, c.operation(e))
	case e.Kind.calls():
		s.ops = append(s.ops, c.operation(e))
	case e.Kind == Stored:
		s.stored, s.passedMs = append(s.stored, e), c.passedMs
	case e.Kind == Fired:
		s.fired = append(s.fired, e)
	case e.Kind == Called:
		s.called = append(s.called, e)
	case e.Kind == Overdue:
		s.overdue = append(s.overdue, e)
	case e.Kind == Result:
		s.results[e.Run] = e
	default:
		c.fail(BadHistory, e.Source, e.ID, "%s of a schedule", e.Kind)
	}
	return true
}

func (c *checker) operation(e Event) *operation {
	o := &operation{call: e, passedMs: c.passedMs}
	c.calls[e.Call] = &call{event: e, schedule: o}
	return o
}

func (s *schedule) fail(c *checker, r Rule, format string, args ...any) {
	c.fail(r, s.source, s.id, format, args...)
}

// judgeSchedule checks a schedule after the whole history was read.
func (c *checker) judgeSchedule(s *schedule) {
	r := &c.rep.Schedules
	r.Schedules++
	r.Runs += len(s.fired)
	s.runs(c)
	s.operations(c)
	acked := slices.ContainsFunc(s.adds, func(o *operation) bool { return o.outcome == always })
	switch {
	case len(s.stored) > 0:
		slices.SortStableFunc(s.stored, func(a, b Event) int { return cmp.Compare(a.Sequence, b.Sequence) })
		s.decisions(c)
		s.explained(c)
		s.asked(c)
		s.excluded(c)
		s.deadlines(c)
	case acked:
		s.fail(c, Lost, "acknowledged, and its record was never found")
	}
	s.callbacks(c)
}

// cancelled reports whether the schedule may have been cancelled before the last Passed. A
// cancelled schedule decides nothing more, also no deadline that passed in an outage before.
func (s *schedule) cancelled() bool {
	return slices.ContainsFunc(s.ops, func(o *operation) bool {
		return o.call.Kind == Cancel && o.outcome != never && o.passedMs < s.passedMs
	})
}

// last returns the newest record.
func (s *schedule) last() *Event { return &s.stored[len(s.stored)-1] }

// runs checks the events by themselves: numbers, keys, contents.
func (s *schedule) runs(c *checker) {
	s.byRun = map[uint32]Event{}
	nominal := map[int64]uint32{}
	data := s.contents(nil)
	for _, e := range s.fired {
		if want := s.key + strconv.FormatUint(uint64(e.Run), 10); e.Key != want {
			s.fail(c, ChangedID, "run %d fired with the key %q, want %q", e.Run, e.Key, want)
		}
		if !slices.Contains(data, e.Data) {
			s.fail(c, ChangedData, "run %d fired with %.80q; published was %.200q", e.Run, e.Data, data)
		}
		if before, ok := s.byRun[e.Run]; ok {
			s.fail(c, RunTwice, "run %d has the sequences %d and %d", e.Run, before.Sequence, e.Sequence)
		}
		s.byRun[e.Run] = e
		if e.TimeNs < e.DueMs*1_000_000 {
			s.fail(c, Early, "run %d fired %.3f ms before its nominal time", e.Run, float64(e.DueMs*1_000_000-e.TimeNs)/1e6)
		}
		switch e.Trigger {
		case schemas.TriggerManual:
			c.rep.Schedules.Asked++
			continue
		case schemas.TriggerBackfill:
			c.rep.Schedules.Backfilled++
		}
		if before, ok := nominal[e.DueMs]; ok && before != e.Run {
			s.fail(c, NominalTwice, "%s fired as run %d and as run %d", schemas.FormatTime(e.DueMs), before, e.Run)
		}
		nominal[e.DueMs] = e.Run
	}
	newest := uint32(0)
	for run := range s.byRun {
		newest = max(newest, run)
	}
	for _, e := range s.stored {
		newest = max(newest, e.Schedule.Last.Run)
	}
	for run := uint32(1); run <= newest; run++ {
		if _, ok := s.byRun[run]; !ok {
			s.fail(c, RunGap, "run %d of %d has no event", run, newest)
		}
	}
}

// contents returns the data that events may have: of adds and updates that were not
// refused. After an acknowledged update, its own, and that of updates which may have come
// later.
func (s *schedule) contents(after *operation) (data []string) {
	if after == nil {
		for _, o := range s.adds {
			data = append(data, o.call.Data)
		}
	}
	for _, o := range s.ops {
		if o.call.Kind != Update || o.outcome == never {
			continue
		}
		if after == nil || o.outcome == maybe || o.answer.AtNs >= after.call.AtNs {
			data = append(data, o.call.Data)
		}
	}
	return data
}

// operations checks that what was acknowledged is obeyed by every run that was claimed later.
func (s *schedule) operations(c *checker) {
	r := &c.rep.Schedules
	if r.Done == nil {
		r.Done = map[Kind]int{}
	}
	for _, o := range s.ops {
		if r.Operations++; o.outcome != always {
			continue
		}
		r.Acknowledged++
		r.Done[o.call.Kind]++
		switch o.call.Kind {
		case Cancel:
			for _, e := range s.fired {
				if e.Run > o.answer.Run {
					s.fail(c, AfterCancel, "run %d fired; the last run before the acknowledged cancel was %d", e.Run, o.answer.Run)
				}
			}
		case Update:
			data := s.contents(o)
			for _, e := range s.fired {
				if e.Run > o.answer.Run && !slices.Contains(data, e.Data) {
					s.fail(c, AfterUpdate, "run %d fired with %.80q; the last run before the acknowledged update to %.80q was %d", e.Run, e.Data, o.call.Data, o.answer.Run)
				}
			}
		case Pause:
			until, known := s.resumed(o)
			for _, e := range s.fired {
				if known && e.Trigger == schemas.TriggerSchedule && e.Run > o.answer.Run && e.Run <= until {
					s.fail(c, AfterPause, "run %d of %s fired; the last run before the acknowledged pause was %d", e.Run, schemas.FormatTime(e.DueMs), o.answer.Run)
				}
			}
		}
	}
}

// resumed returns the last run that was claimed before a pause ended. known is false if a
// resume without an answer may have ended it.
func (s *schedule) resumed(pause *operation) (run uint32, known bool) {
	run = ^uint32(0)
	for _, o := range s.ops {
		if o.call.Kind != Resume || o.outcome == never {
			continue
		}
		if o.outcome == maybe {
			return 0, false
		}
		if o.answer.AtNs >= pause.call.AtNs {
			run = min(run, o.answer.Run)
		}
	}
	return run, true
}

// asked compares the runs that somebody asked for with the calls.
func (s *schedule) asked(c *checker) {
	least, most, backfilled, moved := 0, 0, 0, false
	for _, o := range s.ops {
		switch {
		case o.outcome == never:
		case o.call.Kind == Trigger:
			most++
			if o.outcome == always {
				least++
			}
		case o.call.Kind == Backfill && o.outcome == always:
			backfilled += o.answer.Count
		case o.call.Kind == Update || o.call.Kind == Cancel:
			moved = true // a backfill may have ended
		}
	}
	for _, o := range s.adds {
		moved = moved || len(o.call.Recurrence.Exclude) > 0 // it leaves out dates that were excluded meanwhile
	}
	manual, filled := 0, 0
	for _, e := range s.fired {
		switch e.Trigger {
		case schemas.TriggerManual:
			manual++
		case schemas.TriggerBackfill:
			filled++
		}
	}
	last := s.last().Schedule
	// Requests that did not fire are in the record, unless it has dropped them.
	complete := len(last.Decisions) < schemas.MaxDecisions
	not := len(last.Manual)
	for _, d := range last.Decisions {
		if d.Kind == schemas.DecisionTriggerOverlap || d.Kind == schemas.DecisionTriggerCancelled {
			not += int(d.Count)
		}
	}
	if manual > most || complete && manual+not < least {
		s.fail(c, NotAsked, "%d runs fired that were asked for, and %d did not; %d requests were acknowledged, %d may have been made", manual, not, least, most)
	}
	if last.Backfill == nil && !moved && filled < backfilled {
		s.fail(c, NotAsked, "%d runs of backfills fired; %d were acknowledged", filled, backfilled)
	}
}

// callbacks checks that every run was called, if the schedule has a callback, and that
// nothing else was.
func (s *schedule) callbacks(c *checker) {
	keys := map[string]bool{}
	for _, e := range s.called {
		if n, err := strconv.ParseUint(strings.TrimPrefix(e.Key, s.key), 10, 32); err != nil || s.byRun[uint32(n)].Run == 0 {
			s.fail(c, ChangedID, "called with the key %q, and no such run fired", e.Key)
		} else if want := s.byRun[uint32(n)].Data; e.Data != want {
			s.fail(c, ChangedData, "run %d was called with %.80q, and fired with %.80q", n, e.Data, want)
		}
		keys[e.Key] = true
	}
	if !s.adds[0].call.Callback || s.replaces() {
		return
	}
	for _, e := range s.fired {
		if !keys[e.Key] {
			s.fail(c, NotCalled, "run %d fired, and its callback was never called", e.Run)
		}
	}
}

// replaces reports whether a later run may have ended a run before its first attempt.
func (s *schedule) replaces() bool {
	return slices.ContainsFunc(slices.Concat(s.adds, s.ops), func(o *operation) bool {
		return o.call.Recurrence != nil && o.call.Recurrence.Overlap == schemas.OverlapReplace
	})
}
