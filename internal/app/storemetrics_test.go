package app

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
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
		t.Errorf("before the first reading: %v, %v", families, err)
	}
	nc := s.Connect()
	const invalid = 7
	for range invalid {
		if err := nc.Publish("timers.add", []byte("not an event")); err != nil {
			t.Fatal(err)
		}
	}
	gauge := func(name, stream string) float64 {
		m.read(t.Context())
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				if f.GetName() == name && (stream == "" || s.GetLabel()[0].GetValue() == stream) {
					return s.GetGauge().GetValue() + s.GetCounter().GetValue()
				}
			}
		}
		return -1
	}
	await(t, func() (string, bool) {
		n := gauge("belfry_rejections", "")
		return "rejections", n == invalid
	})
	if n := gauge("belfry_stream_messages", "TIMERS_REJECTED"); n != invalid {
		t.Errorf("TIMERS_REJECTED has %v messages, want %d", n, invalid)
	}
	if n := gauge("belfry_dead_letters", ""); n != 0 {
		t.Errorf("%v dead letters, want 0", n)
	}
	if n := gauge("belfry_stream_bytes", "timers_0"); n < 0 {
		t.Error("no size of the first shard")
	}
}
