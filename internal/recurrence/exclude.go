package recurrence

import (
	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// This file follows the calendars that a schedule excludes. They may change at any time, so a
// nominal time is checked when it is due, not only when it is planned. A time on an excluded
// date is recorded (schemas.DecisionExcluded) by the first turn after it has passed. With
// timerexcludeshift next or previous it is recorded too, and its run is at another nominal
// time.

// Calendars are the calendars that schedules exclude, as of one reading.
type Calendars interface {
	// Exclusions joins calendars. Its error names a calendar that does not exist, or says why
	// the calendars are not known.
	Exclusions(names []string) (*calendar.Exclusions, error)
}

// UnknownCalendars stands for calendars where they cannot be read: each has no dates. It is for
// clients, which check everything else about an add.
var UnknownCalendars Calendars = unknownCalendars{}

type unknownCalendars struct{}

func (unknownCalendars) Exclusions([]string) (*calendar.Exclusions, error) {
	return calendar.Join(), nil
}

const (
	// maxPassed bounds the times on excluded dates that one turn looks at: some milliseconds
	// of work.
	maxPassed = 20_000
	// maxPasses bounds the same for an operation, as a multiple of maxPassed.
	maxPasses = 50
)

// excludes reports whether the schedule excludes calendars.
func (p *Plan) excludes() bool { return p.rule.Exclude != nil }

// decides returns the schedule of the nominal times that were decided. Dates may have been
// excluded or included since; without a shift, that does not matter, because the times on
// dates that were excluded are recorded.
func (p *Plan) decides() *calendar.Schedule {
	if p.all != nil && (p.rule.ExcludeMode == "" || p.rule.ExcludeMode == "skip") {
		return p.all
	}
	return p.calendar
}

// excluded returns the calendars that exclude a nominal time of an earlier plan; 0 for none.
func (p *Plan) excluded(ms int64) uint32 {
	if !p.excludes() || p.names(ms) {
		return 0
	}
	return p.calendar.ExcludedBy(ms)
}

// follow makes the schedule follow the calendars as they are now. It returns false if more
// times on excluded dates have passed than one turn looks at.
func (t *turn) follow() bool {
	s, p := t.s, t.p
	if !p.excludes() || s.NextMs == 0 {
		return true
	}
	if revision := p.calendar.Revision(); revision != s.Calendars {
		s.Calendars = revision
		s.Counted, s.CountedMs = 0, 0 // counted by other calendars
	}
	if !t.pass(min(t.now, s.NextMs-1), true) {
		return false
	}
	if s.NextMs <= t.now && p.excluded(s.NextMs) != 0 {
		next, _ := p.after(s.NextMs)
		t.setNext(next)
	}
	return t.pass(t.undecided(), false)
}

// undecided returns the end of the times that have passed and are decided or excluded.
func (t *turn) undecided() int64 {
	if t.s.NextMs == 0 {
		return t.now
	}
	return min(t.now, t.s.NextMs-1)
}

// pass records the times on excluded dates up to toMs. With all, all times after the last
// decided one count as excluded: the schedule was planned past them, and the calendars may
// have changed since. It returns false if there are more than it looks at.
func (t *turn) pass(toMs int64, all bool) bool {
	if !t.p.excludes() {
		return true
	}
	if last := min(reached(t.s), toMs); all && !t.passed(last, false) {
		return false
	}
	return t.passed(toMs, all)
}

func (t *turn) passed(toMs int64, all bool) bool {
	s := t.s
	if toMs <= s.PassedMs {
		return true
	}
	list, reachedMs := t.p.calendar.ExcludedBetween(s.PassedMs+1, toMs, all, maxPassed)
	for _, e := range list {
		t.skip(schemas.DecisionExcluded, span{first: e.FromMs, last: e.ToMs, n: e.Count}, e.By)
	}
	s.PassedMs = reachedMs
	return reachedMs == toMs
}

// leave records the times on excluded dates up to nowMs for an operation that ends the plan.
func (p *Plan) leave(s *schemas.Schedule, nowMs int64) {
	if s.NextMs == 0 {
		return
	}
	t := turn{p: p, s: s, now: nowMs}
	for n := 0; n < maxPasses && !t.pass(t.undecided(), true); n++ {
	}
}
