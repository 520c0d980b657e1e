package functions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
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

// wheel claims the timers that wait in the wheel and are due, as a scheduler does, until the test
// ends.
func (r *rig) wheel(ids func() []schemas.TimerID) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	r.t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for ctx.Err() == nil {
			for _, id := range ids() {
				t, err := r.store.Get(ctx, id)
				if err == nil && t.Record.State == schemas.StateRetrying && t.Record.Queued && t.Record.DueMs <= nowMs() {
					r.claimAgain(ctx, t)
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// claimAgain is claim for a goroutine: a timer that changed meanwhile stays as it is.
func (r *rig) claimAgain(ctx context.Context, t store.Timer) {
	rec := t.Record
	rec.Reclaim()
	rec.State, rec.Queued, rec.FiredMs, rec.NextMs = schemas.StateDelivered, false, nowMs(), 0
	rev, err := r.store.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
	if err != nil {
		return
	}
	m := firedAgain(store.Timer{ID: t.ID, Rev: rev, Record: rec})
	m.Subject, m.MsgID = schemas.SubjectRetry(rec.Service), rec.RunID(t.ID).RetryMsgIDAfter(rec.Attempt+1, rec.Deferrals())
	if _, _, err := r.store.Publish(ctx, m); err != nil && ctx.Err() == nil {
		r.t.Error(err)
	}
}

// firedAgain returns the event of a claimed timer, without subject and message id. Its record is read before the call.
func firedAgain(t store.Timer) store.Msg {
	hdr, data := t.Record.Body.Message(t.Record.Fired(t.Record.Attempt+1, false))
	hdr[schemas.HeaderClaim] = []string{schemas.NewClaim(t.ID, t.Rev, &t.Record).String()}
	hdr[schemas.HeaderExtended] = []string{"1"}
	return store.Msg{Header: hdr, Data: data, Service: t.Record.Service}
}

// orderCalls records the calls of each key, and checks that no two of a key run at once.
type orderCalls struct {
	t       *testing.T
	mu      sync.Mutex
	running map[string]string
	// ended has the events of each key in the order of their final calls.
	ended map[string][]int
	calls int
}

func newOrderCalls(t *testing.T) *orderCalls {
	return &orderCalls{t: t, running: map[string]string{}, ended: map[string][]int{}}
}

// begin notes the begin of the call of event n, and returns its key and its end.
func (o *orderCalls) begin(r *http.Request) (key string, n int, end func(final bool)) {
	key = r.Header.Get("Ce-Timerkey")
	n, _ = strconv.Atoi(r.Header.Get("Ce-Number"))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if other := o.running[key]; other != "" {
		o.t.Errorf("key %s: event %d is called while %s is", key, n, other)
	}
	o.running[key] = fmt.Sprint("event ", n)
	return key, n, func(final bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, key)
		if final {
			o.ended[key] = append(o.ended[key], n)
		}
	}
}

// fireOrdered creates and claims the event number n of a key, due at dueMs.
func (r *rig) fireOrdered(url, key string, n int, dueMs int64, attributes map[string]string) schemas.TimerID {
	r.t.Helper()
	all := map[string]string{"timerkey": key, "number": fmt.Sprint(n), "timerat": schemas.FormatTime(dueMs), "timerafter": ""}
	for k, v := range attributes {
		all[k] = v
	}
	r.n++
	hdr := map[string][]string{
		"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprint(r.n)}, "ce-source": {"/test"}, "ce-type": {"t"}, "content-type": {"text/plain"},
		"ce-timersvc": {"s"}, "ce-timerbackoff": {"20ms..1s"}, "ce-timermaxattempts": {"3"}, "ce-timertimeout": {"20s"}, "ce-timercallback": {url},
	}
	for k, v := range all {
		if v != "" {
			hdr["ce-"+k] = []string{v}
		}
	}
	body, spec, err := schemas.ParseAdd(hdr, []byte("hello"), nowMs(), schemas.Limits{})
	if err != nil {
		r.t.Fatal(err)
	}
	rec := schemas.NewRecord(&spec, body, nowMs())
	res := r.store.Create(r.t.Context(), []store.Write{{ID: spec.Timer, Record: &rec}})[0]
	if res.Err != nil {
		r.t.Fatal(res.Err)
	}
	r.claim(store.Timer{ID: spec.Timer, Rev: res.Rev, Record: rec})
	return spec.Timer
}

// TestOrder: two nodes call 50 keys of 20 events each, which arrive in any order, while some calls
// fail. No two calls of a key run at once; a failing event is repeated, or becomes a dead letter,
// before the next is called. Events that arrive while the first of their key runs are called in
// due order.
func TestOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const keys, events = 50, 20
	calls := newOrderCalls(t)
	first := make(chan struct{}) // closed when all events have arrived
	failed := map[string]int{}
	var mu sync.Mutex
	c := httpCallee(t, func(_ int, w http.ResponseWriter, req *http.Request) {
		key, n, end := calls.begin(req)
		if n == 0 {
			select {
			case <-first:
			case <-req.Context().Done(): // the node could not renew its lease
				end(false)
				return
			}
		}
		mu.Lock()
		id := fmt.Sprint(key, "/", n)
		failed[id]++
		fails := failed[id]
		mu.Unlock()
		switch {
		case n%7 == 3 && fails == 1: // repeated after a moment
			end(false)
			w.WriteHeader(http.StatusServiceUnavailable)
		case n%7 == 5: // a dead letter after three attempts
			end(fails == 3)
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			end(true)
		}
	})
	r.start(func(o *Options) { o.Node, o.AckWait = "one", DefaultAckWait })
	r.start(func(o *Options) { o.Node, o.AckWait, o.Store = "two", DefaultAckWait, r.node("two") })
	var ids []schemas.TimerID
	list := func() []schemas.TimerID { mu.Lock(); defer mu.Unlock(); return slices.Clone(ids) }
	base := nowMs() - 60_000
	fire := func(key, n int) {
		id := r.fireOrdered(c.URL, fmt.Sprint("k", key), n, base+int64(n), nil)
		mu.Lock()
		ids = append(ids, id)
		mu.Unlock()
	}
	for k := range keys {
		fire(k, 0)
	}
	waittest.Until(t, "the first event of each key is called", func() bool { return c.count() == keys })
	for _, i := range rand.Perm(keys * (events - 1)) {
		fire(i%keys, 1+i/keys)
	}
	waittest.Until(t, "all others wait", func() bool {
		for _, id := range list()[keys:] {
			if rec := r.get(id).Record; !rec.AwaitsTurn() || rec.Attempt != 0 {
				return false
			}
		}
		return true
	})
	r.wheel(list)
	close(first)
	waittest.UntilWithin(t, 2*waittest.Bound, "all events are concluded", func() bool {
		calls.mu.Lock()
		defer calls.mu.Unlock()
		for k := range keys {
			if len(calls.ended[fmt.Sprint("k", k)]) < events {
				return false
			}
		}
		return true
	})
	for key, order := range calls.ended {
		if !slices.IsSorted(order) || len(order) != events {
			t.Errorf("key %s: called in the order %v", key, order)
		}
	}
	dead := 0
	for _, id := range ids {
		waittest.Until(t, "a final state", func() bool { return r.get(id).Record.State.Final() })
		if r.get(id).Record.State == schemas.StateFail {
			dead++
		}
	}
	if want := keys * 3; dead != want { // 5, 12, 19
		t.Errorf("got %d dead letters, want %d", dead, want)
	}
	waittest.Until(t, "no key is busy", func() bool {
		for k := range keys {
			s, _, err := r.store.OrderState(t.Context(), store.OrderKey{Service: "s", Key: fmt.Sprint("k", k)})
			if err != nil || !s.Head.IsZero() || len(s.Waiting) > 0 {
				return false
			}
		}
		return true
	})
}

// TestOrderWaits: a failing head keeps its place, and what waits for it uses no attempt. A waiting
// event that is cancelled is passed over; a cancelled head gives its turn to the next. Events of
// other keys, and of the same key of another service, do not wait.
func TestOrderWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var heal sync.Map // keys of heads that no longer fail
	c := httpCallee(t, func(_ int, w http.ResponseWriter, req *http.Request) {
		if _, ok := heal.Load("head"); !ok && req.Header.Get("Ce-Number") == "1" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	r.start(nil)
	due := nowMs() - 1000
	slow := map[string]string{"timerbackoff": "10m", "timermaxattempts": "9"}
	head := r.fireOrdered(c.URL, "k", 1, due+1, slow)
	waittest.Until(t, "the head waits for its second attempt", func() bool { return r.get(head).Record.Attempt == 1 && r.get(head).Record.Queued })
	third := r.fireOrdered(c.URL, "k", 3, due+3, nil)
	waittest.Until(t, "the third waits", func() bool { return r.awaitsTurn(third) })
	second := r.fireOrdered(c.URL, "k", 2, due+2, nil)
	waittest.Until(t, "the second waits", func() bool { return r.awaitsTurn(second) })
	other := r.fireOrdered(c.URL, "k2", 4, due, nil)
	r.await(other, schemas.StateSuccess)
	if n := c.count(); n != 2 {
		t.Fatalf("got %d calls, want the head's first and that of the other key", n)
	}
	s, _, err := r.store.OrderState(t.Context(), store.OrderKey{Service: "s", Key: "k"})
	if err != nil || s.Head.ID != head || len(s.Waiting) != 2 || s.Waiting[0].ID != second {
		t.Fatalf("got %+v, %v", s, err)
	}
	cancel := func(id schemas.TimerID) {
		got := r.get(id)
		if _, err := got.Record.Cancel(nowMs(), schemas.Caller{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.store.Update(t.Context(), store.Write{ID: id, Rev: got.Rev, Record: &got.Record, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	cancel(second) // the key still has it: the turn must pass it over
	cancel(head)
	if err := r.store.EndOrder(t.Context(), store.OrderKey{Service: "s", Key: "k"}, head, nowMs()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the third is due", func() bool { rec := r.get(third).Record; return rec.AwaitsTurn() && rec.DueMs <= nowMs() })
	r.wheel(func() []schemas.TimerID { return []schemas.TimerID{third} })
	if rec := r.await(third, schemas.StateSuccess); rec.Attempt != 1 || rec.Deferral != nil {
		t.Errorf("got %+v", rec.RunState)
	}
}

// TestOrderHeals: a node that dies between the end of a head and the turn of the next leaves the
// key with a concluded head. The next event that asks gives the turn on.
func TestOrderHeals(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone=%t", gone), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c := httpCallee(t, ok)
			k := store.OrderKey{Service: "s", Key: "k"}
			r.start(nil)
			head := r.fireOrdered(c.URL, "other", 1, nowMs()-2000, nil)
			r.await(head, schemas.StateSuccess)
			if gone {
				head = schemas.NewTimerID("/no", "record")
			}
			r.leaveHead(k, head, nowMs()-20_000)
			next := r.fireOrdered(c.URL, "k", 2, nowMs()-1000, nil)
			r.await(next, schemas.StateSuccess)
		})
	}
}

// hookedStore calls a function before each update of a record.
type hookedStore struct {
	*store.Store
	before func(w store.Write)
}

func (s *hookedStore) Update(ctx context.Context, w store.Write) (uint64, error) {
	s.before(w)
	return s.Store.Update(ctx, w)
}

// TestOrderConfirms: a head ends while the next event is about to write that it waits. That event
// is not found waiting, so it asks once more, and is due at once.
func TestOrderConfirms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	k := store.OrderKey{Service: "s", Key: "k"}
	var askMs atomic.Int64
	s := &hookedStore{Store: r.store, before: func(w store.Write) {
		if !w.Record.AwaitsTurn() || !askMs.CompareAndSwap(0, w.Record.DueMs) {
			return
		}
		close(release)
		waittest.Until(t, "the waiting event has its turn", func() bool {
			got, _, err := r.store.OrderState(t.Context(), k)
			return err == nil && got.Head.ID == w.ID
		})
	}}
	r.start(func(o *Options) { o.Store = s })
	r.fireOrdered(c.URL, "k", 1, nowMs(), nil)
	waittest.Until(t, "the head is called", func() bool { return c.count() == 1 })
	next := r.fireOrdered(c.URL, "k", 2, nowMs(), nil)
	waittest.Until(t, "the next event is due earlier", func() bool {
		rec := r.get(next).Record
		return rec.AwaitsTurn() && rec.DueMs < askMs.Load()
	})
}

// TestOrderLease: an event whose call runs on a node is not called by another, and a node that
// can no longer renew its lease cancels the call.
func TestOrderLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	calls := newOrderCalls(t)
	release := make(chan struct{})
	c := httpCallee(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
		_, _, end := calls.begin(req)
		defer end(true)
		select {
		case <-release:
		case <-req.Context().Done():
		}
	})
	r.start(func(o *Options) { o.Node = "one" })
	id := r.fireOrdered(c.URL, "k", 1, nowMs(), nil)
	waittest.Until(t, "the call runs", func() bool { return c.count() == 1 })
	reg := prometheus.NewRegistry()
	r.start(func(o *Options) { o.Node, o.Store, o.Registerer = "two", r.node("two"), reg })
	r.redeliver(id)
	waittest.Until(t, "the other node refuses the event", func() bool { return metrictest.Of(t, reg, "belfry_callbacks_skipped_total")["order_busy/s"] > 0 })
	close(release)
	r.await(id, schemas.StateSuccess)
	r.settled("s")
	if n := c.count(); n != 1 {
		t.Errorf("got %d calls, want 1", n)
	}
}

// joiningStore calls a function before each question for the turn of an event.
type joiningStore struct {
	*store.Store
	before func(store.OrderKey)
}

func (s *joiningStore) DecideOrder(ctx context.Context, k store.OrderKey, node string, now func() int64, asks []order.Ask) ([]order.Answer, error) {
	if slices.ContainsFunc(asks, func(a order.Ask) bool { return a.Kind == order.Join }) {
		s.before(k)
	}
	return s.Store.DecideOrder(ctx, k, node, now, asks)
}

// TestOrderEndsBeforeTurn: a call ends on one node after another node read the record of the same
// event, and before that node asks for the turn. The event is not called again.
func TestOrderEndsBeforeTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	r.start(func(o *Options) { o.Node = "one" })
	id := r.fireOrdered(c.URL, "k", 1, nowMs(), nil)
	waittest.Until(t, "the call runs", func() bool { return c.count() == 1 })
	end := sync.OnceFunc(func() { close(release) })
	two := &joiningStore{Store: r.node("two"), before: func(k store.OrderKey) {
		end()
		waittest.Until(t, "the call has ended", func() bool {
			got, _, err := r.store.OrderState(context.Background(), k)
			return err == nil && got.Head.IsZero()
		})
	}}
	reg := prometheus.NewRegistry()
	r.start(func(o *Options) { o.Node, o.Store, o.Registerer = "two", two, reg })
	r.redeliver(id)
	waittest.Until(t, "the other node finds the event concluded", func() bool { return metrictest.Of(t, reg, "belfry_callbacks_skipped_total")["concluded/s"] > 0 })
	r.await(id, schemas.StateSuccess)
	r.settled("s")
	if n := c.count(); n != 1 {
		t.Errorf("got %d calls, want 1", n)
	}
}

// redeliver publishes the event of a claimed timer eight more times, so that every node gets it.
func (r *rig) redeliver(id schemas.TimerID) {
	r.t.Helper()
	m := firedAgain(r.get(id))
	m.Subject = schemas.SubjectFired(m.Service)
	for range 8 {
		m.MsgID = fmt.Sprint("again", nowMs(), rand.Int())
		if _, _, err := r.store.Publish(r.t.Context(), m); err != nil {
			r.t.Fatal(err)
		}
	}
}

// awaitsTurn reports whether a record waits for its turn.
func (r *rig) awaitsTurn(id schemas.TimerID) bool {
	r.t.Helper()
	rec := r.get(id).Record
	return rec.AwaitsTurn()
}

// leaveHead makes an event the head of a key, as a node that died long ago left it.
func (r *rig) leaveHead(k store.OrderKey, id schemas.TimerID, atMs int64) {
	r.t.Helper()
	asks := []order.Ask{{Kind: order.Join, Event: order.Event{DueMs: 1, ID: id}}}
	if _, err := r.store.DecideOrder(r.t.Context(), k, "dead", func() int64 { return atMs }, asks); err != nil {
		r.t.Fatal(err)
	}
}
