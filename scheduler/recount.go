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
// A count also finds lost records: every timer that waited when the previous owner wrote
// its clock still waits, or its record has changed since. If there are fewer of both
// than the previous owner had counted, ActMissing reports the difference.
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
	// fresh is true for a timer that was added after the previous owner's count.
	fresh bool
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
	k.do(ActCount{Round: k.countRound, Through: k.tailSeen, Delay: delay})
}

// onRecount starts a count over, after messages were lost.
func (k *Core) onRecount() {
	k.countRound++
	k.count, k.pendingKnown, k.expected = nil, false, -1
}

// noteChange records that a record has changed during a count. fresh is true for the
// record that adds a timer.
func (k *Core) noteChange(id schemas.TimerID, rev uint64, pending, fresh bool) {
	c := k.count
	if c == nil || rev <= c.from || c.tooMuch {
		return
	}
	was, known := c.changed[id]
	if known && was.rev >= rev {
		return
	}
	if len(c.changed) == maxCountChanges {
		c.tooMuch, c.changed = true, nil
		return
	}
	c.changed[id] = countChange{rev, pending, fresh || was.fresh}
}

func (k *Core) onCounted(ev EvCounted) {
	if k.count == nil || ev.Round != k.countRound {
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
	accounted := n + c.result.Unread
	for id, change := range c.changed {
		if _, counted := slices.BinarySearch(waiting, countKey(id)); counted {
			n--
		} else if !change.fresh {
			accounted++
		}
		if change.pending {
			n++
		}
	}
	if missing := k.expected - accounted; missing > 0 && k.now < k.expectedUntilMs {
		k.do(ActMissing{Missing: missing})
	}
	k.expected, k.counted = -1, true
	// A claim whose revision the tail has brought before its answer is counted.
	for _, e := range k.entries {
		if change, ok := c.changed[e.id]; ok && e.wasPending && change.rev > e.rev && !change.pending {
			e.wasPending = false
		}
	}
	k.pending, k.pendingKnown, k.pendingFrom, k.count, k.countFails = n, true, k.tailSeen, nil, 0
}
