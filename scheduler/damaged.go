package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// damagedClaims are claims of this term whose result is not known: the answer was lost, and the
// record was damaged before the reread. If an operator repairs a record, the tail brings the claim,
// and its event may not have been published. The value is true while the number of pending timers
// includes the timer.
type damagedClaims map[schemas.TimerID]bool

// add notes that the reread of e has found a damaged record.
func (d damagedClaims) add(e *entry) {
	if e.rec.Schedule == nil {
		d[e.id] = e.wasPending
	}
}

// counted notes that a count has ended: it does not include records that are damaged.
func (d damagedClaims) counted() {
	for id := range d {
		d[id] = false
	}
}

// repairedClaim reports whether a record that the tail has brought is a claim of this term that
// was damaged. It forgets the damage, because the record is readable.
func (k *Core) repairedClaim(t *store.Timer) bool {
	wasPending, ok := k.damaged[t.ID]
	if !ok {
		return false
	}
	delete(k.damaged, t.ID)
	r := &t.Record
	claimed := r.State == schemas.StateDelivered && r.Epoch == k.epoch
	if wasPending && (claimed || r.State == schemas.StateFail || r.State == schemas.StateSuccess) {
		k.pending.left(t.ID, t.Rev)
	}
	return claimed
}
