package recurrence

import (
	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// This file plans a schedule again if its plan was made with the zone data of another release:
//
//   - A schedule with fixed times keeps the local time for which its next run was planned
//     (Progress.NextKey), at the instant that the new data gives it. If that instant has
//     passed, the run is due now. So no local time is dropped, and none fires twice.
//   - A schedule that follows real time (a wildcard, an elapsed period, overlap=both) goes on
//     with its next nominal time.
//
// Only newer data moves a plan. A build with older data fires the next run as it is planned,
// and plans the one after it with its own data, for a later local time.

// setNext makes a nominal time the next one, 0 for none, with the zone data of this build. With 0
// the schedule waits for the last time on an excluded date, if there is one after nowMs. That
// time has no key: newer zone data plans the schedule from nowMs on.
func (p *Plan) setNext(s *schemas.Schedule, nextMs, nowMs int64) {
	s.NextMs, s.NextDueMs, s.NextKey, s.Zones = nextMs, 0, 0, p.release()
	if nextMs != 0 {
		s.NextDueMs, s.NextKey = p.calendar.DueMs(nextMs), p.calendar.Key(nextMs)
	} else if last := p.lastExcluded(nowMs); last != 0 {
		s.NextMs, s.NextDueMs = last, last
	}
}

// rezone plans the next run of a schedule with the zone data of this build, if that is newer
// than the data of its plan. It reports whether it has planned. A backfill ends if its times
// have moved, as with an update.
func (p *Plan) rezone(s *schemas.Schedule, nowMs int64) bool {
	if s.Zones == "" || s.Zones >= p.release() {
		return false
	}
	if b := s.Backfill; b != nil && (!p.names(b.NextMs) || !p.names(b.ToMs)) {
		s.Backfill = nil
	}
	p.moveNext(s, p.rezoned(s, nowMs), nowMs)
	if p.excludes() && s.NextKey != 0 {
		if done, ok := p.calendar.Prev(s.NextMs); ok {
			s.DoneKey = max(s.DoneKey, p.calendar.Key(done))
			s.PassedMs = max(s.PassedMs, done) // not an excluded time, although no decision names it
		}
	}
	return true
}

// rezoned returns the next nominal time with the zone data of this build; 0 if none is left.
func (p *Plan) rezoned(s *schemas.Schedule, nowMs int64) int64 {
	var next int64
	switch {
	case s.NextMs == 0:
	case s.NextKey != 0:
		if at, ok := p.calendar.NextKey(reached(s), s.NextKey); ok {
			next = at
		}
	default:
		next, _ = p.after(max(reached(s), min(nowMs, s.NextMs-1)))
	}
	return next
}

// afterNewer returns the nominal time that follows NextMs and its due time, for a schedule
// that a build with newer zone data has planned: it must not have the key of NextMs again.
func (p *Plan) afterNewer(s *schemas.Schedule) (nextMs, dueMs int64) {
	if s.NextKey == 0 {
		return p.after(s.NextMs)
	}
	next, ok := p.calendar.NextKey(s.NextMs, s.NextKey+1)
	if !ok {
		return 0, 0
	}
	return next, p.calendar.DueMs(next)
}

// undone returns the first nominal time after an instant whose local time is not decided; 0 if
// none is left.
func (p *Plan) undone(s *schemas.Schedule, afterMs int64) int64 {
	if s.DoneKey == 0 {
		next, _ := p.after(afterMs)
		return next
	}
	next, ok := p.calendar.NextKey(afterMs, s.DoneKey+1)
	if !ok {
		return 0
	}
	return next
}

// names reports whether an instant is a nominal time of the plan.
func (p *Plan) names(ms int64) bool { return names(p.calendar, ms) }

func names(c *calendar.Schedule, ms int64) bool {
	next, ok := c.Next(ms - 1)
	return ok && next == ms
}
