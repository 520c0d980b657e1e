package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// fire adds timers that are due now.
func fire(t *testing.T, c *belfry.Client, service string, n int) {
	t.Helper()
	var batch []event.Event
	for i := range n {
		batch = append(batch, newEvent(fmt.Sprint(service, i)))
	}
	if err := c.AddBatch(t.Context(), batch, belfry.After(0), belfry.WithService(service)); err != nil {
		t.Fatal(err)
	}
}

// TestHandleSlowerThanAckWait: each event is handled once, although handling all of them takes
// longer than the ack wait.
func TestHandleSlowerThanAckWait(t *testing.T) {
	t.Parallel()
	c := connect(t)
	// All rounds take longer than the ack wait, and one round far less, so that a pause of
	// the machine for some seconds causes no second delivery.
	const n, places, ackWait, took = 8, 2, 10 * time.Second, 3 * time.Second
	fire(t, c, "slow", n)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var mu sync.Mutex
	calls := map[string]int{}
	err := c.Handle(ctx, "slow", func(ctx context.Context, run *belfry.Run) error {
		mu.Lock()
		calls[run.Event.ID()]++
		all := len(calls) == n
		mu.Unlock()
		work := time.NewTimer(took) // the work
		defer work.Stop()
		<-work.C
		if all {
			cancel()
		}
		return nil
	}, belfry.WithConcurrency(places), belfry.WithAckWait(ackWait))
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for id, k := range calls {
		if k != 1 {
			t.Errorf("%s was handled %d times", id, k)
		}
	}
	if len(calls) != n {
		t.Errorf("%d of %d events were handled", len(calls), n)
	}
}

// TestHandleHandsOver: another Handle gets the events that a stopped Handle has not started at
// once, not after the ack wait.
func TestHandleHandsOver(t *testing.T) {
	t.Parallel()
	c := connect(t)
	const n = 50
	fire(t, c, "over", n)
	var handled sync.Map
	for round := range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		var count atomic.Int32
		err := c.Handle(ctx, "over", func(_ context.Context, run *belfry.Run) error {
			if _, twice := handled.LoadOrStore(run.Event.ID(), true); twice {
				t.Errorf("%s was handled twice", run.Event.ID())
			}
			if k := count.Add(1); round == 0 && k == 5 || round == 1 && k == n-5 {
				cancel()
			}
			return nil
		}, belfry.WithConcurrency(1), belfry.WithAckWait(2*bound))
		late := errors.Is(ctx.Err(), context.DeadlineExceeded)
		cancel()
		if err != nil || late {
			t.Fatalf("round %d: %v; handled %d; late %v", round, err, count.Load(), late)
		}
	}
}

// TestHandleRetryLater: "not now" is not reported as an error.
func TestHandleRetryLater(t *testing.T) {
	t.Parallel()
	if !errors.Is(belfry.RetryAfter(time.Second), belfry.ErrRetryLater) {
		t.Error("RetryAfter is not an ErrRetryLater")
	}
	c := connect(t)
	fire(t, c, "later", 1)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var calls atomic.Int32
	err := c.Handle(ctx, "later", func(context.Context, *belfry.Run) error {
		if calls.Add(1) == 1 {
			return fmt.Errorf("busy: %w", belfry.ErrRetryLater)
		}
		cancel()
		return nil
	}, belfry.WithErrorHandler(func(_ *belfry.Run, err error) { t.Errorf("reported: %v", err) }))
	if err != nil || calls.Load() != 2 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

func TestHandleRefuses(t *testing.T) {
	t.Parallel()
	c := connect(t)
	if err := c.Handle(t.Context(), "a.b", nothing); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("got error %v", err)
	}
	if err := c.Handle(t.Context(), "a", nothing, belfry.WithConcurrency(0)); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("got error %v", err)
	}
	if err := c.Handle(t.Context(), "a", nothing, belfry.WithAckWait(0)); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("got error %v", err)
	}
}

// TestNobodyServes: calls to a NATS server without Belfry return ErrUnavailable.
func TestNobodyServes(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	c, err := belfry.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := c.Add(ctx, newEvent("1"), belfry.After(time.Hour)); !errors.Is(err, belfry.ErrUnavailable) {
		t.Errorf("got error %v", err)
	}
	p, err := c.AddAsync(newEvent("1"), belfry.After(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Wait(ctx); !errors.Is(err, belfry.ErrUnavailable) || ctx.Err() != nil {
			t.Errorf("got error %v", err)
		}
	}
	for _, err := range c.List(ctx, belfry.ListQuery{}) {
		if !errors.Is(err, belfry.ErrUnavailable) {
			t.Errorf("got error %v", err)
		}
	}
}

// TestAsync: Wait may be called several times and concurrently. It returns the server's errors.
func TestAsync(t *testing.T) {
	t.Parallel()
	c := connect(t)
	p, err := c.AddAsync(newEvent("1"), belfry.After(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			if err := p.Wait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	big := newEvent("2")
	if err := big.SetData("application/octet-stream", make([]byte, 2<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddAsync(big, belfry.After(time.Hour)); schemas.CodeOf(err) != schemas.CodeTooLarge {
		t.Errorf("got error %v", err)
	}
	if _, err := c.Add(t.Context(), big, belfry.After(time.Hour)); schemas.CodeOf(err) != schemas.CodeTooLarge {
		t.Errorf("got error %v", err)
	}
	// One After, then another, then At: the last one counts.
	at := time.Now().Add(2 * time.Hour).Truncate(time.Millisecond)
	r, err := c.Add(t.Context(), newEvent("3"), belfry.After(time.Hour), belfry.At(at))
	if err != nil || !r.Due.Equal(at) {
		t.Errorf("got %+v, %v", r, err)
	}
}
