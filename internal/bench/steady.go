package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// steadyWorkload measures lateness at a steady rate of due timers. With Ahead all timers are added
// before; otherwise timers are added at the same rate.
type steadyWorkload struct{}

const (
	defaultSteadyRate    = 1000
	defaultSteadySeconds = 20
	defaultSteadyLead    = 2 * time.Second
	// settle is a pause in which the server finishes its start before the measurement.
	settle   = 2 * time.Second
	patience = 30 * time.Second
)

func (steadyWorkload) Name() string { return "steady" }
func (steadyWorkload) About() string {
	return "lateness at a steady rate of due timers, while timers are added at the same rate, or with --ahead of timers added before"
}

func (steadyWorkload) Defaults(c *Config) {
	c.Rate = cmp.Or(c.Rate, defaultSteadyRate)
	c.Seconds = cmp.Or(c.Seconds, defaultSteadySeconds)
	switch {
	case c.Lead != 0:
	case c.Ahead:
		c.Lead = defaultAheadLead(c, c.Rate*c.Seconds)
	default:
		c.Lead = defaultSteadyLead
	}
}

func (steadyWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	if e.Ahead {
		return e.steadyAhead(ctx)
	}
	return e.steady(ctx)
}

// steadyAhead measures timers that were all added before the first is due.
func (e *Env) steadyAhead(ctx context.Context) (*Result, error) {
	p := e.progress()
	defer p.end()
	run, r, err := e.ahead(ctx, "bench_steady", e.Rate*e.Seconds, nil, p, func(at int64, n int) int64 {
		return at + int64(n)*1000/int64(e.Rate)
	})
	if err != nil {
		return r, err
	}
	e.steadyFigures(r, run.acc, "added before")
	return r, nil
}

// steady adds Rate timers a second for Seconds to the running node, and measures their firing.
func (e *Env) steady(ctx context.Context) (*Result, error) {
	run, r, err := e.paced(ctx, "bench_steady", false)
	if err != nil {
		return nil, err
	}
	e.steadyFigures(r, run.acc, "while as many are added")
	return r, nil
}

func (e *Env) steadyFigures(r *Result, acc *Account, how string) {
	r.figure("timers due", float64(e.Rate), "1/s")
	sub, str := acc.Lateness()
	r.Latencies = []*Latency{sub, str}
	r.latencyCurves(r.title(e.Config, fmt.Sprintf("%d timers a second for %d s, %s", e.Rate, e.Seconds, how)))
}

// pacedRun is the result of timers that were added at a rate.
type pacedRun struct {
	acc *Account
	// states has the states of the records, and called the time of each timer's callback. Both
	// are nil unless the run followed the timers to their end.
	states *states
	called []int64
}

// paced adds Rate timers a second for Seconds and watches them fire. With follow it also follows
// each timer through its callback, if the run has callbacks, to its final record.
func (e *Env) paced(ctx context.Context, service string, follow bool) (*pacedRun, *Result, error) {
	a, err := e.NewAdder(service)
	if err != nil {
		return nil, nil, err
	}
	r := &Result{}
	if err := e.beginServices(ctx, a, r); err != nil {
		return nil, nil, err
	}
	count := e.Rate * e.Seconds
	var records *follower
	var rx *receiver
	if follow {
		if records, err = e.followRecords(ctx, a, count, schemas.StateSuccess); err != nil {
			return nil, nil, err
		}
		records.beside(ctx)
		defer func() { records.stop() }()
		if e.Callback != "" {
			if rx, err = e.newReceiver(ctx, a, count); err != nil {
				return nil, nil, err
			}
		}
	}
	begun := time.Now().Add(settle)
	at := e.pace(begun)
	due := make([]int64, count)
	for n := range due {
		due[n] = at(n).Add(e.Lead).UnixMilli()
	}
	w, err := e.Watch(ctx, a, due)
	if err != nil {
		return nil, nil, err
	}
	p := e.progress()
	defer p.end()
	if !waitUntil(ctx, begun) {
		return nil, nil, context.Cause(ctx)
	}
	m, err := e.meter(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := e.addWatched(ctx, a, w, p, at); err != nil {
		return nil, nil, err
	}
	behind := time.Since(at(count - 1))
	if err := w.Wait(ctx, patience, func(seen int) { p.show("%d of %d fired", seen, count) }); err != nil {
		return nil, nil, err
	}
	if follow {
		if err := e.rest(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	use, err := m.stop(ctx)
	if err != nil {
		return nil, nil, err
	}
	run := &pacedRun{}
	if follow {
		if run.states, err = records.settled(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	if run.acc, err = w.Account(ctx, p); err != nil {
		return nil, nil, err
	}
	r.Verified = run.acc.Verified
	if follow {
		records.verify(ctx, &r.Verified)
	}
	if rx != nil {
		run.called = rx.verify(&r.Verified, due)
	}
	r.figure("last add behind its plan", behind.Seconds()*1000, "ms")
	use.figures(r, count)
	return run, r, nil
}

// pace returns the time at which each timer is added: Rate a second, in steps of a millisecond. A
// sleep before each add would cost more CPU than the timers that are measured.
func (e *Env) pace(begun time.Time) func(n int) time.Time {
	return func(n int) time.Time {
		return begun.Add((time.Duration(n) * time.Second / time.Duration(e.Rate)).Truncate(time.Millisecond))
	}
}

// addWatched adds all watched timers and shows progress.
func (e *Env) addWatched(ctx context.Context, a *Adder, w *Watch, p *progress, pace func(int) time.Time) error {
	added, runs := make(chan error, 1), a.runs()
	go func() {
		added <- a.Add(ctx, len(w.dueMs)/runs, func(n int) int64 { return w.dueMs[n*runs] }, pace, nil)
	}()
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case err := <-added:
			return err
		case <-t.C:
			p.show("%d of %d added, %d fired", a.Done(), len(w.dueMs)/runs, w.Seen())
		}
	}
}
