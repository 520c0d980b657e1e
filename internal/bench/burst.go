package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// burstWorkload measures how long timers take that are all due at one instant.
type burstWorkload struct{}

const (
	defaultBurstCount = 10_000
	// burstPace is how many adds a second are allowed for until all must be in.
	burstPaceSafe, burstPaceFast = 1500, 5000
	burstMargin                  = 5 * time.Second
)

func (burstWorkload) Name() string { return "burst" }
func (burstWorkload) About() string {
	return "timers due at one instant: first, half, 99 % and last of them"
}

func (burstWorkload) Defaults(c *Config) {
	if c.Count == 0 {
		c.Count = defaultBurstCount
	}
	if c.Lead == 0 {
		pace := burstPaceSafe
		if c.Profile == "fast" {
			pace = burstPaceFast
		}
		c.Lead = burstMargin + time.Duration(c.Count)*time.Second/time.Duration(pace)
	}
}

func (burstWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	p := e.progress()
	defer p.end()
	lead := e.Lead
	for try := 0; ; try++ {
		b, err := e.prepareBurst(ctx, lead, p)
		if err != nil {
			return nil, err
		}
		m, err := e.meter(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.w.Wait(ctx, patience, func(seen int) {
			p.show("%d of %d fired, %.1fs from the instant", seen, e.Count, time.Since(time.UnixMilli(b.at)).Seconds())
		}); err != nil {
			return nil, err
		}
		use, err := m.stop(ctx)
		if err != nil {
			return nil, err
		}
		if b.late > 0 && try < burstTries {
			lead = 2*lead + 2*b.late
			continue
		}
		acc, err := b.w.Account(ctx, p)
		if err != nil {
			return nil, err
		}
		r := &Result{Verified: acc.Verified}
		if b.late > 0 {
			return r, fmt.Errorf("the last timer was stored %s after the instant that all are due: give a longer lead than %s", b.late.Round(time.Millisecond), lead)
		}
		e.Lead = lead
		use.figures(r, e.Count)
		e.burstFigures(r, acc, b.at)
		return r, nil
	}
}

// burstTries is how often a burst is prepared again, with a longer lead, when not
// all timers were in before they were due.
const burstTries = 2

type burst struct {
	w    *Watch
	at   int64         // the instant, Unix ms
	late time.Duration // by how much the last timer was stored too late
}

// prepareBurst adds timers that are all due after lead, and waits until they are
// stored.
func (e *Env) prepareBurst(ctx context.Context, lead time.Duration, p *progress) (*burst, error) {
	a, err := e.NewAdder("bench_burst")
	if err != nil {
		return nil, err
	}
	if err := e.beginServices(ctx, a, &Result{}); err != nil {
		return nil, err
	}
	b := &burst{at: time.Now().Add(lead).UnixMilli()}
	due := make([]int64, e.Count)
	for n := range due {
		due[n] = b.at
	}
	if b.w, err = e.Watch(ctx, a, due); err != nil {
		return nil, err
	}
	if err := e.addWatched(ctx, a, b.w, p, nil); err != nil {
		return nil, err
	}
	end, err := e.drained(ctx, p)
	b.late = end.Sub(time.UnixMilli(b.at))
	return b, err
}

func (e *Env) burstFigures(r *Result, acc *Account, at int64) {
	r.Curves = Curves{Title: r.title(e.Config, fmt.Sprintf("%d timers due at one instant", e.Count)), X: "milliseconds after the instant", Y: "timers fired"}
	for _, side := range []struct {
		name string
		ns   []int64
	}{{"at the subscriber", acc.received}, {"by the stream", acc.stored}} {
		late := make([]float64, 0, len(side.ns))
		for _, ns := range side.ns {
			if ns != 0 {
				late = append(late, float64(ns-at*int64(time.Millisecond))/1e6)
			}
		}
		if len(late) == 0 {
			continue
		}
		slices.Sort(late)
		first, last := late[0], late[len(late)-1]
		r.figure("first, "+side.name, first, "ms")
		r.figure("half, "+side.name, late[len(late)/2], "ms")
		r.figure("99 %, "+side.name, late[len(late)*99/100], "ms")
		r.figure("last, "+side.name, last, "ms")
		if last > first {
			r.figure("fired, "+side.name, float64(len(late))/(last-first)*1000, "1/s")
		}
		c := Curve{Name: side.name}
		for n := 0; n < len(late); n += max(len(late)/500, 1) {
			c.add(late[n], float64(n+1))
		}
		c.add(last, float64(len(late)))
		r.Curves.Lines = append(r.Curves.Lines, c)
	}
	sub, str := acc.Lateness()
	r.Latencies = []*Latency{sub, str}
}
