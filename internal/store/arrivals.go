package store

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/pause"
)

// Bounds of AwaitAdds.
const (
	// awaitComing bounds the wait for adds that this process has not read, from the time at which it had settled all that it
	// has read. A finished add of another router usually leaves the stream within this time, see newestHold.
	awaitComing = 500 * time.Millisecond
	// awaitMissing is awaitComing for adds that this process has not read although it has read later ones. Its router of
	// tenants may read them in a moment, or another node has read them.
	awaitMissing = 20 * time.Millisecond
	// awaitLook and awaitLookMax are the first and the longest pause between two looks at the adds of this process,
	// awaitAsk is the least time between two requests for the stream's state.
	awaitLook    = time.Millisecond
	awaitLookMax = 10 * time.Millisecond
	awaitAsk     = 25 * time.Millisecond
)

// AwaitAdds waits until the adds that TIMERS_ADD had stored before the call are settled: stored as timers, rejected, or
// put off until later. Then, and when the time is up, it returns true: a timer that was not found before the call may be
// there now. The wait takes at most the given time, and less while this process has no unsettled add; see the bounds. Calls
// at the same time share their requests.
//
// AwaitAdds returns false if this process does not read adds, if the server refuses to tell the stream's state, and if ctx
// ends. It is a best effort: another node may have read an add and not stored it, and with replicas a server that led the
// stream before may answer with an older state.
func (a *Adds) AwaitAdds(ctx context.Context, most time.Duration) bool {
	if a.readers.Load() == 0 {
		return false
	}
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	newest := a.arrivals.last()
	info, err := a.stateAfter(within, time.Now())
	if err != nil {
		return within.Err() != nil && ctx.Err() == nil // whether the time is up
	}
	a.arrivals.compare(info.Created, info.State.LastSeq, newest)
	asked := time.Now()
	wait := a.arrivals.join(info.State.LastSeq)
	defer a.arrivals.leave(wait)
	// Since quiet all of these adds that this process has read are settled, and it has read no more of them.
	quiet, delivered := asked, uint64(0)
	for look := awaitLook; ; look = min(2*look, awaitLookMax) {
		at, n := a.arrivals.progress(info.State.FirstSeq, wait)
		now := time.Now()
		if at == addsOpen || n != delivered {
			quiet, delivered = now, n
		}
		switch {
		case at == allSettled, info.State.Msgs == 0, info.State.FirstSeq > wait.through:
			return true
		case at == addsComing && now.Sub(quiet) >= awaitComing:
			a.arrivals.giveUp(wait.through)
			return true
		case at == addsMissing && now.Sub(quiet) >= awaitMissing:
			return true
		case !pause.For(within, look):
			return ctx.Err() == nil // the time is up
		}
		if time.Since(asked) < awaitAsk {
			continue
		}
		asked = time.Now()
		if next, err := a.stateAfter(within, asked.Add(-awaitAsk)); err == nil { // later than the state before
			info = next
		}
	}
}

// arrivals are the adds that the inboxes of this process have delivered. Safe for concurrent use.
type arrivals struct {
	mu sync.Mutex
	// delivered are the sequences of the adds, in rising order; at most maxSpans spans, the last ones.
	delivered []addSpan
	// waits are the calls that wait for adds.
	waits []*arrivalWait
	// groups are the groups that may have unsettled adds, the oldest first. When there are sweepAt of them, the settled
	// ones are removed.
	groups  [][]arrival
	sweepAt int
	// gaveUp is the greatest sequence for which a call has waited in vain.
	gaveUp uint64
	// created is the time at which the stream was made.
	created time.Time
}

// arrivalWait is a call that waits for the adds up to a sequence.
type arrivalWait struct {
	through uint64
	// delivered counts these adds that were delivered for the first time since the call began to wait. arrivals.mu guards it.
	delivered uint64
}

// addSpan are the sequences from first to last.
type addSpan struct{ first, last uint64 }

const (
	maxSpans = 256
	// leastSweep is the least value of sweepAt.
	leastSweep = 64
)

// arrival is an add that was delivered.
type arrival struct {
	seq     uint64
	settled atomic.Bool
}

// addsProgress says how far the adds of the stream up to a sequence are.
type addsProgress uint8

const (
	// addsOpen: an add that was delivered here is not settled.
	addsOpen addsProgress = iota
	// addsComing: all that were delivered here are settled, and the last ones were not delivered here.
	addsComing
	// addsMissing: all that were delivered here are settled, and others were not delivered here. Later ones were, or a call
	// has waited for them in vain.
	addsMissing
	// allSettled: all were delivered here and are settled.
	allSettled
)

// deliver notes a group of adds, before it is handled.
func (r *arrivals) deliver(group []*Add) {
	arrived := make([]arrival, len(group))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, a := range group {
		arrived[i].seq = a.Seq
		a.arrival = &arrived[i]
		r.extend(a.Seq)
		for _, w := range r.waits {
			if a.Seq <= w.through && a.Deliveries <= 1 {
				w.delivered++
			}
		}
	}
	r.groups = append(r.groups, arrived)
	if len(r.groups) >= max(r.sweepAt, leastSweep) {
		r.groups = slices.DeleteFunc(r.groups, isSettled)
		r.sweepAt = 2 * len(r.groups)
	}
}

func isSettled(group []arrival) bool { return !isOpen(group, math.MaxUint64) }

// isOpen reports whether an add of a group up to a sequence is not settled.
func isOpen(group []arrival, through uint64) bool {
	for i := range group {
		if a := &group[i]; a.seq <= through && !a.settled.Load() {
			return true
		}
	}
	return false
}

// extend adds a sequence to delivered. r.mu is held.
func (r *arrivals) extend(seq uint64) {
	d := r.delivered
	i := len(d)
	if i > 0 && seq <= d[i-1].last {
		// Delivered again, or after a later add of the other inbox: i is the first span that does not end before seq.
		i, _ = slices.BinarySearchFunc(d, seq, func(s addSpan, seq uint64) int { return cmp.Compare(s.last, seq) })
		if d[i].first <= seq {
			return
		}
	}
	before, after := i > 0 && d[i-1].last+1 == seq, i < len(d) && d[i].first == seq+1
	switch {
	case before && after:
		d[i-1].last = d[i].last
		d = slices.Delete(d, i, i+1)
	case before:
		d[i-1].last = seq
	case after:
		d[i].first = seq
	default:
		if d = slices.Insert(d, i, addSpan{seq, seq}); len(d) > maxSpans {
			d = slices.Delete(d, 0, 1)
		}
	}
	r.delivered = d
}

// last returns the greatest sequence that was delivered; 0 for none.
func (r *arrivals) last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.delivered); n > 0 {
		return r.delivered[n-1].last
	}
	return 0
}

// compare compares the stream with what is known: when it was made, its last sequence, and the greatest sequence that was
// delivered before this was read. If the stream was made again, or has lost its last messages, other adds get the same sequences, so
// compare forgets which were delivered. An older answer of a server that led the stream before has the same effect.
func (r *arrivals) compare(created time.Time, last, newest uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.created.IsZero() {
		r.created = created // the first call
	}
	if last < newest || !created.Equal(r.created) {
		r.created, r.delivered, r.gaveUp = created, nil, 0
	}
}

// giveUp notes that a call has waited in vain for adds up to a sequence.
func (r *arrivals) giveUp(through uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaveUp = max(r.gaveUp, through)
}

// join begins to count the adds up to a sequence that are delivered, until leave.
func (r *arrivals) join(through uint64) *arrivalWait {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &arrivalWait{through: through}
	r.waits = append(r.waits, w)
	return w
}

// leave ends the counting of join.
func (r *arrivals) leave(w *arrivalWait) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = slices.DeleteFunc(r.waits, func(other *arrivalWait) bool { return other == w })
}

// progress returns how far the adds from first, the stream's first one, to the last one of a wait are, and how many of them
// were delivered during the wait.
func (r *arrivals) progress(first uint64, w *arrivalWait) (at addsProgress, delivered uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	through := w.through
	delivered = w.delivered
	for len(r.groups) > 0 && isSettled(r.groups[0]) {
		r.groups[0] = nil
		r.groups = r.groups[1:]
	}
	for _, group := range r.groups {
		if isOpen(group, through) {
			return addsOpen, delivered
		}
	}
	for _, s := range r.delivered {
		if s.first <= first && s.last >= through {
			return allSettled, delivered
		}
	}
	if n := len(r.delivered); through <= r.gaveUp || n > 0 && r.delivered[n-1].last >= through {
		return addsMissing, delivered
	}
	return addsComing, delivered
}
