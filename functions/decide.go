package functions

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Decider makes the decisions of this package without its I/O, so that a
// simulation of whole nodes runs what production runs. It is pure.
type Decider struct{ p policy }

// NewDecider decides with a longest delay that waits in the consumer, and how
// many "not now" of a callee are not counted.
func NewDecider(shortDelay time.Duration, maxNotNow int) Decider {
	return Decider{policy{short: shortDelay, maxNotNow: maxNotNow}}
}

// Doubtful reports whether a message's claim may no longer be its record's state,
// so that the record has to be read: by how often it was delivered, and how long
// after the claim it was published. It also reports a message whose header says that
// the record holds more than the claim does.
func (Decider) Doubtful(c schemas.Claim, hdr nats.Header, deliveries uint64, published time.Time) bool {
	return hdr.Get(schemas.HeaderExtended) != "" || deliveries > 1 || published.Sub(time.UnixMilli(c.FiredMs)) > doubtAfter
}

// Admit tells what becomes of a delivery whose record was read, nil if it is gone:
// run says to make the attempt; else a wait of 0 says to acknowledge the message,
// and more to take it up again after that.
func (Decider) Admit(c schemas.Claim, t *store.Timer, nowMs int64) (run bool, wait time.Duration) {
	a := admit(c, t, nowMs)
	return a.run, a.wait
}

// FromClaim is the record of a message that is not doubtful, all but its body.
func (Decider) FromClaim(c schemas.Claim, spec schemas.Spec, fired schemas.Fired) schemas.Record {
	return fromClaim(c, spec, fired)
}

// Rebase tells what follows when the record had changed before an outcome was
// written: the timer to write upon, or nil and what becomes of the message, as in
// Admit.
func (Decider) Rebase(c schemas.Claim, attempt uint32, success bool, t *store.Timer, nowMs int64) (*store.Timer, time.Duration) {
	got, a := rebase(c, attempt, success, t, nowMs)
	return got, a.wait
}

// Plan is the record after an attempt, and what follows.
type Plan struct {
	Record schemas.Record
	// Again is after how long the message is to come again, 0 if it is done with:
	// concluded, or put back into the wheel.
	Again time.Duration
	// Dead says that a dead letter is published before the record is written.
	Dead bool
}

// Next plans what follows an attempt; see policy.next.
func (d Decider) Next(rec schemas.Record, out callback.Outcome, spec schemas.Spec, nowMs int64, random float64) Plan {
	p := d.p.next(rec, out, spec, nowMs, random)
	plan := Plan{Record: p.record, Dead: p.step == stepDead}
	if p.step == stepShort {
		plan.Again = max(p.delay, time.Millisecond)
	}
	return plan
}
