package scheduler

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Bounds of the sweeper.
const (
	sweepTicks    = 256
	sweepMinPause = 250 * time.Millisecond
	sweepMaxPause = 30 * time.Second
)

// sweep audits the ticks that have been behind the mark for SweepDelay. By the
// time it looks, everything there should be final, or with functions. What it
// finds unfired it fires, and counts: the count is 0 as long as the mark is what
// it promises. A record that was fired and not concluded is looked at again every
// SweepDelay, and fired again once its event has left TIMERS_FIRED.
func (r *reign) sweep() {
	every := min(max(r.o.SweepDelay/20, sweepMinPause), sweepMaxPause)
	for pause(r.ctx, every) {
		for r.sweepSome() {
			if !pause(r.ctx, time.Millisecond) {
				return
			}
		}
	}
}

// sweepSome audits some ticks; it returns true if there are more to do now.
func (r *reign) sweepSome() bool {
	geo := r.cfg.Geometry
	first := geo.Tick(r.swept.Load())
	last := geo.Tick(r.markMs.Load()-r.o.SweepDelay.Milliseconds()) - 1
	if last < first || r.state.Load() != 1 {
		return false
	}
	last = min(last, first+sweepTicks-1, first+geo.WheelSize-1)
	ticks := make([]int64, 0, last-first+1)
	for t := first; t <= last; t++ {
		ticks = append(ticks, t)
	}
	load, err := r.o.Store.LoadTicks(r.ctx, r.n, ticks, loadLimit, 0, 0)
	if err == nil && !load.Complete && len(ticks) > 1 {
		last, ticks = first, ticks[:1]
		load, err = r.o.Store.LoadTicks(r.ctx, r.n, ticks, loadLimit, 0, 0)
	}
	clean := true
	for err == nil {
		var ok bool
		if ok, err = r.audit(load.Timers, first, last); !ok {
			clean = false
		}
		if err != nil || load.Next == 0 {
			break
		}
		load, err = r.o.Store.LoadTicks(r.ctx, r.n, ticks, loadLimit, load.Next, 0)
	}
	r.failed("sweep", err)
	if err != nil || !clean {
		return false
	}
	r.swept.Store(geo.TickStart(last + 1))
	return true
}

// audit looks at the records of the ticks first to last. It returns false if
// something had to be fired, so that the ticks are looked at once more.
func (r *reign) audit(timers []store.Timer, first, last int64) (clean bool, err error) {
	clean = true
	var open []store.Timer
	for _, t := range timers {
		r.m.swept.Inc()
		rec := &t.Record
		tick := r.cfg.Geometry.Tick(rec.DueMs)
		switch {
		case rec.Pending():
			if tick >= first && tick <= last {
				clean = false
				r.m.orphans.Inc()
				r.log.Error().Stringer("timer", t.ID).Time("due", time.UnixMilli(rec.DueMs)).Msg("the sweeper found a timer unfired behind the mark")
				r.in.put(EvSwept{Timer: t})
			}
		case rec.State.Final():
		case rec.Callback == "":
			clean = false
			r.in.put(EvSwept{Timer: t})
		default:
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return clean, nil
	}
	return clean, r.auditOpen(open)
}

// auditOpen looks at records whose callback has not concluded.
func (r *reign) auditOpen(open []store.Timer) error {
	oldest, err := r.o.Store.FiredFirstTime(r.ctx)
	if err != nil {
		return err
	}
	next := r.cfg.Geometry.Tick(r.markMs.Load()) + 1
	for _, t := range open {
		rec := &t.Record
		// Looked at again as if it were due now, so SweepDelay from now.
		if err := r.o.Store.PutIndex(r.ctx, t.ID, next); err != nil {
			return err
		}
		if !oldest.IsZero() && rec.FiredMs >= oldest.UnixMilli() {
			continue
		}
		ids := map[string]struct{}{t.ID.MsgID(rec.Run): {}}
		for a := uint32(2); a <= rec.Attempt+1; a++ {
			ids[t.ID.RetryMsgID(rec.Run, a)] = struct{}{}
		}
		subjects := []string{schemas.SubjectFired(rec.Service), schemas.SubjectRetry(rec.Service)}
		found, err := r.o.Store.FiredSince(r.ctx, subjects, time.UnixMilli(rec.FiredMs-confirmSlackMs), ids)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			r.m.refired.Inc()
			r.log.Warn().Stringer("timer", t.ID).Time("fired", time.UnixMilli(rec.FiredMs)).Msg("fired again: its event left the stream before the callback concluded")
			r.in.put(EvSwept{Timer: t, Refire: true})
		}
	}
	return nil
}
