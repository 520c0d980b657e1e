package bench

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// addWorkload measures the rate at which timers are added.
type addWorkload struct{}

const (
	defaultAddCount = 100_000
	// farAhead is the time to the due time of timers that must not fire during a run.
	farAhead = 30 * 24 * time.Hour
	// mostWaiting bounds the acknowledged adds that no router has stored yet, in runs of more
	// timers. Without a bound a long run would fill TIMERS_ADD, which then refuses adds.
	mostWaiting = 1_000_000
	// sampled is the interval between two points of the curve of acknowledged adds.
	sampled = 200 * time.Millisecond
)

func (addWorkload) Name() string { return "add" }
func (addWorkload) About() string {
	return "adds per second: acknowledged by JetStream, and stored as timers"
}

func (addWorkload) Defaults(c *Config) {
	if c.Count == 0 {
		c.Count = defaultAddCount
		if c.oneByOne() {
			c.Count = defaultAddCount / 5
		}
	}
}

// singlesWorkload measures the time to the answer of one add, with several callers that add one
// timer at a time.
type singlesWorkload struct{ addWorkload }

func (singlesWorkload) Name() string { return "singles" }
func (singlesWorkload) About() string {
	return "one add at a time, by several callers: adds per second and the time to an answer"
}

func (w singlesWorkload) Defaults(c *Config) {
	c.Via = cmp.Or(c.Via, ViaSingle)
	w.addWorkload.Defaults(c)
}

func (w singlesWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if !e.oneByOne() {
		return nil, bad("via %s has many adds in flight; use the add workload", e.Via)
	}
	return w.addWorkload.Run(ctx, e)
}

func (addWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	a, err := e.NewAdder("bench_add")
	if err != nil {
		return nil, err
	}
	ledger, err := e.sut().follow(ctx, a, e.Count, schemas.StatePending)
	if err != nil {
		return nil, err
	}
	r, err := e.addFar(ctx, a, farAhead, farAhead)
	if err != nil {
		return nil, err
	}
	p := e.progress()
	defer p.end()
	if err := ledger.account(ctx, p, &r.Verified); err != nil {
		return nil, err
	}
	return r, nil
}

// stored returns the account of timers that are not due, of which found have a record.
func stored(expected, found int) Verified {
	return Verified{Expected: expected, Found: found, Missing: max(expected-found, 0), Duplicates: max(found-expected, 0)}
}

// addFar measures adding Count timers that are due after a while, spread over a period, so that
// a tick has no more timers than in practice. The router stores the timers while more are added,
// so both rates are for the same period.
func (e *Env) addFar(ctx context.Context, a *Adder, after, over time.Duration) (*Result, error) {
	r := &Result{Curves: Curves{X: "seconds", Y: "adds a second"}}
	r.Curves.Title = r.title(e.Config, fmt.Sprintf("%d adds", e.Count))
	base := time.Now().Add(after).UnixMilli()
	p := e.progress()
	defer p.end()
	var mu sync.Mutex
	name := "answer to an add"
	var pace func(int) time.Time
	if e.Rate > 0 && e.oneByOne() {
		name += ", from its intended start"
	}
	answers := newLatency(name)
	m, err := e.meter(ctx)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if e.Rate > 0 {
		pace = func(n int) time.Time { return begun.Add(time.Duration(n) * time.Second / time.Duration(e.Rate)) }
	}
	if e.Count > mostWaiting && !e.oneByOne() {
		var giveUp context.CancelCauseFunc
		ctx, giveUp = context.WithCancelCause(ctx)
		defer giveUp(nil)
		pace = e.keepUp(ctx, pace, giveUp)
	}
	sampling, stop := context.WithCancel(ctx)
	var curve Curve
	var wg sync.WaitGroup
	wg.Go(func() {
		curve = sample(sampling, begun, a.Done, func(done int) { p.show("%d of %d added", done, e.Count) })
	})
	due := func(n int) int64 {
		return base + int64(float64(n)/float64(e.Count)*float64(over.Milliseconds()))
	}
	err = a.Add(ctx, e.Count, due, pace, func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		answers.add(d)
	})
	acknowledged := time.Since(begun)
	stop()
	wg.Wait()
	if err != nil {
		return nil, err
	}
	end, err := e.drained(ctx, p)
	if err != nil {
		return nil, err
	}
	took := end.Sub(begun)
	use, err := m.stop(ctx)
	if err != nil {
		return nil, err
	}
	curve.Name = "acknowledged"
	r.Curves.Lines = []Curve{curve}
	r.figure("adds acknowledged", float64(e.Count)/acknowledged.Seconds(), "1/s")
	r.figure("timers stored", float64(e.Count)/took.Seconds(), "1/s")
	use.figures(r, e.Count)
	if e.oneByOne() {
		r.Latencies = append(r.Latencies, answers)
	}
	return r, nil
}

// keepUp returns a pace that waits, now and then, until at most mostWaiting adds wait for a
// router. pace, if not nil, gives the intended starts. giveUp ends the run if that wait fails.
func (e *Env) keepUp(ctx context.Context, pace func(int) time.Time, giveUp context.CancelCauseFunc) func(int) time.Time {
	const every = 20_000
	return func(n int) time.Time {
		if n%every == 0 {
			if _, err := e.waitStored(ctx, mostWaiting, 50*time.Millisecond, &progress{}); err != nil {
				giveUp(err)
			}
		}
		if pace == nil {
			return time.Time{}
		}
		return pace(n)
	}
}

// sample returns the growth of count per second, as a curve with a point each sampled, when ctx
// ends. It passes each count to tick.
func sample(ctx context.Context, begun time.Time, count func() int, tick func(int)) Curve {
	var c Curve
	t := time.NewTicker(sampled)
	defer t.Stop()
	last, at := 0, begun
	for {
		select {
		case <-ctx.Done():
			return c
		case now := <-t.C:
			n := count()
			c.add(now.Sub(begun).Seconds(), float64(n-last)/now.Sub(at).Seconds())
			last, at = n, now
			tick(n)
		}
	}
}
