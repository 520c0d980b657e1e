package functions

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const origin = "belfry.example.com"

// webhookTarget is an HTTP server that answers the handshake.
type webhookTarget struct {
	*callee
	mu sync.Mutex
	// allow are the headers of its answer to OPTIONS, and status its status.
	allow  map[string]string
	status int
}

// newWebhookTarget starts a target that allows all calls at a rate; "" for none.
func newWebhookTarget(t *testing.T, rate string) *webhookTarget {
	t.Helper()
	w := &webhookTarget{status: http.StatusOK, allow: map[string]string{"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": rate}}
	w.callee = httpCallee(t, func(_ int, rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodOptions {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for k, v := range w.allow {
			rw.Header().Set(k, v)
		}
		rw.WriteHeader(w.status)
	})
	return w
}

// answers changes the answer to OPTIONS.
func (w *webhookTarget) answers(status int, header map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status, w.allow = status, header
}

// requests returns the requests of a method so far.
func (c *callee) requests(method string) (out []*http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.calls {
		if r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

// withOrigin makes service s ask its targets.
func withOrigin(o *Options) {
	o.Services = map[string]ServiceConfig{"s": {WebhookOrigin: origin}}
}

// TestWebhookHandshake: the target of a service with an origin is asked once, before the first call,
// with the credentials of the callback and the rate of its limit; every call names the origin. A
// service without an origin asks nobody.
func TestWebhookHandshake(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := newWebhookTarget(t, "*")
	r.limit(c.host(t), flow.Limit{Rate: flow.Rate{Count: 1000, Per: time.Minute}, Burst: 10})
	r.start(func(o *Options) {
		o.Services = map[string]ServiceConfig{"s": {WebhookOrigin: origin, Headers: map[string]string{"X-Api-Key": "hunter2"}, Hosts: []string{"http://127.0.0.1"}}}
	})
	url := strings.Replace(c.URL, "://", "://alice:secret@", 1) + "/hook"
	var ids []schemas.TimerID
	for _, query := range []string{"?a=1", "?a=2", "?a=3"} {
		ids = append(ids, r.fire(timer{callback: url + query}))
	}
	for _, id := range ids {
		r.await(id, schemas.StateSuccess)
	}
	asked := c.requests(http.MethodOptions)
	if len(asked) != 1 || c.calls[0] != asked[0] {
		t.Fatalf("got %d OPTIONS requests, and %s first, want one before the first call", len(asked), c.calls[0].Method)
	}
	h := asked[0].Header
	if user, _, _ := asked[0].BasicAuth(); h.Get("WebHook-Request-Origin") != origin || h.Get("WebHook-Request-Rate") != "1009" || h.Get("X-Api-Key") != "hunter2" || user != "alice" || asked[0].URL.Path != "/hook" {
		t.Errorf("asked at %s with headers %v", asked[0].URL, h)
	}
	if h.Get("Idempotency-Key") != "" || h.Get("Ce-Id") != "" {
		t.Errorf("the request has parts of an event: %v", h)
	}
	for _, call := range c.requests(http.MethodPost) {
		if call.Header.Get("WebHook-Request-Origin") != origin {
			t.Errorf("a call has the headers %v", call.Header)
		}
	}
	r.await(r.fire(timer{callback: c.URL + "/another"}), schemas.StateSuccess)
	if n := len(c.requests(http.MethodOptions)); n != 2 {
		t.Errorf("after another path: %d OPTIONS requests, want 2", n)
	}
	r.await(r.fire(timer{svc: "plain", callback: c.URL + "/plain"}), schemas.StateSuccess)
	if n := len(c.requests(http.MethodOptions)); n != 2 {
		t.Errorf("a service without an origin asked the target")
	}
}

// TestWebhookOfTenant: all services of a tenant with an origin ask their targets. Those of another tenant, and of
// the default tenant, ask nobody. A reload begins and ends it.
func TestWebhookOfTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := newWebhookTarget(t, "*")
	hosts := []string{"127.0.0.1"}
	settings := Settings{Tenants: map[string]schemas.TenantAllowance{"acme": {Hosts: hosts, WebhookOrigin: origin}, "globex": {Hosts: hosts}}}
	f := r.start(func(o *Options) { o.Settings = settings })
	call := func(svc, path string, want int) {
		t.Helper()
		r.await(r.fire(timer{svc: svc, callback: c.URL + path}), schemas.StateSuccess)
		if n := len(c.requests(http.MethodOptions)); n != want {
			t.Errorf("after a call of service %s: %d OPTIONS requests, want %d", svc, n, want)
		}
	}
	call("globex=orders", "/globex", 0)
	call("orders", "/orders", 0)
	call("acme=orders", "/acme", 1)
	call("acme=mail", "/acme", 2) // permissions are those of a service
	settings.Tenants = map[string]schemas.TenantAllowance{"acme": {Hosts: hosts}, "globex": {Hosts: hosts, WebhookOrigin: origin}}
	if err := f.Reconfigure(settings); err != nil {
		t.Fatal(err)
	}
	call("acme=orders", "/other", 2)
	call("globex=orders", "/globex", 3)
	settings.Tenants = map[string]schemas.TenantAllowance{"acme": {Hosts: hosts, WebhookOrigin: "https://x"}}
	if err := f.Reconfigure(settings); schemas.CodeOf(err) != schemas.CodeConfig {
		t.Errorf("an origin that is no DNS name: %v", err)
	}
}

// TestWebhookRefused: a target that does not allow the calls gets none, and is asked once for many
// events. The events are dead letters that say what was asked and answered, except after answers that
// may change by themselves: these events are tried again. Redirects are not followed.
func TestWebhookRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// A target that may answer otherwise is asked again after 2 minutes, which is longer than the test.
	r.start(func(o *Options) { withOrigin(o); o.WebhookPermission = 24 * time.Hour })
	elsewhere, dead := newWebhookTarget(t, "*"), 0
	for name, tt := range map[string]struct {
		status  int
		header  map[string]string
		reason  callback.Reason
		text    string
		retried bool
	}{
		"no consent":       {200, nil, callback.ReasonWebhookRefused, "status 200 and no WebHook-Allowed-Origin", false},
		"another origin":   {200, map[string]string{"WebHook-Allowed-Origin": "other.example.com"}, callback.ReasonWebhookRefused, `WebHook-Allowed-Origin: "other.example.com"`, false},
		"no rate":          {200, map[string]string{"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "0"}, callback.ReasonWebhookRefused, `WebHook-Allowed-Rate: "0"`, false},
		"no OPTIONS":       {405, map[string]string{"WebHook-Allowed-Origin": "*"}, callback.ReasonWebhookRefused, "HTTP status 405", false},
		"a bad request":    {400, nil, callback.ReasonWebhookRefused, "HTTP status 400", false},
		"gone":             {410, nil, callback.ReasonStatus, "HTTP status 410", false},
		"not found":        {404, nil, callback.ReasonStatus, "HTTP status 404", true},
		"out of order":     {500, nil, callback.ReasonStatus, "HTTP status 500", true},
		"not now":          {503, map[string]string{"Retry-After": "3600"}, callback.ReasonRetryLater, "HTTP status 503", true},
		"a redirect":       {307, map[string]string{"Location": elsewhere.URL}, callback.ReasonRedirect, "redirects are not followed", true},
		"allowed redirect": {307, map[string]string{"Location": elsewhere.URL, "WebHook-Allowed-Origin": "*"}, callback.ReasonRedirect, "redirects are not followed", true},
	} {
		c := newWebhookTarget(t, "*")
		c.answers(tt.status, tt.header)
		state := schemas.StateFail
		if tt.retried {
			state = schemas.StateRetrying
		}
		var ids []schemas.TimerID
		for range 5 {
			ids = append(ids, r.fire(timer{callback: c.URL + "/hook"}))
		}
		for _, id := range ids {
			rec := r.await(id, state)
			for _, want := range []string{"asked " + c.URL + "/hook by OPTIONS to allow the origin " + origin, tt.text} {
				if !strings.Contains(rec.Outcome.Error, want) {
					t.Errorf("%s: the error is %q, want it to contain %q", name, rec.Outcome.Error, want)
				}
			}
		}
		if asked, called := len(c.requests(http.MethodOptions)), len(c.requests(http.MethodPost)); asked != 1 || called != 0 {
			t.Errorf("%s: got %d OPTIONS requests and %d calls, want 1 and none", name, asked, called)
		}
		if letters := r.dead("s"); !tt.retried {
			dead += len(ids)
			if len(letters) != dead || letters[dead-1].Get(schemas.HeaderErrorCode) != string(tt.reason) {
				t.Errorf("%s: got %d dead letters, the last one with %s; want %d and %s", name, len(letters), letters[len(letters)-1].Get(schemas.HeaderErrorCode), dead, tt.reason)
			}
		}
	}
	if n := elsewhere.count(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestWebhookRetried: after an answer 500 the target is asked again, and the event succeeds.
func TestWebhookRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(func(o *Options) { withOrigin(o); o.WebhookPermission = 72 * time.Second }) // asked again after 100 ms
	c := newWebhookTarget(t, "*")
	c.answers(500, nil)
	id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timermaxattempts": "100"}})
	waittest.Until(t, "the target is asked twice", func() bool { return len(c.requests(http.MethodOptions)) >= 2 })
	c.answers(200, map[string]string{"WebHook-Allowed-Origin": "*"})
	if rec := r.await(id, schemas.StateSuccess); rec.Attempt < 2 || len(c.requests(http.MethodPost)) != 1 {
		t.Errorf("got %d attempts and %d calls", rec.Attempt, len(c.requests(http.MethodPost)))
	}
}

// TestWebhookRate: two nodes call a target that allows 600 calls a minute, without any limit of the
// operator. In no window begin more, over both nodes.
func TestWebhookRate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := newWebhookTarget(t, "600")
	r.start(func(o *Options) { withOrigin(o); o.Node, o.AckWait = "one", DefaultAckWait })
	r.start(func(o *Options) { withOrigin(o); o.Node, o.AckWait, o.Store = "two", DefaultAckWait, r.node("two") })
	const events = 60
	ids := make([]schemas.TimerID, 0, events)
	for range events {
		ids = append(ids, r.fire(timer{callback: c.URL + "/hook"}))
	}
	began := make([]time.Time, 0, events)
	for _, id := range ids {
		rec := r.await(id, schemas.StateSuccess)
		if rec.Attempt != 1 {
			t.Fatalf("timer %s: got %d attempts, want 1", id, rec.Attempt)
		}
		began = append(began, time.UnixMilli(rec.Attempts[0].AtMs))
	}
	checkRate(t, "begun calls", began, flow.Limit{}.AtMost(600), 2*time.Millisecond)
	if n := len(c.requests(http.MethodOptions)); n > 2 {
		t.Errorf("the target was asked %d times, want once by each node", n)
	}
	set, err := r.store.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := set.Target(c.host(t)); !ok || got.PerMinute != 600 || got.URL != c.URL+"/hook" {
		t.Errorf("the store has %+v", got)
	}
}

// TestWebhookPermissionEnds: a permission lasts for its life, is renewed before its end without a wait,
// and is asked for again after it. A permission that is withdrawn ends at once when the target says so.
// The allowed rate ends with it.
func TestWebhookPermissionEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(func(o *Options) { withOrigin(o); o.WebhookPermission = 4 * time.Second })
	c := newWebhookTarget(t, "6000")
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	asked := func() int { return len(c.requests(http.MethodOptions)) }
	waittest.Until(t, "the target is asked again", func() bool {
		r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
		return asked() >= 2
	})
	c.answers(200, nil)
	var last schemas.Record
	waittest.Until(t, "the permission is withdrawn", func() bool {
		id := r.fire(timer{callback: c.URL})
		waittest.Until(t, "the event is concluded", func() bool { last = r.get(id).Record; return last.State.Final() })
		return last.State == schemas.StateFail
	})
	if !strings.Contains(last.Outcome.Error, "no WebHook-Allowed-Origin") {
		t.Errorf("the error is %q", last.Outcome.Error)
	}
	waittest.Until(t, "the allowed rate ends", func() bool { set, _ := r.store.FlowsNow(); return set.Empty() })
}

// TestWebhookRateReturns: if the store has lost the rate that a target allows, it is stored again before
// the next call.
func TestWebhookRateReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(withOrigin)
	c := newWebhookTarget(t, "600")
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	set, err := r.store.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.EndTargetRate(t.Context(), set.Targets()[0]); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the rate is gone", func() bool { set, fresh := r.store.FlowsNow(); return fresh && set.Empty() })
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	if set, _ := r.store.FlowsNow(); set.Empty() {
		t.Error("the event was called without the rate")
	}
	if n := len(c.requests(http.MethodOptions)); n != 1 {
		t.Errorf("the target was asked %d times", n)
	}
}

// TestWebhookHangs: a target that does not answer OPTIONS holds up neither another target of its service,
// with one permit and many events that wait, nor Stop.
func TestWebhookHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	released := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(released) })
	f := r.start(func(o *Options) { withOrigin(o); o.Concurrency, o.Total, o.AckWait = 1, 2, DefaultAckWait })
	for range 3 * maxWebhookWaiting {
		r.fire(timer{callback: hangs.URL})
	}
	waittest.Until(t, "events wait for the answer", func() bool { f.flows.mu.Lock(); defer f.flows.mu.Unlock(); return f.flows.waiting == maxWebhookWaiting })
	c := newWebhookTarget(t, "*")
	for range 5 {
		r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	}
	if err := f.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestWebhookAsksNobodyElse: no request goes to a host that the rules of the service do not allow, to an
// address that the guard refuses, nor to a target whose calls are paused.
func TestWebhookAsksNobodyElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := newWebhookTarget(t, "*")
	r.limit("paused", flow.Limit{Paused: true})
	r.start(func(o *Options) {
		o.Services = map[string]ServiceConfig{"s": {WebhookOrigin: origin}, "strict": {WebhookOrigin: origin, Hosts: []string{"hooks.example.com"}}}
	})
	strict := r.fire(timer{svc: "strict", callback: c.URL})
	paused := r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": "paused"}})
	if rec := r.await(strict, schemas.StateRetrying); !strings.Contains(rec.Outcome.Error, "is not called") {
		t.Errorf("the error is %q", rec.Outcome.Error)
	}
	r.await(paused, schemas.StateRetrying)
	if n := c.count(); n != 0 {
		t.Fatalf("the target got %d requests", n)
	}
	r.settled("s")
	r.delete("paused")
	r.claim(r.get(paused))
	r.await(paused, schemas.StateSuccess)

	guarded := newRig(t)
	guarded.start(func(o *Options) { withOrigin(o); o.AllowLoopback = false })
	if rec := guarded.await(guarded.fire(timer{callback: c.URL + "/guarded"}), schemas.StateRetrying); !strings.Contains(rec.Outcome.Error, "127.0.0.1") {
		t.Errorf("the error is %q", rec.Outcome.Error)
	}
	for _, req := range c.requests(http.MethodOptions) {
		if req.URL.Path == "/guarded" {
			t.Error("an address that the guard refuses was asked")
		}
	}
}

// TestWebhookReconfigured: a service that gets an origin while events are called asks from then on, and one
// whose origin changes asks again.
func TestWebhookReconfigured(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := newWebhookTarget(t, "*")
	f := r.start(nil)
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	for i, name := range []string{origin, origin, "other.example.com"} {
		if err := f.Reconfigure(Settings{Services: map[string]ServiceConfig{"s": {WebhookOrigin: name}}}); err != nil {
			t.Fatal(err)
		}
		c.answers(200, map[string]string{"WebHook-Allowed-Origin": name})
		r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
		if got, want := len(c.requests(http.MethodOptions)), []int{1, 1, 2}[i]; got != want {
			t.Errorf("with origin %d: the target was asked %d times, want %d", i, got, want)
		}
	}
	for _, bad := range []string{"a b", "https://x", "-a.example", "a..b", strings.Repeat("a", 64), "x:80"} {
		if err := f.Reconfigure(Settings{Services: map[string]ServiceConfig{"s": {WebhookOrigin: bad}}}); schemas.CodeOf(err) != schemas.CodeConfig {
			t.Errorf("origin %q: got %v", bad, err)
		}
	}
}

// TestWebhookStore: a failure to ask again does not end a permission, a refusal does, and the number of
// permissions is bounded.
func TestWebhookStore(t *testing.T) {
	t.Parallel()
	w := newWebhook(origin, time.Hour)
	end := time.Now().Add(time.Hour)
	retry, refused := callback.Retry(callback.ReasonTimeout, "x"), callback.Permanent(callback.ReasonWebhookRefused, "y")
	w.store("u", permission{perMinute: 5, end: end})
	w.store("u", permission{failure: &retry, end: end})
	if p := w.of("u"); p.failure != nil || p.perMinute != 5 || !p.renew.Equal(end) {
		t.Errorf("after a time-out: %+v", p)
	}
	w.store("u", permission{failure: &refused, end: end})
	if p := w.of("u"); p.failure != &refused {
		t.Errorf("after a refusal: %+v", p)
	}
	w.store("u", permission{end: time.Now().Add(-1)})
	if p := w.of("u"); !p.end.IsZero() {
		t.Errorf("after its end: %+v", p)
	}
	for i := range maxPermissions + 10 {
		w.store(net.IPv4(10, 0, byte(i>>8), byte(i)).String(), permission{end: end})
	}
	if n := len(slices.Collect(maps.Keys(w.permissions))); n > maxPermissions {
		t.Errorf("%d permissions are kept", n)
	}
}
