package visibility

import "github.com/belfryio/belfry/internal/store"

// asOf is the as-of time of a shard. Each timer that has not changed since this time is in the index in its current state.
//
// A shard that changes all the time is never read completely. So asOf records where the stream ends, and when. Once the
// stored offset has reached that sequence, the recorded time becomes the as-of time, and asOf records the next end. A
// stream keeps only the newest record of a key, so a timer that has changed after that time may be absent or outdated.
//
// A record leaves the stream some time after its timer is done. If the shard was not read for that long, its timers may have
// ended unseen. The as-of time then stays until the open entries of the shard have been compared with its records.
type asOf struct {
	ms int64 // Unix milliseconds; 0 before it is known
	// sinceMs is ms, or the time at which the first read of the shard began.
	sinceMs int64
	// end is the sequence at which the stream ended at endMs; 0 for none.
	end   uint64
	endMs int64
	// gap is true if timers may have ended unseen.
	gap bool
}

// look updates the as-of time. offset is the shard's stored offset, newest the present end of its stream. more is true if the
// stream has a record after the offset. keptMs is the time for which records are certainly in the stream. If compare is true,
// the caller compares the open entries with the records, and then calls compared.
func (a *asOf) look(offset uint64, newest store.Newest, more bool, keptMs int64) (compare bool) {
	if more && (a.end == 0 || offset < a.end) {
		if a.end == 0 {
			a.record(newest)
		}
		return false
	}
	seen := a.gap
	a.gap = a.gap || newest.AtMs-a.sinceMs > keptMs
	switch {
	case !more:
		if a.record(newest); a.gap {
			return true
		}
		a.advance()
	case a.gap && seen:
		return true
	case a.gap:
		a.record(newest) // the shard is compared once this end is reached
	default:
		a.advance()
		a.record(newest)
	}
	return false
}

// compared takes note that the open entries have been compared with the records, after the recorded end was reached.
func (a *asOf) compared() {
	a.gap = false
	a.advance()
}

// record records the present end of the stream.
func (a *asOf) record(newest store.Newest) { a.end, a.endMs = newest.LastSeq, newest.AtMs }

// advance makes the time of the recorded end the as-of time.
func (a *asOf) advance() {
	a.ms = max(a.ms, a.endMs)
	a.sinceMs, a.end = a.ms, 0
}
