package functions

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file asks for the turn of an event with an ordering key (timerkey) before each call. Package
// order makes the decisions; package store stores them and wakes the next event.
//
//	delivery ──ask──▶ orderGate of the key ── one decision for all that ask ──▶ answer
//
// A gate exists while deliveries of its key ask, or a call of the key runs, in this process. An
// event without an ordering key costs one comparison: see delivery.inTurn.

const (
	// turnPause is the delay of the redelivery of an event that cannot be called because another
	// delivery of it is about to end.
	turnPause = 100 * time.Millisecond
	// busyTurnPause bounds the delay of the redelivery of an event that another node is calling.
	busyTurnPause = 500 * time.Millisecond
	// maxOrderBatch bounds the questions of one decision.
	maxOrderBatch = 1000
)

// Orders has the store's calls for ordering keys. Package store documents each call.
type Orders interface {
	DecideOrder(ctx context.Context, k store.OrderKey, node string, now func() int64, asks []order.Ask) ([]order.Answer, error)
}

// orderControl has the gates of the ordering keys that are in use in this process.
type orderControl struct {
	f *Functions

	mu    sync.Mutex
	gates map[store.OrderKey]*orderGate
}

func newOrderControl(f *Functions) *orderControl {
	return &orderControl{f: f, gates: map[store.OrderKey]*orderGate{}}
}

// orderGate asks the questions of all deliveries of one key, in batches.
type orderGate struct {
	c   *orderControl
	key store.OrderKey
	// wake has an element when asking or turn has changed.
	wake chan struct{}

	// The next are guarded by orderControl.mu.

	asking []*orderAsk
	// turn is the call that has the lease in this process; nil for none.
	turn *turn
}

// orderAsk is a question without an answer.
type orderAsk struct {
	order.Ask
	// of is the turn that a Leave of a withdrawn question ends. The Leave is void if the process has
	// another turn by then, for a later delivery of the same event.
	of *turn
	// answer gets one answer.
	answer chan orderAnswer
}

type orderAnswer struct {
	order.Answer
	turn *turn // if Go is true
	// unreadable is true if this node cannot read the state of the key.
	unreadable bool
}

// turn is the lease of the call of one event. Its methods may be called on a nil turn.
type turn struct {
	event order.Event
	lease *lease

	// known is true if the delivery knows whether the event is concluded.
	known, concluded bool
}

// errTurnLost is the cause of the cancellation of a call whose lease could not be renewed.
var errTurnLost = errors.New("the lease of the ordering key could not be renewed: another node may call the event")

// ended notes whether the event is concluded.
func (t *turn) ended(concluded bool) {
	if t != nil {
		t.known, t.concluded = true, concluded
	}
}

// lost reports whether the lease ended.
func (t *turn) lost() bool { return t != nil && t.lease.lost() }

// cancelWith makes cancel end with the lease. It returns a function that undoes that.
func (t *turn) cancelWith(cancel context.CancelFunc) func() {
	if t == nil {
		return func() {}
	}
	stop := context.AfterFunc(t.lease.ctx, cancel)
	return func() { stop() }
}

// ask asks a question about an event of a key.
func (c *orderControl) ask(k store.OrderKey, a order.Ask) *orderAsk {
	return c.enqueue(k, &orderAsk{Ask: a, answer: make(chan orderAnswer, 1)})
}

func (c *orderControl) enqueue(k store.OrderKey, q *orderAsk) *orderAsk {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gates[k]
	if g == nil {
		g = &orderGate{c: c, key: k, wake: make(chan struct{}, 1)}
		c.gates[k] = g
		c.f.background.Go(g.run)
	}
	g.asking = append(g.asking, q)
	signal(g.wake)
	return q
}

// run asks until nothing is left to ask, and no call has the lease.
func (g *orderGate) run() {
	for g.await() {
		if batch := g.take(); len(batch) > 0 {
			g.decide(batch)
		}
	}
}

// await waits until there is something to ask. It returns false, and removes the gate, when there
// is nothing left.
func (g *orderGate) await() bool {
	for {
		g.c.mu.Lock()
		asking, idle := len(g.asking), g.turn == nil
		if g.c.f.recording.Err() != nil || asking == 0 && idle {
			delete(g.c.gates, g.key)
			g.c.mu.Unlock()
			return false
		}
		g.c.mu.Unlock()
		if asking > 0 {
			return true
		}
		g.c.f.awaitWake(g.wake, 1<<63-1)
	}
}

// take returns the next questions. It answers by itself a Leave of a turn that this process has lost.
func (g *orderGate) take() []*orderAsk {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	n := min(len(g.asking), maxOrderBatch)
	batch := slices.Clone(g.asking[:n])
	g.asking = slices.Delete(g.asking, 0, n)
	return slices.DeleteFunc(batch, func(q *orderAsk) bool {
		void := q.of != nil && q.of != g.turn
		if void {
			q.answer <- orderAnswer{}
		}
		return void
	})
}

// keep renews the lease of a call until it ends. It asks by itself, because a decision of the gate
// takes as long as the wakes of other events. began is the time before the lease was written.
func (g *orderGate) keep(t *turn, began time.Time) {
	f := g.c.f
	asks := []order.Ask{{Kind: order.Keep, Event: t.event}}
	for wait := minPause; pause.For(t.lease.ctx, time.Until(began.Add(order.LeaseFor/3))); {
		asked := time.Now()
		answers, err := f.o.Store.DecideOrder(t.lease.ctx, g.key, f.flows.node, f.o.Now, asks)
		switch {
		case err != nil:
			g.complain(err)
			pause.For(t.lease.ctx, wait)
			wait = min(wait*2, maxPause)
		case !answers[0].Go:
			t.lease.drop(errTurnLost)
		default:
			began, wait = asked, minPause
			t.lease.renewed(began)
		}
	}
}

// decide answers a batch. While the store does not answer, it tries again.
func (g *orderGate) decide(batch []*orderAsk) {
	f := g.c.f
	asks := make([]order.Ask, len(batch))
	for i, q := range batch {
		asks[i] = q.Ask
	}
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		began := time.Now()
		answers, err := f.o.Store.DecideOrder(f.recording, g.key, f.flows.node, f.o.Now, asks)
		switch {
		case err == nil:
			for i, q := range batch {
				q.answer <- g.answered(q, answers[i], began)
			}
			return
		case errors.Is(err, schemas.ErrNewer):
			g.complain(err)
			for _, q := range batch {
				q.answer <- orderAnswer{unreadable: true}
			}
			return
		}
		g.complain(err)
		if !pause.For(f.recording, wait) {
			return // functions stops: the deliveries return by themselves
		}
	}
}

// answered follows an answer: it begins or ends the turn of this process.
func (g *orderGate) answered(q *orderAsk, a order.Answer, began time.Time) orderAnswer {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	out := orderAnswer{Answer: a}
	switch t := g.turn; {
	case q.Kind == order.Join && a.Go:
		if t != nil { // of a withdrawn question
			t.lease.drop(errTurnLost)
		}
		t = &turn{event: q.Event, lease: newLease(g.c.f.calling, order.LeaseFor, errTurnLost)}
		t.lease.renewed(began)
		g.turn, out.turn = t, t
		g.c.f.background.Go(func() { g.keep(t, began) })
	case t == nil || t.event.ID != q.Event.ID || q.of != nil && q.of != t:
	case q.Kind == order.Leave || q.Kind == order.Done:
		t.lease.drop(nil)
		g.turn = nil
	}
	return out
}

// complain logs the reason why the gate cannot decide.
func (g *orderGate) complain(err error) {
	f := g.c.f
	if f.recording.Err() == nil && f.complaints.Allow("order "+g.key.Service+" "+g.key.Key, time.Now()) {
		f.o.Log.Warn().Err(err).Str("service", g.key.Service).Str("key", g.key.Key).Msg("the next event of an ordering key cannot be decided; the events of the key wait")
	}
}

// orderKey returns the ordering key of the delivery.
func (d *delivery) orderKey() store.OrderKey {
	return store.OrderKey{Service: d.svc.name, Key: d.spec.Key}
}

// orderEvent returns the place of the delivery among the events of its key.
func (d *delivery) orderEvent() order.Event {
	r := &d.timer.Record
	return order.Event{DueMs: r.ScheduledMs, AddedMs: r.AddedMs, ID: d.claim.Timer}
}

// inTurn waits until it is the turn of the delivery among the events of its ordering key. It
// returns false, and settles the event, if the event waits elsewhere. The delivery holds a permit
// of its service, and the lease of its key, when it returns true.
func (d *delivery) inTurn() bool {
	if d.spec.Key == "" {
		return true
	}
	began := time.Now()
	got, ok := d.askTurn(order.Ask{Kind: order.Join, Event: d.orderEvent(), Deferrals: d.timer.Record.Deferrals()}, true)
	switch {
	case !ok:
		return false
	case got.unreadable:
		d.skip("order_unreadable", func() error { return d.msg.Nak(damagedPause) })
		return false
	case got.Busy:
		ahead := time.Duration(got.AtMs-d.f.o.Now()) * time.Millisecond
		d.skip("order_busy", func() error { return d.msg.Nak(min(max(ahead, turnPause), busyTurnPause)) })
		return false
	case !got.Go:
		d.awaitTurn(got.AtMs)
		return false
	}
	d.turn = got.turn
	if d.complete {
		// The record was read before the delivery had the turn, and another node may have concluded the event since.
		// The zero time makes comeBack read it again.
		began = time.Time{}
	}
	return d.comeBack(began)
}

// askTurn asks a question and waits for the answer. If that takes longer than askHold, the delivery
// returns its permit. It returns false, and if settle is true settles the event, if functions stops
// or too many deliveries wait.
func (d *delivery) askTurn(a order.Ask, settle bool) (orderAnswer, bool) {
	q := d.f.orders.ask(d.orderKey(), a)
	stopping := d.f.recording.Done()
	if settle {
		stopping = d.f.pulling.Done()
	}
	held := time.NewTimer(askHold)
	defer held.Stop()
	for {
		select {
		case got := <-q.answer:
			return got, true
		case <-held.C:
			if settle && !d.leavePermit() {
				d.f.orders.withdraw(d.orderKey(), q)
				return orderAnswer{}, false
			}
		case <-stopping:
			if settle {
				d.f.orders.withdraw(d.orderKey(), q)
				d.handBack()
			}
			return orderAnswer{}, false
		}
	}
}

// withdraw cancels a question whose delivery does not wait for the answer. If the event already has
// its turn, withdraw ends the turn.
func (c *orderControl) withdraw(k store.OrderKey, q *orderAsk) {
	c.mu.Lock()
	if g := c.gates[k]; g != nil {
		if i := slices.Index(g.asking, q); i >= 0 {
			g.asking = slices.Delete(g.asking, i, i+1)
			signal(g.wake)
			c.mu.Unlock()
			return
		}
	}
	c.mu.Unlock()
	c.f.background.Go(func() {
		select {
		case a := <-q.answer:
			if a.turn != nil {
				c.enqueue(k, &orderAsk{Ask: order.Ask{Kind: order.Leave, Event: q.Event}, of: a.turn, answer: make(chan orderAnswer, 1)})
			}
		case <-c.f.recording.Done():
		}
	})
}

// awaitTurn makes the event wait in the wheel for its turn, until askMs at the latest. The record
// is written first, as for a retry; no attempt is counted. If the head ended before that write, it
// could not wake this record, so awaitTurn asks once more.
func (d *delivery) awaitTurn(askMs int64) {
	_, ok := d.putBack("await turn", "order_too_large", busyTurnPause, func() Plan {
		rec := d.timer.Record
		rec.DeferTurn(askMs)
		return Plan{Step: StepLongRetry, Record: rec}
	})
	if !ok {
		return
	}
	d.f.metrics.orderDeferred.WithLabelValues(d.svc.label).Inc()
	d.settle(d.ackConfirmed)
	d.release()
	d.askTurn(order.Ask{Kind: order.Confirm, Event: d.orderEvent()}, false)
}

// leaveTurn ends the turn of the delivery. If the event is concluded, the next event gets the turn.
func (d *delivery) leaveTurn() {
	t := d.turn
	if t == nil {
		return
	}
	a := order.Ask{Kind: order.Leave, Event: t.event, Look: !t.known}
	if t.concluded {
		a.Kind = order.Done
	}
	d.turn = nil
	d.askTurn(a, false)
}
