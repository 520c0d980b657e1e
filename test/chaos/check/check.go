package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// Rule names a promise that a history can break.
type Rule string

// The rules.
const (
	Lost           Rule = "lost"             // acknowledged, not cancelled, but never fired
	NotCalled      Rule = "not-called"       // fired, but its callback was never called
	Early          Rule = "early"            // fired or called before its due time
	AfterCancel    Rule = "after-cancel"     // fired after a cancel was acknowledged
	NotFired       Rule = "not-fired"        // a cancel was answered "already fired", but the timer never fired
	Forgotten      Rule = "forgotten"        // a cancel was answered "not found" after the API had acknowledged the add
	ChangedID      Rule = "changed-id"       // a fired event or a callback has a wrong key
	ChangedData    Rule = "changed-data"     // the data of the event has changed
	Invented       Rule = "invented"         // fired, but never added
	Refused        Rule = "refused"          // fired, though its add was refused
	AfterDone      Rule = "after-done"       // fired or called after the end of the run
	FiredTwice     Rule = "fired-twice"      // in TIMERS_FIRED more than once
	CancelledTwice Rule = "contradictory"    // one cancel acknowledged, another told "already fired"
	BadHistory     Rule = "malformed-record" // the history contradicts itself
	WrongDue       Rule = "wrong-due"        // the event's due time was never requested
)

// Violation is one broken promise.
type Violation struct {
	Rule   Rule
	Source string
	ID     string
	Text   string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s %s: %s", v.Rule, v.Source, v.ID, v.Text)
}

// Report is the result of the check of a history.
type Report struct {
	Added, Acknowledged, UnknownAdds, RefusedAdds  int
	Cancels, Cancelled, CancelsTooLate, UnknownCan int
	Moves, Moved, MovesTooLate, UnknownMoves       int // reschedules
	Fired, FiredDuplicates                         int // messages; those after the first of a timer
	Called, CalledDuplicates                       int
	Kills                                          int
	LateMs                                         []int64 // of the first firing of each timer, sorted
	Schedules                                      ScheduleReport
	AddedLate                                      int // acknowledged after the due time: not in LateMs if the history has a Begin
	Faults                                         FaultReport
	Violations                                     []Violation
}

// Count returns the number of violations of a rule.
func (r *Report) Count(rule Rule) int {
	n := 0
	for _, v := range r.Violations {
		if v.Rule == rule {
			n++
		}
	}
	return n
}

// Percentile returns a percentile of the lateness in milliseconds.
func (r *Report) Percentile(p float64) int64 { return percentile(r.LateMs, p) }

func percentile(sorted []int64, p float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p/100*float64(len(sorted))), len(sorted)-1)]
}

// String returns a summary of a few lines.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "timers %d: acknowledged %d, unknown %d, refused %d\n", r.Added, r.Acknowledged, r.UnknownAdds, r.RefusedAdds)
	fmt.Fprintf(&b, "cancels %d: acknowledged %d, too late %d, unknown %d\n", r.Cancels, r.Cancelled, r.CancelsTooLate, r.UnknownCan)
	if r.Moves > 0 {
		fmt.Fprintf(&b, "reschedules %d: acknowledged %d, too late %d, unknown %d\n", r.Moves, r.Moved, r.MovesTooLate, r.UnknownMoves)
	}
	fmt.Fprintf(&b, "fired %d (%d duplicates), called %d (%d duplicates), kills %d\n", r.Fired, r.FiredDuplicates, r.Called, r.CalledDuplicates, r.Kills)
	fmt.Fprintf(&b, "lateness by the stream's timestamps: p50 %d ms, p99 %d ms, max %d ms\n", r.Percentile(50), r.Percentile(99), r.Percentile(100))
	fmt.Fprintf(&b, "lost %d, early %d, fired after an acknowledged cancel %d, other violations %d",
		r.Count(Lost), r.Count(Early), r.Count(AfterCancel), len(r.Violations)-r.Count(Lost)-r.Count(Early)-r.Count(AfterCancel))
	r.Schedules.print(&b)
	r.Faults.print(&b)
	return b.String()
}

// timer is the state of one timer in the history.
type timer struct {
	source, id, data   string
	dueMs              int64
	callback           bool
	acked              bool  // some add was acknowledged
	ackedByAPI         int64 // AtNs; 0 for never
	open               int   // adds without an answer
	refused            int   // adds that were refused permanently
	adds               int
	cancelOK           bool
	cancelUnknown      bool
	cancelLate         bool
	fired, called      int
	firstFiredNs       int64
	firstFiredSequence uint64
	shard              int
	ackedAt            int64 // of the first acknowledgement, AtNs
	// moved is the due time of the last acknowledged reschedule. maybe lists the due times of
	// reschedules without an answer, which may have taken effect.
	moved     int64
	maybe     []int64
	seenFirst map[string]int64 // time of the first firing, of the first call
	asDue     []int64          // due times in the fired events
}

// dues returns all possible due times in Unix milliseconds.
func (t *timer) dues() []int64 {
	due := t.dueMs
	if t.moved != 0 {
		due = t.moved
	}
	return append([]int64{due}, t.maybe...)
}

type call struct {
	event Event
	done  bool
	// schedule is set if the call is one for a schedule.
	schedule *operation
}

type checker struct {
	rep    Report
	timers map[[2]string]*timer
	order  []*timer
	calls  map[int64]*call
	done   bool
	began  int64 // wall clock at the start of the history, Unix nanoseconds; 0 if unknown
	faults faults
	// schedules are in the order of their adds, too. passedMs is the time of the last Passed.
	schedules map[[2]string]*schedule
	recurring []*schedule
	passedMs  int64
	calendars map[string]*namedCalendar
}

// Check checks a history in the order of its events.
func Check(events []Event) *Report {
	c := &checker{timers: map[[2]string]*timer{}, calls: map[int64]*call{}, schedules: map[[2]string]*schedule{}, calendars: map[string]*namedCalendar{}}
	for _, e := range events {
		c.take(e)
	}
	for _, cl := range c.calls {
		if !cl.done && cl.schedule == nil {
			c.unknown(cl.event)
		}
	}
	for _, t := range c.order {
		c.judge(t)
		c.lateness(t)
	}
	for _, s := range c.recurring {
		c.judgeSchedule(s)
	}
	c.judgeCalendars()
	slices.Sort(c.rep.LateMs)
	c.rep.Faults = c.faults.report()
	return &c.rep
}

func (c *checker) take(e Event) {
	if c.takeCalendar(e) || c.takeSchedule(e) {
		return
	}
	switch e.Kind {
	case Add:
		c.add(e)
	case Cancel, Reschedule:
		if e.Kind == Cancel {
			c.rep.Cancels++
		} else {
			c.rep.Moves++
		}
		c.calls[e.Call] = &call{event: e}
		if c.timers[[2]string{e.Source, e.ID}] == nil {
			c.fail(BadHistory, e.Source, e.ID, "%s before it was added", e.Kind)
		}
	case Answer, Unknown:
		c.answer(e)
	case Fired:
		c.fired(e)
	case Called:
		c.called(e)
	case Kill:
		c.rep.Kills++
	case Done:
		c.done = true
	case Start:
	case Begin:
		c.began = e.TimeNs
	case Fault, Heal, Clock, Elected:
		c.faults.take(e)
	default:
		c.fail(BadHistory, e.Source, e.ID, "kind %q", e.Kind)
	}
}

func (c *checker) fail(r Rule, source, id, format string, args ...any) {
	c.rep.Violations = append(c.rep.Violations, Violation{Rule: r, Source: source, ID: id, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) add(e Event) {
	key := [2]string{e.Source, e.ID}
	t := c.timers[key]
	if t == nil {
		t = &timer{source: e.Source, id: e.ID, data: e.Data, dueMs: e.DueMs, callback: e.Callback}
		c.timers[key] = t
		c.order = append(c.order, t)
		c.rep.Added++
	} else if t.dueMs != e.DueMs || t.data != e.Data {
		c.fail(BadHistory, e.Source, e.ID, "added again with other contents")
	}
	t.adds++
	c.calls[e.Call] = &call{event: e}
}

func (c *checker) answer(e Event) {
	cl := c.calls[e.Call]
	if cl == nil || cl.done {
		c.fail(BadHistory, e.Source, e.ID, "answer to call %d, which is not open", e.Call)
		return
	}
	cl.done = true
	if cl.schedule != nil {
		cl.schedule.answered(e)
		return
	}
	if e.Kind == Unknown || !e.OK && mayHaveHappened(e.Code) {
		c.unknown(cl.event)
		return
	}
	t := c.timers[[2]string{cl.event.Source, cl.event.ID}]
	if t == nil {
		return // reported when the call was made
	}
	if cl.event.Kind == Add {
		switch {
		case !e.OK:
			t.refused++
		default:
			if !t.acked {
				t.acked, t.ackedAt = true, e.AtNs
			}
			if cl.event.Via == "api" && t.ackedByAPI == 0 {
				t.ackedByAPI = e.AtNs
			}
		}
		return
	}
	if cl.event.Kind == Reschedule {
		c.moveAnswer(t, cl.event, e)
		return
	}
	c.cancelAnswer(t, cl.event, e)
}

func (c *checker) moveAnswer(t *timer, asked, e Event) {
	switch {
	case e.OK:
		t.moved = asked.DueMs
		c.rep.Moved++
	case e.Code == string(schemas.CodeAlreadyFired):
		t.cancelLate = true
		c.rep.MovesTooLate++
	case e.Code == string(schemas.CodeNotFound):
		c.forgotten(t, asked)
	}
}

// forgotten checks a call whose answer was "not found".
func (c *checker) forgotten(t *timer, asked Event) {
	if t.ackedByAPI != 0 && t.ackedByAPI < asked.AtNs && t.fired == 0 && t.called == 0 {
		c.fail(Forgotten, t.source, t.id, "the API acknowledged it, and then did not find it")
	}
}

// mayHaveHappened reports whether a call may have taken effect although it was refused
// with code.
func mayHaveHappened(code string) bool { return code == "" || code == string(schemas.CodeUnavailable) }

func (c *checker) cancelAnswer(t *timer, asked, e Event) {
	switch {
	case e.OK:
		t.cancelOK = true
		c.rep.Cancelled++
	case e.Code == string(schemas.CodeAlreadyFired):
		t.cancelLate = true
		c.rep.CancelsTooLate++
	case e.Code == string(schemas.CodeNotFound):
		c.forgotten(t, asked)
	}
}

func (c *checker) unknown(asked Event) {
	t := c.timers[[2]string{asked.Source, asked.ID}]
	if t == nil {
		return
	}
	if asked.Kind == Add {
		t.open++
		return
	}
	if asked.Kind == Reschedule {
		t.maybe = append(t.maybe, asked.DueMs)
		c.rep.UnknownMoves++
		return
	}
	t.cancelUnknown = true
	c.rep.UnknownCan++
}

// seen handles what fired events and callbacks have in common.
func (c *checker) seen(e Event, what string) *timer {
	t := c.timers[[2]string{e.Source, e.ID}]
	if t == nil {
		c.fail(Invented, e.Source, e.ID, "%s, and was never added", what)
		return nil
	}
	if c.done {
		c.fail(AfterDone, t.source, t.id, "%s after everything was over", what)
	}
	// Whether it was early is decided at the end, when all possible due times are known.
	if first, ok := t.seenFirst[what]; !ok || e.TimeNs < first {
		if t.seenFirst == nil {
			t.seenFirst = map[string]int64{}
		}
		t.seenFirst[what] = e.TimeNs
	}
	if e.DueMs != 0 {
		t.asDue = append(t.asDue, e.DueMs)
	}
	if want := schemas.NewTimerID(t.source, t.id).MsgID(1); e.Key != want || e.Webhook != "" && e.Webhook != want {
		c.fail(ChangedID, t.source, t.id, "%s with the key %q and webhook-id %q; both must be %q", what, e.Key, e.Webhook, want)
	}
	if e.Data != t.data {
		c.fail(ChangedData, t.source, t.id, "%s with %.80q; published was %.80q", what, e.Data, t.data)
	}
	return t
}

func (c *checker) fired(e Event) {
	c.rep.Fired++
	t := c.seen(e, "fired")
	if t == nil {
		return
	}
	if t.fired++; t.fired == 1 {
		t.firstFiredNs, t.firstFiredSequence, t.shard = e.TimeNs, e.Sequence, e.Shard
		return
	}
	c.rep.FiredDuplicates++
	c.fail(FiredTwice, t.source, t.id, "sequences %d and %d, %.0f ms apart", t.firstFiredSequence, e.Sequence, float64(e.TimeNs-t.firstFiredNs)/1e6)
}

func (c *checker) called(e Event) {
	c.rep.Called++
	if t := c.seen(e, "called"); t != nil {
		if t.called++; t.called > 1 {
			c.rep.CalledDuplicates++
		}
	}
}

// judge checks a timer after the whole history was read.
func (c *checker) judge(t *timer) {
	happened := t.fired > 0 || t.called > 0
	switch {
	case t.acked:
		c.rep.Acknowledged++
	case t.refused == t.adds:
		c.rep.RefusedAdds++
		if happened {
			c.fail(Refused, t.source, t.id, "its add was refused, and it fired")
		}
	default:
		c.rep.UnknownAdds++
	}
	due := t.dues()
	for what, ns := range t.seenFirst {
		if least := slices.Min(due) * 1_000_000; ns < least {
			c.fail(Early, t.source, t.id, "%s %.3f ms before it was due", what, float64(least-ns)/1e6)
		}
	}
	for _, ms := range t.asDue {
		if !slices.Contains(due, ms) {
			c.fail(WrongDue, t.source, t.id, "fired as due at %s; it was due at %s", schemas.FormatTime(ms), schemas.FormatTime(due[0]))
		}
	}
	if t.cancelOK && happened {
		c.fail(AfterCancel, t.source, t.id, "a cancel was acknowledged, and it fired %d and was called %d times", t.fired, t.called)
	}
	if t.cancelOK && t.cancelLate {
		c.fail(CancelledTwice, t.source, t.id, "a cancel was acknowledged and another was too late")
	}
	mayBeCancelled := t.cancelOK || t.cancelUnknown
	switch {
	case t.cancelLate && t.fired == 0:
		c.fail(NotFired, t.source, t.id, "a cancel or reschedule was answered that the timer had fired, but it never fired")
	case t.acked && !mayBeCancelled && t.fired == 0:
		c.fail(Lost, t.source, t.id, "acknowledged, due %s, and never fired", schemas.FormatTime(t.dueMs))
	}
	if t.callback && t.fired > 0 && t.called == 0 {
		c.fail(NotCalled, t.source, t.id, "fired, and its callback was never called")
	}
}

// lateness records how late a timer fired, unless it was added too late to be on time.
func (c *checker) lateness(t *timer) {
	if t.fired == 0 {
		return
	}
	var due int64
	for _, ms := range t.dues() {
		if ms*1_000_000 <= t.firstFiredNs {
			due = max(due, ms)
		}
	}
	switch {
	case due == 0: // early: reported as a violation
		return
	case c.began != 0 && (!t.acked || c.began+t.ackedAt > due*1_000_000):
		c.rep.AddedLate++
		return
	}
	late := (t.firstFiredNs - due*1_000_000) / 1_000_000
	c.rep.LateMs = append(c.rep.LateMs, late)
	c.faults.fired(t.shard, due*1_000_000, t.firstFiredNs)
}
