package schemas

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// This file has what a schedule with timerexpect keeps: the nominal times that wait for a
// success, and its overdue events.

// Expected are nominal times without a success so far. Their deadline is the last nominal
// time and timerexpect: nominal times that were decided together share one deadline and one
// overdue event.
type Expected struct {
	FromMs, ToMs int64
	// DeadlineMs is the time by which a success must be recorded, inclusive. An update of
	// timerexpect does not move it.
	DeadlineMs int64
	Count      uint32
	// Run is the run whose success ends the wait; 0 if there is none, or not yet. Kind is
	// DecisionFired with a run, otherwise the reason why there is none. DecisionFired without a
	// run is a run that fired after the deadline.
	Run  uint32
	Kind DecisionKind
}

// Overdue describes an overdue event.
type Overdue struct {
	FromMs, ToMs int64 // first and last nominal time
	DeadlineMs   int64
	AtMs         int64 // time of the event
	Count        uint32
	Run          uint32 // the run without success; 0 if the times have no run
	// State is the state of the run at that time, success for a success that came too late, and 0
	// if its record is gone or there is no run. Kind is as in Expected.
	State State
	Kind  DecisionKind
}

// Expect adds nominal times that wait for a success. It joins entries without a run whose
// deadlines have passed, but not those of a pause with others. It joins the two earliest if there
// are more than MaxExpected: both then count as overdue at the later deadline, unless both have a
// run; then the later run counts for both.
// It copies Expected, because copies of the record may share it.
func (p *Progress) Expect(e Expected, nowMs int64) {
	list := make([]Expected, 0, len(p.Expected)+1)
	list = append(append(list, p.Expected...), e)
	slices.SortStableFunc(list, func(a, b Expected) int { return cmp.Compare(a.DeadlineMs, b.DeadlineMs) })
	for i := 1; i < len(list); i++ {
		if a, b := &list[i-1], &list[i]; a.Run == 0 && b.Run == 0 && b.DeadlineMs <= nowMs && (a.Kind == DecisionPaused) == (b.Kind == DecisionPaused) {
			a.join(b)
			list = slices.Delete(list, i, i+1)
			i--
		}
	}
	if len(list) > MaxExpected {
		a, b := &list[0], list[1]
		noRun := a.Run == 0
		if a.join(&b); noRun {
			a.Run = 0
		}
		list = slices.Delete(list, 1, 2)
	}
	p.Expected = list
}

// join adds later nominal times.
func (e *Expected) join(later *Expected) {
	e.FromMs, e.ToMs = min(e.FromMs, later.FromMs), max(e.ToMs, later.ToMs)
	e.DeadlineMs, e.Run, e.Kind = later.DeadlineMs, later.Run, later.Kind
	e.Count = uint32(min(uint64(e.Count)+uint64(later.Count), math.MaxUint32))
}

// AddOverdue adds an overdue event. It drops the oldest beyond MaxOverdue, and copies
// Overdue.
func (p *Progress) AddOverdue(o Overdue) {
	drop := max(0, len(p.Overdue)-MaxOverdue+1)
	p.Overdue = append(slices.Clone(p.Overdue[drop:]), o)
}

// ExpectedForMs returns the time, in milliseconds, for which the record of a run that has
// succeeded must be kept beyond its retention: the schedule looks at it at the deadline.
func (r *Record) ExpectedForMs() int64 {
	if r.Origin == nil || r.State != StateSuccess {
		return 0
	}
	return max(r.Origin.DeadlineMs-r.DoneMs, 0)
}

// OverdueID returns the Nats-Msg-Id of the overdue event of a nominal time, in Unix
// milliseconds: <timer id>.<nominal time>.overdue.
func OverdueID(schedule TimerID, nominalMs int64) string {
	return schedule.String() + "." + strconv.FormatInt(nominalMs, 10) + ".overdue"
}

// OverdueTimer is RunTimer for the n-th overdue event of a schedule. No record has that id: the
// scheduler's owner uses it while it publishes the event.
func OverdueTimer(schedule TimerID, n uint32) TimerID {
	return derivedTimer(schedule, n, "overdue")
}
