//go:build unix

package functions

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions/natscall"
	"github.com/belfryio/belfry/internal/cputest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// BenchmarkCallbacks measures the CPU of complete callbacks: pull, call, record and
// acknowledge, with an embedded server and the callee in this process.
func BenchmarkCallbacks(b *testing.B) {
	b.Run("http", func(b *testing.B) {
		var n atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1) }))
		defer s.Close()
		benchmarkCallbacks(b, s.URL, &n, nil)
	})
	b.Run("nats", func(b *testing.B) {
		var n atomic.Int64
		benchmarkCallbacks(b, "nats:bench.it", &n, func(m *nats.Msg) { n.Add(1); _ = m.Respond(nil) })
	})
}

func benchmarkCallbacks(b *testing.B, target string, n *atomic.Int64, respond nats.MsgHandler) {
	srv := natstest.Run(b)
	nc := srv.InProcess()
	if respond != nil {
		if _, err := srv.InProcess().Subscribe("bench.it", respond); err != nil {
			b.Fatal(err)
		}
	}
	st, err := store.Open(b.Context(), nc, store.Config{Node: "bench", AddMaxBytes: 8 << 20, FiredMaxBytes: 1 << 30, RetryMaxBytes: 64 << 20, DeadMaxBytes: 64 << 20, ShardMaxBytes: 256 << 20}, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	if err := st.WakeService(b.Context(), store.Feed{Service: "s"}); err != nil {
		b.Fatal(err)
	}
	// Create the consumer before the events, so that none of them needs a read.
	reader, err := st.ReadFeed(b.Context(), store.Feed{Service: "s"}, store.FeedOptions{MaxAckPending: DefaultMaxAckPending, AckWait: DefaultAckWait, Most: 1})
	if err != nil {
		b.Fatal(err)
	}
	reader.Close()
	var pending atomic.Int64
	for i := range b.N {
		now := nowMs()
		hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprint(i)}, "ce-source": {"/b"}, "ce-type": {"t"}, "ce-timersvc": {"s"}, "ce-timerafter": {"1s"}, "ce-timercallback": {target}}
		body, spec, err := schemas.ParseAdd(hdr, make([]byte, 200), now, schemas.Limits{})
		if err != nil {
			b.Fatal(err)
		}
		rec := schemas.Record{
			Definition: schemas.Definition{AddedMs: now, Hash: spec.Hash, Service: "s", Callback: target, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body},
			RunState:   schemas.RunState{State: schemas.StateDelivered, Run: 1, MaxAttempt: 3, DueMs: now, ScheduledMs: now, FiredMs: now},
		}
		pending.Add(1)
		st.UpdateAsync(store.Write{ID: spec.Timer, Record: &rec}, func(r store.Result) {
			if r.Err != nil {
				b.Error(r.Err)
			}
			out, data := body.Message(schemas.Fired{ScheduledMs: now, FiredMs: now, Run: 1, Attempt: 1})
			out[schemas.HeaderClaim] = []string{schemas.Claim{Timer: spec.Timer, Revision: r.Rev, Run: 1, MaxAttempt: 3, AddedMs: now, FiredMs: now, Hash: spec.Hash}.String()}
			go st.PublishAsync(store.Msg{Subject: "timers.fired.s", MsgID: spec.Timer.MsgID(1), Header: out, Data: data}, func(uint64, bool, error) { pending.Add(-1) })
		})
	}
	for pending.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	calls := natscall.New(nc)
	defer calls.Close()
	f, err := New(Options{Store: st, NATS: calls, Now: nowMs, AllowLoopback: true})
	if err != nil {
		b.Fatal(err)
	}
	report := cputest.Measure(b)
	b.ReportAllocs()
	b.ResetTimer()
	if err := f.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	for n.Load() < int64(b.N) || f.live.count() > 0 {
		time.Sleep(100 * time.Microsecond)
	}
	b.StopTimer()
	report()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "callbacks/s")
	if err := f.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
}
