package recurrence

import (
	"cmp"

	"github.com/belfryio/belfry/schemas"
)

// Replan plans the next run of a schedule again after a change of the zone data, or of a
// calendar that the schedule excludes. p is the plan after that change. It returns false, and
// changes nothing, if the next run does not move.
//
// A calendar only moves a nominal time that is not due: Turn decides due times. It may make a
// time due that has passed since the change of the calendar. Newer zone data also moves a due
// time, and may make a time due; see rezone. Older zone data moves
// nothing. Replan keeps what was decided, what waits and what was asked for. A schedule
// without a run left is completed, unless it is paused.
func (p *Plan) Replan(rec *schemas.Record, nowMs int64) (changed bool) {
	old := rec.Schedule
	if !rec.State.Waits() {
		return false
	}
	s := old.Clone()
	if !p.rezone(s, nowMs) {
		if s.NextMs <= nowMs || len(s.Exclude) == 0 {
			return false
		}
		next := p.undecidedSince(s, nowMs)
		if cmp.Or(next, p.lastExcluded(nowMs)) != s.NextMs {
			p.leave(s, nowMs)
			s.Calendars = p.calendar.Revision()
		}
		p.moveNext(s, next, nowMs)
	}
	if s.NextMs == old.NextMs && s.NextDueMs == old.NextDueMs && (s.Backfill == nil) == (old.Backfill == nil) {
		return false
	}
	rec.Schedule = s
	p.replan(rec, nowMs)
	if rec.Queued {
		rec.DueMs = max(rec.DueMs, nowMs) // the low watermark may have passed an earlier tick
	}
	return true
}

// moveNext makes a nominal time the next one, 0 for none, after a change of the zone data or of
// a calendar.
func (p *Plan) moveNext(s *schemas.Schedule, nextMs, nowMs int64) {
	old := s.NextMs
	p.setNext(s, nextMs, nowMs)
	if s.NextMs == old {
		return
	}
	s.Counted, s.CountedMs = 0, 0
	if !p.knows(s) {
		s.ChangedMs = p.changed(s, nowMs)
	}
}

// knows reports whether the ends of the decided ranges are nominal times of the plan. If so,
// the times between them are taken for nominal times, too.
func (p *Plan) knows(s *schemas.Schedule) bool {
	for i := range s.Decisions {
		d := &s.Decisions[i]
		if d.Kind.Requested() || d.FromMs < s.ChangedMs {
			continue
		}
		decided := p.decides()
		if d.Kind == schemas.DecisionExcluded && p.excludes() {
			decided = p.all
		}
		if !names(decided, d.FromMs) || !names(decided, d.ToMs) {
			return false
		}
	}
	return true
}
