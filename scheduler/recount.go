package scheduler

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// The number of timers that wait in a shard is carried from owner to owner in its
// clock. After an owner that did not release the shard it is not known: the clock was
// written before its last claims. Then nothing is said of it until it is counted.
//
//	begin ─▶ ActCount: every record up to the tail's position is read in the background
//	   │         meanwhile, what the tail brings and what is claimed is remembered by id
//	   └────▶ EvCounted, and the tail has come as far as the reading: pending is set
//
// Counting costs one reading of the shard, 8 bytes for each timer that waits and some
// 50 for each record that changes meanwhile.
const (
	// countAfter is how long a new owner has other work to do first.
	countAfter = 2 * time.Second
	// countAgain is the pause after a count that failed, or that too much changed in.
	countAgain = 30 * time.Second
	// maxCountChanges bounds the records that change during a count.
	maxCountChanges = 1_000_000
)

// recount is a count under way.
type recount struct {
	from    uint64 // records up to here are read; later revisions come by the tail
	changed map[schemas.TimerID]countChange
	// tooMuch says that the count is to be begun again.
	tooMuch bool
	// result, once it is there, waits for the tail to come to its Through.
	result *EvCounted
}

// countChange is the newest revision of a record that is known.
type countChange struct {
	rev     uint64
	pending bool
}

// countKey is what a count remembers of a timer that waits.
func countKey(id schemas.TimerID) uint64 { return binary.BigEndian.Uint64(id[:8]) }

// beginCount begins a count if the number of waiting timers is not known.
func (k *Core) beginCount() {
	if k.pendingKnown || k.count != nil {
		return
	}
	k.count = &recount{from: k.tailSeen, changed: map[schemas.TimerID]countChange{}}
	delay := countAfter
	if k.countFails > 0 {
		delay = countAgain
	}
	k.do(ActCount{Through: k.tailSeen, Delay: delay})
}

// noteChange remembers that a record has changed during a count.
func (k *Core) noteChange(id schemas.TimerID, rev uint64, pending bool) {
	c := k.count
	if c == nil || rev <= c.from || c.tooMuch {
		return
	}
	if was, known := c.changed[id]; known && was.rev >= rev {
		return
	}
	if len(c.changed) == maxCountChanges {
		c.tooMuch, c.changed = true, nil
		return
	}
	c.changed[id] = countChange{rev, pending}
}

func (k *Core) onCounted(ev EvCounted) {
	if k.count == nil {
		return
	}
	if ev.Err != nil || k.count.tooMuch {
		k.count = nil
		k.countFails++
		return
	}
	k.count.result = &ev
}

// endCount takes the result of a count once the tail has brought all that the reading
// may have missed.
func (k *Core) endCount() {
	c := k.count
	if c == nil || c.result == nil || k.tailSeen < c.result.Last {
		return
	}
	if c.tooMuch {
		k.count = nil
		k.countFails++
		return
	}
	waiting := c.result.Waiting
	n := int64(len(waiting))
	for id, change := range c.changed {
		if _, counted := slices.BinarySearch(waiting, countKey(id)); counted {
			n--
		}
		if change.pending {
			n++
		}
	}
	// A claim whose revision the tail has brought before its answer is counted.
	for _, e := range k.entries {
		if change, ok := c.changed[e.id]; ok && e.wasPending && change.rev > e.rev && !change.pending {
			e.wasPending = false
		}
	}
	k.pending, k.pendingKnown, k.pendingFrom, k.count, k.countFails = n, true, k.tailSeen, nil, 0
}
