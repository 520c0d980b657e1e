package scheduler_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// offsetTime is the cluster's time with an offset, as of a leader whose clock is wrong and then set.
type offsetTime struct {
	scheduler.Time
	by atomic.Int64 // nanoseconds
}

func (o *offsetTime) EarliestNs() int64 { return o.Time.EarliestNs() + o.by.Load() }

// TestReindexAfterSetBack: after the cluster's clock was set back by more than half of the life of index
// entries, the owner writes entries that last long enough for the timers that have shorter ones.
func TestReindexAfterSetBack(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	var clock offsetTime
	clock.by.Store(int64(time.Hour))
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1 << 20}}
	n := start(t, srv, "n1", cfg, func(o *scheduler.Options) {
		o.InspectInterval = 100 * time.Millisecond
		clock.Time = o.Time
		o.Time = &clock
	})
	healthy(t, n.store)
	cfg.IndexKeep = time.Second
	short := open(t, srv.InProcess(), "n2", cfg)
	due := nowMs() + 3*time.Hour.Milliseconds()
	w := timer("1", due)
	create(t, short, w)
	stream, err := natstest.JetStream(t, n.nc).Stream(t.Context(), "KV_timers_0")
	if err != nil {
		t.Fatal(err)
	}
	entries := func() uint64 {
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.timers_0.slot.>"))
		if err != nil {
			t.Fatal(err)
		}
		return uint64(len(info.State.Subjects))
	}
	ahead := nowMs() + 59*time.Minute.Milliseconds()
	waittest.Until(t, "the low watermark to follow the clock", func() bool {
		c, _, err := n.store.ReadClock(t.Context(), 0)
		return err == nil && c.TimeMs > ahead
	})
	before := entries()
	clock.by.Add(-int64(40 * time.Minute))
	waittest.Until(t, "a second entry of the timer", func() bool { return entries() == before+1 })
}
