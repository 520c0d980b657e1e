package recurrence

import "github.com/belfryio/belfry/schemas"

// Replan plans the next run of a schedule again, because something has changed that its
// nominal times depend on: the zone data of the build, or a calendar that it excludes. p is
// the plan after that change. It returns false, and changes nothing, if the next run stays
// where it is.
//
// It only moves a nominal time that is not due: Turn decides due times. It keeps what
// was decided, what waits and what was asked for. A schedule without a run left is completed,
// unless it is paused.
func (p *Plan) Replan(rec *schemas.Record, nowMs int64) (changed bool) {
	s := rec.Schedule
	if !waits(rec.State) || s.NextMs <= nowMs { // also 0, without a run left
		return false
	}
	next, due := p.after(max(nowMs, reached(s)))
	if next == s.NextMs && due == s.NextDueMs {
		return false
	}
	s = s.Clone()
	s.NextMs, s.NextDueMs = next, due
	if !p.knows(s) {
		if s.ChangedMs = next; next == 0 {
			s.ChangedMs = max(nowMs, reached(s)) + 1
		}
	}
	rec.Schedule = s
	p.replan(rec, nowMs)
	return true
}

// waits reports whether a schedule in this state may have a next run.
func waits(s schemas.State) bool { return s == schemas.StatePending || s == schemas.StatePaused }

// knows reports whether the ends of the decided ranges are nominal times of the plan. If so,
// the times between them are taken for nominal times, too.
func (p *Plan) knows(s *schemas.Schedule) bool {
	for i := range s.Decisions {
		d := &s.Decisions[i]
		if d.Kind.Requested() || d.FromMs < s.ChangedMs {
			continue
		}
		for _, at := range [...]int64{d.FromMs, d.ToMs} {
			if next, _ := p.calendar.Next(at - 1); next != at {
				return false
			}
		}
	}
	return true
}
