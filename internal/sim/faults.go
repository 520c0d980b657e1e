package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
)

// scheduleFaults plans all faults, and when each ends.
func (w *world) scheduleFaults() {
	p := &w.p
	// some calls f at a few random times while clients are active.
	some := func(on bool, most int, f func()) {
		if !on {
			return
		}
		for range 1 + w.rng.IntN(most) {
			w.at(w.epoch+int64(w.between(2*time.Second, p.active)), func() {
				if w.now < w.healed {
					f()
				}
			})
		}
	}
	some(p.crashes, 5, func() { w.anyNode().crash(w.spread(50*time.Millisecond, 8*time.Second)) })
	some(p.pauses, 6, func() { w.anyNode().pause(w.spread(20*time.Millisecond, 12*time.Second)) })
	some(p.midPauses, 6, func() {
		n := w.anyNode()
		n.pauseAtSend, n.midPause = 1+w.rng.IntN(20), w.spread(50*time.Millisecond, 12*time.Second)
	})
	some(p.cuts, 5, func() {
		n := w.anyNode()
		d := w.spread(50*time.Millisecond, 12*time.Second)
		w.stats.Cuts++
		w.trace("%s is cut off for %s", n.name, d)
		n.cutUntil = max(n.cutUntil, w.now+int64(d))
	})
	some(p.elections, 6, func() {
		streams := w.server.Streams()
		w.net.depose(streams[w.rng.IntN(len(streams))], w.spread(50*time.Millisecond, 6*time.Second))
	})
	some(p.deposed, 8, func() {
		w.net.depose(fake.StreamShard(w.rng.IntN(p.geo.Shards)), w.spread(50*time.Millisecond, 2*time.Second))
	})
	some(p.serverKills, 2, func() {
		for i := range w.net.servers {
			if !w.net.servers[i].up {
				return // a majority stays
			}
		}
		w.net.kill(w.rng.IntN(len(w.net.servers)), w.spread(time.Second, 12*time.Second))
	})
	some(p.lag && p.servers > 1, 5, func() { w.net.freeze(w.rng.IntN(len(w.net.servers)), w.spread(50*time.Millisecond, 8*time.Second)) })
	some(p.jumps, 4, w.jump)
	some(p.stops && p.nodes > 1, 4, func() { w.anyNode().leave(w.spread(100*time.Millisecond, 6*time.Second)) })
	some(p.damage, 8, w.overwriteClock)
	if p.stops && p.nodes > 1 {
		// One node joins late.
		late := w.nodes[len(w.nodes)-1]
		late.kill()
		w.at(w.epoch+int64(w.between(time.Second, p.active)), func() {
			if !late.up {
				late.boot()
			}
		})
	}
	if p.shrink {
		w.at(w.epoch+int64(p.active/2), func() {
			w.trace("the servers take messages of %d bytes", shrunkMessage)
			w.server.SetMaxMessage(shrunkMessage)
		})
	}
	switch {
	case p.outage:
		w.at(w.epoch+int64(w.between(5*time.Second, p.active)), w.breakAll)
	case p.riser:
		w.at(w.epoch+int64(w.between(3*time.Second, p.active)), func() {
			n := w.anyNode()
			n.pauseAtClaim = p.dedup + w.between(time.Second, 40*time.Second)
			w.trace("%s is to be paused for %s at its next claim", n.name, n.pauseAtClaim)
		})
	case p.smallAge:
		for _, c := range w.queues {
			if c.service == services[0] {
				c.stalled = w.epoch + int64(p.active+p.firedMaxAge+5*time.Second)
			}
		}
	}
	w.at(w.healed, w.heal)
	w.at(w.settleAt(), w.watchEnd)
}

const (
	// maxOverdueDeaths bounds the processes of a simulation that die between the claim of an
	// overdue event and its publish, overdueDown is the time until each starts again.
	maxOverdueDeaths = 3
	overdueDown      = 2 * time.Second
)

// diesAtOverdue reports whether a process dies after it has sent the write, because that claims
// an overdue event: the next owner must publish it. Such claims are so rare that random crashes
// would miss them. It draws nothing, so that simulations without crashes stay the same.
func (w *world) diesAtOverdue(write store.Write) bool {
	s := write.Record.Schedule
	if !w.p.crashes || w.now >= w.healed || s == nil || s.Alarm.Run == 0 || s.Alarm.Before < write.Rev || w.overdueDeaths == maxOverdueDeaths {
		return false
	}
	w.overdueDeaths++
	return true
}

// settleAt returns the time from which on a run may end: all planned faults have happened, and
// the cluster has had time to recover.
func (w *world) settleAt() int64 {
	d := 25 * time.Second
	switch {
	case w.p.outage:
		d += w.p.indexKeep
	case w.p.riser:
		d += w.p.dedup + 45*time.Second
	case w.p.smallAge:
		d += w.p.firedMaxAge + w.p.sweep
	}
	if w.quotas != nil {
		d += quotaBegins
	}
	if w.cfg.Returned {
		d += returnedBound + returnedSpread
	}
	return w.healed + int64(d)
}

// rises notes that a riser is stopped from now on, alone or with all other processes.
func (w *world) rises(d time.Duration) { w.risenAt = w.now + int64(d) }

// faultless returns the true time from which on there are no faults. Risers outlast all other faults.
func (w *world) faultless() int64 { return max(w.healed, w.risenAt) }

// spread returns a random duration whose logarithm is uniformly distributed.
func (w *world) spread(lo, hi time.Duration) time.Duration {
	return time.Duration(float64(lo) * math.Exp(w.rng.Float64()*math.Log(float64(hi)/float64(lo))))
}

func (w *world) anyNode() *node { return w.nodes[w.rng.IntN(len(w.nodes))] }

// jump moves a host's clock. Hosts with the same number share a machine, so a
// node's wall clock may move with a server's.
func (w *world) jump() {
	some := func(most time.Duration) time.Duration {
		d := w.spread(time.Millisecond, most)
		if w.oneIn(2) {
			d = -d
		}
		return d
	}
	switch i := w.rng.IntN(len(w.net.servers)); w.rng.IntN(3) {
	case 0:
		n, d := w.anyNode(), some(24*time.Hour)
		w.stats.Jumps++
		w.trace("%s: its wall clock is moved by %s", n.name, d)
		n.wall += int64(d)
	case 1:
		w.net.step(i, some(15*time.Second))
	default:
		d := some(15 * time.Second)
		w.net.step(i, d)
		if i < len(w.nodes) {
			w.nodes[i].wall += int64(d)
		}
	}
}

// overwriteClock overwrites the clock of a shard, as another client can: JetStream stores its
// answer under the key if a client names the key as a reply subject. Sometimes it also removes
// the copies of all clocks.
//
// Every second time it does so just before a paused owner continues whose shard another node
// has taken.
func (w *world) overwriteClock() {
	shard := w.rng.IntN(w.p.geo.Shards)
	owner := w.server.LastClock(shard).Owner
	for _, n := range w.nodes {
		if n.name == owner && n.up && !n.paused && w.oneIn(2) {
			d := w.p.lease + w.between(w.p.tick, w.p.lease)
			n.pause(d)
			w.after(d-w.between(0, w.p.tick/2), func() { w.overwrite(shard) })
			return
		}
	}
	w.overwrite(shard)
}

func (w *world) overwrite(shard int) {
	data := []string{`{"stream":"TIMERS_ADD","seq":1}`, "", "x"}[w.rng.IntN(3)]
	w.trace("the clock of shard %d is overwritten with %q", shard, data)
	if w.oneIn(3) {
		w.server.LoseCopies()
	}
	if err := w.server.Overwrite(fake.StreamClock, fmt.Sprintf("clock.%d", shard), []byte(data)); err != nil {
		panic(err) // the stream exists
	}
	w.damaged[shard] = true
	w.stats.Damaged++
}

// breakAll starts an outage of the store, or of all nodes, that is longer than owners rely on
// the index.
func (w *world) breakAll() {
	d := w.p.indexKeep/2 + w.between(time.Second, 15*time.Second)
	w.trace("everything stops for %s", d)
	if w.oneIn(2) {
		for _, n := range w.nodes {
			n.crash(d)
		}
		return
	}
	var before time.Duration
	if w.p.lag && w.p.servers > 1 {
		// One replica lacks the last seconds, also after the outage.
		before = w.between(0, 6*time.Second)
		w.net.freeze(w.rng.IntN(len(w.net.servers)), before+d+w.between(0, 6*time.Second))
	}
	w.after(before, func() {
		for _, stream := range w.server.Streams() {
			w.net.depose(stream, d)
		}
	})
}

// heal ends all faults. Servers and nodes that are down start again by themselves.
func (w *world) heal() {
	w.trace("healed")
	for _, n := range w.nodes {
		n.cutUntil, n.pauseAtSend, n.pauseAtClaim = 0, 0, 0
		if n.paused && !w.p.riser {
			n.pauseEnd = w.now
			n.resume(n.inc)
		}
	}
}

// watchEnd ends the run once all timers are done.
func (w *world) watchEnd() {
	if w.over = w.check.settled(); !w.over {
		w.after(time.Second, w.watchEnd)
	}
}
