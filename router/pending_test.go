package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// schedules starts a node that fires timers, and so counts the pending ones. The returned function kills
// it: its shards are not released.
func schedules(t *testing.T, srv *natstest.Server, name string) (kill func()) {
	t.Helper()
	nc := srv.Connect()
	f := &fixture{t: t}
	var err error
	if f.store, err = store.Open(t.Context(), nc, store.Config{Node: name}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.store.Close)
	f.clock = clustertime.NewService(func(ctx context.Context) (clustertime.Reading, error) {
		st, err := f.store.Beat(ctx)
		return clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, err
	}, 200*time.Millisecond, zerolog.Nop())
	f.clock.Start()
	t.Cleanup(f.clock.Stop)
	s, err := scheduler.New(scheduler.Options{Store: f.store, Time: f.clock, Node: name, Lease: 900 * time.Millisecond, Heartbeat: 100 * time.Millisecond, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Stop(ctx) // a killed one cannot release its shards
	})
	return nc.Close
}

// limitPending waits until limits of pending timers can be stored, stores one, and waits until it is counted.
func (f *fixture) limitPending(key string, n int) {
	f.t.Helper()
	waittest.Until(f.t, "limits of pending timers can be stored", func() bool { return f.store.CanLimitPending() == nil })
	f.flow("set", fmt.Sprintf(`{"key":%q,"pending":%d}`, key, n))
	f.awaitPending(key, -1)
}

// awaitPending waits until every shard is counted and a key has n pending timers; any number for n < 0.
func (f *fixture) awaitPending(key string, n int64) {
	f.t.Helper()
	var st schemas.FlowStatus
	defer func() {
		if f.t.Failed() {
			f.t.Logf("%+v", st)
		}
	}()
	waittest.Until(f.t, fmt.Sprintf("%s has %d pending timers", key, n), func() bool {
		st = schemas.FlowStatus{}
		code, _ := f.answer("flow.get", fmt.Appendf(nil, `{"key":%q}`, key), &st)
		return code == "" && st.Uncounted == 0 && (n < 0 || len(st.Keys) == 1 && st.Keys[0].Pending == n)
	})
}

// fill adds timers of a service until their limit refuses one, and returns how many were accepted. It repeats an add
// while the router is unavailable. It fails the test if no add is refused within waittest.Bound.
func fill(t *testing.T, n *router.Service, name, svc string) (accepted int) {
	t.Helper()
	var err error
	for end := time.Now().Add(waittest.Bound); time.Now().Before(end); {
		_, err = n.Add(t.Context(), nil, add(fmt.Sprintf("%s-%d", name, accepted), fmt.Sprintf(`"timerafter":"1h","timersvc":%q`, svc)))
		switch {
		case err == nil:
			accepted++
		case schemas.CodeOf(err) == schemas.CodeUnavailable:
			time.Sleep(time.Millisecond) // before the same add again
		case errors.Is(err, schemas.ErrLimited) && schemas.RetryAfterOf(err) == 5*time.Second && strings.Contains(err.Error(), "pending timers, and adds:"):
			return accepted
		default:
			t.Errorf("add: %v", err)
			return accepted
		}
	}
	t.Errorf("%d adds of service %s were accepted and none was refused within %s; last error: %v", accepted, svc, waittest.Bound, err)
	return accepted
}

// TestPendingTimersFromTheStart: a node that starts while a limit of pending timers is used up admits no add,
// also before its follower has read the numbers.
func TestPendingTimersFromTheStart(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	schedules(t, f.srv, "s1")
	const limit = 20
	f.limitPending("adds:orders", limit)
	f.awaitPending("adds:orders", 0)
	if n := fill(t, f.r.Service, "first", "orders"); n != limit {
		t.Fatalf("%d adds were accepted, want %d", n, limit)
	}
	f.awaitPending("adds:orders", limit)
	for i := range 3 {
		n := newFixtureOn(t, f.srv.Connect(), store.Config{Node: fmt.Sprint("again-", i)})
		r, err := router.New(router.Options{Store: n.store, Dedup: n.store.NewDedupCheck(), Time: n.clock, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Stop(t.Context()) })
		if admitted := fill(t, r, fmt.Sprint("restart-", i), "orders"); admitted != 0 {
			t.Errorf("a node that has just started admitted %d adds over the limit", admitted)
		}
	}
}

// TestPendingTimers: two routers hold a limit of pending timers, each alone exactly; cancels and firings make
// room; a repeated add needs none; another service is not limited; and after the owner of the
// shards was killed the number is right again.
func TestPendingTimers(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	kill := schedules(t, f.srv, "s1")
	two := newFixtureOn(t, f.srv.Connect(), store.Config{Node: "n2"})
	other, err := router.New(router.Options{Store: two.store, Dedup: two.store.NewDedupCheck(), Time: two.clock, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Stop(t.Context()) })
	// Timers from before the limit count, too.
	for i := range 20 {
		if _, err := addTo(t, f.r.Service, fmt.Sprint("before-", i), `"timerafter":"1h","timersvc":"orders"`); err != nil {
			t.Fatal(err)
		}
	}
	const limit = 100
	f.limitPending("adds:orders", limit)
	f.awaitPending("adds:orders", 20)
	var adders sync.WaitGroup
	var all [2]int
	for i, n := range []*router.Service{f.r.Service, other} {
		adders.Go(func() { all[i] = fill(t, n, fmt.Sprint("r", i), "orders") })
	}
	adders.Wait()
	pending := 20 + all[0] + all[1]
	// A router that has not read the numbers of the owners yet knows its own adds.
	if pending < limit || all[0] > limit || all[1] > limit {
		t.Errorf("two routers admitted %v timers beside 20 that were there, under a limit of %d", all, limit)
	}
	f.awaitPending("adds:orders", int64(pending))
	waittest.Until(t, "both routers refuse", func() bool { return fill(t, f.r.Service, "more", "orders")+fill(t, other, "also", "orders") == 0 })
	if r, err := addTo(t, f.r.Service, "before-3", `"timerafter":"1h","timersvc":"orders"`); err != nil || !r.Duplicate {
		t.Errorf("a repeated add at the limit: %+v, %v", r, err)
	}
	if a, limited := addMany(f, f.r.Service, "free", "mail", after(200*time.Millisecond)); len(a) == 0 || limited > 0 {
		t.Errorf("of another service %d adds were accepted, %d refused", len(a), limited)
	}

	kill()
	schedules(t, f.srv, "s2")
	over := max(pending-limit, 0)
	for i := range 20 { // cancelled, or fired
		id := fmt.Sprint("before-", i)
		if i%2 == 0 {
			cancelIn(t, f.r.Service, id)
			continue
		}
		q := schemas.RescheduleRequest{TimerRef: schemas.TimerRef{Source: "/test", ID: id}, After: "0s"}
		_, err := available(t, "the reschedule of "+id, func() (store.Timer, error) { return f.r.Reschedule(t.Context(), q, schemas.Caller{}) })
		// A repeated request finds the timer fired if the first one took effect.
		if err != nil && schemas.CodeOf(err) != schemas.CodeAlreadyFired {
			t.Fatal(err)
		}
	}
	f.awaitPending("adds:orders", int64(pending-20))
	for i := range over { // what was too much
		cancelIn(t, f.r.Service, fmt.Sprintf("r%d-%d", i%2, i/2))
	}
	f.awaitPending("adds:orders", limit-20)
	got := 0
	waittest.Until(t, "there is room again", func() bool {
		got += fill(t, other, fmt.Sprint("room", got), "orders")
		return got >= 20
	})
	if got != 20 {
		t.Errorf("%d adds were accepted by one router after 20 timers had gone", got)
	}
	f.flow("set", `{"key":"adds:orders","pending":130}`)
	if n := fill(t, other, "raised", "orders"); n != 30 {
		t.Errorf("%d adds were accepted after the limit was raised by 30", n)
	}
	f.flow("delete", `{"key":"adds:orders"}`)
	if a, limited := addMany(f, other, "unlimited", "orders", after(200*time.Millisecond)); len(a) == 0 || limited > 0 {
		t.Errorf("without the limit %d adds were accepted, %d refused", len(a), limited)
	}
}

// TestStreamAddsOverThePendingLimit: acknowledged adds over a limit of pending timers wait once, and are then
// stored or on timers.rejected; none is lost, and another service is not held up.
func TestStreamAddsOverThePendingLimit(t *testing.T) {
	t.Parallel()
	f, reg := newFixture(t, store.Config{}), prometheus.NewRegistry()
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop(), Registerer: reg})
	schedules(t, f.srv, "s1")
	f.limitPending("adds:orders", 20)
	const all = 60
	for i := range all {
		if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add(fmt.Sprint("s", i), `"timerafter":"1h","timersvc":"orders"`)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add("other", `"timerafter":"1h","timersvc":"mail"`)); err != nil {
		t.Fatal(err)
	}
	f.await("/test", "other")
	waittest.Until(t, "all adds are stored or rejected", func() bool {
		info, err := f.js.Stream(t.Context(), schemas.StreamAdd)
		return err == nil && info.CachedInfo().State.Msgs == 0
	})
	var page schemas.ListReply
	if code, text := f.answer("list", []byte(`{"service":"orders","limit":500}`), &page); code != "" {
		t.Fatal(code, text)
	}
	if len(page.Timers) != 20 {
		t.Errorf("%d adds were stored by one router under a limit of 20", len(page.Timers))
	}
	if n := metrictest.Series(t, reg)["belfry_adds_delayed_total/limited"]; n != all-20 {
		t.Errorf("%g adds waited before they were rejected, want %d", n, all-20)
	}
	for _, m := range f.rejected(all - len(page.Timers)) {
		if code := m.Headers().Get(schemas.HeaderErrorCode); code != string(schemas.CodeLimited) {
			t.Errorf("rejected with %q", code)
		}
	}
}

// TestTenantPendingTimers: all pending timers of a tenant count for its limit, schedules and paused ones too, and
// runs not; a pattern limits each tenant by itself; an add needs both limits.
func TestTenantPendingTimers(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	schedules(t, f.srv, "s1")
	f.limitPending("adds:acme=mail", 2)
	f.limitPending("adds:*=", 5)
	acme := f.r.In(router.Scope{Tenant: "acme"})
	if _, err := addTo(t, acme, "every", `"timerevery":"1s","timersvc":"runs"`); err != nil {
		t.Fatal(err)
	}
	if n := fill(t, acme, "m", "mail"); n != 2 {
		t.Errorf("%d adds of a service were accepted, want 2", n)
	}
	if n := fill(t, acme, "o", "orders"); n != 2 {
		t.Errorf("%d further adds of the tenant were accepted, want 2 of the 5", n)
	}
	if n := fill(t, f.r.In(router.Scope{Tenant: "globex"}), "g", "orders"); n != 5 {
		t.Errorf("%d adds of another tenant were accepted, want 5", n)
	}
	if a, limited := addMany(f, f.r.Service, "own", "orders", after(200*time.Millisecond)); len(a) == 0 || limited > 0 {
		t.Errorf("of no tenant %d adds were accepted, %d refused", len(a), limited)
	}
	waittest.Until(t, "the schedule has run twice", func() bool {
		tm, err := acme.Get(t.Context(), schemas.TimerRef{Source: "/test", ID: "every"})
		return err == nil && tm.Record.Schedule.Last.Run >= 2
	})
	f.awaitPending("adds:acme=", 5)
	cancelIn(t, acme, "every")
	f.awaitPending("adds:acme=", 4)
}

// TestTenantQuotas: a tenant has at most so many schedules, services with pending timers and bytes of events.
// What ends makes room, and a small add passes where a large one does not.
func TestTenantQuotas(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	schedules(t, f.srv, "s1")
	waittest.Until(t, "limits of schedules can be stored", func() bool { return f.store.CanLimitQuotas() == nil })
	f.flow("set", `{"key":"adds:acme=","schedules":2,"services":3,"bytes":9000}`)
	f.awaitPending("adds:acme=", -1)
	acme := f.r.In(router.Scope{Tenant: "acme"})
	once := func(id, svc, attributes string) error {
		_, err := acme.Add(t.Context(), nil, add(id, fmt.Sprintf(`"timersvc":%q,%s`, svc, attributes)))
		return err
	}
	try := func(id, svc, attributes string) error {
		_, err := addTo(t, acme, id, fmt.Sprintf(`"timersvc":%q,%s`, svc, attributes))
		return err
	}
	pad := func(n int) string { return fmt.Sprintf(`"timerafter":"1h","data":%q`, strings.Repeat("x", n)) }
	want := func(what string, err error, code schemas.Code, text string) {
		t.Helper()
		if schemas.CodeOf(err) != code || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v; want %q with %q", what, err, code, text)
		}
	}
	const daily = `"timercron":"0 4 * * *"`
	want("first schedule", try("s0", "a", daily), "", "")
	want("second schedule", try("s1", "b", daily), "", "")
	want("third schedule", try("s2", "a", daily), schemas.CodeLimited, "acme= has 2 pending schedules, and adds:acme= is limited to 2")
	want("repeated schedule", try("s0", "a", daily), "", "")
	want("timer of a third service", try("t0", "c", pad(1)), "", "")
	want("timer of a fourth service", try("t1", "d", pad(1)), schemas.CodeLimited, "acme= has 3 services with pending timers, and adds:acme= is limited to 3")
	want("large timer", try("l0", "a", pad(6000)), "", "")
	want("second large timer", try("l1", "a", pad(6000)), schemas.CodeLimited, "bytes of pending timers, and adds:acme= is limited to 9000")
	want("timer that never fits", try("l2", "a", pad(9000)), schemas.CodeTooLarge, "make the event smaller")
	want("small timer", try("t2", "a", pad(1)), "", "")
	if _, err := addTo(t, f.r.In(router.Scope{Tenant: "globex"}), "g", `"timersvc":"a",`+pad(9000)); err != nil {
		t.Errorf("another tenant: %v", err)
	}

	used := func() schemas.FlowKeyInfo {
		if st := f.flowOf("adds:acme="); len(st.Keys) == 1 && st.Uncounted == 0 {
			return st.Keys[0]
		}
		return schemas.FlowKeyInfo{}
	}
	waittest.Until(t, "what the tenant uses is shown", func() bool {
		k := used()
		return k.Pending == 5 && k.Schedules == 2 && k.Services == 3 && k.Bytes > 6000 && k.Bytes <= 9000
	})
	for _, id := range []string{"s1", "l0"} { // the only timer of b
		cancelIn(t, acme, id)
	}
	waittest.Until(t, "cancels are counted", func() bool {
		k := used()
		return k.Pending == 3 && k.Schedules == 1 && k.Services == 2 && k.Bytes > 0 && k.Bytes < 6000
	})
	waittest.Until(t, "a schedule of a new service is accepted", func() bool { return once("s3", "d", daily) == nil })
	waittest.Until(t, "a large timer is accepted", func() bool { return once("l3", "a", pad(6000)) == nil })
}

// TestPendingLimitRequests: a limit of pending timers is one of adds, and is shown.
func TestPendingLimitRequests(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	waittest.Until(t, "limits of pending timers can be stored", func() bool { return f.store.CanLimitPending() == nil })
	for body, want := range map[string]string{
		`{"key":"api.example.com","pending":3}`:          "and bytes limit adds",
		`{"key":"adds:orders","pending":-1}`:             "pending -1",
		`{"key":"adds:orders","pending":2,"parallel":3}`: "leave parallel",
		`{"key":"adds:orders","pending":2000000000}`:     "1 to 1000000000",
		`{"key":"adds:orders","pending":2,"burst":3}`:    "a burst needs a rate",
		`{"key":"api.example.com","bytes":3}`:            "bytes limit adds",
		`{"key":"adds:orders","services":3}`:             "services limits the services of a tenant",
		`{"key":"adds:acme=","services":5000}`:           "1 to 4096",
		`{"key":"adds:acme=","schedules":-1}`:            "schedules -1",
		`{"key":"adds:acme=","bytes":-1}`:                "bytes -1",
	} {
		if code, text := f.answer("flow.set", []byte(body), nil); code != "bad_request" || !strings.Contains(text, want) {
			t.Errorf("flow.set %s: %s %s, want %q", body, code, text, want)
		}
	}
	made := f.flow("set", `{"key":"adds:*","pending":7,"rate":"100/1s","burst":20}`)
	if l := made.Limit; l == nil || l.Pending != 7 || l.Rate != "100/1s" {
		t.Errorf("%+v", made)
	}
	// No node counts, so only the router's own adds do.
	if n := fill(t, f.r.Service, "a", "orders"); n != 7 {
		t.Errorf("%d adds were accepted, want 7", n)
	}
	if st := f.flowOf("adds:orders"); st.Limit == nil || st.Limit.Pending != 7 || st.Uncounted == 0 {
		t.Errorf("%+v", st)
	}
}
