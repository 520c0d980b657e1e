package functions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const testGrace = 400 * time.Millisecond

func idleSoon(o *Options) { o.ServiceIdle = testGrace }

// gone reports that nothing is left of a service: no key, no consumer, and no
// part of it in any node.
func (r *rig) gone(svc string, nodes ...*Functions) bool {
	r.t.Helper()
	st, err := r.store.ServiceState(r.t.Context(), svc)
	if err != nil || st.Registered {
		return false
	}
	for _, stream := range []string{schemas.StreamFired, schemas.StreamRetry} {
		_, err := r.store.JetStream().Consumer(r.t.Context(), stream, "belfry_"+svc)
		if !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false
		}
	}
	for _, f := range nodes {
		if len(f.served()) > 0 {
			return false
		}
	}
	return true
}

// TestIdleServiceGoesAndComesBack, on two nodes, more than once.
func TestIdleServiceGoesAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, testGrace)
	a, b := r.start(idleSoon), r.start(idleSoon)
	calls := make(chan string, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { calls <- q.Header.Get("ce-id") }))
	t.Cleanup(hook.Close)
	for range 3 {
		id := r.fire(timer{svc: "rare", callback: hook.URL})
		r.await(id, schemas.StateSuccess)
		if got := <-calls; got != fmt.Sprint(r.n) {
			t.Errorf("called for %s, want %d", got, r.n)
		}
		eventually(t, "the end of the service", func() bool { return r.gone("rare", a, b) })
	}
	select {
	case id := <-calls:
		t.Errorf("called again for %s", id)
	default:
	}
}

// TestBusyServiceStays: an event that waits for its callback, or for its next
// attempt, is no idleness.
func TestBusyServiceStays(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, testGrace)
	f := r.start(idleSoon)
	hold := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	t.Cleanup(hook.Close)
	id := r.fire(timer{svc: "slow", callback: hook.URL})
	eventually(t, "the call", func() bool { return f.InFlight() == 1 })
	looks := time.NewTimer(5 * testGrace)
	<-looks.C // what must not happen has no event: it is given the time that it would take
	if st, err := r.store.ServiceState(t.Context(), "slow"); err != nil || !st.Registered || len(f.served()) != 1 {
		t.Errorf("a busy service was removed: %+v, %v", st, err)
	}
	close(hold)
	r.await(id, schemas.StateSuccess)
	eventually(t, "the end of the service", func() bool { return r.gone("slow", f) })
}

// TestRetireRaces: events come about when their services are removed, by three
// nodes, again and again; each is called back.
func TestRetireRaces(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, testGrace)
	for range 3 {
		r.start(idleSoon)
	}
	var mu sync.Mutex
	called := map[string]bool{}
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		called[q.Header.Get("ce-id")] = true
	}))
	t.Cleanup(hook.Close)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var ids []schemas.TimerID
	for range 40 {
		ids = append(ids, r.fire(timer{svc: fmt.Sprintf("s%d", rng.IntN(6)), callback: hook.URL}))
		between := time.NewTimer(time.Duration(rng.Int64N(int64(testGrace))))
		<-between.C // the load itself, not a wait for something
	}
	for i := range 6 { // what came too late comes with the next timer
		ids = append(ids, r.fire(timer{svc: fmt.Sprintf("s%d", i), callback: hook.URL}))
	}
	for _, id := range ids {
		r.await(id, schemas.StateSuccess)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(called) != len(ids) {
		t.Errorf("%d of %d were called", len(called), len(ids))
	}
}

// TestServiceIdleIsChecked against the grace.
func TestServiceIdleIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := New(Options{Store: r.store, Conn: r.nc, Now: nowMs, ServiceIdle: time.Second})
	if schemas.CodeOf(err) != schemas.CodeConfig {
		t.Errorf("an idle time below the grace: %v", err)
	}
	f, err := New(Options{Store: r.store, Conn: r.nc, Now: nowMs, ServiceIdle: -1})
	if err != nil || f.Stop(t.Context()) != nil {
		t.Errorf("never: %v", err)
	}
}

// TestRevisionsOfAService: who comes late changes nothing.
func TestRevisionsOfAService(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, time.Millisecond) // what is known is forgotten at once
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.store.RegisterService(ctx, "s"))
	st, err := r.store.ServiceState(ctx, "s")
	must(err)
	rev, err := r.store.RetireService(ctx, "s", st.Rev)
	must(err)
	if _, err := r.store.RetireService(ctx, "s", st.Rev); !errors.Is(err, store.ErrRevision) {
		t.Errorf("retired by an old revision: %v", err)
	}
	if st, err = r.store.ServiceState(ctx, "s"); err != nil || !st.Retiring || !st.Registered || st.Rev != rev {
		t.Errorf("%+v, %v", st, err)
	}
	eventually(t, "the service to be active again", func() bool {
		must(r.store.RegisterService(ctx, "s"))
		st, err = r.store.ServiceState(ctx, "s")
		return err == nil && st.Registered && !st.Retiring
	})
	if err := r.store.RemoveService(ctx, "s", rev); !errors.Is(err, store.ErrRevision) {
		t.Errorf("removed by an old revision: %v", err)
	}
	must(r.store.RemoveService(ctx, "s", st.Rev))
	must(r.store.DropService(ctx, "s")) // has none
	if st, err = r.store.ServiceState(ctx, "s"); err != nil || st.Registered || st.Rev == 0 {
		t.Errorf("after the removal: %+v, %v", st, err)
	}
	eventually(t, "the service to be back", func() bool {
		must(r.store.RegisterService(ctx, "s"))
		st, err = r.store.ServiceState(ctx, "s")
		return err == nil && st.Registered
	})
}
