package scheduler

import (
	"context"
	"sync"
	"time"
)

// coordinatorDriver drives a CoordinatorLoop with goroutines.
type coordinatorDriver struct {
	*CoordinatorLoop
	s    *Scheduler
	ctx  context.Context // ends the loop
	wg   sync.WaitGroup
	wake chan struct{}
}

var _ CoordinatorHost = (*coordinatorDriver)(nil)

// coordinate runs the node's coordinator until leave is closed and all shards are
// released, or ctx ends.
func (s *Scheduler) coordinate(ctx context.Context, leave <-chan struct{}) {
	d := &coordinatorDriver{s: s, ctx: ctx, wake: make(chan struct{}, 1)}
	defer d.wg.Wait()
	c := CoordinatorConfig{Node: s.o.Node, Exclusive: s.o.NodeExclusive, Shards: len(s.shards), Lease: s.o.Lease, Heartbeat: s.o.Heartbeat, Level: s.o.Store.Reads()}
	d.CoordinatorLoop = NewCoordinatorLoop(c, s.o.Store, d, s.o.Log)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, more := d.Turn()
		if !more {
			return
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-leave:
			leave = nil
			d.Leave()
		case <-d.wake:
		case <-timer.C:
		}
	}
}

// Monotonic implements CoordinatorHost.
func (d *coordinatorDriver) Monotonic() time.Duration { return monotonic() }

// Go implements CoordinatorHost.
func (d *coordinatorDriver) Go(f func(ctx context.Context)) { d.wg.Go(func() { f(d.ctx) }) }

// WithTimeout implements CoordinatorHost.
func (d *coordinatorDriver) WithTimeout(ctx context.Context, t time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t)
}

// Wake implements CoordinatorHost.
func (d *coordinatorDriver) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// HeartbeatAge implements CoordinatorHost.
func (d *coordinatorDriver) HeartbeatAge() time.Duration { return d.s.o.Time.Age() }

// NotTaken implements CoordinatorHost.
func (d *coordinatorDriver) NotTaken(shard int, err error) {
	if !isRevision(err) {
		d.s.shards[shard].m.storeErrs.WithLabelValues("take_clock").Inc()
	}
}

// Own implements CoordinatorHost.
func (d *coordinatorDriver) Own(ctx context.Context, a TakeShard, lease *Lease, release *ReleaseRequest) {
	s := d.s.shards[a.Shard]
	s.m.tookOver(a, d.s.o.Node)
	if a.Damaged {
		s.m.damagedClocks.Inc()
		s.log.Error().Uint64("revision", a.Rev).Uint64("tail", a.Clock.Tail).Msg("took a shard whose clock is damaged: resuming from the last intact clock that this node saw, or from the clock's copy; if tail is 0, the whole shard is read")
	}
	s.log.Debug().Str("from", a.From).Uint64("epoch", a.Clock.Epoch).Time("low_watermark", time.UnixMilli(a.Clock.TimeMs)).Uint64("tail", a.Clock.Tail).Msg("shard taken")
	lease.clock = s.start(ctx, lease.clock)
	ask := make(chan struct{})
	release.Then(func() { close(ask) })
	s.own(ctx, lease, ask)
}
