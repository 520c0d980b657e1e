package router

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// tracedAdd is what the path of an add does for traces.
func tracedAdd(s *Service, a *Add) {
	s.beginTrace(a)
	s.carryTrace(a, 1<<20)
	a.endTrace(Stored, nil)
}

func anAdd(tb testing.TB) *Add {
	a := &Add{Data: []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","timerafter":"1s"}`)}
	body, spec, err := schemas.ParseAdd(nil, a.Data, 1, schemas.Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	a.Spec, a.Record = spec, schemas.NewRecord(&spec, body, 1)
	return a
}

// TestAddWithoutTracesAllocatesNothing: an add on a node without traces costs no allocation for
// them, also if it expires. It must not run beside other tests: AllocsPerRun counts those of all
// goroutines.
func TestAddWithoutTracesAllocatesNothing(t *testing.T) {
	s := &Service{engine: &engine{}}
	a, w, err := anAdd(t), &waitingAdd{}, errors.New("x")
	before := len(a.Record.Body.Headers)
	if n := testing.AllocsPerRun(1000, func() { tracedAdd(s, a); w.expireTrace(err) }); n != 0 {
		t.Errorf("%.0f allocations an add", n)
	}
	if a.span != nil || len(a.Record.Body.Headers) != before {
		t.Error("the add has a span or a header without traces")
	}
}

// BenchmarkAddTrace measures what traces add to an add.
func BenchmarkAddTrace(b *testing.B) {
	b.Run("off", func(b *testing.B) { benchmarkAddTrace(b, nil) })
	b.Run("on", func(b *testing.B) {
		receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		defer receiver.Close()
		c, _ := tracing.FromEnv(func(name string) string {
			if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
				return receiver.URL
			}
			return ""
		})
		t, err := tracing.New(c, tracing.Node{}, prometheus.NewRegistry(), zerolog.Nop())
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = t.Stop(b.Context()) }()
		benchmarkAddTrace(b, t)
	})
}

func benchmarkAddTrace(b *testing.B, t *tracing.Tracer) {
	s := &Service{engine: &engine{o: Options{Tracing: t}}}
	a := anAdd(b)
	body := a.Record.Body
	b.ReportAllocs()
	for b.Loop() {
		a.Record.Body = body
		tracedAdd(s, a)
	}
}
