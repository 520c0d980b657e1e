package functions

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/store"
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
		t.Fatalf("%+v", rec)
	}
	r.settled("s")
	h := c.calls[0].Header
	if c.count() != 1 || h.Get("Idempotency-Key") != id.MsgID(1) || h.Get("Ce-Timerattempt") != "1" || h.Get("Ce-Id") != "1" {
		t.Fatalf("%d calls, %v", c.count(), h)
	}
	fams, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for _, f := range fams {
		for _, m := range f.GetMetric() {
			seen[f.GetName()] += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + m.GetGauge().GetValue()
		}
	}
	if seen["belfry_functions_callbacks_total"] != 1 || seen["belfry_functions_callback_seconds"] != 1 || seen["belfry_functions_in_flight"] != 0 {
		t.Fatal(seen)
	}
}

func TestSuccessOverNATS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := make(chan *nats.Msg, 1)
	if _, err := r.server.Connect().Subscribe("orders.new", func(m *nats.Msg) { got <- m; _ = m.Respond([]byte("ok")) }); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	id := r.fire(timer{callback: "nats:orders.new"})
	rec := r.await(id, schemas.StateSuccess)
	if m := <-got; m.Header.Get("Idempotency-Key") != id.MsgID(1) || string(m.Data) != "hello" || string(rec.Outcome.Response) != "ok" {
		t.Fatalf("%v %+v", m, rec)
	}
}

func TestNoResponders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(nil)
	id := r.fire(timer{callback: "nats:nobody.here"})
	rec := r.await(id, schemas.StateFail)
	if rec.Attempt != 3 || !strings.Contains(rec.Outcome.Error, "nobody serves") {
		t.Fatalf("%+v", rec)
	}
}

func TestWithoutCallbackIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(nil)
	id := r.fire(timer{})
	if _, err := r.nc.Request("timers.fired.s", []byte("not from a scheduler"), patience); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a consumer", func() bool {
		_, err := r.store.JetStream().Consumer(t.Context(), schemas.StreamFired, "belfry_s")
		return err == nil
	})
	r.settled("s")
	if s := r.get(id).Record.State; s != schemas.StateDelivered {
		t.Fatal(s) // the scheduler concludes it
	}
}

// Each bad callee ends as documented.
func TestFailuresEndAsDocumented(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	status := func(code int) string {
		return httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }).URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	_ = l.Close()
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
		"500": {status(500), "10s", "http_status", 3}, "410": {status(410), "10s", "http_status", 1}, "404": {status(404), "10s", "http_status", 1},
		"hang": {hang, "100ms", "timeout", 3}, "refused": {closed, "10s", "connection", 3}, "redirect": {redirect, "10s", "redirect", 1},
		"metadata": {"http://169.254.169.254/", "10s", "address_refused", 1}, "private": {"http://10.0.0.1/", "10s", "address_refused", 1},
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
		h := dead[0].Header
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

// A structured event dies as the very bytes that were published, and more after them.
func TestDeadLetterOfAStructuredEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(410) })
	r.start(nil)
	const head = `{"specversion":"1.0","id":"x","source":"/s","type":"t","mine":"1", "data":{"b":2,"a":1.0}`
	doc := head + `,"timersvc":"s","timerafter":"1ms","timercallback":"` + c.URL + `"}`
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
	body, err := schemas.StripFired(nats.Header(dead[0].Header), dead[0].Data)
	if err != nil || string(body.Data) != doc {
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
	if gap := c.times[1].Sub(c.times[0]); gap < 2*time.Second || gap > 10*time.Second || rec.Attempt != 2 || rec.MaxAttempt != 2 {
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
		t.Fatalf("%+v", rec)
	}
	r.claim(r.get(id)) // the scheduler's part
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

// lossy is the real store whose answers to Update can be lost.
type lossy struct {
	*store.Store
	before, after atomic.Int32 // how many calls are lost before or after they took effect
}

func (l *lossy) Update(ctx context.Context, w store.Write) (uint64, error) {
	if l.before.Add(-1) >= 0 {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "lost before")
	}
	rev, err := l.Store.Update(ctx, w)
	if l.after.Add(-1) >= 0 {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "lost after")
	}
	return rev, err
}

func TestLostAnswersOfTheStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := &lossy{Store: r.store}
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%3 != 0 {
			w.WriteHeader(500)
		}
	})
	r.start(func(o *Options) { o.Store = l })
	for _, n := range [][2]int32{{1, 0}, {0, 1}, {2, 1}, {0, 3}} {
		l.before.Store(n[0])
		l.after.Store(n[1])
		before := c.count()
		rec := r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
		if rec.Attempt != 3 || c.count()-before != 3 {
			t.Fatalf("%v: %d attempts, %d calls", n, rec.Attempt, c.count()-before)
		}
	}
	r.settled("s")
}

// deaf is a store whose Update never gets through: the process dies with it.
type deaf struct{ *store.Store }

func (deaf) Update(ctx context.Context, _ store.Write) (uint64, error) {
	return 0, schemas.Errorf(schemas.CodeUnavailable, "no answer")
}

func TestCrashBetweenCallAndWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	first := r.start(func(o *Options) { o.Store = deaf{r.store}; o.StopGrace = time.Millisecond })
	id := r.fire(timer{callback: c.URL})
	eventually(t, "the call", func() bool { return c.count() == 1 })
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	rec := r.await(id, schemas.StateSuccess)
	if rec.Attempt != 1 || c.count() != 2 {
		t.Fatalf("%d attempts, %d calls; a crash is not a failed attempt", rec.Attempt, c.count())
	}
	for _, q := range c.calls {
		if q.Header.Get("Ce-Timerattempt") != "1" || q.Header.Get("Idempotency-Key") != id.MsgID(1) {
			t.Errorf("%v", q.Header)
		}
	}
}

func TestRecordedOutcomeIsNotCalledAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	id := r.fire(timer{callback: c.URL})
	// Delivered once and never acknowledged, but recorded: the crash came between
	// the write and the acknowledgement.
	cons, err := r.store.ServiceConsumer(t.Context(), "s", store.KindFired, 100, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cons.Next(); err != nil {
		t.Fatal(err)
	}
	cur := r.get(id)
	rec := cur.Record
	rec.State, rec.Attempt, rec.Body = schemas.StateSuccess, 1, schemas.Body{}
	if _, err := r.store.Update(t.Context(), store.Write{ID: id, Rev: cur.Rev, Record: &rec, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	r.settled("s")
	if c.count() != 0 {
		t.Fatalf("%d calls", c.count())
	}
}

func TestRecreatedConsumerCallsNothingTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	r.start(nil)
	for range 5 {
		r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	}
	r.settled("s")
	if err := r.store.JetStream().DeleteConsumer(t.Context(), schemas.StreamFired, "belfry_s"); err != nil {
		t.Fatal(err)
	}
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	r.settled("s")
	if c.count() != 6 {
		t.Fatalf("%d calls", c.count())
	}
}

func TestLongCallIsKeptAlive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { time.Sleep(3500 * time.Millisecond) }) // the work
	r.start(nil)                                                                                              // AckWait is 1 s
	rec := r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	r.settled("s")
	if rec.Attempt != 1 || c.count() != 1 || r.consumer("s", store.KindFired).NumRedelivered != 0 {
		t.Fatalf("%d attempts, %d calls", rec.Attempt, c.count())
	}
}

func TestStopLetsCallsFinish(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	f := r.start(func(o *Options) { o.StopGrace = patience })
	id := r.fire(timer{callback: c.URL})
	eventually(t, "the call", func() bool { return c.count() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- f.Stop(context.Background()) }()
	eventually(t, "no more pulls", func() bool { return f.pulling.Err() != nil })
	close(release)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if rec := r.get(id).Record; rec.State != schemas.StateSuccess {
		t.Fatalf("%+v", rec)
	}
}

func TestStopCancelsWhatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hang := atomic.Bool{}
	hang.Store(true)
	c := httpCallee(t, func(_ int, _ http.ResponseWriter, q *http.Request) {
		if hang.Load() {
			<-q.Context().Done()
		}
	})
	f := r.start(func(o *Options) { o.StopGrace = 50 * time.Millisecond; o.AckWait = time.Minute })
	var ids []schemas.TimerID
	for range 20 {
		ids = append(ids, r.fire(timer{callback: c.URL}))
	}
	eventually(t, "the calls", func() bool { return c.count() == 20 })
	begin := time.Now()
	if err := f.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Fatalf("Stop took %v", took)
	}
	hang.Store(false)
	r.start(nil)
	for _, id := range ids {
		if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 {
			t.Fatalf("a cancelled call was counted: %+v", rec)
		}
	}
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := Options{Store: r.store, Conn: r.nc, Now: nowMs}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Stop(t.Context()), f.Stop(t.Context())); err != nil {
		t.Fatal(err)
	}
	if f.Start(t.Context()) == nil {
		t.Fatal("started after Stop")
	}
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	for range 5 {
		f := r.start(nil)
		id := r.fire(timer{callback: c.URL})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _ = f.Stop(context.Background()) })
		}
		wg.Wait()
		g := r.start(nil)
		r.await(id, schemas.StateSuccess)
		_ = g.Stop(t.Context())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, change := range []func(*Options){
		func(o *Options) { o.Store = nil }, func(o *Options) { o.Now = nil }, func(o *Options) { o.AckWait = time.Millisecond },
		func(o *Options) { o.Retention = time.Millisecond }, func(o *Options) { o.Total = -1 },
		func(o *Options) { o.Services = map[string]ServiceConfig{"a.b": {}} },
		func(o *Options) { o.Services = map[string]ServiceConfig{"a": {Secrets: []string{"whsec_hunter2"}}} },
	} {
		o := Options{Store: r.store, Conn: r.nc, Now: nowMs}
		change(&o)
		if _, err := New(o); schemas.CodeOf(err) != schemas.CodeConfig || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// A service whose callee hangs and one that floods take nothing from another.
func TestOneServiceDoesNotDelayAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hung := httpCallee(t, func(_ int, _ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	fast := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	f := r.start(func(o *Options) { o.Total = 24; o.Concurrency = 16; o.StopGrace = time.Millisecond })
	for range 60 {
		for _, svc := range []string{"hung1", "hung2", "hung3"} {
			r.fire(timer{svc: svc, callback: hung.URL, attributes: map[string]string{"timertimeout": "1m"}})
		}
	}
	eventually(t, "all shared places are taken", func() bool { return f.live.count() >= 18 })
	var worst time.Duration
	for i := range 50 {
		begin := time.Now()
		id := r.fire(timer{svc: "good", callback: fast.URL})
		r.await(id, schemas.StateSuccess)
		if took := time.Since(begin); i > 0 && took > worst {
			worst = took // the first makes the consumer
		}
	}
	t.Logf("worst of 50 beside three hung services: %v from claim to record", worst)
	if worst > 3*time.Second {
		t.Fatalf("delayed by %v", worst)
	}
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	r.start(nil)
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	r.server.Restart()
	eventually(t, "the connection", func() bool { return r.nc.IsConnected() })
	var id schemas.TimerID
	eventually(t, "the store", func() bool {
		_, err := r.store.Get(t.Context(), schemas.TimerID{})
		return errors.Is(err, schemas.ErrNotFound)
	})
	begin := time.Now()
	id = r.fire(timer{callback: c.URL})
	r.await(id, schemas.StateSuccess)
	t.Logf("first callback %v after the server was back", time.Since(begin))
}

func TestCredentialsAreNotLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(nil)
	id := r.fire(timer{callback: "http://alice:hunter2@127.0.0.1:1/?token=hunter2"})
	rec := r.await(id, schemas.StateFail)
	r.settled("s")
	if strings.Contains(r.log.String(), "hunter2") || strings.Contains(rec.Outcome.Error, "hunter2") || r.log.String() == "" {
		t.Fatalf("%s\n%s", r.log.String(), rec.Outcome.Error)
	}
}
