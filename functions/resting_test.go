package functions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions/natscall"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const testIdle = 200 * time.Millisecond

func idleSoon(o *Options) { o.ServiceIdle = testIdle }

// resting reports whether only the marker in the key of a service is left: no consumer,
// and nothing in any node.
func (r *rig) resting(svc string, nodes ...*Functions) bool {
	r.t.Helper()
	for _, k := range []store.Feed{{Service: svc}, {Service: svc, Kind: store.KindRetry}} {
		st, err := r.store.ServiceState(r.t.Context(), k)
		if err != nil || st.Awake {
			return false
		}
		if _, err := r.lookUp(svc, k.Kind); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false
		}
	}
	for _, f := range nodes {
		if f.serves(store.Feed{Service: svc}) || f.serves(store.Feed{Service: svc, Kind: store.KindRetry}) {
			return false
		}
	}
	return true
}

// hook starts a callee that answers 200 and sends the event's ID to calls.
func hook(t *testing.T, calls chan<- string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { calls <- q.Header.Get("ce-id") }))
	t.Cleanup(s.Close)
	return s.URL
}

// TestServiceRestsAndWakes: a service rests and wakes several times on two nodes. An
// event that was handled before the rest is not read again after it.
func TestServiceRestsAndWakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	metrics := prometheus.NewRegistry()
	a, b := r.start(idleSoon), r.start(func(o *Options) {
		idleSoon(o)
		o.Registerer = metrics
	})
	calls := make(chan string, 10)
	url := hook(t, calls)
	for range 3 {
		id := r.fire(timer{svc: "rare", callback: url})
		r.await(id, schemas.StateSuccess)
		if got := <-calls; got != fmt.Sprint(r.n) {
			t.Errorf("called for %s, want %d", got, r.n)
		}
		waittest.Until(t, "the service to rest", func() bool { return r.resting("rare", a, b) })
	}
	select {
	case id := <-calls:
		t.Errorf("called again for %s", id)
	default:
	}
	if n := metrictest.Sum(t, metrics, "belfry_callbacks_skipped_total"); n != 0 {
		t.Errorf("%v events that needed no call were delivered", n)
	}
}

// TestRetriesRestAndWake: the consumer of TIMERS_RETRY exists only while there are
// retries.
func TestRetriesRestAndWake(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.start(idleSoon)
	calls := make(chan string, 10)
	url := hook(t, calls)
	id := r.fire(timer{svc: "s", callback: url})
	r.await(id, schemas.StateSuccess)
	if f.serves(store.Feed{Service: "s", Kind: store.KindRetry}) {
		t.Error("retries are served, but none was published")
	}
	id = r.fire(timer{svc: "s", callback: url, attempt: 1})
	r.await(id, schemas.StateSuccess)
	waittest.Until(t, "the service to rest", func() bool { return r.resting("s", f) })
}

// TestRetriesOfOldNodes: a retry that an older node published without waking the feed is
// found.
func TestRetriesOfOldNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	calls := make(chan string, 10)
	id := r.fire(timer{svc: "s", callback: hook(t, calls), attempt: 1})
	k := store.Feed{Service: "s", Kind: store.KindRetry}
	st, err := r.store.ServiceState(t.Context(), k)
	if err != nil || !st.Awake {
		t.Fatalf("got %+v, %v", st, err)
	}
	if err := r.store.RestService(t.Context(), k, st.Rev, 1<<40); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	r.await(id, schemas.StateSuccess)
}

// TestBusyServiceStays: a service does not rest while an event waits for its callback or
// its next attempt.
func TestBusyServiceStays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f, other := r.start(idleSoon), r.start(idleSoon)
	hold := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	t.Cleanup(s.Close)
	id := r.fire(timer{svc: "slow", callback: s.URL})
	waittest.Until(t, "the call", func() bool { return f.InFlight()+other.InFlight() == 1 })
	looks := time.NewTimer(10 * testIdle)
	<-looks.C // there is no event to wait for, so wait ten times as long as the rest would take
	if st, err := r.store.ServiceState(t.Context(), store.Feed{Service: "slow"}); err != nil || !st.Awake {
		t.Errorf("a busy service was put to rest: %+v, %v", st, err)
	}
	close(hold)
	r.await(id, schemas.StateSuccess)
	waittest.Until(t, "the service to rest", func() bool { return r.resting("slow", f, other) })
}

// TestRestRaces: events are published while three nodes put their services to rest. One
// of the nodes is killed and replaced again and again. Each event is called back, and no
// other.
func TestRestRaces(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, 2*time.Second)
	const shortest = minServiceIdle
	soon := func(o *Options) { o.ServiceIdle = shortest }
	r.start(soon)
	r.start(soon)
	var mu sync.Mutex
	called := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		called[q.Header.Get("ce-id")] = true
	}))
	t.Cleanup(s.Close)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var ids []schemas.TimerID
	kill := r.startKillable(soon)
	for n := range 120 {
		ids = append(ids, r.fire(timer{svc: fmt.Sprintf("s%d", rng.IntN(12)), callback: s.URL, attempt: uint32(rng.IntN(2))}))
		if n%15 == 14 {
			kill()
			kill = r.startKillable(soon)
		}
		between := time.NewTimer(time.Duration(rng.Int64N(int64(shortest))))
		<-between.C // the pace of the load
	}
	kill()
	for _, id := range ids {
		r.await(id, schemas.StateSuccess)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(called) != len(ids) {
		t.Errorf("%d of %d events were called back", len(called), len(ids))
	}
}

// startKillable starts functions with their own connection and store. kill disconnects
// them from the server, like the death of the process.
func (r *rig) startKillable(change func(*Options)) (kill func()) {
	r.t.Helper()
	nc := r.server.Connect(nats.NoReconnect())
	st, err := store.Open(r.t.Context(), nc, store.Config{Node: "killed", ServiceGrace: 2 * time.Second}, zerolog.Nop())
	if err != nil {
		r.t.Fatal(err)
	}
	f := r.start(func(o *Options) {
		change(o)
		o.Store, o.NATS, o.StopGrace = st, natscall.New(nc), time.Millisecond
	})
	return func() {
		nc.Close()
		_ = f.Stop(context.Background())
		st.Close()
	}
}

// TestEventBehindTheFloor: an event that is stored while its service goes to rest wakes
// the service again. Its publisher finds it, or the node that put the service to rest, at
// once or after the grace.
func TestEventBehindTheFloor(t *testing.T) {
	t.Parallel()
	k := store.Feed{Service: "s"}
	rest := func(t *testing.T, r *rig) (floor uint64) {
		t.Helper()
		st, err := r.store.ServiceState(t.Context(), k)
		if err != nil || !st.Awake {
			t.Fatalf("got %+v, %v", st, err)
		}
		if err := r.node("other").RestService(t.Context(), k, st.Rev, st.Floor); err != nil {
			t.Fatal(err)
		}
		return st.Floor
	}
	awake := func(t *testing.T, r *rig) {
		t.Helper()
		waittest.Until(t, "the service to be awake", func() bool {
			st, err := r.store.ServiceState(t.Context(), k)
			return err == nil && st.Awake
		})
	}
	t.Run("publisher", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.fire(timer{svc: "s", callback: "http://127.0.0.1:1/"})
		rest(t, r) // by another process, with a floor below the event that this process has published
		awake(t, r)
	})
	// publishAndDie puts the feed to rest, and publishes an event as a publisher that had seen
	// it awake and dies then.
	publishAndDie := func(t *testing.T, r *rig) (floor uint64) {
		t.Helper()
		publisher := r.node("publisher")
		if err := publisher.WakeService(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		floor = rest(t, r)
		if _, _, err := publisher.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("s"), Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		publisher.Close()
		return floor
	}
	for _, drop := range []bool{true, false} {
		t.Run(fmt.Sprintf("check/drop=%v", drop), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			f := r.start(func(o *Options) { o.ServiceIdle = -1 })
			floor := publishAndDie(t, r)
			resting, err := f.rester().Check(t.Context(), k, floor, drop)
			if err != nil || resting {
				t.Errorf("rests: %v, %v", resting, err)
			}
			awake(t, r)
		})
	}
	// The node that put the feed to rest died before its check.
	t.Run("other node", func(t *testing.T) {
		t.Parallel()
		r := newRigWith(t, time.Second)
		r.start(func(o *Options) { o.ServiceIdle = -1 })
		publishAndDie(t, r)
		awake(t, r)
	})
	t.Run("node started later", func(t *testing.T) {
		t.Parallel()
		r := newRig(t) // with a grace of minutes
		publishAndDie(t, r)
		st, err := r.store.ServiceState(t.Context(), k)
		if err != nil || st.Awake {
			t.Fatalf("got %+v, %v", st, err)
		}
		waittest.Until(t, "the rest to be old", func() bool { return time.Since(st.Since) > restedBefore })
		r.start(func(o *Options) { o.ServiceIdle = -1 })
		awake(t, r)
	})
}

// TestTidy: the consumer of a resting feed, which a dead node left behind, is removed.
// Other consumers stay.
func TestTidy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	left, used := store.Feed{Service: "left"}, store.Feed{Service: "used"}
	for _, k := range []store.Feed{left, used} {
		if err := r.store.WakeService(ctx, k); err != nil {
			t.Fatal(err)
		}
		reader, err := r.store.ReadFeed(ctx, k, store.FeedOptions{AckWait: time.Second, MaxAckPending: 10, Most: 1})
		if err != nil {
			t.Fatal(err)
		}
		reader.Close()
	}
	st, err := r.store.ServiceState(ctx, left)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.RestService(ctx, left, st.Rev, 0); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	waittest.Until(t, "the consumer to go", func() bool {
		_, err := r.lookUp("left", store.KindFired)
		return errors.Is(err, jetstream.ErrConsumerNotFound)
	})
	if _, err := r.lookUp("used", store.KindFired); err != nil {
		t.Errorf("the consumer of a service that is awake: %v", err)
	}
}

// TestManyServicesAtOnce: hanging services beyond maxWithoutWork do not keep others
// waiting, and services that have finished use no goroutine.
func TestManyServicesAtOnce(t *testing.T) {
	testsize.NotShort(t, "this test creates hundreds of consumers")
	testsize.NotRace(t, "this test creates hundreds of consumers")
	r := newRig(t)
	f := r.start(func(o *Options) { o.ServiceIdle, o.Total = time.Second, 4*maxWithoutWork })
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/hang" {
			<-release
		}
	}))
	t.Cleanup(s.Close)
	before := runtime.NumGoroutine()
	var hung []schemas.TimerID
	for n := range maxWithoutWork + 20 {
		hung = append(hung, r.fire(timer{svc: fmt.Sprintf("hangs-%d", n), callback: s.URL + "/hang", attributes: map[string]string{"timertimeout": "5m"}}))
	}
	const bound = 3 * time.Minute // hundreds of consumers on a busy machine
	waittest.UntilWithin(t, bound, "all to hang", func() bool { return f.InFlight() >= maxWithoutWork+20 })
	id := r.fire(timer{svc: "well", callback: s.URL + "/"})
	r.await(id, schemas.StateSuccess)
	close(release)
	for _, id := range hung {
		r.await(id, schemas.StateSuccess)
	}
	waittest.UntilWithin(t, bound, "all to rest", func() bool { return f.served() == 0 })
	s.CloseClientConnections()
	const few = 20
	waittest.Until(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before+few })
}

// TestServiceIdleIsChecked: New refuses an idle time below the minimum.
func TestServiceIdleIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := New(Options{Store: r.store, NATS: r.natsCalls(), Now: nowMs, ServiceIdle: time.Millisecond})
	if schemas.CodeOf(err) != schemas.CodeConfig {
		t.Errorf("an idle time below the minimum: %v", err)
	}
	f, err := New(Options{Store: r.store, NATS: r.natsCalls(), Now: nowMs, ServiceIdle: -1})
	if err != nil || f.Stop(t.Context()) != nil {
		t.Errorf("a negative idle time, which disables rest: %v", err)
	}
}

// TestRevisionsOfAFeed: a write with an old revision of a feed's key has no effect.
func TestRevisionsOfAFeed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	k := store.Feed{Service: "s"}
	must(r.store.WakeService(ctx, k))
	first, err := r.store.ServiceState(ctx, k)
	must(err)
	must(r.store.RestService(ctx, k, first.Rev, 7))
	st, err := r.store.ServiceState(ctx, k)
	must(err)
	if st.Awake || st.Floor != 7 || st.Rev <= first.Rev {
		t.Errorf("at rest: %+v", st)
	}
	must(r.store.WakeService(ctx, k))
	if st, err = r.store.ServiceState(ctx, k); err != nil || !st.Awake || st.Floor != 7 {
		t.Errorf("awake: %+v, %v", st, err)
	}
	if err := r.store.RestService(ctx, k, first.Rev, 9); !errors.Is(err, store.ErrRevision) {
		t.Errorf("put to rest by an old revision: %v", err)
	}
	must(r.store.DropService(ctx, k)) // the service has none
}
