package recurrence

import (
	"fmt"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

// This file watches for successes (timerexpect).
//
// The deadline of a nominal time is timerexpect after it. If the run of a nominal time has no
// success by the deadline, or if there is no run, the schedule publishes exactly one overdue
// event, not before the deadline. Nominal times that one decision skips, or for which it fires
// one run, share the event, and the deadline of the last of them. Nominal times whose deadline
// had passed when they were decided also share an event.
//
// A decision adds its nominal times to Progress.Expected. The schedule is also due at the
// earliest deadline there. Then the owner reads the record of the run, and a turn removes the
// nominal times from Expected. Without a success the turn claims an overdue event in
// Progress.Alarm. All of this is part of the compare-and-set of the turn.
//
// The nominal times of a pause have no overdue event. Neither have nominal times whose deadline
// is after the schedule was paused or cancelled. A pause adds the nominal times before it whose
// deadlines have passed to Expected (pauseExpected). Later decisions skip nominal times before the
// last resume, and nominal times with an overdue event of a pause, which are due again if the
// cluster's clock is set back (expectedFrom). Runs of triggers and backfills have no deadline.

// Result is the state of a run's record, read after the run's deadline.
type Result struct {
	Run uint32
	// State is 0 if there is no record.
	State  schemas.State
	DoneMs int64
}

// NeedsResult returns the run whose result Turn needs at nowMs; 0 for none.
func NeedsResult(rec *schemas.Record, nowMs int64) uint32 {
	s := rec.Schedule
	if len(s.Expected) == 0 || s.Expected[0].DeadlineMs > nowMs {
		return 0
	}
	return s.Expected[0].Run
}

// expected checks the nominal times whose deadline has passed. It returns true if it claims an
// overdue event. It does nothing while the turn has to decide nominal times whose deadlines have
// also passed, because they share the event.
func (t *turn) expected(active bool) bool {
	s := t.s
	if active && s.NextMs != 0 && s.NextDueMs <= t.now && s.NextMs+s.ExpectMs <= t.now {
		return false
	}
	for len(s.Expected) > 0 && s.Expected[0].DeadlineMs <= t.now {
		e := s.Expected[0]
		r := t.claim.Result
		if e.Run != 0 && r != nil && r.Run != e.Run {
			return false // the next turn has the result of e.Run
		}
		s.Expected = slices.Clone(s.Expected[1:])
		if e.Run != 0 && (r == nil || r.State == schemas.StateSuccess && r.DoneMs <= e.DeadlineMs) {
			continue
		}
		t.alarm(&e)
		return true
	}
	return false
}

// alarm claims an overdue event.
func (t *turn) alarm(e *schemas.Expected) {
	s := t.s
	s.Alarm = schemas.LastRun{
		Run: sum(s.Alarm.Run, 1), NominalMs: e.ToMs, DueMs: t.Record.DueMs, ClaimedMs: t.now,
		Epoch: t.claim.Epoch, Before: t.claim.Before, Missed: e.Count - 1,
	}
	o := schemas.Overdue{FromMs: e.FromMs, ToMs: e.ToMs, DeadlineMs: e.DeadlineMs, AtMs: t.now, Count: e.Count, Run: e.Run, Kind: e.Kind}
	if e.Run != 0 {
		o.State = t.claim.Result.State
	}
	s.AddOverdue(o)
	t.Overdue = &o
}

// expect adds nominal times to Progress.Expected. The run is 0 for times that are skipped, or
// that wait.
func (t *turn) expect(kind schemas.DecisionKind, times span, run uint32) {
	t.p.expect(t.s, kind, times, run, t.now)
}

// expect is turn.expect for the plan that has the nominal times.
func (p *Plan) expect(s *schemas.Schedule, kind schemas.DecisionKind, times span, run uint32, nowMs int64) {
	if s.ExpectMs == 0 || times.n == 0 {
		return
	}
	if times = p.later(times, expectedFrom(s)); times.n == 0 {
		return
	}
	// checkExpect makes sure that at most MaxExpectTimes have a deadline after nowMs, except on
	// rare days.
	late, kept := times.last, uint32(0)
	for kept < times.n && late+s.ExpectMs > nowMs {
		kept++
		before, ok := p.calendar.Prev(late)
		if !ok || before < times.first {
			kept = times.n
		}
		late = before
	}
	if passed := times.n - kept; passed > 0 {
		e := schemas.Expected{FromMs: times.first, ToMs: late, DeadlineMs: late + s.ExpectMs, Count: passed, Kind: kind}
		if kind == schemas.DecisionFired && times.n > 1 {
			e.Kind = schemas.DecisionCoalesced
		}
		s.Expect(e, nowMs)
		if kept > 0 {
			times.first, _ = p.after(late)
		}
	}
	if kept > 0 {
		s.Expect(schemas.Expected{FromMs: times.first, ToMs: times.last, DeadlineMs: times.last + s.ExpectMs, Count: kept, Run: run, Kind: kind}, nowMs)
	}
}

// expectedFrom returns the last nominal time that expect must skip: the time of the last resume, or the end of the latest overdue
// event of a pause if that is later. It knows the last schemas.MaxOverdue events.
func expectedFrom(s *schemas.Schedule) int64 {
	last := s.PausedUntilMs
	for _, o := range s.Overdue {
		if o.Kind == schemas.DecisionPaused {
			last = max(last, o.ToMs)
		}
	}
	return last
}

// later returns the part of a span that is after a time. If it cuts the span, it counts at most MaxBackfill nominal times.
func (p *Plan) later(times span, afterMs int64) span {
	if times.first > afterMs {
		return times
	}
	first, _ := p.after(afterMs)
	rest := p.walk(first, times.last, min(times.n, MaxBackfill))
	rest.last = times.last
	return rest
}

// expectWaiting lets the success of the run that has just fired count for the nominal time
// that waited, if that has not been found overdue.
func (t *turn) expectWaiting(nominalMs int64) {
	for i, e := range t.s.Expected {
		if e.ToMs == nominalMs && e.Run == 0 && e.DeadlineMs > t.now {
			t.s.Expected = slices.Clone(t.s.Expected)
			t.s.Expected[i].Run, t.s.Expected[i].Kind = t.s.Last.Run, schemas.DecisionFired
		}
	}
}

// unexpect ends the wait for a success of a nominal time that waited for the previous run,
// because its date is excluded now. The nominal times that shared its deadline keep their own.
func (t *turn) unexpect(nominalMs int64) {
	i := slices.IndexFunc(t.s.Expected, func(e schemas.Expected) bool { return e.ToMs == nominalMs && e.Run == 0 })
	if i < 0 {
		return
	}
	e := t.s.Expected[i]
	t.s.Expected = slices.Delete(slices.Clone(t.s.Expected), i, i+1)
	before, ok := t.p.decides().Prev(nominalMs)
	if e.Count--; e.Count == 0 || !ok {
		return
	}
	e.DeadlineMs -= e.ToMs - before
	e.ToMs = before
	t.s.Expect(e, t.now)
}

// pauseExpected ends the wait for successes, because the schedule is paused. Deadlines that
// have passed stay, also those of nominal times that are not decided: the owner may be
// down.
func (p *Plan) pauseExpected(s *schemas.Schedule, nowMs int64) {
	if s.ExpectMs == 0 {
		return
	}
	if s.NextMs != 0 { // otherwise the limit was reached, or the end: no run was planned
		p.expect(s, schemas.DecisionPaused, p.passed(s, nowMs-s.ExpectMs), 0, nowMs)
	}
	s.Expected = slices.DeleteFunc(slices.Clone(s.Expected), func(e schemas.Expected) bool { return e.DeadlineMs > nowMs })
}

// resumeExpected removes nominal times that a pause has added to Expected, if they are not decided and are after nowMs: the
// cluster's clock was set back during the pause. Later turns decide them. If an entry keeps some of its nominal times, its Count is
// at most MaxBackfill.
func (p *Plan) resumeExpected(s *schemas.Schedule, nowMs int64) {
	if s.NextMs == 0 {
		return // all are decided
	}
	last := max(nowMs, s.NextMs-1)
	list := make([]schemas.Expected, 0, len(s.Expected))
	for _, e := range s.Expected {
		if e.Kind == schemas.DecisionPaused && e.ToMs > last {
			to, ok := p.calendar.Prev(last + 1)
			if !ok || to < e.FromMs {
				continue
			}
			e.DeadlineMs -= e.ToMs - to
			e.ToMs, e.Count = to, max(p.walk(e.FromMs, to, min(e.Count, MaxBackfill)).n, 1)
		}
		list = append(list, e)
	}
	s.Expected = list
}

// deadlineOf returns the deadline for a success of a run; 0 for none.
func deadlineOf(s *schemas.Schedule, run uint32) int64 {
	for i := range s.Expected {
		if s.Expected[i].Run == run {
			return s.Expected[i].DeadlineMs
		}
	}
	return 0
}

// checkExpect returns an error if more nominal times than schemas.MaxExpectTimes are within
// timerexpect. It checks the first maxLook nominal times from nextMs on.
func (p *Plan) checkExpect(nextMs int64) error {
	if p.rule.ExpectMs == 0 {
		return nil
	}
	var recent [schemas.MaxExpectTimes]int64
	for n := 0; n < maxLook && nextMs != 0; n++ {
		slot := &recent[n%len(recent)]
		if n >= len(recent) && nextMs-*slot < p.rule.ExpectMs {
			return schemas.Errorf(schemas.CodeInvalidAttribute, "timerexpect spans more than %d runs of the schedule, which is the limit: use a shorter one", schemas.MaxExpectTimes)
		}
		*slot = nextMs
		nextMs, _ = p.after(nextMs)
	}
	return nil
}

// OverdueRecord returns the record from which the owner makes the last overdue event. It is
// never stored, and depends on the schedule's record only.
func OverdueRecord(id schemas.TimerID, rec *schemas.Record) schemas.Record {
	a := &rec.Schedule.Alarm
	r := schemas.Record{
		Definition: rec.Definition,
		RunState: schemas.RunState{
			State: schemas.StateDelivered, DueMs: a.DueMs, ScheduledMs: a.NominalMs, FiredMs: a.ClaimedMs, Epoch: a.Epoch,
		},
		Origin: &schemas.Origin{Schedule: id, Missed: a.Missed},
	}
	if o := lastOverdue(rec.Schedule); o != nil {
		r.Run, r.Origin.DeadlineMs = o.Run, o.DeadlineMs
	}
	r.Callback, r.Retry = "", nil
	return r
}

// lastOverdue returns the description of the last overdue event.
func lastOverdue(s *schemas.Schedule) *schemas.Overdue {
	if len(s.Overdue) == 0 {
		return nil
	}
	return &s.Overdue[len(s.Overdue)-1]
}

// OverdueReason returns the reason of the last overdue event, as a word and as a sentence.
func OverdueReason(rec *schemas.Record) (word, text string) {
	o := lastOverdue(rec.Schedule)
	if o == nil {
		return "unknown", "no success by the deadline"
	}
	return overdueReason(o)
}

// overdueReason says why there was no success: a state, or the kind of a decision.
func overdueReason(o *schemas.Overdue) (word, text string) {
	by := schemas.FormatTime(o.DeadlineMs)
	switch {
	case o.Run != 0 && o.State == schemas.StateSuccess:
		return "late", fmt.Sprintf("run %d succeeded after %s", o.Run, by)
	case o.Run != 0 && o.State == 0:
		return "unknown", fmt.Sprintf("the result of run %d is not known: its record has expired", o.Run)
	case o.Run != 0:
		return o.State.String(), fmt.Sprintf("run %d had no success by %s: its state is %s", o.Run, by, o.State)
	case o.Kind == schemas.DecisionFired:
		return "late", fmt.Sprintf("the run fired after %s", by)
	case o.Kind == schemas.DecisionQueue:
		return o.Kind.String(), fmt.Sprintf("no run fired by %s: it waited for the previous one", by)
	}
	return o.Kind.String(), fmt.Sprintf("no run fired by %s: %s", by, o.Kind)
}
