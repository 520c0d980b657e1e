//go:build unix

package belfry_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/cputest"
	"github.com/belfryio/belfry/internal/natstest"
)

// syncs are servers that sync every write, and that do not.
var syncs = []struct {
	name    string
	options []natstest.Option
}{
	{"safe", []natstest.Option{natstest.SyncAlways}},
	{"fast", nil},
}

// BenchmarkAddAsync adds as fast as the client allows, with and without a sync of every write.
// The server runs in this process, so cpu-us/op includes its CPU.
func BenchmarkAddAsync(b *testing.B) {
	for _, c := range syncs {
		b.Run(c.name, func(b *testing.B) {
			client, _ := addStream(b, func(*jetstream.StreamConfig) {}, c.options...)
			pending := make([]belfry.Pending, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			report := cputest.Measure(b)
			for i := range b.N {
				var err error
				if pending[i], err = client.AddAsync(newEvent(fmt.Sprint(i)), belfry.After(time.Hour)); err != nil {
					b.Fatal(err)
				}
			}
			for _, p := range pending {
				if err := p.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			report()
		})
	}
}

// BenchmarkAddBatch adds all events with one call, as BenchmarkAddAsync adds them one by one.
func BenchmarkAddBatch(b *testing.B) {
	for _, c := range syncs {
		b.Run(c.name, func(b *testing.B) {
			client, _ := addStream(b, func(*jetstream.StreamConfig) {}, c.options...)
			es := events(b.N)
			b.ReportAllocs()
			b.ResetTimer()
			report := cputest.Measure(b)
			if err := client.AddBatch(b.Context(), es, belfry.After(time.Hour)); err != nil {
				b.Fatal(err)
			}
			report()
		})
	}
}
