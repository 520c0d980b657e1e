package sim

import (
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
)

// This file is scheduler's keeping.go for one goroutine: it carries out what the
// real Keeper decides.

// lookWait is scheduler's.
const lookWait = 2 * time.Second

// keep looks at the cluster for as long as the process lives, or until it has
// left.
func (n *node) keep(p *proc) {
	for {
		c, err := n.client.ReadCluster(within(lookWait))
		n.step(scheduler.KeepLooked{Cluster: c, BeatAge: n.age(), Err: err})
		if n.leaving && !n.keeper.Holds() {
			n.left()
			return
		}
		p.sleep(n.keeper.NextLook(n.mono()))
	}
}

func (n *node) step(ev scheduler.KeepEvent) {
	for _, a := range append([]scheduler.KeepAction(nil), n.keeper.Step(n.mono(), ev)...) {
		switch a := a.(type) {
		case scheduler.KeepTake:
			n.w.spawn(n, func(*proc) { n.take(a) })
		case scheduler.KeepRelease:
			if t := n.terms[a.Shard]; t != nil {
				t.release()
			} else {
				n.release = append(n.release, a.Shard) // just being taken
			}
		}
	}
}

// take moves a shard's clock to this node, and owns the shard from then on.
func (n *node) take(a scheduler.KeepTake) {
	start := n.mono()
	rev, err := n.client.WriteClock(within(n.w.p.lease), a.Shard, a.Clock, a.Rev)
	n.release = nil
	n.step(scheduler.KeepTook{Shard: a.Shard, Err: err})
	if err != nil {
		return
	}
	atOnce := slices.Contains(n.release, a.Shard)
	n.w.stats.Takeovers++
	n.w.trace("%s takes shard %d from %q, epoch %d, mark %s, tail %d", n.name, a.Shard, a.From, a.Clock.Epoch, ms(a.Clock.TimeMs), a.Clock.Tail)
	startTerm(n, a.Shard, scheduler.NewTenure(n.w.p.lease, n.w.p.tick, start, a.Clock, rev))
	if t := n.terms[a.Shard]; t != nil && atOnce {
		t.release()
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
	n.run(inc, func() { n.step(scheduler.KeepLeave{}) })
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
