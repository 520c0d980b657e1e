package tracing_test

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.ServerLeaks()...) }

// client is the trace context of a client.
const client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// collector receives OTLP over HTTP, and decodes it with OpenTelemetry's own types.
type collector struct {
	url string

	mu        sync.Mutex
	spans     []*tracepb.Span
	resources []*tracepb.ResourceSpans
	requests  []http.Header
	paths     []string
	raw       []byte // all bodies, decompressed
}

// newCollector starts a collector. answer may answer a request in its place, and then returns true;
// n is the number of the request, from 1.
func newCollector(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request) bool) *collector {
	t.Helper()
	c := &collector{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Errorf("gzip: %v", err)
				return
			}
			body = z
		}
		b, err := io.ReadAll(body)
		if err != nil {
			return // the node has ended the request
		}
		c.mu.Lock()
		c.requests, c.paths = append(c.requests, r.Header), append(c.paths, r.URL.Path)
		n := len(c.requests)
		c.mu.Unlock()
		if answer != nil && answer(n, w, r) {
			return
		}
		var req v1.ExportTraceServiceRequest
		if err := (proto.UnmarshalOptions{DiscardUnknown: false}).Unmarshal(b, &req); err != nil || len(req.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("the request cannot be decoded: %v", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raw = append(c.raw, b...)
		for _, rs := range req.ResourceSpans {
			c.resources = append(c.resources, rs)
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// find returns the spans of a name and a timer, in the order of their start.
func (c *collector) find(name, timer string) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*tracepb.Span
	for _, s := range c.spans {
		if s.Name == name && text(s.Attributes, "belfry.timer.id") == timer {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *tracepb.Span) int {
		if a.StartTimeUnixNano < b.StartTimeUnixNano {
			return -1
		}
		return 1
	})
	return out
}

// received returns the number of requests.
func (c *collector) received() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests)
}

// count returns the number of spans.
func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.spans)
}

// bytes returns all bodies.
func (c *collector) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.raw)
}

// env returns the variables of traces as a function, for FromEnv.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// config returns the settings for a collector. Spans wait 20 ms for others.
func (c *collector) config(t *testing.T, pairs ...string) tracing.Config {
	t.Helper()
	out, warnings := tracing.FromEnv(env(append(pairs, "OTEL_EXPORTER_OTLP_ENDPOINT", c.url, "OTEL_BSP_SCHEDULE_DELAY", "20")...))
	if len(warnings) > 0 {
		t.Fatal(warnings)
	}
	return out
}

func text(attributes []*commonpb.KeyValue, key string) string {
	for _, kv := range attributes {
		if kv.Key == key {
			return kv.Value.GetStringValue()
		}
	}
	return ""
}

func number(attributes []*commonpb.KeyValue, key string) int64 {
	for _, kv := range attributes {
		if kv.Key == key {
			return kv.Value.GetIntValue()
		}
	}
	return -1
}

// parentOf returns the traceparent of what has the span as its parent.
func parentOf(s *tracepb.Span) string {
	return "00-" + hex.EncodeToString(s.TraceId) + "-" + hex.EncodeToString(s.SpanId) + "-01"
}
