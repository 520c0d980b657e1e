package sim

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
)

// coordinator drives a process's scheduler.CoordinatorLoop from the simulation's only
// goroutine.
type coordinator struct {
	*scheduler.CoordinatorLoop
	n      *node
	w      *world
	waking bool
	timer  uint64 // of the wait that counts
}

var _ scheduler.CoordinatorHost = (*coordinator)(nil)

// coordinate begins to take shards, until the process dies or has left.
func (n *node) coordinate() {
	w := n.w
	c := &coordinator{n: n, w: w}
	c.CoordinatorLoop = scheduler.NewCoordinatorLoop(scheduler.CoordinatorConfig{
		Node: n.name, Exclusive: w.p.exclusive, Shards: w.p.geo.Shards, Lease: w.p.lease, Heartbeat: w.p.tick, Level: n.client.Reads(),
	}, n.client, c, zerolog.Nop())
	n.coordinator = c
	c.turn()
}

// turn runs one turn of the loop, and plans the next.
func (c *coordinator) turn() {
	wait, more := c.Turn()
	if !more {
		c.n.left()
		return
	}
	c.timer++
	timer := c.timer
	c.n.after(wait, func() {
		if c.timer == timer {
			c.Wake()
		}
	})
}

// Monotonic implements scheduler.CoordinatorHost.
func (c *coordinator) Monotonic() time.Duration { return c.n.mono() }

// Go implements scheduler.CoordinatorHost.
func (c *coordinator) Go(f func(context.Context)) {
	c.w.spawn(c.n, func(*proc) { f(within(callTimeout)) })
}

// WithTimeout implements scheduler.CoordinatorHost.
func (c *coordinator) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return c.n.until(ctx, d), func() {}
}

// Wake implements scheduler.CoordinatorHost.
func (c *coordinator) Wake() {
	if c.waking {
		return
	}
	c.waking = true
	c.n.soon(func() {
		c.waking = false
		c.turn()
	})
}

// HeartbeatAge implements scheduler.CoordinatorHost.
func (c *coordinator) HeartbeatAge() time.Duration { return c.n.age() }

// NotTaken implements scheduler.CoordinatorHost.
func (c *coordinator) NotTaken(shard int, err error) {
	c.w.trace("%s does not take shard %d: %v", c.n.name, shard, err)
}

// Own implements scheduler.CoordinatorHost.
func (c *coordinator) Own(_ context.Context, a scheduler.TakeShard, lease *scheduler.Lease, release *scheduler.ReleaseRequest) {
	n, p := c.n, c.w.current
	c.w.stats.Takeovers++
	c.w.trace("%s takes shard %d from %q, epoch %d, low watermark %s, tail %d", n.name, a.Shard, a.From, a.Clock.Epoch, c.w.ms(a.Clock.TimeMs), a.Clock.Tail)
	t := startTerm(n, a.Shard, lease)
	c.w.tookOver(a.Shard)
	release.Then(t.release)
	for !t.ended {
		p.sleepOr(time.Hour, &t.end)
	}
}

// leave stops the process gracefully.
func (n *node) leave(down time.Duration) {
	if !n.serves() {
		return
	}
	n.w.trace("%s leaves", n.name)
	n.leaving = true
	n.client.Announce(func(p *store.Presence) { p.Scheduler = store.SchedulerLeaving })
	n.resample.give()
	inc := n.inc
	n.run(inc, func() {
		n.coordinator.Leave()
		n.coordinator.Wake()
	})
	// However the stop goes, it is bounded: then the process is dropped.
	n.w.after(5*time.Second, func() {
		if n.up && n.inc == inc {
			n.w.trace("%s is dropped: its stop took too long", n.name)
			n.kill()
		}
	})
	n.w.after(5*time.Second+down, func() {
		if !n.up {
			n.boot()
		}
	})
}

// left ends a process whose shards are all given back.
func (n *node) left() {
	n.w.trace("%s has left", n.name)
	inc := n.inc
	n.w.after(0, func() {
		if n.inc == inc {
			n.kill()
		}
	})
}
