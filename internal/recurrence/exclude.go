package recurrence

import (
	"errors"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// This file applies the calendars that a schedule excludes. They may change at any time, so
// Turn checks a nominal time when it is due, although the plan has left out excluded dates. The
// first turn after a time on an excluded date records that time (schemas.DecisionExcluded).
// With timerexcludeshift next or previous it is recorded too, and its run is at another
// nominal time.
//
// If the calendars exclude all times that a schedule has left, it is not completed: a later change
// of the calendars may give it runs again. Its next time is then its last one, on an excluded
// date; see lastExcluded. It is completed when that time has passed.

// Calendars provides the calendars that schedules exclude.
type Calendars interface {
	// Exclusions returns the dates of several calendars together. Its error names a calendar
	// that does not exist, or gives the reason why the calendars are not known.
	Exclusions(names []string) (*calendar.Exclusions, error)
}

// UnknownCalendars is for clients, which cannot read calendars but check everything else about
// an add. Its calendars have no dates.
var UnknownCalendars Calendars = unknownCalendars{}

type unknownCalendars struct{}

func (unknownCalendars) Exclusions([]string) (*calendar.Exclusions, error) {
	return calendar.Join(), nil
}

// KnownCalendars returns the same calendars, in which a calendar that does not exist or cannot be
// read has no dates. Errors: those of c for other reasons.
func KnownCalendars(c Calendars) Calendars {
	if c == nil {
		return nil
	}
	return knownCalendars{c}
}

type knownCalendars struct{ all Calendars }

// Exclusions implements Calendars.
func (k knownCalendars) Exclusions(names []string) (*calendar.Exclusions, error) {
	x, err := k.all.Exclusions(names)
	if !missing(err) {
		return x, err
	}
	var dates []calendar.Dates
	var revision uint64
	var sinceMs int64
	for _, name := range names {
		x, err := k.all.Exclusions([]string{name})
		switch {
		case err == nil:
			dates, revision, sinceMs = append(dates, x.Dates()...), max(revision, x.Revision), max(sinceMs, x.SinceMs)
			continue
		case !missing(err):
			return nil, err
		}
		empty, err := calendar.NewDates(name)
		if err != nil {
			return nil, err
		}
		dates = append(dates, empty)
	}
	x = calendar.Join(dates...)
	x.Revision, x.SinceMs = revision, sinceMs
	return x, nil
}

// missing reports whether an error of Calendars is about one calendar, which does not exist or
// cannot be read.
func missing(err error) bool {
	return schemas.CodeOf(err) == schemas.CodeInvalidAttribute || errors.Is(err, schemas.ErrDamaged) || errors.Is(err, schemas.ErrNewer)
}

const (
	// maxPassed bounds the times on excluded dates that one turn looks at: some milliseconds
	// of work.
	maxPassed = 20_000
	// maxPasses is the same bound for an operation, as a multiple of maxPassed.
	maxPasses = 50
)

// excludes reports whether the schedule excludes calendars.
func (p *Plan) excludes() bool { return p.rule.Exclude != nil }

// decides returns the calendar to which all decided nominal times belong, although excluded
// dates may have changed since. Without a shift it is the calendar without exclusions, because
// every time on an excluded date has a decision of its own.
func (p *Plan) decides() *calendar.Schedule {
	if p.all != nil && (p.rule.ExcludeMode == "" || p.rule.ExcludeMode == "skip") {
		return p.all
	}
	return p.calendar
}

// excluded returns the calendars that exclude a nominal time of an earlier plan, as a bit mask
// (calendar.Schedule.ExcludedBy); 0 for none.
func (p *Plan) excluded(ms int64) uint32 {
	if !p.excludes() || p.names(ms) {
		return 0
	}
	return p.calendar.ExcludedBy(ms)
}

// lastExcluded returns the last time of the schedule, if that is after nowMs and on an excluded
// date; 0 otherwise. It is the next time of a schedule without a nominal time left.
func (p *Plan) lastExcluded(nowMs int64) int64 {
	if !p.excludes() {
		return 0
	}
	last, ok := p.all.Prev(calendar.MaxMs + 1)
	if !ok || last <= nowMs || p.excluded(last) == 0 {
		return 0
	}
	return last
}

// NoneLeft reports whether the calendars exclude all times that a schedule has left.
func (p *Plan) NoneLeft(s *schemas.Schedule) bool {
	return s.NextMs != 0 && p.excluded(s.NextMs) != 0 && s.NextMs == p.lastExcluded(s.NextMs-1)
}

// follow applies the current calendars to the schedule. It returns false if more times on
// excluded dates have passed than one turn looks at.
func (t *turn) follow() bool {
	s, p := t.s, t.p
	if !p.excludes() || s.NextMs == 0 {
		return true
	}
	if revision := p.calendar.Revision(); revision != s.Calendars {
		s.Calendars = revision
		s.Counted, s.CountedMs = 0, 0 // counted by other calendars
		if next := p.undecidedSince(s, t.now); next != 0 && next < s.NextMs {
			p.moveNext(s, next, t.now)
			if b := s.Backfill; b != nil && b.ToMs >= next {
				if b.ToMs = next - 1; b.NextMs > b.ToMs {
					s.Backfill = nil // the schedule decides these times
				}
			}
		}
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

// undecidedSince returns the first undecided nominal time after the newest change of the
// calendars; 0 if none is left. If nobody has planned the schedule since that change, the time
// may be due: a date that is no longer excluded runs, or its runs are missed like those of any
// other outage (timermisfire). Without the time of the change it is the first one after nowMs.
func (p *Plan) undecidedSince(s *schemas.Schedule, nowMs int64) int64 {
	since := nowMs
	if ms := p.calendar.ExcludedSinceMs(); ms != 0 {
		since = min(since, max(ms, s.PassedMs)) // PassedMs is later than nowMs after the clock was set back
	}
	return p.undone(s, max(since, reached(s)))
}

// firstUndecided returns the next run of a schedule as the next turn will see it: a change of the
// calendars may make an earlier one of it. It is 0 if none is left.
func (p *Plan) firstUndecided(s *schemas.Schedule, nowMs int64) int64 {
	if s.NextMs != 0 && p.excludes() && p.calendar.Revision() != s.Calendars {
		if next := p.undecidedSince(s, nowMs); next != 0 {
			return min(next, s.NextMs)
		}
	}
	return s.NextMs
}

// undecided returns the last instant, up to now, before the first undecided nominal time. After
// timerlimit was reached, no time is the schedule's any more.
func (t *turn) undecided() int64 {
	switch {
	case t.s.LimitReached():
		return t.s.PassedMs
	case t.s.NextMs == 0:
		return t.now
	}
	return min(t.now, t.s.NextMs-1)
}

// pass records the times on excluded dates up to toMs. With all, every time after the last
// decided one counts as excluded: the plan left them out, and the calendars may have changed
// since. It returns false if there are more times than maxPassed.
func (t *turn) pass(toMs int64, all bool) bool {
	if !t.p.excludes() {
		return true
	}
	if last := min(reached(t.s), toMs); all && !t.passed(last, false) {
		return false
	}
	return t.passed(toMs, all)
}

// passed is pass for the times after Progress.PassedMs.
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
	for n := 0; n < maxPasses && !t.follow(); n++ {
	}
}

// passAll records the times on excluded dates up to nowMs, also those after the next run, once an
// operation has decided that run.
func (p *Plan) passAll(s *schemas.Schedule, nowMs int64) {
	if s.NextMs == 0 {
		return
	}
	t := turn{p: p, s: s, now: nowMs}
	for n := 0; n < maxPasses && !t.pass(nowMs, false); n++ {
	}
}
