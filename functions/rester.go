package functions

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Rester puts feeds to rest, and finds the events that were published meanwhile. It is
// the servers' part of the protocol that package store describes (feed.go); store.Waker is
// the publishers'. It holds no state and starts no goroutines: any number of nodes may
// run one, and the compare-and-set on a feed's key decides.
type Rester struct{ Store RestStore }

// RestStore is what a Rester needs of the store.
type RestStore interface {
	ServiceState(ctx context.Context, f store.Feed) (store.ServiceState, error)
	ServiceActivity(ctx context.Context, f store.Feed) (store.ServiceActivity, error)
	ServiceBacklog(ctx context.Context, f store.Feed, floor uint64) (bool, error)
	RestService(ctx context.Context, f store.Feed, rev, floor uint64) error
	WakeService(ctx context.Context, f store.Feed) error
	DropService(ctx context.Context, f store.Feed) error
}

// Rested is the outcome of Rest.
type Rested struct {
	// Done says that the feed was put to rest. Check must follow.
	Done bool
	// Floor is a sequence: all events of the feed up to it are concluded.
	Floor uint64
	// InUse says that some node has work for the feed, or had it less than idle ago.
	InUse bool
	// Absent says that the feed has no consumer yet.
	Absent bool
}

// Rest puts a feed to rest if no node has had work for it for idle. A feed that rests
// already is left alone. Errors: store.ErrRevision if another process was faster,
// schemas.ErrUnavailable.
func (r Rester) Rest(ctx context.Context, f store.Feed, idle time.Duration) (Rested, error) {
	st, err := r.Store.ServiceState(ctx, f)
	if err != nil || !st.Awake {
		return Rested{}, err // its change is on its way here
	}
	a, err := r.Store.ServiceActivity(ctx, f)
	if err != nil {
		return Rested{}, err
	}
	if a.Busy || a.Idle < idle {
		return Rested{InUse: true, Absent: a.Absent}, nil
	}
	if err := r.Store.RestService(ctx, f, st.Rev, a.Floor); err != nil {
		return Rested{}, err
	}
	return Rested{Done: true, Floor: a.Floor}, nil
}

// Check wakes a feed that was put to rest with that floor and has an event behind it. If
// it has none, the first check removes its consumer. The last one follows after
// ServiceGrace, when no publisher takes the feed for awake any more. Check returns whether
// the feed rests. It must be repeated after an error.
//
// The feed may be awake again. Then whoever pulls from a consumer that was removed reads
// the key and makes another, behind the same floor.
func (r Rester) Check(ctx context.Context, f store.Feed, floor uint64, last bool) (resting bool, err error) {
	left, err := r.Store.ServiceBacklog(ctx, f, floor)
	switch {
	case err != nil:
		return false, err
	case left:
		return false, r.wakeBehind(ctx, f, floor)
	case last:
		return true, nil
	}
	return true, r.Store.DropService(ctx, f)
}

// wakeBehind wakes a feed that has an event behind the floor of a check, unless it has
// been awake since: whoever put it to rest again checks again.
func (r Rester) wakeBehind(ctx context.Context, f store.Feed, floor uint64) error {
	st, err := r.Store.ServiceState(ctx, f)
	if err != nil || st.Awake || st.Floor > floor {
		return err
	}
	return r.Store.WakeService(ctx, f)
}
