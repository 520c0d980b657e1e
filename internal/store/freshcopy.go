package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// freshCopy is a node's copy of the keys of a bucket, and the time until which decisions may
// follow it. Calendars and Flows have one each.
//
// Every node asks the stream's leader for the last sequence at intervals, and reads what is
// new. A copy is fresh for a period after the moment at which such a request was sent. A change
// is acknowledged a period after it was stored (see acknowledge). By then no older copy is fresh,
// so every decision after the acknowledgement follows the change.
//
//	put ──▶ stored ───── period ─────▶ acknowledged
//	          │   copies read before may be used    │  only copies that were read after "stored"
type freshCopy[S sequenced] struct {
	source copySource[S]
	clock  CopyClock
	// period is how long a copy may be used. The acknowledgement of a change takes as long.
	period time.Duration

	// installing serialises install.
	installing sync.Mutex
	held       atomic.Pointer[confirmed[S]] // nil before the first reading
}

// confirmed is a copy, and when the request that confirmed it was sent.
type confirmed[S any] struct {
	set  S
	asOf time.Time
}

// sequenced is one immutable copy of a bucket's keys.
type sequenced interface {
	// sequence returns the last sequence that the copy includes; 0 for an empty bucket.
	sequence() uint64
	// includes says that the copy has all changes up to a sequence. It is called before the copy
	// is used.
	includes(seq uint64)
}

// copySource reads a bucket. Errors: schemas.ErrUnavailable.
type copySource[S sequenced] interface {
	// empty returns the copy of an empty bucket.
	empty() S
	// last returns the sequence of the last change, as the stream's leader knows it. A server that has led the stream before must
	// not decide: see jet.LeaderInfo.
	last(ctx context.Context) (uint64, error)
	// readAfter returns a copy with the changes after those of from. A replica that is behind
	// may answer.
	readAfter(ctx context.Context, from S) (S, error)
	// has asks the stream's leader whether a change is still there.
	has(ctx context.Context, seq uint64) (bool, error)
	// what names the keys in errors.
	what() string
}

// CopyClock is the time of the process that has a copy.
type CopyClock struct {
	// Now returns a time with a monotonic reading.
	Now func() time.Time
	// Pause waits. It returns false if ctx ends before.
	Pause func(ctx context.Context, d time.Duration) bool
}

// now returns the copy without a request; the zero value before the first reading. fresh
// reports whether decisions may follow the copy. It takes no lock.
func (c *freshCopy[S]) now() (set S, fresh bool) {
	held := c.held.Load()
	if held == nil {
		return set, false
	}
	return held.set, c.clock.Now().Sub(held.asOf) < c.period
}

// refresh brings the copy up to date. It returns a copy that includes every change that was
// stored before the call. Errors: schemas.ErrUnavailable.
func (c *freshCopy[S]) refresh(ctx context.Context) (set S, err error) {
	var none S
	before := c.held.Load()
	asOf := c.clock.Now()
	last, err := c.source.last(ctx)
	if err != nil {
		return none, err
	}
	restored := before != nil && before.set.sequence() > last // or the last change has expired
	if before == nil || restored {
		set = c.source.empty()
	} else {
		set = before.set
	}
	if set.sequence() < last {
		if set, err = c.read(ctx, set, last); err != nil {
			return none, err
		}
	}
	c.install(set, asOf, restored)
	return set, nil
}

// read returns a copy with the changes up to the sequence last, at least.
func (c *freshCopy[S]) read(ctx context.Context, from S, last uint64) (set S, err error) {
	var none S
	if set, err = c.source.readAfter(ctx, from); err != nil {
		return none, err
	}
	if set.sequence() < last {
		// The last change may be missing because it was replaced, or has expired, meanwhile.
		switch there, err := c.source.has(ctx, last); {
		case err != nil:
			return none, err
		case there:
			return none, schemas.Errorf(schemas.CodeUnavailable, "read %s: the server answered up to %d of %d", c.source.what(), set.sequence(), last)
		}
		set.includes(last)
	}
	return set, nil
}

// install makes a copy the node's copy, unless a refresh at the same time has read more.
// restored is true if the bucket has lost changes since the copy before.
func (c *freshCopy[S]) install(set S, asOf time.Time, restored bool) {
	c.installing.Lock()
	defer c.installing.Unlock()
	next := confirmed[S]{set, asOf}
	if held := c.held.Load(); held != nil {
		next = *held
		if restored || set.sequence() > held.set.sequence() {
			next.set = set
		}
		if asOf.After(held.asOf) {
			next.asOf = asOf
		}
	}
	c.held.Store(&next)
}

// keep refreshes the copy at intervals until ctx ends. It logs failed when the copy is no
// longer fresh, and again when it can be read again. patience bounds one refresh.
func (c *freshCopy[S]) keep(ctx context.Context, every, patience time.Duration, log zerolog.Logger, failed, again string) {
	for failing, more := false, true; more; more = c.clock.Pause(ctx, every) {
		bounded, cancel := context.WithTimeout(ctx, patience)
		_, err := c.refresh(bounded)
		cancel()
		_, fresh := c.now()
		if fails := err != nil && !fresh && ctx.Err() == nil; fails != failing {
			if failing = fails; failing {
				log.Warn().Err(err).Msg(failed)
			} else {
				log.Info().Msg(again)
			}
		}
	}
}

// acknowledge waits after a write until the change, which what names, is in force on all nodes.
// Errors: schemas.ErrUnavailable.
func (c *freshCopy[S]) acknowledge(ctx context.Context, what string) error {
	if !c.clock.Pause(ctx, c.period) {
		return schemas.Errorf(schemas.CodeUnavailable, "%s is stored, and in force within %s: %w", what, c.period, context.Cause(ctx))
	}
	_, err := c.refresh(ctx)
	return err
}
