package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// damagedClaims are claims of this term without a known result: the answer was lost, and the reread
// found a damaged record. After a repair the tail brings the claim, and its event may not have been
// published. The value is true if the number of pending timers includes the timer.
type damagedClaims map[schemas.TimerID]bool

// add notes that the reread of e has found a damaged record.
func (d damagedClaims) add(e *entry) {
	if e.rec.Schedule == nil {
		d[e.id] = e.wasPending
	}
}

// counted notes that a count has ended. The number that it found does not include a record that was
// damaged when the count read it.
func (d damagedClaims) counted() {
	for id := range d {
		d[id] = false
	}
}

// repairedClaim reports whether a record that the tail has brought is a claim of this term that
// was damaged. It removes the timer from the number of pending timers, and forgets the damage.
func (k *Core) repairedClaim(t *store.Timer) bool {
	wasPending, ok := k.damaged[t.ID]
	if !ok {
		return false
	}
	delete(k.damaged, t.ID)
	r := &t.Record
	claimed := r.State == schemas.StateDelivered && r.Epoch == k.epoch
	fired := claimed || r.State == schemas.StateRetrying || r.State == schemas.StateFail || r.State == schemas.StateSuccess
	if wasPending && (fired || r.State == schemas.StateCancelled && r.FiredMs != 0) {
		k.pending.left(t.ID, t.Rev)
	}
	return claimed
}
