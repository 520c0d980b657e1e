package visibility

import "github.com/belfryio/belfry/internal/store"

// asOf is the as-of time of a shard. Each timer that has not changed since this time is in the index in its current state.
//
// A shard that changes all the time is never read completely. So asOf records where the stream ends, and when. Once the
// stored offset has reached that sequence, the recorded time becomes the as-of time, and asOf records the next end. A
// stream keeps only the newest record of a key, so a timer that has changed after that time may be absent or outdated.
type asOf struct {
	ms int64 // Unix milliseconds; 0 before it is known
	// end is the sequence at which the stream ended at endMs; 0 for none.
	end   uint64
	endMs int64
}

// look updates the as-of time. offset is the shard's stored offset, newest the present end of its stream. more is true if the
// stream has a record after the offset.
func (a *asOf) look(offset uint64, newest store.Newest, more bool) {
	switch {
	case !more:
		a.ms, a.end = max(a.ms, newest.AtMs), 0
		return
	case a.end != 0 && offset < a.end:
		return
	case a.end != 0:
		a.ms = max(a.ms, a.endMs)
	}
	a.end, a.endMs = newest.LastSeq, newest.AtMs
}
