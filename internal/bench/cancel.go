package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// cancelWorkload measures the rate at which timers are cancelled by their ids. Callers callers
// have a connection each, and one request at a time.
type cancelWorkload struct{}

const (
	defaultCancelCount   = 20_000
	defaultCancelCallers = 64
)

func (cancelWorkload) Name() string { return "cancel" }
func (cancelWorkload) About() string {
	return "cancels by id: rate and response time"
}

func (cancelWorkload) Defaults(c *Config) {
	c.Count = cmp.Or(c.Count, defaultCancelCount)
	c.Callers = cmp.Or(c.Callers, defaultCancelCallers)
}

func (cancelWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	a, err := e.NewAdder("bench_cancel")
	if err != nil {
		return nil, err
	}
	ledger, err := e.sut().follow(ctx, a, e.Count, schemas.StateCancelled)
	if err != nil {
		return nil, err
	}
	ledger.beside(ctx)
	defer ledger.end()
	p := e.progress()
	defer p.end()
	base := time.Now().Add(farAhead).UnixMilli()
	if err := a.Add(ctx, e.Count, func(n int) int64 { return base + int64(n) }, nil, nil); err != nil {
		return nil, err
	}
	if _, err := e.drained(ctx, p); err != nil {
		return nil, err
	}
	callers := make([]*nats.Conn, e.Callers)
	for n := range callers {
		var err error
		if callers[n], err = e.Connect(fmt.Sprintf("belfry bench canceller %d", n)); err != nil {
			return nil, err
		}
	}
	m, err := e.meter(ctx)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	answers, err := e.cancelAll(ctx, a, callers, p)
	if err != nil {
		return nil, err
	}
	use, err := m.stop(ctx)
	if err != nil {
		return nil, err
	}
	r.figure("cancels", float64(e.Count)/use.took.Seconds(), "1/s")
	use.figures(r, e.Count)
	r.Latencies = []*Latency{answers}
	r.latencyCurves(r.title(e.Config, fmt.Sprintf("%d cancels by id", e.Count)))
	if err := ledger.account(ctx, p, &r.Verified); err != nil {
		return nil, err
	}
	return r, nil
}

// cancelAll cancels every timer of the adder. It fails unless each answer says that its timer
// was cancelled.
func (e *Env) cancelAll(ctx context.Context, a *Adder, callers []*nats.Conn, p *progress) (*Latency, error) {
	sut := e.sut()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers := newLatency("answer to a cancel")
	var mu sync.Mutex
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for _, nc := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= e.Count {
					return
				}
				begun := time.Now()
				if err := sut.cancel(ctx, nc, a, n); err != nil {
					cancel(fmt.Errorf("timer %d was not cancelled: %w", n, err))
					return
				}
				took := time.Since(begun)
				done.Add(1)
				mu.Lock()
				answers.add(took)
				p.show("%d of %d cancelled", done.Load(), e.Count)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return answers, context.Cause(ctx)
}

// cancelOne cancels a timer of Belfry. It decodes the fields that tell what has happened, as the
// measurement of the peer does.
func cancelOne(ctx context.Context, nc *nats.Conn, id schemas.TimerID) error {
	ctx, stop := context.WithTimeout(ctx, addTimeout)
	defer stop()
	m, err := nc.RequestWithContext(ctx, schemas.SubjectAPIPrefix+"cancel", []byte(`{"timer":"`+id.String()+`"}`))
	if err != nil {
		return err
	}
	var answer struct {
		Timer schemas.TimerID `json:"timer"`
		State schemas.State   `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return err
	}
	if answer.Timer != id || answer.State != schemas.StateCancelled {
		return fmt.Errorf("the answer is %.200s", m.Data)
	}
	return nil
}
