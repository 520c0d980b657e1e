package tracing_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const (
	clientHop = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	unsampled = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// start starts a node.
func start(t *testing.T, c tracing.Config, log io.Writer) *app.App {
	t.Helper()
	a, err := app.New(app.Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: app.ProfileFast, Shards: 1, Roles: app.SharedRoles(), AllowLoopback: true,
		Tracing: c, Node: "n1", Log: zerolog.New(log),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func stop(t *testing.T, a *app.App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waittest.Bound)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// callee records the headers of its calls by the id of the event. It fails the first call of each.
type callee struct {
	url   string
	mu    sync.Mutex
	calls map[string][]http.Header
}

func newCallee(t *testing.T) *callee {
	c := &callee{calls: map[string][]http.Header{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("Ce-Id")
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.calls[id] = append(c.calls[id], r.Header); len(c.calls[id]) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// header returns the values of a header in the calls of an event.
func (c *callee) header(id, name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, 2)
	for _, h := range c.calls[id] {
		out = append(out, h.Get(name))
	}
	return out
}

// post adds a timer over HTTP, and returns its timer id.
func post(t *testing.T, a *app.App, header http.Header, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.HTTPAddr()+"/v1/timers", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var added struct{ Timer string }
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, &added)
	}
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("add: HTTP status %d, %s, %v", resp.StatusCode, b, err)
	}
	return added.Timer
}

// publish adds a timer on timers.add, and returns its timer id.
func publish(t *testing.T, nc *nats.Conn, header nats.Header, id string) string {
	t.Helper()
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": "/shop", "ce-type": "order.unpaid", "ce-timerafter": "1ms", "ce-timerbackoff": "10ms"} {
		header[name] = []string{value}
	}
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Bound)
	defer cancel()
	reply, err := nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: schemas.SubjectAdd, Header: header, Data: []byte("payloadsecret")})
	if err != nil || bytes.Contains(reply.Data, []byte("error")) {
		t.Fatalf("add: %v, %v", reply, err)
	}
	return schemas.NewTimerID("/shop", id).String()
}

// run is the trace of a timer's run.
type run struct {
	add, fire *tracepb.Span
	attempts  []*tracepb.Span
}

// awaitRun waits for the spans of a run, and checks how they hang together.
func awaitRun(t *testing.T, c *collector, timer, attemptName string, attempts int) run {
	t.Helper()
	waittest.Until(t, "all spans of "+timer, func() bool {
		for _, name := range []string{"add timer", "fire timer", "claim timer", "publish timer"} { // each may be repeated on a machine that stalls
			if len(c.find(name, timer)) == 0 {
				return false
			}
		}
		return len(c.find(attemptName, timer)) == attempts
	}, func() string { c.mu.Lock(); defer c.mu.Unlock(); return fmt.Sprint(c.spans) })
	r := run{add: c.find("add timer", timer)[0], fire: c.find("fire timer", timer)[0], attempts: c.find(attemptName, timer)}
	if len(r.fire.ParentSpanId) != 0 || bytes.Equal(r.fire.TraceId, r.add.TraceId) {
		t.Errorf("the firing has the parent %x in trace %x; want a trace of its own", r.fire.ParentSpanId, r.fire.TraceId)
	}
	for _, s := range slices.Concat(r.attempts, c.find("claim timer", timer), c.find("publish timer", timer)) {
		if !bytes.Equal(s.TraceId, r.fire.TraceId) || !bytes.Equal(s.ParentSpanId, r.fire.SpanId) {
			t.Errorf("%s is not a child of the firing", s.Name)
		}
		if s.StartTimeUnixNano == 0 || s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%s lasts from %d to %d", s.Name, s.StartTimeUnixNano, s.EndTimeUnixNano)
		}
	}
	return r
}

// linked checks that the firing links to a context, and to nothing else.
func (r *run) linked(t *testing.T, want string) {
	t.Helper()
	if len(r.fire.Links) != 1 {
		t.Fatalf("the firing has %d links, want 1", len(r.fire.Links))
	}
	l := r.fire.Links[0]
	if got := "00-" + hex.EncodeToString(l.TraceId) + "-" + hex.EncodeToString(l.SpanId) + "-01"; got != want || l.Flags&1 == 0 {
		t.Errorf("the firing links to %s, flags %x; want %s", got, l.Flags, want)
	}
}

// TestTraces: a whole node, with callbacks over HTTP and NATS, adds over HTTP and NATS.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	var log logtest.Buffer
	a := start(t, c.config(t, "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20collectorsecret", "OTEL_SERVICE_NAME", "timers", "OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"), &log)
	nc, err := a.Connect("client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	target := newCallee(t)
	requests := make(chan *nats.Msg, 10)
	if _, err := nc.Subscribe("orders.unpaid", func(m *nats.Msg) { requests <- m; _ = m.Respond(nil) }); err != nil {
		t.Fatal(err)
	}

	overHTTP := post(t, a, http.Header{"Traceparent": {clientHop}}, `{"in":"1ms","id":"a","source":"/shop","svc":"orders","backoff":"10ms","data":"payloadsecret",
		"attributes":{"traceparent":"`+client+`"},"callback":"`+strings.Replace(target.url, "//", "//user:urlsecret@", 1)+`/pathsecret?token=querysecret"}`)
	overNATS := publish(t, nc, nats.Header{"ce-traceparent": {client}, "ce-timercallback": {"nats:orders.unpaid"}, "baggage": {"k=v"}}, "b")
	alone := publish(t, nc, nats.Header{"ce-timercallback": {target.url}}, "c")
	schedule := post(t, a, http.Header{"Traceparent": {client}}, `{"every":"1s","limit":"2","id":"e","source":"/shop","backoff":"10ms","callback":"nats:orders.unpaid"}`)
	dark := publish(t, nc, nats.Header{"traceparent": {unsampled}, "ce-timercallback": {target.url}}, "d")

	t.Run("http", func(t *testing.T) {
		r := awaitRun(t, c, overHTTP, "POST", 2)
		if got := "00-" + hex.EncodeToString(r.add.TraceId) + "-" + hex.EncodeToString(r.add.ParentSpanId) + "-01"; got != clientHop || r.add.Kind != tracepb.Span_SPAN_KIND_SERVER {
			t.Errorf("the add has the parent %s and kind %s, want that of the request's header", got, r.add.Kind)
		}
		r.linked(t, clientHop)
		first, second := r.attempts[0], r.attempts[1]
		if first.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || first.Status.GetMessage() != "http_status" || number(first.Attributes, "http.response.status_code") != 500 || number(first.Attributes, "belfry.attempt") != 1 {
			t.Errorf("got the first attempt %v", first)
		}
		if second.Status.GetCode() != tracepb.Status_STATUS_CODE_UNSET || number(second.Attributes, "http.response.status_code") != 200 || number(second.Attributes, "belfry.attempt") != 2 {
			t.Errorf("got the second attempt %v", second)
		}
		if first.Kind != tracepb.Span_SPAN_KIND_CLIENT || text(first.Attributes, "server.address") != "127.0.0.1" || text(first.Attributes, "http.request.method") != "POST" || text(first.Attributes, "belfry.service") != "orders" ||
			text(first.Attributes, "cloudevents.event_id") != "a" || number(first.Attributes, "belfry.lateness_ms") < 0 || number(r.fire.Attributes, "belfry.lateness_ms") < 0 {
			t.Errorf("got the first attempt %v", first)
		}
		if got, want := target.header("a", "Traceparent"), []string{parentOf(first), parentOf(second)}; !slices.Equal(got, want) {
			t.Errorf("the callee got traceparent %v, want %v", got, want)
		}
		if got, want := target.header("a", "Ce-Traceparent"), []string{client, client}; !slices.Equal(got, want) {
			t.Errorf("the callee got ce-traceparent %v, want %v", got, want)
		}
	})
	t.Run("nats", func(t *testing.T) {
		m := waittest.Receive(t, "the request", requests)
		for m.Header.Get("ce-id") != "b" {
			m = waittest.Receive(t, "the request", requests)
		}
		r := awaitRun(t, c, overNATS, "request", 1)
		if got := "00-" + hex.EncodeToString(r.add.TraceId) + "-" + hex.EncodeToString(r.add.ParentSpanId) + "-01"; got != client || r.add.Kind != tracepb.Span_SPAN_KIND_CONSUMER {
			t.Errorf("the add has the parent %s and kind %s, want that of the event's attribute", got, r.add.Kind)
		}
		r.linked(t, client)
		if m.Header.Get("traceparent") != parentOf(r.attempts[0]) || m.Header.Get("ce-traceparent") != client || m.Header.Get("baggage") != "k=v" {
			t.Errorf("the callee got %v; want the attempt's traceparent, the client's ce-traceparent and baggage", m.Header)
		}
		if s := r.attempts[0].Attributes; text(s, "messaging.system") != "nats" || text(s, "messaging.destination.name") != "orders.unpaid" {
			t.Errorf("got attributes %v", s)
		}
	})
	t.Run("without a context", func(t *testing.T) {
		r := awaitRun(t, c, alone, "POST", 2)
		if len(r.add.ParentSpanId) != 0 {
			t.Errorf("the add has the parent %x, want none", r.add.ParentSpanId)
		}
		r.linked(t, parentOf(r.add))
		if got := target.header("c", "Ce-Traceparent"); !slices.Equal(got, []string{"", ""}) {
			t.Errorf("the callee got ce-traceparent %q, want none", got)
		}
	})
	t.Run("schedule", func(t *testing.T) {
		var fired, attempts []*tracepb.Span
		waittest.Until(t, "two runs", func() bool {
			fired, attempts = c.find("fire timer", schedule), c.find("request", schedule)
			return len(fired) == 2 && len(attempts) == 2
		}, func() string { return fmt.Sprint(fired, attempts) })
		for i, s := range fired {
			r := run{fire: s}
			r.linked(t, client)
			if number(s.Attributes, "belfry.run") != int64(i+1) || !bytes.Equal(attempts[i].ParentSpanId, s.SpanId) || !bytes.Equal(attempts[i].TraceId, s.TraceId) {
				t.Errorf("run %d: got the firing %v and the attempt %v", i+1, s, attempts[i])
			}
		}
		if bytes.Equal(fired[0].TraceId, fired[1].TraceId) {
			t.Error("two runs are in the same trace")
		}
	})
	t.Run("unsampled", func(t *testing.T) {
		waittest.Until(t, "the second call", func() bool { return len(target.header("d", "Traceparent")) == 2 })
		for _, got := range target.header("d", "Traceparent") {
			if !schemas.ValidTraceParent(got) || !strings.HasSuffix(got, "-00") || got == unsampled {
				t.Errorf("the callee got traceparent %s, want one of the attempt that is not sampled", got)
			}
		}
	})
	var sent, dropped float64
	waittest.Until(t, "all spans are counted as sent", func() bool {
		sent, dropped = metrictest.Sum(t, a.Registry(), "belfry_trace_spans_sent_total"), metrictest.Sum(t, a.Registry(), "belfry_trace_spans_dropped_total")
		return int(sent) == c.count() && dropped == 0
	}, func() string { return fmt.Sprintf("%.0f sent, %.0f dropped, %d received", sent, dropped, c.count()) })
	stop(t, a) // sends what is queued
	for _, name := range []string{"add timer", "fire timer", "claim timer", "publish timer", "POST"} {
		if spans := c.find(name, dark); len(spans) > 0 {
			t.Errorf("%d spans %s of a trace that the client did not sample", len(spans), name)
		}
	}
	for _, secret := range []string{"payloadsecret", "urlsecret", "pathsecret", "querysecret", "collectorsecret"} {
		if bytes.Contains(c.bytes(), []byte(secret)) {
			t.Errorf("%s is in the spans", secret)
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
	if n := strings.Count(log.String(), "tracing is on"); n != 1 || !strings.Contains(log.String(), c.url+"/v1/traces") {
		t.Errorf("%d lines say that tracing is on, want 1 with the endpoint; the log is %s", n, log.String())
	}
	if c.requests[0].Get("Authorization") != "Bearer collectorsecret" || c.paths[0] != "/v1/traces" {
		t.Errorf("got the request %s %v", c.paths[0], c.requests[0])
	}
	checkResource(t, c.resources[0].Resource.Attributes)
}

func checkResource(t *testing.T, got []*commonpb.KeyValue) {
	t.Helper()
	for key, want := range map[string]string{"service.name": "timers", "service.instance.id": "n1", "deployment.environment.name": "test", "telemetry.sdk.language": "go"} {
		if v := text(got, key); v != want {
			t.Errorf("the resource has %s %q, want %q", key, v, want)
		}
	}
}

// TestCollectorHangs: a collector that takes requests and never answers. Timers fire, spans are
// dropped and counted, and the node stops although no request ends by itself.
func TestCollectorHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	c := newCollector(t, func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-r.Context().Done():
		case <-release:
		}
		return true
	})
	t.Cleanup(func() { close(release) }) // before the collector's end, which waits for its requests
	const hour = "3600000"
	a := start(t, c.config(t, "OTEL_EXPORTER_OTLP_TIMEOUT", hour, "OTEL_BSP_EXPORT_TIMEOUT", hour, "OTEL_BSP_MAX_QUEUE_SIZE", "2"), io.Discard)
	target := newCallee(t)
	const timers = 5
	for i := range timers {
		post(t, a, http.Header{}, fmt.Sprintf(`{"in":"1ms","id":"h%d","backoff":"10ms","callback":%q}`, i, target.url))
	}
	for i := range timers {
		waittest.Until(t, "the second call", func() bool { return len(target.header(fmt.Sprint("h", i), "Traceparent")) == 2 })
	}
	waittest.Until(t, "a request of the node", func() bool { return c.received() > 0 })
	waittest.Until(t, "spans that were dropped", func() bool {
		return metrictest.Of(t, a.Registry(), "belfry_trace_spans_dropped_total")["queue_full"] > 0
	})
	begun := time.Now()
	stop(t, a)
	t.Logf("the node stopped after %s", time.Since(begun))
	if dropped := metrictest.Of(t, a.Registry(), "belfry_trace_spans_dropped_total"); dropped["stopped"] == 0 {
		t.Errorf("got dropped spans %v, want some for the reason stopped", dropped)
	}
}
