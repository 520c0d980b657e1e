package functions

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Rester puts feeds to rest (removes the consumer of a feed without work), and finds events
// that are published at the same time. Package store (feed.go) describes the protocol. Rester
// implements the side of the nodes that serve feeds, and store.Waker the side of the
// publishers. Rester has no state and starts no goroutines. Any number of nodes may run one,
// because each change is a compare-and-set on the feed's key.
type Rester struct{ Store RestStore }

// RestStore has the calls that a Rester makes to the store.
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
	// Done is true if the feed was put to rest. The caller must then call Check with Floor.
	Done bool
	// Floor is a sequence: all events of the feed up to it are acknowledged.
	Floor uint64
	// InUse is true if a node handles an event of the feed, or did less than idle ago.
	InUse bool
	// Absent is true if the feed has no consumer yet.
	Absent bool
}

// Rest puts a feed to rest if no node has had an event of it for idle. It does nothing if
// the feed rests already. Errors: store.ErrRevision if another process was faster,
// schemas.ErrUnavailable.
func (r Rester) Rest(ctx context.Context, f store.Feed, idle time.Duration) (Rested, error) {
	st, err := r.Store.ServiceState(ctx, f)
	if err != nil || !st.Awake {
		return Rested{}, err // Functions.watch receives the change
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

// Check wakes a feed that was put to rest with a floor if it has an event after the floor.
// Otherwise it removes the consumer if drop is true. A check must follow at once, and another
// one after ServiceGrace: from then on no publisher assumes that the feed is awake. Check
// returns true if the feed rests. The caller must repeat it after an error.
//
// The feed may be awake again. A node that pulls from the removed consumer then reads the
// key and creates the consumer again, after the same floor.
func (r Rester) Check(ctx context.Context, f store.Feed, floor uint64, drop bool) (resting bool, err error) {
	left, err := r.Store.ServiceBacklog(ctx, f, floor)
	switch {
	case err != nil:
		return false, err
	case left:
		return false, r.wakeAfter(ctx, f, floor)
	case !drop:
		return true, nil
	}
	return true, r.Store.DropService(ctx, f)
}

// wakeAfter wakes a feed that has an event after the floor of a check, unless the feed has
// been awake since: the node that put it to rest again makes its own checks.
func (r Rester) wakeAfter(ctx context.Context, f store.Feed, floor uint64) error {
	st, err := r.Store.ServiceState(ctx, f)
	if err != nil || st.Awake || st.Floor > floor {
		return err
	}
	return r.Store.WakeService(ctx, f)
}
