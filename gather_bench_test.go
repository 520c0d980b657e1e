package belfry_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
)

// BenchmarkAddAsync adds as fast as it is let, with a server that syncs every
// write and one that does not.
func BenchmarkAddAsync(b *testing.B) {
	for _, c := range []struct {
		name    string
		options []natstest.Option
		never   bool
	}{
		{"safe/gathered", []natstest.Option{natstest.SyncAlways}, false},
		{"safe/single", []natstest.Option{natstest.SyncAlways}, true},
		{"fast/gathered", nil, false},
		{"fast/single", nil, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			client, _ := addStream(b, func(*jetstream.StreamConfig) {}, c.options...)
			if c.never {
				client.GatherNever()
			}
			pending := make([]belfry.Pending, b.N)
			b.ResetTimer()
			before := cpuTime(b)
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
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func BenchmarkAddBatch(b *testing.B) {
	client, _ := addStream(b, func(*jetstream.StreamConfig) {}, natstest.SyncAlways)
	es := events(b.N)
	b.ResetTimer()
	if err := client.AddBatch(b.Context(), es, belfry.After(time.Hour)); err != nil {
		b.Fatal(err)
	}
}
