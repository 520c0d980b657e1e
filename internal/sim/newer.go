package sim

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file is for Config.Newer: records of a newer format than the nodes read. A node of the
// next build leaves such records behind when an older node replaces it.

// scheduleNewer plans when a node of the next build joins. In a third of the seeds none
// does.
func (w *world) scheduleNewer() {
	if w.cfg.Seed%3 == 0 {
		return
	}
	n := newNode(w, len(w.nodes))
	n.level = store.LevelTest
	w.at(w.epoch+int64(w.between(2*time.Second, w.p.active)), func() {
		w.nodes = append(w.nodes, n)
		n.boot()
	})
}

// plantNewer plans to write a timer's record in a newer format while it waits, for one in
// five timers. It reports whether it does: clients then leave the timer alone.
func (w *world) plantNewer(l *life) bool {
	if !w.cfg.Newer || l.n%5 != 1 {
		return false
	}
	last := min(max(l.due()*int64(time.Millisecond), w.now), w.healed)
	w.at(w.now+int64(w.between(0, time.Duration(last-w.now))), func() {
		// A claim may have come first, or the add may not be in the store yet.
		t, err := w.server.Record(l.id)
		if err != nil || !t.Record.Pending() || l.half {
			return
		}
		w.stats.Newer++
		l.newer = true
		w.trace("timer %d: its record has a newer format from now on", l.n)
		if err := w.server.WriteNewer(l.id, store.LevelTest); err != nil {
			w.check.fail(PropState, "timer %d: %v", l.n, err)
		}
	})
	return true
}

// unreadable reports whether no node that runs can read a timer's record.
func (w *world) unreadable(id schemas.TimerID) bool {
	level := w.server.Level(id)
	for _, n := range w.nodes {
		if n.up && n.level >= level {
			return false
		}
	}
	return true
}

// stuck reports whether a shard has a record that no node that runs can read.
func (w *world) stuck(shard int) bool {
	for _, l := range w.lives {
		if w.p.geo.Shard(l.id) == shard && w.unreadable(l.id) {
			return true
		}
	}
	return false
}

// maxCalmTakeovers bounds how often one shard changes its owner after the last fault. A
// node that took the shard during the fault hands it to the assigned node.
const maxCalmTakeovers = 4

// calm checks a change of a shard's owner.
func (c *checker) calm(shard int) {
	if !c.w.cfg.Newer || c.w.now < c.w.healed+int64(10*time.Second) {
		return
	}
	if c.takeovers[shard]++; c.takeovers[shard] == maxCalmTakeovers+1 {
		c.fail(PropNewer, "shard %d has changed its owner %d times since everything was repaired", shard, c.takeovers[shard])
	}
}

// held checks at the end that the clock of a shard with an overdue record that no running node
// can read states the record's level (store.Clock.Needs).
func (c *checker) held(l *life) {
	t, err := c.w.server.Record(l.id)
	level := c.w.server.Level(l.id)
	if err != nil || level == store.LevelFirst || !t.Record.Pending() {
		return
	}
	shard := c.w.p.geo.Shard(l.id)
	clock, _, err := c.w.server.Clock(shard)
	if err != nil {
		return
	}
	now := c.w.now / int64(time.Millisecond)
	if c.w.unreadable(l.id) {
		c.w.stats.Held++
		if t.Record.DueMs < now-onTimeBound.Milliseconds()-c.w.p.tick.Milliseconds() && clock.Needs < level {
			c.fail(PropNewer, "timer %d, due %s, has a newer format, and the clock of shard %d does not say so", l.n, c.w.ms(t.Record.DueMs), shard)
		}
	}
}
