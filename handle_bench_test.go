package belfry_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// BenchmarkHandle measures an event whose handler does nothing: pull, decode and acknowledge.
// All events are stored before the start.
func BenchmarkHandle(b *testing.B) {
	for _, c := range []struct {
		name        string
		concurrency int
	}{{"1", 1}, {"16", 16}, {"256", 256}} {
		b.Run(c.name, func(b *testing.B) {
			srv := natstest.Run(b)
			client, err := belfry.New(srv.Connect())
			if err != nil {
				b.Fatal(err)
			}
			js, err := jetstream.New(client.Conn())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: schemas.StreamFired, Subjects: []string{schemas.SubjectFiredPrefix + ">"}}); err != nil {
				b.Fatal(err)
			}
			_, data, err := schemas.EncodeEvent(newEvent("1"), schemas.ModeStructured)
			if err != nil {
				b.Fatal(err)
			}
			hdr, data := schemas.Body{Mode: schemas.ModeStructured, Data: data}.Message(schemas.Fired{ScheduledMs: 1, FiredMs: 2, Run: 1, Attempt: 1})
			for range b.N {
				if _, err := js.PublishMsgAsync(&nats.Msg{Subject: schemas.SubjectFired("s"), Header: hdr, Data: data}, jetstream.WithStallWait(bound)); err != nil {
					b.Fatal(err)
				}
			}
			<-js.PublishAsyncComplete()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			if err := client.Handle(ctx, "s", func(context.Context, *belfry.Run) error {
				if left.Add(-1) == 0 {
					cancel()
				}
				return nil
			}, belfry.WithConcurrency(c.concurrency)); err != nil {
				b.Fatal(err)
			}
		})
	}
}
