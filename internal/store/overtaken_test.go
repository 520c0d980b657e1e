package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestFloodOfOneService: a service that fires far more events than fired-max-per-service
// evicts no events of another service. Its own consumer, which does not read, is reported as
// overtaken.
func TestFloodOfOneService(t *testing.T) {
	t.Parallel()
	const most = 1000
	srv := natstest.Run(t)
	s, err := store.Open(t.Context(), srv.Connect(), store.Config{Node: "n", FiredMaxBytes: 64 << 20, FiredMaxPerService: most}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	publish := func(svc string, n int) {
		t.Helper()
		errs := make(chan error, n)
		for i := range n {
			s.PublishAsync(store.Msg{Subject: schemas.SubjectFired(svc), Data: []byte(fmt.Sprint(i))}, func(_ uint64, _ bool, err error) { errs <- err })
		}
		for range n {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
	consumer := func(name, filter string) {
		t.Helper()
		_, err := s.JetStream().CreateConsumer(t.Context(), schemas.StreamFired, jetstream.ConsumerConfig{Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
	}
	overtaken := func() map[string]store.Overtaken {
		t.Helper()
		all, err := s.OvertakenConsumers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]store.Overtaken{}
		for _, o := range all {
			out[o.Consumer] = o
		}
		return out
	}
	consumer("quiet", schemas.SubjectFired("quiet"))
	consumer("flood", schemas.SubjectFired("flood"))
	consumer("late", schemas.SubjectFired("late"))
	publish("flood", most)
	publish("quiet", 50)
	publish("late", 10)
	if got := overtaken(); len(got) != 0 {
		t.Errorf("overtaken before the stream has dropped an event: %+v", got)
	}
	publish("flood", 5*most)
	// The server updates a consumer's count of pending messages some time after it has stored
	// them.
	var got map[string]store.Overtaken
	waittest.Until(t, "the flooded consumer to be overtaken", func() bool {
		got = overtaken()
		return got["flood"].Lost > 0 && got["flood"].Pending == most
	})
	if len(got) != 1 || got["flood"].Why != store.LimitService {
		t.Errorf("overtaken: %+v", got)
	}
	if text := got["flood"].Problem(); !strings.Contains(text, "raise fired-max-per-service") {
		t.Errorf("what to do: %s", text)
	}
	c, err := s.JetStream().Consumer(t.Context(), schemas.StreamFired, "quiet")
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(50)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for m := range batch.Messages() {
		if string(m.Data()) != fmt.Sprint(n) {
			t.Fatalf("event %d of the quiet service is %s", n, m.Data())
		}
		n++
	}
	if n != 50 {
		t.Errorf("the quiet service has %d events of 50", n)
	}
}

// TestOvertakenByBytes: for a consumer of all services the number of lost events is exact.
func TestOvertakenByBytes(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s, err := store.Open(t.Context(), srv.Connect(), store.Config{Node: "n", FiredMaxBytes: 1 << 20}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	_, err = s.JetStream().CreateConsumer(t.Context(), schemas.StreamFired, jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	// Each service stays below its share of the stream, so FiredShare trims none.
	const events, services = 300, 30
	for i := range events {
		if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired(fmt.Sprintf("s%d", i%services)), Data: make([]byte, 8<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	// The server updates a consumer's count of pending messages some time after it has stored
	// them.
	var got []store.Overtaken
	waittest.Until(t, "all events to be lost or pending", func() bool {
		if got, err = s.OvertakenConsumers(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(got) == 1 && got[0].Lost+got[0].Pending == events
	})
	if got[0].Why != store.LimitBytes {
		t.Errorf("%d were published: %+v", events, got)
	}
}

// TestFiredLimitOfAnExistingStream: Open sets the limit of events per service on a stream of
// an older version, and changes it when the setting has changed.
func TestFiredLimitOfAnExistingStream(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	limit := func(cfg store.Config) (int64, int64) {
		t.Helper()
		cfg.Node = "n"
		s, err := store.Open(t.Context(), nc, cfg, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		stream, err := s.JetStream().Stream(t.Context(), schemas.StreamFired)
		if err != nil {
			t.Fatal(err)
		}
		c := stream.CachedInfo().Config
		return c.MaxMsgsPerSubject, c.MaxBytes
	}
	if n, bytes := limit(store.Config{}); n != bytes/16/1024 {
		t.Errorf("%d events of a service in a stream of %d bytes", n, bytes)
	}
	js := natstest.JetStream(t, nc)
	stream, err := js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	old := stream.CachedInfo().Config
	old.MaxMsgsPerSubject = -1
	if _, err := js.UpdateStream(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if n, bytes := limit(store.Config{}); n != bytes/16/1024 {
		t.Errorf("after an upgrade: %d events of a service in a stream of %d bytes", n, bytes)
	}
	if n, _ := limit(store.Config{FiredMaxPerService: 5000}); n != 5000 {
		t.Errorf("as configured: %d", n)
	}
	if _, err := store.Open(t.Context(), nc, store.Config{Node: "n", FiredMaxPerService: 10}, zerolog.Nop()); schemas.CodeOf(err) != schemas.CodeConfig {
		t.Errorf("a tiny limit: %v", err)
	}
}

// TestMaxServices: a new service beyond the limit is refused, a known service is not, and an
// event wakes its service whatever the limit.
func TestMaxServices(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s, err := store.Open(t.Context(), srv.Connect(), store.Config{Node: "n", MaxServices: 3}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for n := range 3 {
		if err := s.RegisterService(t.Context(), fmt.Sprint("s", n)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		err := s.RegisterService(t.Context(), "more")
		if schemas.CodeOf(err) != schemas.CodeTooManyServices || !strings.Contains(err.Error(), "max-services") {
			t.Errorf("a fourth service: %v", err)
		}
	}
	other, err := store.Open(t.Context(), srv.Connect(), store.Config{Node: "m", MaxServices: 3}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if err := other.RegisterService(t.Context(), "s1"); err != nil {
		t.Errorf("a known service: %v", err)
	}
	f := store.Feed{Service: "more"}
	if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("more"), Service: "more"}); err != nil {
		t.Errorf("an event of a timer that was acknowledged: %v", err)
	}
	if st, err := s.ServiceState(t.Context(), f); err != nil || !st.Awake {
		t.Errorf("the service of that event: %+v, %v", st, err)
	}
	if err := s.RestService(t.Context(), f, 1, 0); !errors.Is(err, store.ErrRevision) {
		t.Errorf("put to rest with a stale revision: %v", err)
	}
}

// BenchmarkFiredLimit publishes events of one service below its limit, and at it, where
// each publish drops the service's oldest event.
func BenchmarkFiredLimit(b *testing.B) {
	for name, limit := range map[string]int{"below": 100_000_000, "at": 1000} {
		b.Run(name, func(b *testing.B) {
			srv := natstest.Run(b)
			s, err := store.Open(b.Context(), srv.Connect(), store.Config{Node: "n", FiredMaxPerService: limit}, zerolog.Nop())
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			data := make([]byte, 400)
			errs := make(chan error, 2048)
			publish := func(n int) {
				for i := range n + cap(errs) {
					if i >= cap(errs) {
						if err := <-errs; err != nil {
							b.Fatal(err)
						}
					}
					if i < n {
						s.PublishAsync(store.Msg{Subject: schemas.SubjectFired("s"), Data: data}, func(_ uint64, _ bool, err error) { errs <- err })
					} else {
						errs <- nil
					}
				}
				for range cap(errs) {
					<-errs
				}
			}
			publish(2000)
			b.ResetTimer()
			publish(b.N)
		})
	}
}
