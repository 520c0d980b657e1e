package functions

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// canHold waits until the rig's store knows that all nodes know flow control.
func (r *rig) canHold() {
	r.t.Helper()
	if _, err := r.store.Beat(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	waittest.Until(r.t, "holds may be stored", func() bool { return r.store.CanLimit() == nil })
}

// holdOf waits until a node's copy has a hold of a key that stops calls.
func (r *rig) holdOf(s *store.Store, key string) store.FlowHold {
	r.t.Helper()
	var h store.FlowHold
	waittest.Until(r.t, "the node knows the hold of "+key, func() bool {
		set, _ := s.FlowsNow()
		if set == nil {
			return false
		}
		h, _ = set.HoldOf(key)
		p, _ := h.Hold.Ask(time.Now().UnixNano())
		return p != flow.Free
	})
	return h
}

// TestRetryAfterPausesKey: an answer with Retry-After holds the other events of the key, on every
// node, and those of no other key. They use no attempt, and are called after that time, not all at once. The hold
// outlives the process that stored it.
func TestRetryAfterPausesKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.canHold()
	var well atomic.Bool
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	other := httpCallee(t, ok)
	first := r.start(func(o *Options) { o.Node = "one" })
	refused := r.fire(timer{callback: c.URL})
	rec := r.await(refused, schemas.StateRetrying)
	if rec.Attempt != 1 || rec.Deferred() || rec.NextMs < nowMs()+59*60_000 {
		t.Errorf("the refused event: got %+v, want one attempt and its own Retry-After", rec.RunState)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	two := r.node("two")
	h := r.holdOf(two, c.host(t))
	if left := time.Duration(h.Hold.UntilNs - time.Now().UnixNano()); left < 59*time.Minute || left > time.Hour || h.Reason == "" || h.By != "one" {
		t.Errorf("got hold %+v, which ends in %s", h, left)
	}
	r.start(func(o *Options) { o.Node, o.Store = "two", two })
	var held []schemas.TimerID
	for range 50 {
		held = append(held, r.fire(timer{callback: c.URL}))
	}
	for i, id := range held {
		r.awaitDeferredOrCalled(id)
		rec := r.get(id).Record
		if !rec.Deferred() || rec.Attempt != 0 || rec.Deferrals() != 1 || rec.Deferral.Flow != c.host(t) || rec.DueMs*int64(time.Millisecond) < h.Hold.UntilNs {
			t.Fatalf("event %d: got %+v, deferral %+v, want a wait until the hold ends", i, rec.RunState, rec.Deferral)
		}
	}
	due := map[int64]bool{}
	for _, id := range held {
		due[r.get(id).Record.DueMs] = true
	}
	if len(due) < len(held) {
		t.Errorf("%d events wait until %d different times: they would be called at once", len(held), len(due))
	}
	r.await(r.fire(timer{callback: other.URL}), schemas.StateSuccess)
	if n := c.count(); n != 1 {
		t.Errorf("the target got %d calls, want the first alone", n)
	}
	// When the hold has ended, the key is as before.
	well.Store(true)
	if _, err := r.store.ChangeHold(t.Context(), c.host(t), nowMs(), func(h *store.FlowHold) bool {
		h.Hold.UntilNs = time.Now().Add(-time.Second).UnixNano()
		return true
	}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the other node knows", func() bool {
		set, _ := two.FlowsNow()
		h, _ := set.HoldOf(c.host(t))
		p, _ := h.Hold.Ask(time.Now().UnixNano())
		return p == flow.Free
	})
	r.claim(r.get(held[0]))
	if rec := r.await(held[0], schemas.StateSuccess); rec.Attempt != 1 {
		t.Errorf("the held event: got %d attempts, want 1", rec.Attempt)
	}
}

// TestRetryAfterOfNATS: Retry-After in a NATS reply holds the callbacks of the service over NATS,
// and not those over HTTP. A worker's "not now" holds nothing.
func TestRetryAfterOfNATS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.canHold()
	c := httpCallee(t, ok)
	if _, err := r.nc.Subscribe("busy", func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Retry-After": {"7200"}}})
	}); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	r.await(r.fire(timer{callback: "nats:busy"}), schemas.StateRetrying)
	if h := r.holdOf(r.store, "service:s"); time.Duration(h.Hold.UntilNs-time.Now().UnixNano()) > time.Hour {
		t.Errorf("got hold %+v, want at most an hour", h)
	}
	held := r.fire(timer{callback: "nats:busy"})
	r.awaitDeferredOrCalled(held)
	if rec := r.get(held).Record; !rec.Deferred() || rec.Attempt != 0 || rec.Deferral.Flow != "service:s" {
		t.Errorf("got %+v, deferral %+v", rec.RunState, rec.Deferral)
	}
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)

	later := callback.Outcome{NotNow: true, RetryAfter: time.Minute}
	if d := pauses("nats:timers.work.s", &later); d != 0 {
		t.Errorf("a worker's answer about one event holds the key for %s", d)
	}
	if d := pauses("nats:busy", &later); d != time.Minute {
		t.Errorf("a callee's answer holds the key for %s, want 1m", d)
	}
}

// TestRetryAfterUnderRate: a key with a rate is held by Retry-After, too, and its limit stays as it is.
func TestRetryAfterUnderRate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1800")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	rev := r.limit(c.host(t), flow.Limit{Rate: flow.Rate{Count: 100, Per: time.Second}, Burst: 10})
	r.start(nil)
	r.await(r.fire(timer{callback: c.URL}), schemas.StateRetrying)
	h := r.holdOf(r.store, c.host(t))
	id := r.fire(timer{callback: c.URL})
	r.awaitDeferredOrCalled(id)
	if rec := r.get(id).Record; !rec.Deferred() || rec.Attempt != 0 || rec.DueMs*int64(time.Millisecond) < h.Hold.UntilNs {
		t.Errorf("got %+v, deferral %+v", rec.RunState, rec.Deferral)
	}
	set, _ := r.store.FlowsNow()
	if l, _ := set.Find(c.host(t)); l.Rev != rev || c.count() != 1 {
		t.Errorf("the limit has revision %d, want %d; the target got %d calls, want 1", l.Rev, rev, c.count())
	}
}

// deadURL returns the URL of an address where nobody listens, and serve, which starts a server
// there.
func deadURL(t *testing.T) (address string, serve func(h http.HandlerFunc)) {
	t.Helper()
	address = tcptest.FreeAddress(t)
	return address, func(h http.HandlerFunc) {
		t.Helper()
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}}
		s.Start()
		t.Cleanup(s.Close)
	}
}

// TestCircuit: connection errors in a row open the circuit of a key. Its other events wait without using
// an attempt, on both nodes, and few probes look for the target. When it is back, a probe closes the circuit and
// every event is called once.
func TestCircuit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.canHold()
	address, serve := deadURL(t)
	two := r.node("two")
	r.start(func(o *Options) { o.Node, o.AckWait = "one", DefaultAckWait })
	r.start(func(o *Options) { o.Node, o.AckWait, o.Store = "two", DefaultAckWait, two })
	var mu sync.Mutex
	var all []schemas.TimerID
	r.wheel(func() []schemas.TimerID {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	})
	fire := func() {
		id := r.fire(timer{callback: "http://" + address, attributes: map[string]string{"timermaxattempts": "50", "timerbackoff": "100ms..1s"}})
		mu.Lock()
		defer mu.Unlock()
		all = append(all, id)
	}
	for range 2 * flow.DefaultCircuit { // each node counts for itself
		fire()
	}
	opened := r.holdOf(r.store, address)
	if r.holdOf(two, address); opened.Hold.OpenNs == 0 || opened.Reason == "" {
		t.Fatalf("got %+v, want an open circuit", opened)
	}
	const waiting = 200
	for range waiting {
		fire()
	}
	late := all[2*flow.DefaultCircuit:]
	attempts := func() (n int) {
		for _, id := range late {
			n += int(r.get(id).Record.Attempt)
		}
		return n
	}
	waittest.Until(t, "all events wait", func() bool {
		for _, id := range late {
			if rec := r.get(id).Record; !rec.Deferred() && rec.Attempt == 0 {
				return false
			}
		}
		return true
	})
	probes := func() int {
		set, _ := r.store.FlowsNow()
		h, _ := set.HoldOf(address)
		if h.Hold.OpenNs != opened.Hold.OpenNs {
			t.Fatalf("the circuit that opened at %d is gone: %+v", opened.Hold.OpenNs, h)
		}
		return h.Hold.Probes
	}
	waittest.Until(t, "some probes look for the target", func() bool { return probes() >= 3 })
	if n, most := attempts(), probes(); n > most {
		t.Errorf("%d events that wait have used %d attempts, more than the %d probes", waiting, n, most)
	}
	var called sync.Map
	var calls atomic.Int64
	serve(func(_ http.ResponseWriter, req *http.Request) {
		calls.Add(1)
		called.Store(req.Header.Get("Idempotency-Key"), true)
	})
	waittest.UntilWithin(t, 2*waittest.Bound, "every event is called", func() bool {
		n := 0
		called.Range(func(any, any) bool { n++; return true })
		return n == len(all)
	})
	for _, id := range all {
		r.await(id, schemas.StateSuccess)
	}
	if n := calls.Load(); n != int64(len(all)) {
		t.Errorf("the target got %d calls of %d events", n, len(all))
	}
	if n := attempts() - len(late); n > 20 {
		t.Errorf("%d failed attempts of events that waited", n)
	}
	set, err := r.store.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h, _ := set.HoldOf(address); h.Hold.OpenNs != 0 || h.EndedMs == 0 {
		t.Errorf("after the answer to a probe: got %+v", h)
	}
}

// TestCircuitSetting: the limit of a key sets the number of errors, or turns the circuit off, and
// bounds nothing else.
func TestCircuitSetting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	address, _ := deadURL(t)
	for key, n := range map[string]int{"first": 1, "never": flow.NoCircuit} {
		r.limit(key, flow.Limit{Circuit: n})
	}
	r.start(nil)
	fail := func(key string) schemas.TimerID {
		return r.fire(timer{callback: "http://" + address, attributes: map[string]string{"timerflow": key, "timermaxattempts": "1"}})
	}
	fail("first")
	r.holdOf(r.store, "first")
	for range 3 * flow.DefaultCircuit {
		r.await(fail("never"), schemas.StateFail)
	}
	set, _ := r.store.FlowsNow()
	if h, ok := set.HoldOf("never"); ok {
		t.Errorf("a key without a circuit has %+v", h)
	}
	if s, err := r.store.FlowState(t.Context(), "never"); err != nil || s.Rev != 0 {
		t.Errorf("a limit that bounds nothing has a state: %+v (%v)", s, err)
	}
}

// TestContactOf: an answer of any kind is a contact. A time-out, and an error of Belfry's own, say
// nothing about the target.
func TestContactOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		target string
		out    callback.Outcome
		want   flow.Contact
	}{
		{"https://a", callback.Outcome{Success: true}, flow.Answered},
		{"https://a", callback.Outcome{Reason: callback.ReasonStatus}, flow.Answered},
		{"https://a", callback.Outcome{Reason: callback.ReasonRetryLater}, flow.Answered},
		{"https://a", callback.Outcome{Reason: callback.ReasonWebhookRefused}, flow.Answered},
		{"https://a", callback.Outcome{Reason: callback.ReasonConnection}, flow.Unreachable},
		{"https://a", callback.Outcome{Reason: callback.ReasonTimeout}, flow.Unknown},
		{"https://a", callback.Outcome{Reason: callback.ReasonTLS}, flow.Unknown},
		{"https://a", callback.Outcome{Reason: callback.ReasonNotAllowed}, flow.Unknown},
		{"nats:a", callback.Outcome{Reason: callback.ReasonConnection}, flow.Unknown},
		{"nats:a", callback.Outcome{Reason: callback.ReasonNoResponders}, flow.Unreachable},
		{"nats:timers.work.a", callback.Outcome{Reason: callback.ReasonNoResponders, Unattempted: true, NotNow: true}, flow.Unknown},
	} {
		if got := contactOf(c.target, &c.out); got != c.want {
			t.Errorf("%s, %s: got %d, want %d", c.target, c.out.Reason, got, c.want)
		}
	}
}

// TestHoldReset: after a reset by hand the events that wait for a hold are due soon, apart from each
// other.
func TestHoldReset(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.canHold()
	c := httpCallee(t, ok)
	now := time.Now()
	if _, err := r.store.ChangeHold(t.Context(), c.host(t), now.UnixMilli(), func(h *store.FlowHold) bool { return h.Hold.RetryAfter(time.Hour, now.UnixNano()) }); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	var ids []schemas.TimerID
	for range 10 {
		id := r.fire(timer{callback: c.URL})
		r.awaitDeferredOrCalled(id)
		ids = append(ids, id)
	}
	if _, ok, err := r.store.ResetHold(t.Context(), c.host(t), "ann", nowMs()); err != nil || !ok {
		t.Fatalf("the reset: %t, %v", ok, err)
	}
	before, due := nowMs(), map[int64]bool{}
	for _, id := range ids {
		waittest.Until(t, "the event is due soon", func() bool { return r.get(id).Record.DueMs < before+30*60_000 })
		due[r.get(id).Record.DueMs] = true
		r.claim(r.get(id))
		if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 {
			t.Errorf("got %d attempts, want 1", rec.Attempt)
		}
	}
	if len(due) < len(ids) {
		t.Errorf("%d events are due at %d times", len(ids), len(due))
	}
}

// TestHoldHasNoPath: the reason of an open circuit has the network error, and no path of a callback, because
// other callers of the host see it.
func TestHoldHasNoPath(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){"call": func(*Options) {}, "handshake": withOrigin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.canHold()
			address, _ := deadURL(t)
			r.start(func(o *Options) { change(o); o.WebhookPermission, o.AckWait = 72*time.Second, DefaultAckWait }) // asked again after 100 ms
			var ids []schemas.TimerID
			for range flow.DefaultCircuit {
				ids = append(ids, r.fire(timer{callback: "http://user:token@" + address + "/secret-path?secret"}))
			}
			r.wheel(func() []schemas.TimerID { return ids })
			if h := r.holdOf(r.store, address); strings.Contains(h.Reason, "secret") || !strings.Contains(h.Reason, "connection refused") {
				t.Errorf("got reason %q, want the network error alone", h.Reason)
			}
		})
	}
}
