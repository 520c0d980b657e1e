package sim

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// This file checks the number of pending timers that an owner reports
// (belfry_pending_timers) against the records.

// tailed records that an owner's tail has delivered a record.
func (c *checker) tailed(t *term, ev scheduler.EvTail) {
	if l := c.w.byID[ev.Timer.ID]; ev.Timer.Rev == l.finalRev && l.finalRead < l.finalAt {
		l.finalRead = c.w.now
	}
	if c.w.server.LastClock(t.shard).Epoch != t.epoch {
		return // the number that this node counts is lost
	}
	if l := c.w.byID[ev.Timer.ID]; ev.Timer.Rev == l.firstRev {
		l.addRead = true
	}
}

// changed records a new revision of a record. A record may change before an owner's tail has
// read its add.
func (c *checker) changed(l *life, was, now store.Timer) {
	switch {
	case was.ID.IsZero():
		l.firstRev, l.addRead = now.Rev, false
	case was.Rev == l.firstRev && !l.addRead:
		l.changedUnread++
	}
}

// waits reports whether a record in a state counts as a pending timer.
func waits(s schemas.State) bool { return s == schemas.StatePending || s == schemas.StatePaused }

// counted lists the timers and schedules of a shard. Runs of schedules never wait.
func (w *world) counted(shard int) (out []*life) {
	for _, l := range w.lives {
		if w.p.geo.Shard(l.id) == shard {
			out = append(out, l)
		}
	}
	for _, s := range w.schedules {
		if w.p.geo.Shard(s.id) == shard {
			out = append(out, s.life)
		}
	}
	return out
}

// counted checks, at the end, the number that a shard's owner has written to the clock. Until
// then the owner has read everything.
func (c *checker) counted(shard int) {
	w := c.w
	clock := w.server.LastClock(shard)
	pending, unread := int64(0), int64(0)
	for _, l := range w.counted(shard) {
		unread += int64(l.changedUnread)
		t, err := w.server.Record(l.id)
		if err != nil {
			continue
		}
		if t.Rev > clock.Seen {
			return // the tail has not read everything yet
		}
		if waits(t.Record.State) {
			pending++
		}
	}
	if clock.Owner == "" || clock.PendingUnknown {
		return
	}
	w.stats.Counted++
	switch {
	case clock.Pending > pending, clock.Pending < max(pending-unread, 0):
		c.fail(PropCount, "shard %d: its owner counts %d pending timers, and there are %d; %d adds were changed before the tail read them", shard, clock.Pending, pending, unread)
	case clock.Pending < pending:
		w.stats.CountedLow++
	}
}
