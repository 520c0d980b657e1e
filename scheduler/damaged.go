package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// damagedClaims are claims of this term without a known result: the answer was lost, and the reread
// found a damaged record. After a repair the tail brings the claim, and its event may not have been
// published.
type damagedClaims map[schemas.TimerID]damagedClaim

type damagedClaim struct {
	rev     uint64 // the revision that the claim was to replace: a repaired record has a later one
	counted bool   // the number of pending timers includes the timer
}

// add notes that the reread of e has found a damaged record. It ignores schedules, also those of which no
// revision is known because their record is read after a run has ended (onConcluded).
func (d damagedClaims) add(e *entry) {
	if e.rec.Schedule == nil && (e.rev != 0 || e.rec.Origin != nil) {
		d[e.id] = damagedClaim{e.rev, e.wasPending}
	}
}

// counted notes that a count has ended. If it has read a record before the claim, its number includes the
// timer. If the record was damaged by then, it does not.
func (d damagedClaims) counted(ended *recount) {
	for id, c := range d {
		c.counted = ended.includes(id)
		d[id] = c
	}
}

// repairedClaim reports whether a readable record is a claim of this term that was damaged. It corrects
// the number of pending timers, and forgets the damage. added is true for the record of a new timer, which
// counts by itself.
func (k *Core) repairedClaim(t *store.Timer, added bool) bool {
	c, ok := k.damaged[t.ID]
	if !ok || t.Rev <= c.rev {
		return false
	}
	delete(k.damaged, t.ID)
	r := &t.Record
	// If the timer still waits, or an operation has cancelled it, the number must include it: the next
	// claim, or onTail for a cancel, removes it.
	waited := r.State.Waits() && !added || r.State == schemas.StateCancelled && r.FiredMs == 0
	switch {
	case c.counted && !waited:
		k.pending.left(t.ID, t.Rev)
	case !c.counted && waited:
		k.pending.n++
	}
	return r.State == schemas.StateDelivered && r.Epoch == k.epoch
}
