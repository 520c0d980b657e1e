package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// voidRecords are the void records that were deleted and that the tail has yet to bring, by timer, with their revisions. The tail
// brings a deleted record if it had read it before, and has not delivered it.
type voidRecords struct {
	revs map[schemas.TimerID]uint64
	last uint64 // the greatest of revs
}

// deleted takes note of a record whose revision the tail has not delivered.
func (v *voidRecords) deleted(id schemas.TimerID, rev uint64) {
	v.revs[id], v.last = rev, max(v.last, rev)
}

// has reports whether a record of the tail was deleted. It forgets the records when the tail has passed the last of them.
func (v *voidRecords) has(t *store.Timer) bool {
	if len(v.revs) == 0 {
		return false
	}
	deleted := t.Rev <= v.revs[t.ID]
	if t.Rev >= v.last {
		clear(v.revs)
	}
	return deleted
}

// onVoid drops a deleted record. The tail may have brought it before. A claim that comes after the delete is refused, and a reread
// finds nothing.
func (k *Core) onVoid(ev EvVoid) {
	k.pending.void(ev.ID, ev.Rev)
	if ev.Rev > k.tailSeen {
		k.voids.deleted(ev.ID, ev.Rev)
	}
	if e := k.entries[ev.ID]; e != nil && e.rev <= ev.Rev && (e.phase == phaseWaiting || e.phase == phaseReady) {
		k.replace(e, ev.Rev)
	}
}
