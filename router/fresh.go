package router

import (
	"sync"

	"github.com/belfryio/belfry/internal/store"
)

// fresh tells which adds of the stream, if they were ever stored before, were
// stored so lately that their records are still there. They need no look at
// TIMERS_FIRED.
//
// The stream hands out its adds in their order, and no more than
// RouterMaxAckPending of them before some are acknowledged. So when an add is
// stored, fewer than that many of those before it are not stored yet; and later
// there are not more of them. Once this router has stored RouterMaxAckPending adds
// that nobody had stored before, it knows of every add behind them that it was not
// stored before the first of them was. That rests on nothing that the server or a
// router might forget when it is killed, such as how often an add was delivered,
// and an add that lay in a buffer of a router that was paused is judged by when it
// is looked at.
type fresh struct {
	keepMs int64 // how long a record is kept at least

	mu     sync.Mutex
	slices []slice // oldest first
}

// slice is what was stored within a part of the retention, up to enough of it.
type slice struct {
	startMs int64  // before the first of them was stored
	maxSeq  uint64 // the newest of them
	adds    int
}

const (
	// sliceParts is into how many slices a retention is divided.
	sliceParts = 16
	// enough adds say what was said of all behind them.
	enough = store.RouterMaxAckPending
)

// note takes note of an add that was stored and had not been before. startMs is a
// time before it was written.
func (f *fresh) note(startMs int64, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.slices)
	if n == 0 || startMs >= f.slices[n-1].startMs+max(f.keepMs/sliceParts, 1) {
		if n == sliceParts {
			f.slices = append(f.slices[:0], f.slices[1:]...)
		}
		f.slices = append(f.slices, slice{startMs: startMs})
	}
	last := &f.slices[len(f.slices)-1]
	if last.adds == enough {
		return
	}
	last.startMs, last.maxSeq = min(last.startMs, startMs), max(last.maxSeq, seq)
	last.adds++
}

// after returns the sequence behind which adds are fresh; ok is false if none is
// known. What is older than three quarters of the retention says nothing any more:
// the rest is left for the pause between this look and the write.
func (f *fresh) after(nowMs int64) (seq uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	adds := 0
	for _, s := range f.slices {
		if s.startMs <= nowMs-f.keepMs*3/4 {
			continue
		}
		seq, adds = max(seq, s.maxSeq), adds+s.adds
		if adds >= enough {
			return seq, true
		}
	}
	return 0, false
}
