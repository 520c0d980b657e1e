package scheduler

import (
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// leaseMargin is the part of a lease that an owner does not rely on: it covers
// the time between its last look at the clock and the write that follows.
const leaseMargin = 10 // a tenth

// Tenure is one epoch of owning a shard: its clock as last written, until when
// that may be relied on, and when it is to be written again. It is pure: times
// are the node's monotonic clock, counted from any start. Not safe for
// concurrent use.
//
// Trust runs from the start of the attempt that was acknowledged, less a margin:
// another node counts its lease from when it saw that write, which is later.
type Tenure struct {
	lease, tick time.Duration
	clock       store.Clock
	rev         uint64
	until, next time.Duration
	writing     bool
}

// Verdict is what the result of a clock write means.
type Verdict uint8

// Verdicts.
const (
	Kept   Verdict = iota // the lease is renewed
	Again                 // not known, or not written: it is due again soon
	Unsure                // the clock is to be read, and Reread called
	Lost                  // another owns the shard
)

// NewTenure begins with the acknowledged write that took the shard; start is
// when that was attempted.
func NewTenure(lease, tick, start time.Duration, c store.Clock, rev uint64) *Tenure {
	t := &Tenure{lease: lease, tick: tick}
	t.accept(start, c, rev)
	return t
}

func (t *Tenure) accept(start time.Duration, c store.Clock, rev uint64) {
	t.clock, t.rev = c, rev
	t.until = start + t.lease - t.lease/leaseMargin
	t.next = start + t.tick
}

// Trusted reports whether the shard is certainly still ours.
func (t *Tenure) Trusted(now time.Duration) bool { return now < t.until }

// Clock is the clock as last written, and its revision.
func (t *Tenure) Clock() (store.Clock, uint64) { return t.clock, t.rev }

// NextWrite is when the clock is to be written; false while a write is in flight.
func (t *Tenure) NextWrite() (time.Duration, bool) { return t.next, !t.writing }

// Writing notes that a write of the clock is in flight. Its result goes to Wrote.
func (t *Tenure) Writing() { t.writing = true }

// Wrote takes the result of writing c, attempted at start.
func (t *Tenure) Wrote(now, start time.Duration, c store.Clock, rev uint64, err error) Verdict {
	t.writing = false
	switch {
	case err == nil:
		t.accept(start, c, rev)
		return Kept
	case errors.Is(err, store.ErrRevision):
		// Another's write, or an earlier one of ours whose answer was lost.
		t.writing = true
		return Unsure
	}
	t.retry(now)
	return Again
}

// Reread processes the leader's reading of the clock after Unsure. rev is the revision
// that was read, also if err reports a damaged value; 0 if there is none.
func (t *Tenure) Reread(now time.Duration, c store.Clock, rev uint64, err error) Verdict {
	t.writing = false
	switch {
	case errors.Is(err, schemas.ErrNewer):
		return Lost
	case errors.Is(err, schemas.ErrDamaged), errors.Is(err, schemas.ErrNotFound):
		// A client that is not an owner has overwritten or removed the clock. While the
		// lease is trusted no other node can have taken the shard, so the next write
		// replaces the damage. Afterwards the shard is like any shard without an owner.
		if !t.Trusted(now) {
			return Lost
		}
		t.rev, t.next = rev, now
		return Again
	case err != nil:
		t.retry(now)
		return Again
	case c.Owner == t.clock.Owner && c.Epoch == t.clock.Epoch:
		t.clock, t.rev, t.next = c, rev, now
		return Again
	}
	return Lost
}

// retry comes soon: when a silent store is back, its owners are to be the first.
func (t *Tenure) retry(now time.Duration) { t.next = now + min(t.tick/4, 250*time.Millisecond) }
