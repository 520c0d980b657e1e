package functions

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func TestSuccessOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(201)
		_, _ = w.Write([]byte("made"))
	})
	reg := prometheus.NewRegistry()
	r.start(func(o *Options) { o.Registerer = reg })
	id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timergroup": "g"}})
	rec := r.await(id, schemas.StateSuccess)
	if rec.Attempt != 1 || rec.Outcome.Code != 201 || string(rec.Outcome.Response) != "made" || rec.Body.Mode != schemas.ModeNone ||
		rec.DoneMs == 0 || rec.FiredMs == 0 || rec.Service != "s" || rec.EventID != "1" || rec.Callback != c.URL || rec.MaxAttempt != 3 {
		t.Fatalf("got record %+v", rec)
	}
	r.settled("s")
	h := c.calls[0].Header
	if c.count() != 1 || h.Get("Idempotency-Key") != id.MsgID(1) || h.Get("Ce-Timerattempt") != "1" || h.Get("Ce-Id") != "1" {
		t.Fatalf("%d calls, %v", c.count(), h)
	}
	for name, want := range map[string]float64{"belfry_callbacks_total": 1, "belfry_callback_duration_seconds": 1, "belfry_callbacks_in_flight": 0} {
		if got := metrictest.Sum(t, reg, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestSuccessOverNATS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := make(chan *nats.Msg, 1)
	callee := r.server.Connect()
	if _, err := callee.Subscribe("orders.new", func(m *nats.Msg) { got <- m; _ = m.Respond([]byte("ok")) }); err != nil {
		t.Fatal(err)
	}
	if err := callee.Flush(); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	id := r.fire(timer{callback: "nats:orders.new"})
	rec := r.await(id, schemas.StateSuccess)
	if m := <-got; m.Header.Get("Idempotency-Key") != id.MsgID(1) || string(m.Data) != "hello" || string(rec.Outcome.Response) != "ok" {
		t.Fatalf("got %v, %+v", m, rec)
	}
}

func TestNoResponders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(nil)
	id := r.fire(timer{callback: "nats:nobody.here"})
	rec := r.await(id, schemas.StateFail)
	if rec.Attempt != 3 || !strings.Contains(rec.Outcome.Error, "no program answers requests on NATS subject") {
		t.Fatalf("got record %+v", rec)
	}
}

func TestWithoutCallbackIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(nil)
	id := r.fire(timer{})
	if _, err := r.nc.Request("timers.fired.s", []byte("not from a scheduler"), waittest.Bound); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "a consumer", func() bool {
		_, err := natstest.JetStream(t, r.nc).Consumer(t.Context(), schemas.StreamFired, "belfry_s")
		return err == nil
	})
	r.settled("s")
	if s := r.get(id).Record.State; s != schemas.StateDelivered {
		t.Fatal(s) // the scheduler ends such a timer
	}
}

// TestFailuresEndAsDocumented: each kind of failing callee has the documented result.
func TestFailuresEndAsDocumented(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	status := func(code int) string {
		return httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }).URL
	}
	closed := "http://" + tcptest.FreeAddress(t)
	hang := httpCallee(t, func(_ int, _ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }).URL
	redirect := httpCallee(t, func(_ int, w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, "http://192.168.0.1/", http.StatusFound)
	}).URL
	r.start(nil)
	for name, c := range map[string]struct {
		target   string
		timeout  string
		reason   string
		attempts uint32
	}{
		"500": {status(500), "10s", "http_status", 3}, "410": {status(410), "10s", "http_status", 1}, "404": {status(404), "10s", "http_status", 3},
		"hang": {hang, "100ms", "timeout", 3}, "refused": {closed, "10s", "connection", 3}, "redirect": {redirect, "10s", "redirect", 3},
		"metadata": {"http://169.254.169.254/", "10s", "address_refused", 3}, "private": {"http://10.0.0.1/", "10s", "address_refused", 3},
	} {
		svc := "svc-" + name
		id := r.fire(timer{svc: svc, callback: c.target, attributes: map[string]string{"timertimeout": c.timeout}})
		rec := r.await(id, schemas.StateFail)
		r.settled(svc)
		dead := r.dead(svc)
		if rec.Attempt != c.attempts || rec.Body.Mode != schemas.ModeNone || rec.Outcome.Error == "" || len(dead) != 1 {
			t.Errorf("%s: %+v, %d dead letters", name, rec, len(dead))
			continue
		}
		h := nats.Header(dead[0].Header)
		e, _, _, err := schemas.ParseFired(h, dead[0].Data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e.ID() != rec.EventID || string(e.Data()) != "hello" || e.Extensions()["timererrorcode"] != c.reason ||
			e.Extensions()["timererrordata"] == "" || h.Get(schemas.HeaderErrorCode) != c.reason {
			t.Errorf("%s: %v %v", name, h, e)
		}
		claim, err := schemas.ParseClaim(h.Get(schemas.HeaderClaim))
		if err != nil || claim.Timer != id || claim.Attempt != c.attempts {
			t.Errorf("%s: %+v %v", name, claim, err)
		}
	}
}

// TestDeadLetterOfAStructuredEvent: the dead letter has the bytes of the published event,
// plus members for the failure.
func TestDeadLetterOfAStructuredEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(410) })
	r.start(nil)
	const head = `{"specversion":"1.0","id":"x","source":"/s","type":"t","mine":"1", "data":{"b":2,"a":1.0}`
	callback := `,"timercallback":"` + c.URL + `"`
	doc := head + `,"timersvc":"s","timerafter":"1ms"` + callback + `}`
	id := r.fireEvent(nats.Header{"content-type": {"application/cloudevents+json"}}, []byte(doc), 0)
	rec := r.await(id, schemas.StateFail)
	r.settled("s")
	dead := r.dead("s")
	if len(dead) != 1 || rec.Attempt != 1 || rec.Outcome.Code != 410 {
		t.Fatalf("%d dead letters, %+v", len(dead), rec)
	}
	data := string(dead[0].Data)
	if !strings.HasPrefix(data, head) || !strings.Contains(data, `"timererrorcode":"http_status"`) {
		t.Fatal(data)
	}
	if got, _ := c.bodies(1); got[0] != `{"b":2,"a":1.0}` || c.calls[0].Header.Get("Ce-Mine") != "1" || c.calls[0].Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%q %v", got, c.calls[0].Header)
	}
	body, err := schemas.StripFired(dead[0].Header, dead[0].Data)
	// The callback is in the event, or sealed in a header.
	if want := strings.Replace(doc, callback, "", 1); err != nil || string(body.Data) != doc && (string(body.Data) != want || dead[0].Get(schemas.HeaderCallback) == "") {
		t.Fatalf("stripped: %s, %v", body.Data, err)
	}
}

func TestRetryThenSuccessCountsAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			w.WriteHeader(500)
		}
	})
	r.start(nil)
	id := r.fire(timer{callback: c.URL})
	rec := r.await(id, schemas.StateSuccess)
	r.settled("s")
	if rec.Attempt != 3 || c.count() != 3 {
		t.Fatalf("%d attempts, %d calls", rec.Attempt, c.count())
	}
	for i, q := range c.calls {
		if q.Header.Get("Ce-Timerattempt") != string(rune('1'+i)) || q.Header.Get("Idempotency-Key") != id.MsgID(1) {
			t.Errorf("call %d: %v", i+1, q.Header)
		}
	}
}

func TestNotNowIsHonouredAndNotCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(429)
		}
	})
	r.start(nil)
	id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timermaxattempts": "1"}})
	rec := r.await(id, schemas.StateSuccess)
	if gap := c.times[1].Sub(c.times[0]); gap < 2*time.Second || gap > waittest.Bound || rec.Attempt != 2 || rec.MaxAttempt != 2 {
		t.Fatalf("called again after %v; %+v", gap, rec)
	}
}

func TestLongRetryGoesThroughTheWheel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(500)
		}
	})
	r.start(func(o *Options) { o.ShortDelay = time.Millisecond })
	id := r.fire(timer{callback: c.URL})
	rec := r.await(id, schemas.StateRetrying)
	r.settled("s")
	if !rec.Queued || rec.DueMs != rec.NextMs || rec.Attempt != 1 || rec.Body.Mode != schemas.ModeBinary {
		t.Fatalf("got record %+v", rec)
	}
	r.claim(r.get(id)) // the part of the scheduler
	if rec = r.await(id, schemas.StateSuccess); rec.Attempt != 2 || c.count() != 2 {
		t.Fatalf("%+v, %d calls", rec, c.count())
	}
	r.settled("s")
}

func TestCancelWhileRetrying(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	r.start(nil)
	id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timerbackoff": "500ms..1s"}})
	r.await(id, schemas.StateRetrying)
	cur := r.get(id)
	rec := cur.Record
	rec.State, rec.Body = schemas.StateCancelled, schemas.Body{}
	if _, err := r.store.Update(t.Context(), store.Write{ID: id, Rev: cur.Rev, Record: &rec, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	r.settled("s")
	if c.count() != 1 || r.get(id).Record.State != schemas.StateCancelled {
		t.Fatalf("%d calls, %v", c.count(), r.get(id).Record.State)
	}
}
