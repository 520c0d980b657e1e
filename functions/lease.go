package functions

import (
	"context"
	"time"
)

// leaseMargin is the time before the end of a lease at which a node cancels the calls that need it, if
// it could not renew the lease.
const leaseMargin = 2 * time.Second

// lease is the context of calls that need a lease in the store: slots of a flow key, or the turn
// of an ordering key. It ends leaseMargin before the lease, unless the lease is renewed: also
// while a request to the store hangs.
type lease struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	end    *time.Timer
	life   time.Duration // from a renewal to the end of ctx
}

// newLease begins a lease that lasts for a duration from the present. lost is the cause of the
// cancellation of its calls if it ends without a renewal.
func newLease(ctx context.Context, lasts time.Duration, lost error) *lease {
	l := &lease{life: lasts - leaseMargin}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.end = time.AfterFunc(l.life, func() { l.cancel(lost) })
	return l
}

// renewed extends the lease after a renewal by a request that began at a time.
func (l *lease) renewed(began time.Time) { l.end.Reset(time.Until(began.Add(l.life))) }

// drop ends the calls, with a cause.
func (l *lease) drop(cause error) {
	l.end.Stop()
	l.cancel(cause)
}

// lost reports whether the calls were cancelled.
func (l *lease) lost() bool { return l.ctx.Err() != nil }

// awaitWake waits until wake has an element, for at most a duration, or until functions ends.
func (f *Functions) awaitWake(wake <-chan struct{}, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-wake:
	case <-t.C:
	case <-f.recording.Done():
	}
}
