package scheduler

import "math"

// This file serves the movable clock of a development node, which moves only while nothing is in
// flight; see package internal/devclock.

// noteQuiet notes whether anything is in flight after a turn, and then how far the tail has come. Quiet
// reads them in the other order, so a new quietRev never comes with the quietMs of an earlier turn.
func (t *Term) noteQuiet() {
	at := t.nowMs
	if !t.core.Idle() {
		at = 0
	}
	t.quietMs.Store(at)
	rev := t.tailRev
	if !t.core.WantsTail() {
		rev = math.MaxUint64 // the tail goes on when entries have fired, for which the clock may have to move
	}
	t.quietRev.Store(rev)
}

// Wake makes the owned shards read the cluster's time at once, for example after it was moved.
func (s *Scheduler) Wake() {
	for _, sh := range s.shards {
		select {
		case sh.wake <- struct{}{}:
		default:
		}
	}
}

// Quiet reports whether this node owns all shards, and each has had a turn at a time, in Unix
// milliseconds, or later, after which no write, publish or read of a record was in flight. The turn
// must have known the record of the shard with revision seen[shard]: otherwise a result may be stored
// that the shard does not know, and its overdue event would be false.
func (s *Scheduler) Quiet(atMs int64, seen []uint64) bool {
	for n, sh := range s.shards {
		if sh.quietRev.Load() < seen[n] || sh.state.Load() != 1 || sh.quietMs.Load() < atMs {
			return false
		}
	}
	return true
}
