package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	v1 "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// tracer starts a Tracer.
func tracer(t *testing.T, c tracing.Config, log io.Writer) (*tracing.Tracer, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	tr, err := tracing.New(c, tracing.Node{Name: "n1", Version: "1.2.3"}, reg, zerolog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopTracer(t, tr) })
	return tr, reg
}

func stopTracer(t *testing.T, tr *tracing.Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waittest.Bound)
	defer cancel()
	if err := tr.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func firing(id string) tracing.Firing {
	return tracing.Firing{Run: schemas.RunID{Timer: schemas.NewTimerID("/s", id), Run: 1}, AddedMs: 1, Add: schemas.TraceContext{Parent: client, State: "vendor=x"}}
}

// TestEncoding: what the tests of whole nodes do not show: times, flags, the tracestate of a link,
// texts that are not UTF-8, the scope.
func TestEncoding(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	tr, _ := tracer(t, c.config(t, "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "OTEL_RESOURCE_ATTRIBUTES", "bad=%ff"), io.Discard)
	begun := time.Unix(1_800_000_000, 7)
	tr.Fired(firing("a"), "orders", begun, 1500*time.Microsecond)
	tr.Claim(firing("a")).End(fmt.Errorf("lost: %w", schemas.ErrUnavailable))
	tr.Claim(firing("a")).End(errors.New("another"))
	stopTracer(t, tr)

	timer := schemas.NewTimerID("/s", "a").String()
	fire := c.find("fire timer", timer)[0]
	if fire.StartTimeUnixNano != uint64(begun.UnixNano()) || fire.Kind != tracepb.Span_SPAN_KIND_INTERNAL || fire.Flags != 0x101 || number(fire.Attributes, "belfry.lateness_ms") != 1 || fire.TraceState != "" {
		t.Errorf("got the firing %v", fire)
	}
	if l := fire.Links[0]; l.TraceState != "vendor=x" || l.Flags != 0x301 {
		t.Errorf("got the link %v", l)
	}
	claims := c.find("claim timer", timer)
	if claims[0].Flags != 0x301 || claims[0].Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || claims[0].Status.GetMessage() != "unavailable" || claims[1].Status.GetMessage() != "error" {
		t.Errorf("got the claims %v", claims)
	}
	if scope := c.resources[0].ScopeSpans[0].Scope; scope.Name != "github.com/belfryio/belfry" || scope.Version != "1.2.3" {
		t.Errorf("got the scope %v", scope)
	}
	if got := text(c.resources[0].Resource.Attributes, "bad"); got != "\uFFFD" {
		t.Errorf("got the attribute %q", got)
	}
	if got := c.requests[0]; got.Get("Content-Type") != "application/x-protobuf" || got.Get("User-Agent") != "belfry/1.2.3" {
		t.Errorf("got the headers %v", got)
	}
}

// TestSameTraceOnEveryNode: two nodes have the same ids for a run, others for other runs and for a
// timer that was added again.
func TestSameTraceOnEveryNode(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	one, _ := tracer(t, c.config(t), io.Discard)
	two, _ := tracer(t, c.config(t), io.Discard)
	again, next := firing("a"), firing("a")
	again.AddedMs = 2
	next.Run.Run = 2
	one.Fired(firing("a"), "s", time.Unix(1, 0), 0)
	two.Claim(firing("a")).End(nil)
	one.Fired(again, "s", time.Unix(2, 0), 0)
	one.Fired(next, "s", time.Unix(3, 0), 0)
	stopTracer(t, one)
	stopTracer(t, two)
	timer := schemas.NewTimerID("/s", "a").String()
	fired, claim := c.find("fire timer", timer), c.find("claim timer", timer)[0]
	if len(fired) != 3 || !bytes.Equal(claim.TraceId, fired[0].TraceId) || !bytes.Equal(claim.ParentSpanId, fired[0].SpanId) {
		t.Fatalf("got the claim %v of the firings %v", claim, fired)
	}
	if bytes.Equal(fired[0].TraceId, fired[1].TraceId) || bytes.Equal(fired[0].TraceId, fired[2].TraceId) {
		t.Errorf("two runs have the same trace: %v", fired)
	}
}

// TestSampling: a firing is sampled if its add is, whatever the sampler.
func TestSampling(t *testing.T) {
	t.Parallel()
	for _, sampler := range []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"} {
		t.Run(sampler, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t, nil)
			tr, _ := tracer(t, c.config(t, "OTEL_TRACES_SAMPLER", sampler, "OTEL_TRACES_SAMPLER_ARG", "0.5"), io.Discard)
			adds := map[string]bool{} // by traceparent of the add: whether it is sampled
			for i := range 40 {
				var parent schemas.TraceContext
				if i%2 == 0 {
					parent.Parent = fmt.Sprintf("00-%032x-b7ad6b7169203331-%02x", uint64(i+1)*0x9e3779b97f4a7c15, i/2%2)
				}
				span := tr.Add(parent, "")
				f := firing(fmt.Sprint(i))
				f.Add = schemas.TraceContext{Parent: span.Parent()}
				if parent.Parent != "" {
					f.Add = parent
				}
				attempt := tr.Attempt(f, tracing.Attempt{Spec: &schemas.Spec{}, Target: "nats:x"})
				sampled := strings.HasSuffix(span.Parent(), "-01")
				if got := strings.HasSuffix(attempt.Parent(), "-01"); got != sampled {
					t.Errorf("add %d: sampled %t, its attempt %t", i, sampled, got)
				}
				adds[span.Parent()] = sampled
				attempt.EndAttempt("", 0)
				span.End(nil)
			}
			stopTracer(t, tr)
			want := 0
			for _, sampled := range adds {
				if sampled {
					want += 2
				}
			}
			if c.count() != want {
				t.Errorf("the collector got %d spans, want %d", c.count(), want)
			}
			if none := sampler == "always_off"; none != (want == 0) || (want == 80) != (sampler == "always_on") {
				t.Errorf("%d of 80 spans are sampled", want)
			}
		})
	}
}

// TestReceiverRefuses: what the exporter does after each kind of answer.
func TestReceiverRefuses(t *testing.T) {
	t.Parallel()
	partial, err := proto.Marshal(&v1.ExportTraceServiceResponse{PartialSuccess: &v1.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "too old"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer   func(n int, w http.ResponseWriter) bool
		requests int
		metric   string // the only one of sent and the reasons that is not 0
	}{
		"later": {func(n int, w http.ResponseWriter) bool { w.WriteHeader(http.StatusServiceUnavailable); return n == 1 }, 2, "sent"},
		"never": {func(_ int, w http.ResponseWriter) bool { w.WriteHeader(http.StatusUnauthorized); return true }, 1, "export"},
		"redirect": {func(_ int, w http.ResponseWriter) bool {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}, 1, "export"},
		"not all":     {func(_ int, w http.ResponseWriter) bool { _, _ = w.Write(partial); return true }, 1, "rejected"},
		"no protobuf": {func(_ int, w http.ResponseWriter) bool { _, _ = w.Write([]byte("<html>ok")); return true }, 1, "sent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			col := newCollector(t, func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n > 1 {
					return false
				}
				return c.answer(n, w)
			})
			var log logtest.Buffer
			tr, reg := tracer(t, col.config(t, "OTEL_EXPORTER_OTLP_HEADERS", "x-key=headersecret"), &log)
			tr.Claim(firing("a")).End(nil)
			counts := func() map[string]float64 {
				all := metrictest.Of(t, reg, "belfry_trace_spans_dropped_total")
				all["sent"] = metrictest.Sum(t, reg, "belfry_trace_spans_sent_total")
				return all
			}
			waittest.Until(t, "the span is counted", func() bool { return counts()[c.metric] == 1 }, func() string { return fmt.Sprint(counts()) })
			if n := col.received(); n != c.requests {
				t.Errorf("%d requests, want %d", n, c.requests)
			}
			if got := log.Count("spans were not sent"); got != 1 && c.metric == "export" || got != 0 && c.metric != "export" {
				t.Errorf("%d lines about spans that were not sent: %s", got, log.String())
			}
			if strings.Contains(log.String(), "headersecret") {
				t.Error("the log has a header")
			}
		})
	}
}

// TestNobodyListens: no call fails, the spans are counted as dropped, and the log has neither the
// credentials nor the query of the endpoint.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	config := c.config(t, "OTEL_BSP_EXPORT_TIMEOUT", "1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:urlsecret@127.0.0.1:1/?key=querysecret")
	var log logtest.Buffer
	tr, reg := tracer(t, config, &log)
	tr.Claim(firing("a")).End(nil)
	waittest.Until(t, "the span is counted", func() bool { return metrictest.Of(t, reg, "belfry_trace_spans_dropped_total")["export"] == 1 })
	stopTracer(t, tr)
	tr.Claim(firing("a")).End(nil) // after Stop
	if got := metrictest.Of(t, reg, "belfry_trace_spans_dropped_total")["stopped"]; got != 1 {
		t.Errorf("%.0f spans are counted that ended after Stop, want 1", got)
	}
	if s := log.String(); strings.Contains(s, "urlsecret") || strings.Contains(s, "querysecret") || !strings.Contains(s, "127.0.0.1:1") {
		t.Errorf("got the log %s", s)
	}
}

// TestOff: without an endpoint there is no Tracer, and nil spans do nothing and cost nothing.
func TestOff(t *testing.T) {
	c, warnings := tracing.FromEnv(env())
	tr, err := tracing.New(c, tracing.Node{}, nil, zerolog.Nop())
	if tr != nil || err != nil || len(warnings) > 0 {
		t.Fatalf("got %v, %v, %v; want nothing", tr, err, warnings)
	}
	if err := tr.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	var span *tracing.Span
	var spec schemas.Spec
	if n := testing.AllocsPerRun(100, func() {
		span.End(nil)
		span.EndAttempt("", 200)
		span.EndAdd(&spec, "accepted", nil)
	}); n != 0 {
		t.Errorf("a nil span costs %.0f allocations", n)
	}
}

// TestCertificates: files that cannot be used are an error of the configuration.
func TestCertificates(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"} {
		c, _ := tracing.FromEnv(env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318", name, t.TempDir()+"/missing.pem"))
		tr, err := tracing.New(c, tracing.Node{}, nil, zerolog.Nop())
		if tr != nil || schemas.CodeOf(err) != schemas.CodeConfig || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestFullQueueDoesNotBlock: more spans than the queue holds while the receiver hangs.
func TestFullQueueDoesNotBlock(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var once atomic.Bool
	c := newCollector(t, func(int, http.ResponseWriter, *http.Request) bool {
		if once.CompareAndSwap(false, true) {
			<-release
		}
		return false
	})
	tr, reg := tracer(t, c.config(t, "OTEL_BSP_MAX_QUEUE_SIZE", "10", "OTEL_EXPORTER_OTLP_TIMEOUT", "3600000", "OTEL_BSP_EXPORT_TIMEOUT", "3600000"), io.Discard)
	const spans = 1000
	for i := range spans {
		tr.Claim(firing(fmt.Sprint(i))).End(nil)
	}
	if full := metrictest.Of(t, reg, "belfry_trace_spans_dropped_total")["queue_full"]; full == 0 {
		t.Error("no span was dropped")
	}
	close(release)
	stopTracer(t, tr)
	dropped := metrictest.Sum(t, reg, "belfry_trace_spans_dropped_total")
	if sent := metrictest.Sum(t, reg, "belfry_trace_spans_sent_total"); sent+dropped != spans || int(sent) != c.count() {
		t.Errorf("%.0f spans sent and %.0f dropped of %d, %d received", sent, dropped, spans, c.count())
	}
}
