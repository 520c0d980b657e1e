package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// crowded is a store whose writes wait for a place, as they do when a busy node
// has as many under way as may be. It counts those that its owner makes while the
// clock is neither being written nor due.
type crowded struct {
	*store.Store

	mu      sync.Mutex
	writing int
	since   int
	most    int
}

const crowdedWait = 2 * time.Millisecond

func (c *crowded) UpdateAsync(w store.Write, done func(store.Result)) {
	c.mu.Lock()
	if c.writing == 0 {
		c.since++
		c.most = max(c.most, c.since)
	}
	c.mu.Unlock()
	time.Sleep(crowdedWait)
	c.Store.UpdateAsync(w, done)
}

func (c *crowded) WriteClock(ctx context.Context, shard int, clock store.Clock, rev uint64) (uint64, error) {
	c.turn(1)
	defer c.turn(-1)
	return c.Store.WriteClock(ctx, shard, clock, rev)
}

func (c *crowded) turn(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing += by
	c.since = 0
}

// TestLeaseKeptWhileBusy: however much there is to do at once, the clock is written
// amid it. A tick is 50 of these writes; a burst is thousands.
func TestLeaseKeptWhileBusy(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	var c *crowded
	n := start(t, srv, "a", store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 600}}, func(o *scheduler.Options) {
		c = &crowded{Store: o.Store.(*store.Store)}
		o.Store = c
	})
	const count = 800
	due := nowMs() + 2000
	var ws []store.Write
	for i := range count {
		ws = append(ws, timer(fmt.Sprint(i), due))
	}
	create(t, n.store, ws...)
	if got := fired(t, n.nc, count); len(got) != count {
		t.Fatalf("%d different events, want %d", len(got), count)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > count/2 {
		t.Errorf("%d writes in a row without one of the clock", c.most)
	}
}
