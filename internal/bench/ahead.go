package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// aheadRun is the result of a run in which all timers were stored before the first was due.
type aheadRun struct {
	acc *Account
	at  int64 // the instant after which they were due, Unix ms
}

// aheadTries is the number of repetitions, each with a longer lead, if not all timers were stored
// before the first was due.
const aheadTries = 2

// ahead adds count timers that are due at an instant or later, and watches them fire. The
// instant is at least Lead in the future, so that all timers are stored before it. The
// measurement begins when the scheduler starts to read the stored timers. recur makes schedules
// of the timers; nil for none.
func (e *Env) ahead(ctx context.Context, service string, count int, recur *recurring, p *progress, due func(at int64, n int) int64) (*aheadRun, *Result, error) {
	lead := e.Lead
	for try := 0; ; try++ {
		a, err := e.NewAdder(service)
		if err != nil {
			return nil, nil, err
		}
		a.recur = recur
		r := &Result{}
		if err := e.beginServices(ctx, a, r); err != nil {
			return nil, nil, err
		}
		at := time.Now().Add(lead).UnixMilli()
		dues := make([]int64, count)
		for n := range dues {
			dues[n] = due(at, n)
		}
		at = slices.Min(dues)
		w, err := e.Watch(ctx, a, dues)
		if err != nil {
			return nil, nil, err
		}
		if err := e.addWatched(ctx, a, w, p, nil); err != nil {
			return nil, nil, err
		}
		end, err := e.drained(ctx, p)
		if err != nil {
			return nil, nil, err
		}
		late := end.Sub(time.UnixMilli(at))
		// Measure from the time at which the scheduler starts to read the timers ahead. It reads
		// a tick when the start of the tick is within the horizon, up to a tick earlier.
		if !waitUntil(ctx, time.UnixMilli(at).Add(-scheduler.DefaultHorizon-schemas.DefaultSlotWidth)) {
			return nil, nil, context.Cause(ctx)
		}
		m, err := e.meter(ctx)
		if err != nil {
			return nil, nil, err
		}
		if err := w.Wait(ctx, patience, func(seen int) {
			p.show("%d of %d fired, %.1fs from the instant", seen, count, time.Since(time.UnixMilli(at)).Seconds())
		}); err != nil {
			return nil, nil, err
		}
		use, err := m.stop(ctx)
		if err != nil {
			return nil, nil, err
		}
		if late > 0 && try < aheadTries {
			lead = 2*lead + 2*late
			continue
		}
		acc, err := w.Account(ctx, p)
		if err != nil {
			return nil, nil, err
		}
		r.Verified = acc.Verified
		if late > 0 {
			return nil, r, fmt.Errorf("the last timer was stored %s after the first was due: give a longer lead than %s", late.Round(time.Millisecond), lead)
		}
		e.Lead = lead
		use.figures(r, count)
		return &aheadRun{acc, at}, r, nil
	}
}

// aheadLead returns the lead with which all timers are stored before the first is due, at a
// given number of adds per second.
func aheadLead(count, perSecond int) time.Duration {
	return aheadMargin + time.Duration(count)*time.Second/time.Duration(perSecond)
}

const (
	// aheadPaceSafe and aheadPaceFast are the assumed adds per second of the profiles.
	aheadPaceSafe, aheadPaceFast = 1500, 5000
	aheadMargin                  = 5 * time.Second
)

// defaultAheadLead is aheadLead for a profile.
func defaultAheadLead(c *Config, count int) time.Duration {
	if c.Profile == "fast" {
		return aheadLead(count, aheadPaceFast)
	}
	return aheadLead(count, aheadPaceSafe)
}
