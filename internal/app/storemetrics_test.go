package app

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestStoreMetrics reads rejections and stream sizes from a real store.
func TestStoreMetrics(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL = "", s.URL()
	a := start(t, o)
	m := newStoreMetrics(a.store, zerolog.Nop())
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(m); err != nil {
		t.Fatal(err)
	}
	if families, err := reg.Gather(); err != nil || len(families) != 0 {
		t.Errorf("before the first reading: got metrics %v (%v), want none", families, err)
	}
	nc := s.Connect()
	const invalid = 7
	for range invalid {
		if err := nc.Publish("timers.add", []byte("not an event")); err != nil {
			t.Fatal(err)
		}
	}
	gauge := func(metric, stream string) float64 {
		m.read(t.Context())
		v, ok := metrictest.Of(t, reg, metric)[stream]
		if !ok {
			return -1
		}
		return v
	}
	waittest.Until(t, "all rejections are counted", func() bool { return gauge("belfry_rejections", "") == invalid })
	if n := gauge("belfry_stream_messages", "TIMERS_REJECTED"); n != invalid {
		t.Errorf("TIMERS_REJECTED: got %v messages, want %d", n, invalid)
	}
	if n := gauge("belfry_dead_letters", ""); n != 0 {
		t.Errorf("got %v dead letters, want 0", n)
	}
	if n := gauge("belfry_stream_bytes", "timers_0"); n < 0 {
		t.Errorf("size of the first shard: got %v bytes, want 0 or more", n)
	}
}
