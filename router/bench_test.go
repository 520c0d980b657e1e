package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/cputest"
	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/router/natsapi"
	"github.com/belfryio/belfry/schemas"
)

// BenchmarkStreamAdds measures the router's cost of an add on timers.add, without the
// server, which is a process of its own. Run it with a count, such as -benchtime 20000x.
func BenchmarkStreamAdds(b *testing.B) {
	nc := natstest.RunProcess(b, false).Connect()
	s, err := store.Open(b.Context(), nc, store.Config{Node: "n1"}, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	clock := clustertime.NewService(func(ctx context.Context) (clustertime.Reading, error) {
		st, err := s.Beat(ctx)
		return clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, err
	}, 0, zerolog.Nop())
	clock.Start()
	defer clock.Stop()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		if _, err := js.PublishAsync(schemas.SubjectAdd, add(fmt.Sprint(i), `"timerafter":"1h"`), jetstream.WithStallWait(bound)); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	report := cputest.Measure(b)
	b.ReportAllocs()
	b.ResetTimer()
	stop := startForBench(b, router.Options{Store: s, Time: clock, Log: zerolog.Nop()}, s, nc)
	for {
		st, err := js.Stream(b.Context(), schemas.StreamAdd)
		if err != nil {
			b.Fatal(err)
		}
		if st.CachedInfo().State.Msgs == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.StopTimer()
	report()
	stop()
}

func startForBench(b *testing.B, o router.Options, s *store.Store, nc *nats.Conn) func() {
	o.Dedup = s.NewDedupCheck()
	svc, err := router.New(o)
	if err != nil {
		b.Fatal(err)
	}
	srv, err := natsapi.New(natsapi.Options{Service: svc, OpenInbox: s.OpenInbox, Conn: endpoint.On(nc), Log: o.Log})
	if err != nil {
		b.Fatal(err)
	}
	if err := svc.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := srv.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	return func() { _ = (&node{svc, srv}).Stop(context.Background()) }
}
