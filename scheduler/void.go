package scheduler

import (
	"maps"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// voidRecords are the void records that were deleted and that the tail has yet to bring, by timer, with their revisions. The tail
// brings a deleted record if it had read it before, and has not delivered it.
type voidRecords map[schemas.TimerID]uint64

// deleted takes note of a record whose revision the tail has not delivered. It forgets the records before tailSeen.
func (v voidRecords) deleted(id schemas.TimerID, rev, tailSeen uint64) {
	maps.DeleteFunc(v, func(_ schemas.TimerID, rev uint64) bool { return rev <= tailSeen })
	if rev > tailSeen {
		v[id] = rev
	}
}

// has reports whether a record of the tail was deleted.
func (v voidRecords) has(t *store.Timer) bool {
	return len(v) > 0 && t.Rev <= v[t.ID]
}

// onVoid drops a deleted record. The tail may have brought it before. A claim that comes after the delete is refused, and a reread
// finds nothing.
func (k *Core) onVoid(ev EvVoid) {
	k.pending.void(ev.ID, ev.Rev)
	k.voids.deleted(ev.ID, ev.Rev, k.tailSeen)
	if e := k.entries[ev.ID]; e != nil && e.rev <= ev.Rev && (e.phase == phaseWaiting || e.phase == phaseReady) {
		k.replace(e, ev.Rev)
	}
}
