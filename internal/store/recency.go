package store

import (
	"sync"
)

// recencyFilter finds the recent adds of TIMERS_ADD: adds that cannot have been stored longer
// than the retention ago. If an earlier delivery has stored a recent add, its record still
// exists. The create then finds the duplicate, and the router need not search TIMERS_FIRED.
//
// The filter relies on the consumer's limit of unacknowledged messages, N =
// RouterMaxAckPending. The stream delivers adds in order, and at most N of them are
// unacknowledged. So when any router stores an add, fewer than N older adds are not stored
// yet. When this router has stored N adds for the first time, take any add after the newest
// of them: it cannot have been stored before the first of the N, because then N older adds
// would not have been stored yet.
//
// This does not depend on what a server or a router forgets when it is killed, such as
// delivery counts. It also holds for adds that waited in the buffer of a paused router,
// because the router uses the filter when it processes an add, not when the add arrives.
type recencyFilter struct {
	keepMs int64 // the retention: how long a record exists at least, in milliseconds

	mu      sync.Mutex
	periods []storedPeriod // oldest first
}

// storedPeriod describes the adds that this router stored for the first time in one part of
// the retention.
type storedPeriod struct {
	startMs int64  // a time before the first write, in Unix milliseconds
	maxSeq  uint64 // the greatest sequence of the adds
	adds    int    // their number, counted up to recencyAdds
}

const (
	// recencyPeriods is the number of periods that a retention is divided into.
	recencyPeriods = 16
	// recencyAdds is N: the number of stored adds that the filter needs.
	recencyAdds = RouterMaxAckPending
)

// stored records an add that this router has stored for the first time. startMs is a time
// before the write, in Unix milliseconds.
func (f *recencyFilter) stored(startMs int64, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.periods)
	if n == 0 || startMs >= f.periods[n-1].startMs+max(f.keepMs/recencyPeriods, 1) {
		if n == recencyPeriods {
			f.periods = append(f.periods[:0], f.periods[1:]...)
		}
		f.periods = append(f.periods, storedPeriod{startMs: startMs})
	}
	last := &f.periods[len(f.periods)-1]
	if last.adds == recencyAdds {
		return
	}
	last.startMs, last.maxSeq = min(last.startMs, startMs), max(last.maxSeq, seq)
	last.adds++
}

// limit returns the sequence after which all adds are recent; ok is false if the filter knows
// of no recent adds. It ignores periods older than three quarters of the retention. The last
// quarter is a reserve for the time between this call and the write.
func (f *recencyFilter) limit(nowMs int64) (seq uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	adds := 0
	for _, p := range f.periods {
		if p.startMs <= nowMs-f.keepMs*3/4 {
			continue
		}
		seq, adds = max(seq, p.maxSeq), adds+p.adds
		if adds >= recencyAdds {
			return seq, true
		}
	}
	return 0, false
}
