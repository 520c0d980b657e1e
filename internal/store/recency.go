package store

import (
	"sync"
)

// recencyFilter tells which adds of TIMERS_ADD cannot have been stored longer ago than a
// record is kept. If an earlier delivery stored such an add, its record still exists, so
// the create itself finds the duplicate and TIMERS_FIRED need not be searched.
//
// It rests on the consumer's limit of unacknowledged messages. The stream delivers adds in
// order, and at most RouterMaxAckPending of them are unacknowledged. So when an add is
// stored, fewer than RouterMaxAckPending older adds are not stored yet, and that number
// only falls. Once this router has stored RouterMaxAckPending adds for the first time,
// every add behind the newest of them was not stored before the first of them was.
//
// The argument uses nothing that a server or router forgets when it is killed, such as
// delivery counts, and it holds for adds that waited in the buffer of a paused router: the
// filter is asked when an add is processed, not when it arrives.
type recencyFilter struct {
	keepMs int64 // the least time that a record is kept

	mu      sync.Mutex
	periods []storedPeriod // oldest first
}

// storedPeriod describes the adds stored in one part of the retention.
type storedPeriod struct {
	startMs int64  // before the first of them was stored
	maxSeq  uint64 // the newest of them
	adds    int    // at most recencyAdds
}

const (
	// recencyPeriods is the number of periods that a retention is divided into.
	recencyPeriods = 16
	// recencyAdds is the number of stored adds from which the filter draws conclusions.
	recencyAdds = RouterMaxAckPending
)

// stored records an add that was stored for the first time. startMs is a time before the
// write.
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

// limit returns the sequence behind which adds are recent; ok is false if none is known.
// It ignores periods older than three quarters of the retention. The last quarter is
// reserve for the time between this call and the write.
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
