package functions

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// aDelivery returns a delivery of an event and the request of its attempt.
func aDelivery(t *tracing.Tracer) (*delivery, *caller, *callback.Request) {
	d := &delivery{f: &Functions{o: Options{Tracing: t}}, svc: &service{name: "s"}, msg: &store.Delivery{Header: map[string][]string{"ce-specversion": {"1.0"}}}}
	d.spec.Callback = "http://127.0.0.1:1/x"
	d.claim = schemas.Claim{Timer: schemas.NewTimerID("/s", "1"), Run: 1, AddedMs: 1}
	return d, &caller{}, &callback.Request{Target: d.spec.Callback, NowMs: time.Now().UnixMilli()}
}

// TestCallWithoutTracesAllocatesNothing: a callback on a node without traces costs no allocation for
// them, and gets the trace context of the event. It must not run beside other tests: AllocsPerRun
// counts those of all goroutines.
func TestCallWithoutTracesAllocatesNothing(t *testing.T) {
	d, c, req := aDelivery(nil)
	out := callback.Outcome{Success: true, Code: 200}
	if n := testing.AllocsPerRun(1000, func() { endTrace(d.beginTrace(c, req), &out) }); n != 0 {
		t.Errorf("%.0f allocations a callback", n)
	}
	if req.Trace != nil {
		t.Errorf("the request has the trace context %v", req.Trace)
	}
}

// BenchmarkCallTrace measures what traces add to a callback attempt.
func BenchmarkCallTrace(b *testing.B) {
	b.Run("off", func(b *testing.B) { benchmarkCallTrace(b, nil) })
	b.Run("on", func(b *testing.B) {
		receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		defer receiver.Close()
		c, _ := tracing.FromEnv(func(name string) string {
			if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
				return receiver.URL
			}
			return ""
		})
		t, err := tracing.New(c, tracing.Node{}, nil, zerolog.Nop())
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = t.Stop(b.Context()) }()
		benchmarkCallTrace(b, t)
	})
}

func benchmarkCallTrace(b *testing.B, t *tracing.Tracer) {
	d, c, req := aDelivery(t)
	out := callback.Outcome{Success: true, Code: 200}
	b.ReportAllocs()
	for b.Loop() {
		endTrace(d.beginTrace(c, req), &out)
	}
}
