package visibility

import "github.com/belfryio/belfry/internal/store"

// asOf is a time of a shard: the store has each timer that has not changed since, as it is.
//
// In a shard that changes all the time, the follower never has all changes. So each look remembers where the stream
// ended. Once the follower has read up to there, the time of that look is the new one. A stream has only the newest record
// of a key: a timer that has changed after the look may not be in the store yet, or as it was before.
type asOf struct {
	ms int64 // Unix milliseconds; 0 before it is known
	// end is the sequence at which the stream ended at endMs; 0 for none.
	end   uint64
	endMs int64
}

// look takes note of the shard's offset, and of the end of its stream at the moment. more is true if the stream has a record
// after the offset.
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
