package scheduler

// This file is for the clock of a development node, which moves only while nothing is in flight.

// noteQuiet notes whether anything is in flight after a turn.
func (t *Term) noteQuiet() {
	at := t.nowMs
	if !t.core.Idle() {
		at = 0
	}
	t.quietMs.Store(at)
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
// milliseconds, or later, after which no write, publish or read of a record was in flight.
func (s *Scheduler) Quiet(atMs int64) bool {
	for _, sh := range s.shards {
		if sh.state.Load() != 1 || sh.quietMs.Load() < atMs {
			return false
		}
	}
	return true
}
