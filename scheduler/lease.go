package scheduler

import (
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// leaseMargin is the fraction of a lease on which the owner does not rely, as a divisor. It
// covers the time between the owner's last check of its lease and the write that follows.
const leaseMargin = 10

// Lease is an owner's lease on one shard during one term: the clock as last written, the
// time until which the lease is trusted, and the time of the next renewal. It is pure: times
// are the node's monotonic clock, counted from any start. It is not safe for concurrent use.
//
// A lease is trusted from the start of its last acknowledged write for its duration less a
// margin. Other nodes count the duration from when they saw that write, which is later.
type Lease struct {
	duration, heartbeat time.Duration
	clock               store.Clock
	rev                 uint64
	until, next         time.Duration // end of trust, and time of the next write
	writing             bool
}

// Verdict is the meaning of a clock write's result.
type Verdict uint8

// Verdicts.
const (
	Kept   Verdict = iota // the lease is renewed
	Again                 // the write failed, or its result is unknown: write again soon
	Unsure                // the revision has changed: read the clock and call Reread
	Lost                  // another node owns the shard
)

// NewLease returns the lease that begins with the acknowledged write that took the shard:
// c at revision rev, attempted at start. duration is the length of the lease and heartbeat
// its renewal interval.
func NewLease(duration, heartbeat, start time.Duration, c store.Clock, rev uint64) *Lease {
	t := &Lease{duration: duration, heartbeat: heartbeat}
	t.accept(start, c, rev)
	return t
}

func (t *Lease) accept(start time.Duration, c store.Clock, rev uint64) {
	t.clock, t.rev = c, rev
	t.until = start + t.duration - t.duration/leaseMargin
	t.next = start + t.heartbeat
}

// Trusted reports whether this node certainly owns the shard at now.
func (t *Lease) Trusted(now time.Duration) bool { return now < t.until }

// Clock returns the clock as last written, and its revision.
func (t *Lease) Clock() (store.Clock, uint64) { return t.clock, t.rev }

// NextWrite returns the time of the next renewal; false while a write is in flight.
func (t *Lease) NextWrite() (time.Duration, bool) { return t.next, !t.writing }

// Writing marks a write of the clock as in flight. Pass its result to Wrote.
func (t *Lease) Writing() { t.writing = true }

// Wrote processes the result of writing c, attempted at start.
func (t *Lease) Wrote(now, start time.Duration, c store.Clock, rev uint64, err error) Verdict {
	t.writing = false
	switch {
	case err == nil:
		t.accept(start, c, rev)
		return Kept
	case errors.Is(err, store.ErrRevision):
		// Another node's write, or an earlier write of this node whose answer was lost.
		t.writing = true
		return Unsure
	}
	t.retry(now)
	return Again
}

// Reread processes the leader's reading of the clock after Unsure. rev is the revision
// that was read, also if err reports a damaged value; 0 if there is none.
func (t *Lease) Reread(now time.Duration, c store.Clock, rev uint64, err error) Verdict {
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
	case rev != 0 && rev < t.rev && t.Trusted(now):
		// A server that has led the stream before answered with the clock of an earlier owner. If the revisions
		// of the bucket have gone back, the shard is lost when the lease is no longer trusted.
		t.retry(now)
		return Again
	}
	return Lost
}

// retry plans the next write soon: when the store answers again, owners must write before
// other nodes take their shards.
func (t *Lease) retry(now time.Duration) { t.next = now + min(t.heartbeat/4, 250*time.Millisecond) }
