package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// dice are random draws. Schedules have a stream of draws of their own, so that those of
// one-shot timers do not depend on them.
type dice struct{ *rand.Rand }

// oneIn is true once in n times; never for n of 0.
func (d dice) oneIn(n int) bool { return n > 0 && d.IntN(n) == 0 }

// between is a duration, uniformly.
func (d dice) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(d.Int64N(int64(hi-lo)))
}

// steps are the seconds between two runs of a cron expression.
var steps = [...]int{1, 2, 3, 4, 5, 6, 10, 15, 20}

// newRule draws the recurrence of a schedule that is added or changed at a time, in Unix
// milliseconds. endMs is before the end of the simulation.
func newRule(d dice, e era, nowMs, endMs int64) schemas.Recurrence {
	var r schemas.Recurrence
	step := steps[d.IntN(len(steps))]
	if d.oneIn(2) {
		r.Zone = e.zone
	}
	switch d.IntN(8) {
	case 0, 1:
		r.Every = fmt.Sprintf("PT%dS", 1+d.IntN(20))
	case 2: // a period of the wall clock: one run in the simulation
		r.Every, r.Zone = "P1D", e.zone
		r.StartMs = nowMs - (24 * time.Hour).Milliseconds() + d.Int64N(30_000)
	case 3: // follows real time
		r.Cron = fmt.Sprintf("*/%d * * * * *", step)
	case 4: // fixed times, the whole day
		r.Cron = fmt.Sprintf("*/%d 0-59 0-23 * * *", step)
	case 5: // fixed times in the hour before the change
		r.Cron, r.Zone = fmt.Sprintf("*/%d 0-59 %d * * *", step, e.hour), e.zone
	case 6:
		r.Cron = fmt.Sprintf("H/%d * * * * *", max(step, 2))
	default: // irregular
		r.Cron = fmt.Sprintf("%d-59/%d,%d * * * * *", d.IntN(5), 3+d.IntN(15), d.IntN(60))
	}
	if r.Cron != "" || r.Every == "P1D" {
		r.DST = []string{"", "", "auto", "gap=skip", "overlap=last", "overlap=both", "gap=shift,overlap=both"}[d.IntN(7)]
	}
	if r.StartMs == 0 && d.oneIn(4) {
		r.StartMs = nowMs - 5000 + d.Int64N(10_000)
	}
	if d.oneIn(3) {
		r.EndMs = nowMs + d.Int64N(max(endMs-nowMs, 1))
	}
	if d.oneIn(4) {
		r.Limit = 1 + uint32(d.IntN(12))
	}
	if d.oneIn(4) {
		r.JitterMs = 1 + d.Int64N(3000)
	}
	if d.oneIn(3) {
		r.GraceMs = 200 + d.Int64N(8000)
	}
	r.Misfire = schemas.Misfire(d.IntN(3))
	r.Overlap = schemas.Overlap(d.IntN(4))
	return r
}

// compile makes the nominal times of a recurrence, without package recurrence. anchorMs is
// the time from which a period without start counts.
func compile(id schemas.TimerID, r *schemas.Recurrence, anchorMs int64) (*calendar.Schedule, error) {
	return calendar.New(specOf(id, r, anchorMs))
}

// specOf is a recurrence without the calendars that it excludes.
func specOf(id schemas.TimerID, r *schemas.Recurrence, anchorMs int64) calendar.Spec {
	s := calendar.Spec{
		ID: id.String(), Cron: r.Cron, Every: r.Every, Zone: r.Zone, StartMs: r.StartMs, EndMs: r.EndMs,
		Jitter: time.Duration(r.JitterMs) * time.Millisecond, DST: r.DST, Days: r.Days,
	}
	if r.Every != "" && r.StartMs == 0 {
		s.StartMs = anchorMs
	}
	return s
}
