package router_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// limitAdds waits until limits of adds can be stored, and stores one.
func (f *fixture) limitAdds(body string) schemas.FlowReply {
	f.t.Helper()
	waittest.Until(f.t, "limits of adds can be stored", func() bool { return f.store.CanLimitAdds() == nil })
	return f.flow("set", body)
}

// admission is an add that was accepted between two times.
type admission struct{ sent, answered time.Time }

// addMany adds timers of a service, one after the other, until over returns true for the numbers of accepted and refused
// adds, or until waittest.Bound has passed. It returns the accepted adds and the number of refused ones. An add to which
// the router answers unavailable is neither.
func addMany(f *fixture, n *router.Service, name, svc string, over func(accepted, limited int) bool) (accepted []admission, limited int) {
	end := time.Now().Add(waittest.Bound)
	for i := 0; !over(len(accepted), limited) && time.Now().Before(end); i++ {
		sent := time.Now()
		_, err := n.Add(f.t.Context(), nil, add(fmt.Sprintf("%s-%d", name, i), fmt.Sprintf(`"timerafter":"1h","timersvc":%q`, svc)))
		switch {
		case err == nil:
			accepted = append(accepted, admission{sent, time.Now()})
		case errors.Is(err, schemas.ErrLimited):
			if wait := schemas.RetryAfterOf(err); wait <= 0 || wait > 11*time.Second {
				f.t.Errorf("a refused add may come back in %s: %v", wait, err)
			}
			limited++
			time.Sleep(time.Millisecond)
		case schemas.CodeOf(err) != schemas.CodeUnavailable:
			f.t.Errorf("add: %v", err)
			return accepted, limited
		default:
			time.Sleep(time.Millisecond)
		}
	}
	return accepted, limited
}

// after returns a condition for addMany: d has passed, and an add was accepted or refused.
func after(d time.Duration) func(accepted, limited int) bool {
	end := time.Now().Add(d)
	return func(accepted, limited int) bool { return accepted+limited > 0 && time.Now().After(end) }
}

// clocksApart is more than the estimates of the cluster's clock of two routers differ by.
const clocksApart = 250 * time.Millisecond

// checkAdmissions checks that in no window more adds were admitted than a rate and a burst permit. An
// add was admitted between its request and its answer.
func checkAdmissions(t *testing.T, all []admission, perSecond, burst float64) {
	t.Helper()
	for _, from := range all {
		for _, to := range all {
			n := 0
			for _, a := range all {
				if !a.sent.Before(from.sent) && !a.answered.After(to.answered) {
					n++
				}
			}
			window := to.answered.Sub(from.sent) + clocksApart
			if most := perSecond*window.Seconds() + burst; n > 0 && float64(n) > most {
				t.Fatalf("%d adds were admitted within %s, the limit permits %.1f", n, window, most)
			}
		}
	}
}

// TestAddsPerSecond: two nodes keep the limit of a service together, also when one loses the server;
// adds of another service are not limited.
func TestAddsPerSecond(t *testing.T) {
	t.Parallel()
	one, _ := flowFixture(t)
	two := newFixtureOn(t, one.srv.Connect(), store.Config{})
	other, err := router.New(router.Options{Store: two.store, Dedup: two.store.NewDedupCheck(), Time: two.clock, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Stop(t.Context()) })
	one.limitAdds(`{"key":"adds:orders","rate":"40/s","burst":10}`)

	enough := after(3 * time.Second)
	var mu sync.Mutex
	var all []admission
	limited := 0
	var adders sync.WaitGroup
	for i := range 4 {
		n := one.r.Service
		over := func(accepted, limited int) bool {
			return enough(accepted, limited) && accepted >= 10 && limited > 0
		}
		if i%2 == 1 {
			n, over = other, func(int, int) bool { return two.nc.IsClosed() }
		}
		adders.Go(func() {
			a, l := addMany(one, n, fmt.Sprint("a", i), "orders", over)
			mu.Lock()
			defer mu.Unlock()
			all, limited = append(all, a...), limited+l
		})
	}
	free, none := addMany(one, one.r.Service, "free", "mail", after(500*time.Millisecond))
	if len(free) == 0 || none > 0 {
		t.Errorf("of a service without a limit %d adds were accepted, %d refused", len(free), none)
	}
	two.nc.Close()
	adders.Wait()
	if len(all) < 20 || limited == 0 {
		t.Fatalf("%d adds were accepted, %d refused: want both", len(all), limited)
	}
	checkAdmissions(t, all, 40, 10)
}

// TestAddsLimitChanges: a changed limit holds when the change is acknowledged; a deleted one lets
// everything through; limits of adds have no parallel calls and no pause, and `*` is none.
func TestAddsLimitChanges(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	f.limitAdds(`{"key":"*","rate":"1/h"}`)
	if a, limited := addMany(f, f.r.Service, "x", "orders", after(100*time.Millisecond)); len(a) == 0 || limited > 0 {
		t.Errorf("under a limit of callbacks %d adds were accepted, %d refused", len(a), limited)
	}
	f.flow("set", `{"key":"adds:*","rate":"1/1h","burst":1}`)
	accepted := func(name, svc string) int {
		n := 0
		for i := range 5 {
			if _, err := addTo(t, f.r.Service, fmt.Sprintf("%s-%d", name, i), fmt.Sprintf(`"timerafter":"1h","timersvc":%q`, svc)); err == nil {
				n++
			} else if !errors.Is(err, schemas.ErrLimited) || !strings.Contains(err.Error(), "are limited to ") {
				t.Errorf("add: %v", err)
			}
		}
		return n
	}
	if a, b := accepted("one", "orders"), accepted("two", "mail"); a != 1 || b != 1 {
		t.Errorf("a pattern that gives each service one add: %d and %d were accepted", a, b)
	}
	if st := f.flowOf("adds:mail"); st.Limit == nil || st.Limit.Key != "adds:*" || len(st.Keys) != 1 || st.Keys[0].Next.Before(time.Now().Add(30*time.Minute)) {
		t.Errorf("the status of a limited service: %+v", st)
	}
	f.flow("set", `{"key":"adds:mail","rate":"1000/s","burst":500}`)
	waittest.Until(t, "adds under the raised limit are accepted", func() bool { return accepted(fmt.Sprint("raised", time.Now().UnixNano()), "mail") == 5 })
	f.flow("delete", `{"key":"adds:mail"}`)
	if n := accepted("again", "mail"); n > 1 {
		t.Errorf("%d adds were accepted under the pattern's limit, which permits one", n)
	}
	f.flow("delete", `{"key":"adds:*"}`)
	if n := accepted("free", "mail"); n != 5 {
		t.Errorf("%d of 5 adds were accepted without a limit", n)
	}
	for verb, body := range map[string]string{"set": `{"key":"adds:orders","parallel":3}`, "pause": `{"key":"adds:orders"}`} {
		if code, text := f.answer("flow."+verb, []byte(body), nil); code != "bad_request" || !strings.Contains(text, "limits adds") {
			t.Errorf("flow.%s %s: %s %s", verb, body, code, text)
		}
	}
}

// TestStreamAddsOverTheLimit: adds that the stream has acknowledged wait for some seconds' worth of
// the rate; the others are on timers.rejected, and none is lost. An add of another service is stored at once.
func TestStreamAddsOverTheLimit(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	f.limitAdds(`{"key":"adds:orders","rate":"5/s","burst":2}`)
	const all = 200
	for i := range all {
		if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add(fmt.Sprint("s", i), `"timerafter":"1h","timersvc":"orders"`)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add("other", `"timerafter":"1h","timersvc":"mail"`)); err != nil {
		t.Fatal(err)
	}
	f.await("/test", "other")
	var page schemas.ListReply
	waittest.Until(t, "all adds are stored or rejected", func() bool {
		info, err := f.js.Stream(t.Context(), schemas.StreamAdd)
		return err == nil && info.CachedInfo().State.Msgs == 0
	})
	if code, text := f.answer("list", []byte(`{"service":"orders","limit":500}`), &page); code != "" {
		t.Fatal(code, text)
	}
	stored := len(page.Timers)
	if stored < 20 || stored > 150 {
		t.Errorf("%d adds were stored, want those of about ten seconds at 5 a second", stored)
	}
	for _, m := range f.rejected(all - stored) {
		if code := m.Headers().Get(schemas.HeaderErrorCode); code != string(schemas.CodeLimited) {
			t.Errorf("rejected with %q", code)
		}
	}
}

// TestTenantAddsPerSecond: all adds of a tenant count for its limit, whatever their service; a tenant at its
// limit limits no other, and what the limit of a service refuses does not use up that of its tenant.
func TestTenantAddsPerSecond(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	f.limitAdds(`{"key":"adds:acme=","rate":"3/1h","burst":3}`)
	f.flow("set", `{"key":"adds:acme=mail","rate":"1/1h","burst":1}`)
	f.flow("set", `{"key":"adds:*=","rate":"1000/s","burst":500}`)
	add := func(tenant, svc string, n int) (accepted int) {
		for i := range n {
			_, err := addTo(t, f.r.In(router.Scope{Tenant: tenant}), fmt.Sprintf("%s-%d", svc, i), fmt.Sprintf(`"timerafter":"1h","timersvc":%q`, svc))
			switch {
			case err == nil:
				accepted++
			case !errors.Is(err, schemas.ErrLimited):
				t.Errorf("add of %s: %v", tenant, err)
			}
		}
		return accepted
	}
	// The gate permits a little less than the burst at once.
	if n := add("acme", "mail", 20); n != 1 {
		t.Errorf("%d adds of the tenant's limited service were accepted, want 1", n)
	}
	if n := add("acme", "orders", 5) + add("acme", "bills", 5); n < 1 || n > 2 {
		t.Errorf("%d further adds of the tenant were accepted, want 1 or 2 of the 2 that are left", n)
	}
	for _, tenant := range []string{"globex", ""} {
		if n := add(tenant, "orders", 20); n != 20 {
			t.Errorf("%d of 20 adds of tenant %q were accepted", n, tenant)
		}
	}
}

// TestNewerLimitOfAdds: a node that cannot read the limit of a service, because a newer version stored it, admits and
// rejects no add of the service. A damaged limit limits nothing.
func TestNewerLimitOfAdds(t *testing.T) {
	t.Parallel()
	f, reg := newFixture(t, store.Config{}), prometheus.NewRegistry()
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop(), Registerer: reg})
	value := func(key, value string) {
		t.Helper()
		if _, err := f.js.Publish(t.Context(), "$KV.flows.limit."+base64.RawURLEncoding.EncodeToString([]byte(key)), []byte(value)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.store.RefreshFlows(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	value("adds:orders", `{"v":99}`)
	const orders = `"timerafter":"1h","timersvc":"orders"`
	if _, err := f.r.Add(t.Context(), nil, add("asked", orders)); schemas.CodeOf(err) != schemas.CodeUnavailable || !errors.Is(err, schemas.ErrNewer) || !strings.Contains(err.Error(), "newer version") {
		t.Fatalf("an add under a limit of a newer version: %v", err)
	}
	f.publish(nil, add("published", orders))
	if _, err := addTo(t, f.r.Service, "mail", `"timerafter":"1h","timersvc":"mail"`); err != nil {
		t.Errorf("an add of another service: %v", err)
	}
	waittest.Until(t, "the published add is delayed", func() bool { return metrictest.Series(t, reg)["belfry_adds_delayed_total/unavailable"] > 0 })
	if n := f.waiting(); n != 1 {
		t.Errorf("%d adds are in the stream, want the published one", n)
	}
	value("adds:orders", `{}`)
	if _, err := addTo(t, f.r.Service, "asked", orders); err != nil {
		t.Errorf("an add under a damaged limit: %v", err)
	}
	f.await("/test", "published")
}
