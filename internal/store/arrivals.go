package store

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Bounds of AwaitAdds.
const (
	// awaitMost bounds the wait; see Adds.patience.
	awaitMost = 2 * time.Second
	// awaitLook and awaitLookMax are the first and the longest pause between two looks at the adds of this process,
	// awaitAsk is the least time between two requests for the stream's state.
	awaitLook    = time.Millisecond
	awaitLookMax = 10 * time.Millisecond
	awaitAsk     = 25 * time.Millisecond
)

// AwaitAdds waits until the adds that TIMERS_ADD had stored before the call are settled: stored as timers, rejected, or
// put off until later. It waits for at most awaitMost, and returns true: a timer that was not found before the call may be
// there now. Calls at the same time share their requests.
//
// It returns false, and may not have waited, if other routers, or the routers of tenants, have read adds within sharedFor,
// because it does not know what they have settled; if the stream's state is not known; and if ctx ends.
func (a *Adds) AwaitAdds(ctx context.Context) bool {
	begun := time.Now()
	if a.shared(begun) {
		return false
	}
	state, err := a.state.after(ctx, a.jet, begun)
	if err != nil {
		return false
	}
	through, asked := state.LastSeq, time.Now()
	for look := awaitLook; ; look = min(2*look, awaitLookMax) {
		now := time.Now()
		switch {
		case state.Msgs == 0 || state.FirstSeq > through || a.settled(state.FirstSeq, through):
			return true
		case a.shared(now):
			return false
		case now.Sub(begun) >= a.patience:
			return true
		case !pause.For(ctx, look):
			return false
		}
		if time.Since(asked) < awaitAsk {
			continue
		}
		asked = time.Now()
		if state, err = a.state.after(ctx, a.jet, asked); err != nil {
			return false
		}
	}
}

// shared reports whether an inbox of this process has noticed within sharedFor that others read adds.
func (a *Adds) shared(now time.Time) bool {
	a.reading.Lock()
	defer a.reading.Unlock()
	for in := range a.inboxes {
		if in.acker.shared(now) {
			return true
		}
	}
	return false
}

// settled reports whether an inbox of this process has read all adds from first, the stream's first one, to through, and
// all are settled.
func (a *Adds) settled(first, through uint64) bool {
	a.reading.Lock()
	defer a.reading.Unlock()
	for in := range a.inboxes {
		if in.arrivals.settled(first, through) {
			return true
		}
	}
	return false
}

// addsState is the state of TIMERS_ADD, for calls that may share a request.
type addsState struct {
	mu    sync.Mutex
	at    time.Time // when the request was sent
	state jet.StreamState
}

// after returns a state of a time after t. Of the calls that wait for a request, the first one after it sends the next,
// and the others share that.
func (s *addsState) after(ctx context.Context, c *jet.Client, t time.Time) (jet.StreamState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.After(t) {
		return s.state, nil
	}
	at := time.Now()
	info, err := c.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return jet.StreamState{}, err
	}
	s.at, s.state = at, info.State
	return s.state, nil
}

// arrivals are the adds that one Inbox has delivered. Safe for concurrent use.
type arrivals struct {
	mu sync.Mutex
	// from and newest are the first and the last sequence of the newest run of adds that were delivered here without a
	// gap; 0 before the first add.
	from, newest uint64
	// groups are the groups that may have unsettled adds, the oldest first. When there are sweepAt of them, the settled
	// ones are removed.
	groups  [][]arrival
	sweepAt int
}

// leastSweep is the least value of sweepAt.
const leastSweep = 64

// arrival is an add that was delivered.
type arrival struct {
	seq     uint64
	settled atomic.Bool
}

// delivered notes a group of adds, in the order of delivery.
func (r *arrivals) delivered(group []*Add) {
	arrived := make([]arrival, len(group))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, a := range group {
		arrived[i].seq = a.Seq
		a.arrival = &arrived[i]
		if a.Seq <= r.newest || a.Deliveries > 1 {
			continue // delivered again
		}
		if a.Seq != r.newest+1 {
			r.from = a.Seq
		}
		r.newest = a.Seq
	}
	r.groups = append(r.groups, arrived)
	for allSettled(r.groups[0]) && len(r.groups) > 1 {
		r.groups[0] = nil
		r.groups = r.groups[1:]
	}
	if len(r.groups) >= max(r.sweepAt, leastSweep) {
		r.groups = slices.DeleteFunc(r.groups, allSettled)
		r.sweepAt = 2 * len(r.groups)
	}
}

func allSettled(group []arrival) bool {
	for i := range group {
		if !group[i].settled.Load() {
			return false
		}
	}
	return true
}

// settled reports whether all adds from first, the stream's first one, to through were delivered here and are settled.
func (r *arrivals) settled(first, through uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest == 0 || r.from > first || r.newest < through {
		return false
	}
	for _, group := range r.groups {
		for i := range group {
			if a := &group[i]; a.seq <= through && !a.settled.Load() {
				return false
			}
		}
	}
	return true
}
