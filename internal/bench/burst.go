package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// burstWorkload measures how long it takes to fire timers that are all due at one instant.
type burstWorkload struct{}

const defaultBurstCount = 10_000

func (burstWorkload) Name() string { return "burst" }
func (burstWorkload) About() string {
	return "timers due at the same time: lateness of the first, the median, 99 % and the last"
}

func (burstWorkload) Defaults(c *Config) {
	c.Count = cmp.Or(c.Count, defaultBurstCount)
	c.Lead = cmp.Or(c.Lead, defaultAheadLead(c, c.Count))
}

func (burstWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	p := e.progress()
	defer p.end()
	return e.burst(ctx, "bench_burst", nil, p, func(at int64, _ int) int64 { return at })
}

// burst measures Count timers, or schedules, that are due at an instant.
func (e *Env) burst(ctx context.Context, service string, recur *recurring, p *progress, due func(at int64, n int) int64) (*Result, error) {
	run, r, err := e.ahead(ctx, service, e.Count, recur, p, due)
	if err != nil {
		return r, err
	}
	e.burstFigures(r, run.acc, run.at)
	return r, nil
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
