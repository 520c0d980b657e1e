package sim

import (
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/schemas"
)

// This file checks schedules at the end of a simulation: nothing is left undecided.

// scheduleLeft says what is still to come of a schedule, empty if nothing is.
func (c *checker) scheduleLeft(s *schedule) string {
	t, err := c.w.server.Record(s.id)
	now := c.w.net.serverTime(c.w.net.leaderOf(fake.StreamClock)) / int64(time.Millisecond)
	switch {
	case !s.known && (s.promised == 0 || s.rejected):
		return ""
	case !s.known:
		return "was acknowledged and has no record"
	case s.half && s.promised == 0:
		return ""
	case err != nil && !s.final:
		return "has lost its record"
	case err == nil && t.Record.Queued && now-t.Record.DueMs >= onTimeBound.Milliseconds() && !s.half:
		// A schedule whose add was not acknowledged is not ended, and may be due at any moment.
		return "waits, due " + c.w.ms(t.Record.DueMs)
	case err == nil && t.Record.State == schemas.StateDelivered:
		return "has not ended"
	}
	return s.overdueLeft(c.w)
}

// runsOverlap is the age up to which a run of a schedule that is not ended may be under way at the end.
const runsOverlap = 15 * time.Second

// runLeft says what is still to come of a run, empty if nothing is.
func (c *checker) runLeft(r *run) string {
	switch {
	case len(r.fired) == 0 && r.s.bornHalf && r.s.promised == 0:
		// The record was created, its index entry was lost, and the add was not acknowledged. An
		// owner whose tail delivers the record may claim a run and die. The next owner does not
		// find the claim: neither an index entry nor the tail leads to it.
		return ""
	case len(r.fired) == 0:
		return "was claimed at " + c.w.rel(r.claimed) + " and not fired"
	case r.s.half && r.s.promised == 0 && c.w.now-r.claimed < int64(runsOverlap):
		return "" // nobody ends the schedule, so some run is always under way
	case r.callback && r.calls == 0 && r.endedAt == 0:
		return "was not called back"
	case r.callback && !r.final:
		return "has not concluded"
	}
	return ""
}

// schedulesSettled reports whether all schedules and runs have come to their end, or wait.
func (c *checker) schedulesSettled() bool {
	for _, s := range c.w.schedules {
		if what := c.scheduleLeft(s); what != "" || s.active > 0 {
			c.w.trace("%s %s, %d clients", s, what, s.active)
			return false
		}
		for _, r := range s.runs {
			if what := c.runLeft(r); what != "" {
				c.w.trace("%s %s", r, what)
				return false
			}
		}
	}
	return true
}

// schedulesAtEnd checks what is left at the end.
func (c *checker) schedulesAtEnd() {
	for _, s := range c.w.schedules {
		if what := c.scheduleLeft(s); what != "" {
			c.fail(PropKept, "%s %s", s, what)
		}
		c.expectedAtEnd(s)
		if s.zoned {
			c.zonedAtEnd(s)
		}
		for n := uint32(1); n <= s.numbers; n++ {
			r := s.runs[n]
			if what := c.runLeft(r); what != "" {
				property := PropKept
				if len(r.fired) > 0 {
					property = PropCalled
				}
				c.fail(property, "%s %s", r, what)
			}
			c.runOnTime(r)
		}
	}
}

// runOnTime checks the lateness of a run in a simulation without faults, and after the last.
func (c *checker) runOnTime(r *run) {
	if r.s.zoned {
		return // newer zone data may move a run to an instant that has passed
	}
	if len(r.fired) == 0 || r.trigger != schemas.TriggerSchedule || r.waited || !r.s.late && (c.w.cfg.Seed%10 != 0 || r.claimed < c.w.epoch+int64(settleFor)) {
		return
	}
	if r.s.bornAt < c.w.net.backAt+int64(callTimeout+2*time.Second) {
		return
	}
	from := max(r.dueMs*int64(time.Millisecond)-c.skew(), r.s.promised, r.quietFrom)
	if late := time.Duration(r.life.fired[0].real - from); late > onTimeBound {
		c.fail(PropOnTime, "%s, due %s, fired %s late", r, c.w.ms(r.dueMs), late)
	}
}
