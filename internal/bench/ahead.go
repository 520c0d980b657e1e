package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/belfryio/belfry/scheduler"
)

// aheadRun is what came of timers that were all stored before the first of them
// was due.
type aheadRun struct {
	acc *Account
	at  int64 // the instant after which they were due, Unix ms
}

// aheadTries is how often timers are prepared again, with a longer lead, when not
// all of them were in before the first was due.
const aheadTries = 2

// ahead adds count timers that are due at an instant or after it, and sees them
// fire. The instant is after Lead, or later, so that all are stored before it;
// what is measured begins when they are.
func (e *Env) ahead(ctx context.Context, service string, count int, p *progress, due func(at int64, n int) int64) (*aheadRun, *Result, error) {
	lead := e.Lead
	for try := 0; ; try++ {
		a, err := e.NewAdder(service)
		if err != nil {
			return nil, nil, err
		}
		r := &Result{}
		if err := e.beginServices(ctx, a, r); err != nil {
			return nil, nil, err
		}
		at := time.Now().Add(lead).UnixMilli()
		dues := make([]int64, count)
		for n := range dues {
			dues[n] = due(at, n)
		}
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
		// From when they are read ahead; until then nothing happens.
		if !waitUntil(ctx, time.UnixMilli(at).Add(-scheduler.DefaultHorizon)) {
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

// aheadLead is how far ahead timers are due that must all be in by then, at so
// many adds a second.
func aheadLead(count, perSecond int) time.Duration {
	return aheadMargin + time.Duration(count)*time.Second/time.Duration(perSecond)
}

const (
	// aheadPaceSafe and aheadPaceFast are how many adds a second are allowed for.
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
