package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// crowded is a store whose writes wait for a permit, as on a busy node. It counts the
// owner's writes in a row during which the clock is neither being written nor due.
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
	time.Sleep(crowdedWait) // the wait for a permit
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

// TestLeaseKeptWhileBusy: an owner renews its clock in time, however much work it has. A
// tick is as long as 50 of these writes, and a burst has thousands.
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
	create(t, n.store, timers(count, func(int64) int64 { return due })...)
	if got := fired(t, n.nc, count); len(got) != count {
		t.Fatalf("%d different events, want %d", len(got), count)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > count/2 {
		t.Errorf("%d writes in a row without a write of the clock", c.most)
	}
}

// halted is a store in which one publish blocks until the test releases it; meanwhile no
// clock is written. It records what is published after that before the lease is renewed.
type halted struct {
	*store.Store

	mu      sync.Mutex
	stands  chan struct{} // closed when the publish blocks
	letGo   chan struct{}
	halt    bool
	doubted bool // the lease has ended, and no clock was written since
	wrong   int
}

func (h *halted) PublishAsync(m store.Msg, done func(uint64, bool, error)) {
	h.mu.Lock()
	first := !h.halt
	h.halt = true
	if h.doubted {
		h.wrong++
	}
	h.mu.Unlock()
	if first {
		close(h.stands)
		<-h.letGo
		h.mu.Lock()
		h.doubted = true
		h.mu.Unlock()
	}
	h.Store.PublishAsync(m, done)
}

func (h *halted) WriteClock(ctx context.Context, shard int, clock store.Clock, rev uint64) (uint64, error) {
	select {
	case <-h.stands:
		// A write that began before has no effect if its answer comes so late.
		select {
		case <-h.letGo:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	default:
	}
	rev, err := h.Store.WriteClock(ctx, shard, clock, rev)
	if err == nil {
		h.mu.Lock()
		h.doubted = false
		h.mu.Unlock()
	}
	return rev, err
}

// TestHaltAmidRound: an owner that is stopped in the middle of a round for longer than
// its lease publishes nothing more of that round before it has confirmed that it owns the
// shard. Each timer fires once, also if another node has taken the shard.
func TestHaltAmidRound(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken=%v", taken), func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 600}}
			h := &halted{stands: make(chan struct{}), letGo: make(chan struct{})}
			a := start(t, srv, "a", cfg, func(o *scheduler.Options) {
				h.Store = o.Store.(*store.Store)
				o.Store = h
			})
			ownsAll(t, a)
			const count = 200
			due := nowMs() + 1000
			create(t, a.store, timers(count, func(int64) int64 { return due })...)
			waittest.Receive(t, "the first event to be published", h.stands)
			if taken {
				owns(t, 1, start(t, srv, "b", cfg, nil))
			} else {
				time.Sleep(2 * time.Second) // longer than the lease, which is what the test is about
			}
			close(h.letGo)
			if got := fired(t, a.nc, count); len(got) != count {
				t.Fatalf("%d different events, want %d", len(got), count)
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.wrong > 0 {
				t.Errorf("%d events were published before the lease was renewed", h.wrong)
			}
		})
	}
}
