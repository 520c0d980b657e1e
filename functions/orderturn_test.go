package functions

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// heldOrders is a store in which decisions wait as long as held returns a channel that is open. It
// records the kinds of the questions.
type heldOrders struct {
	*store.Store
	held func(asks []order.Ask) <-chan struct{}

	mu    sync.Mutex
	kinds []order.Kind
}

func (s *heldOrders) DecideOrder(ctx context.Context, k store.OrderKey, node string, now func() int64, asks []order.Ask) ([]order.Answer, error) {
	if c := s.held(asks); c != nil {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	answers, err := s.Store.DecideOrder(ctx, k, node, now, asks)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range asks {
		s.kinds = append(s.kinds, a.Kind)
	}
	return answers, err
}

// asked reports whether a question of a kind was answered.
func (s *heldOrders) asked(k order.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.kinds, k)
}

// TestOrderRenewal: the lease of a call is renewed also while a decision about other events of the
// key takes long.
func TestOrderRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	s := &heldOrders{Store: r.store}
	waits := make(chan struct{}, 1)
	var second schemas.TimerID
	var mu sync.Mutex
	s.held = func(asks []order.Ask) <-chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if asks[0].Kind == order.Join && asks[0].Event.DueMs == 2 {
			signal(waits)
			return release
		}
		return nil
	}
	r.start(func(o *Options) { o.Store, o.AckWait = s, DefaultAckWait })
	first := r.fireOrdered(c.URL, "k", 1, 1, nil)
	waittest.Until(t, "the head is called", func() bool { return c.count() == 1 })
	mu.Lock()
	second = r.fireOrdered(c.URL, "k", 2, 2, nil)
	mu.Unlock()
	<-waits
	waittest.Until(t, "the lease is renewed", func() bool { return s.asked(order.Keep) })
	close(release)
	r.await(first, schemas.StateSuccess)
	waittest.Until(t, "the other waits for its turn", func() bool { return r.awaitsTurn(second) })
}

// TestOrderRedelivered: an event whose acknowledgement is late is delivered again to the node that
// calls it. It is not called twice.
func TestOrderRedelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	reg := prometheus.NewRegistry()
	f := r.start(func(o *Options) { o.Registerer = reg })
	id := r.fireOrdered(c.URL, "k", 1, nowMs(), nil)
	waittest.Until(t, "the head is called", func() bool { return c.count() == 1 })
	f.live.mu.Lock()
	for _, e := range f.live.entries {
		e.last = time.Now().Add(time.Hour) // it is never kept alive
	}
	f.live.mu.Unlock()
	waittest.Until(t, "the event comes again", func() bool { return metrictest.Of(t, reg, "belfry_callbacks_skipped_total")["in_flight/s"] >= 3 })
	close(release)
	if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 || c.count() != 1 {
		t.Errorf("got %d attempts and %d calls, want 1 and 1", rec.Attempt, c.count())
	}
}

// TestOrderWithdrawn: a delivery asks for its turn and does not wait for the answer; the next
// delivery of its event gets the turn. The end of the first turn does not end that of the second.
func TestOrderWithdrawn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := &heldOrders{Store: r.store}
	answer, began := make(chan struct{}), make(chan struct{}, 1)
	var left atomic.Bool // a decision has the Leave
	s.held = func(asks []order.Ask) <-chan struct{} {
		left.Store(left.Load() || slices.ContainsFunc(asks, func(a order.Ask) bool { return a.Kind == order.Leave }))
		signal(began)
		return answer
	}
	f := r.start(func(o *Options) { o.Store = s })
	k := store.OrderKey{Service: "s", Key: "k"}
	join := order.Ask{Kind: order.Join, Event: order.Event{DueMs: 1, AddedMs: 1, ID: schemas.NewTimerID("/test", "1")}}
	first := f.orders.ask(k, join)
	<-began
	second := f.orders.ask(k, join)
	f.orders.withdraw(k, first)
	answer <- struct{}{} // the first is answered: its Leave comes after, or together with, the second
	<-began
	waittest.Until(t, "the first turn is left", func() bool {
		f.orders.mu.Lock()
		defer f.orders.mu.Unlock()
		g := f.orders.gates[k]
		return left.Load() || len(g.asking) == 1 && g.asking[0].Kind == order.Leave
	})
	close(answer)
	got := <-second.answer
	if !got.Go || got.turn == nil {
		t.Fatalf("got %+v, want the turn", got)
	}
	waittest.Until(t, "the questions are answered", func() bool {
		f.orders.mu.Lock()
		defer f.orders.mu.Unlock()
		return len(f.orders.gates[k].asking) == 0
	})
	// The gate answers this after all older questions.
	if kept := <-f.orders.ask(k, order.Ask{Kind: order.Keep, Event: join.Event}).answer; !kept.Go || got.turn.lost() {
		t.Errorf("the node has its lease: %t; the second turn is lost: %t", kept.Go, got.turn.lost())
	}
	<-f.orders.ask(k, order.Ask{Kind: order.Leave, Event: join.Event}).answer
}
