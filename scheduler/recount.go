package scheduler

import (
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// A shard's clock passes the number of pending timers from owner to owner. If an owner did
// not release the shard, the number is unknown, because that owner may have claimed timers
// after its last write of the clock. The new owner then counts the pending timers, and
// reports no number until the count is finished.
//
//	begin ─▶ ActCount: read every record up to the tail's position in the background;
//	   │     in the meantime remember by id which records change (tail and claims)
//	   └───▶ EvCounted, and the tail has reached the position of the reading: set pending
//
// A count also finds lost records. Each timer that was pending when the previous owner wrote
// its clock is still pending, or its record has changed since. If these are fewer than the
// previous owner had counted, ActMissing reports the difference.
//
// A count reads the shard once. It takes 8 bytes for each pending timer and about 50 for
// each record that changes during the count.
const (
	// countAfter delays the count after a take-over, so that due timers fire first.
	countAfter = 2 * time.Second
	// countAgain is the pause after a failed count, or after a count during which too many
	// records changed.
	countAgain = 30 * time.Second
	// maxCountChanges bounds the records that change during a count.
	maxCountChanges = 1_000_000
)

// recount is a running count.
type recount struct {
	from    uint64 // the count reads records up to this sequence; the tail delivers later ones
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
	// read is true if the tail or the count has read a revision of the record. The others
	// are claims of this term that are ahead of the tail.
	read bool
}

// beginCount starts a count if the number of pending timers is unknown and no count runs.
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

// onRecount discards a running count and starts a new count, after a loss of messages.
func (k *Core) onRecount() {
	k.countRound++
	k.count, k.pendingKnown, k.expected = nil, false, -1
}

// noteRead records that the tail has brought a revision of a record during a count. fresh is
// true for the record that adds a timer.
func (k *Core) noteRead(id schemas.TimerID, rev uint64, pending, fresh bool) {
	k.noteChange(id, countChange{rev: rev, pending: pending, fresh: fresh, read: true})
}

// noteWrite records that this term has stored a revision that no longer waits during a count.
func (k *Core) noteWrite(id schemas.TimerID, rev uint64) {
	k.noteChange(id, countChange{rev: rev})
}

func (k *Core) noteChange(id schemas.TimerID, change countChange) {
	c := k.count
	if c == nil || change.rev <= c.from || c.tooMuch {
		return
	}
	was, known := c.changed[id]
	if !known && len(c.changed) == maxCountChanges {
		c.tooMuch, c.changed = true, nil
		return
	}
	change.fresh, change.read = change.fresh || was.fresh, change.read || was.read
	if was.rev > change.rev {
		change.rev, change.pending = was.rev, was.pending
	}
	c.changed[id] = change
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

// newest returns the newest known revision of each record that has changed since the count
// began: the tail has brought it, or the count has read it. The tail passes a revision that
// has been replaced, so a record that has changed twice may be known to the count only.
func (c *recount) newest() map[uint64]countChange {
	all := make(map[uint64]countChange, len(c.changed)+len(c.result.Late))
	for id, change := range c.changed {
		all[store.CountKey(id)] = change
	}
	for key, late := range c.result.Late {
		change := all[key]
		change.read = true
		if change.rev < late.Rev {
			change.rev, change.pending = late.Rev, late.Waiting
		}
		all[key] = change
	}
	return all
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
	newest := c.newest()
	for key, change := range newest {
		switch _, counted := slices.BinarySearch(waiting, key); {
		case counted, !change.read:
			// Neither the tail nor the count has read a timer that is not read: it was added and
			// claimed since. The tail may yet bring its add, which counts it.
			n--
		case !change.fresh:
			accounted++
		}
		if change.pending {
			n++
		}
	}
	if missing := k.expected - accounted; missing > 0 && k.now < k.expectedUntilMs && !c.result.Behind {
		k.do(ActMissing{Missing: missing})
	}
	k.expected, k.counted = -1, true
	// The count includes claims that the tail has delivered before their results.
	for _, e := range k.entries {
		if change, ok := newest[store.CountKey(e.id)]; ok && e.wasPending && change.rev > e.rev && !change.pending {
			e.wasPending = false
		}
	}
	k.pending, k.pendingKnown, k.pendingFrom, k.count, k.countFails = n, true, k.tailSeen, nil, 0
}
