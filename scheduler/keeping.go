package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// lookWait bounds one look at the cluster.
const lookWait = 2 * time.Second

// keeping carries out what a keeper decides.
type keeping struct {
	s       *Scheduler
	k       *Keeper
	events  chan KeepEvent
	release map[int]chan struct{} // by shard that is ours
	wg      sync.WaitGroup
	changes ownershipLog
}

func newKeeping(s *Scheduler) *keeping {
	return &keeping{
		s: s,
		k: NewKeeper(KeeperConfig{Node: s.o.Node, Exclusive: s.o.NodeExclusive, Shards: len(s.shards), Lease: s.o.Lease, Tick: s.o.Tick, Level: s.o.Store.Reads()}),
		// One result a shard, and a look, can be under way.
		events:  make(chan KeepEvent, 2*len(s.shards)+1),
		release: map[int]chan struct{}{},
	}
}

// run keeps shards until leave is closed and all are given back, or ctx ends.
func (p *keeping) run(ctx context.Context, leave <-chan struct{}) {
	defer p.wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	looking := false
	left := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-leave:
			leave, left = nil, true
			p.step(ctx, KeepLeave{})
		case ev := <-p.events:
			if _, ok := ev.(KeepLooked); ok {
				looking = false
				timer.Reset(p.next())
			}
			p.step(ctx, ev)
		case <-timer.C:
			if !looking {
				looking = true
				p.wg.Go(func() { p.put(ctx, p.look(ctx)) })
			}
		}
		if left && !p.k.Holds() {
			return
		}
	}
}

func (p *keeping) next() time.Duration { return p.k.NextLook(monotonic()) }

func (p *keeping) put(ctx context.Context, ev KeepEvent) {
	select {
	case p.events <- ev:
	case <-ctx.Done():
	}
}

func (p *keeping) look(ctx context.Context) KeepEvent {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	c, err := p.s.o.Store.ReadCluster(ctx)
	p.s.shards[0].logChange("read clocks", err)
	return KeepLooked{Cluster: c, BeatAge: p.s.o.Time.Age(), Err: err}
}

func (p *keeping) step(ctx context.Context, ev KeepEvent) {
	actions := p.k.Step(monotonic(), ev)
	p.changes.note(ev)
	defer func() {
		if !p.k.Changing() {
			p.changes.flush(p.s.o.Log)
		}
	}()
	for _, a := range actions {
		switch a := a.(type) {
		case KeepTake:
			p.changes.taking(a)
			release := make(chan struct{})
			p.release[a.Shard] = release
			p.wg.Go(func() { p.take(ctx, a, release) })
		case KeepRelease:
			close(p.release[a.Shard])
		}
	}
}

// take moves a shard's clock to this node, and owns the shard from then on.
func (p *keeping) take(ctx context.Context, a KeepTake, release <-chan struct{}) {
	s := p.s.shards[a.Shard]
	start := monotonic()
	write, cancel := context.WithTimeout(ctx, p.s.o.Lease)
	rev, err := p.s.o.Store.WriteClock(write, a.Shard, a.Clock, a.Rev)
	cancel()
	p.put(ctx, KeepTook{Shard: a.Shard, Err: err})
	if err != nil {
		// Lost to another node, or not answered: the next look tells.
		if !isRevision(err) {
			s.m.storeErrs.WithLabelValues("take_clock").Inc()
		}
		return
	}
	s.m.tookOver(a, p.s.o.Node)
	if a.Damaged {
		s.m.damagedClocks.Inc()
		s.log.Error().Uint64("revision", a.Rev).Uint64("tail", a.Clock.Tail).Msg("shard taken although its clock is damaged: resuming from the clock that this node saw last, or from its copy; with tail 0 the whole shard is read")
	}
	s.log.Debug().Str("from", a.From).Uint64("epoch", a.Clock.Epoch).Time("mark", time.UnixMilli(a.Clock.TimeMs)).Uint64("tail", a.Clock.Tail).Msg("shard taken")
	s.own(ctx, NewTenure(p.s.o.Lease, p.s.o.Tick, start, s.start(ctx, a.Clock), rev), release)
	p.put(ctx, KeepEnded{Shard: a.Shard})
}

var _ Store = (*store.Store)(nil)
