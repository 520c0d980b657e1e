package scheduler

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// A shard's clock carries the number of its waiting timers from owner to owner. If an
// owner did not release the shard, the number is unknown, because that owner may have
// claimed timers after its last write of the clock. The new owner then counts them, and
// reports no number until it has finished.
//
//	begin ─▶ ActCount: every record up to the tail's position is read in the background
//	   │         meanwhile, records from the tail and claims are remembered by id
//	   └────▶ EvCounted, and the tail has come as far as the reading: pending is set
//
// A count reads the shard once. It takes 8 bytes for each waiting timer and about 50 for
// each record that changes meanwhile.
const (
	// countAfter is the delay of the count after a take-over, so that firing goes first.
	countAfter = 2 * time.Second
	// countAgain is the pause after a count that failed, or during which too many records
	// changed.
	countAgain = 30 * time.Second
	// maxCountChanges bounds the records that change during a count.
	maxCountChanges = 1_000_000
)

// recount is a running count.
type recount struct {
	from    uint64 // records up to here are read; later revisions come by the tail
	changed map[schemas.TimerID]countChange
	// tooMuch is true if too many records changed, so the count must start again.
	tooMuch bool
	// result is the finished count. It waits until the tail has reached its Through.
	result *EvCounted
}

// countChange is the newest known revision of a record.
type countChange struct {
	rev     uint64
	pending bool
}

// countKey identifies a waiting timer in a count.
func countKey(id schemas.TimerID) uint64 { return binary.BigEndian.Uint64(id[:8]) }

// beginCount starts a count if the number of waiting timers is unknown.
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

// noteChange records that a record has changed during a count.
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

// endCount applies the result of a count once the tail has brought all changes that the
// reading may have missed.
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
