package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const (
	// maxAsking bounds the adds of a node that ask their limit at a time. Further ones are refused
	// as unavailable.
	maxAsking = 4096
	// maxHold bounds the time for which an add of the stream waits for its limit. maxHeld bounds the
	// number of such adds on a node; further adds are rejected. The waiting adds of all nodes count for
	// store.RouterMaxAckPending, and must not stop the adds of other services.
	maxHold = 10 * time.Second
	maxHeld = 1000
	// maxLimitStates bounds the states of limits that a node remembers.
	maxLimitStates = 10_000
	// limitTries bounds the conflicts with other nodes of one decision.
	limitTries = 50
)

// limiter applies the limits of adds a second (schemas.AddsFlowPrefix). Adds of a service with a
// limit leave their group and ask it on a goroutine of their service, so a slow store of the
// limits holds up no adds without a limit. One compare-and-set of the limit's state (flow.Take)
// admits many adds; all nodes share that state, so the limit is exact over the cluster.
//
// A caller's add that is not admitted is refused as schemas.CodeLimited. An add of the stream was
// acknowledged, so it waits up to maxHold: it reserves a time, and is delivered again then. If
// it cannot, it is rejected and kept on timers.rejected.
//
// A node uses its last copy of the limits even while it cannot renew the copy, so adds without a limit
// do not depend on the store of the limits. Adds with a limit do, because they need the limit's state.
//
// Limits of pending timers are in pending.go.
type limiter struct {
	e *engine
	// write stores admitted adds; sink settles the others.
	write func([]*Add)
	sink  outcomes
	tasks sync.WaitGroup

	mu sync.Mutex
	// queues are the adds that ask, by service. A queue exists while its goroutine runs.
	queues map[string][]*Add
	asking int
	states map[string]store.FlowKeyState
	// held are the ends of the waits of the stream's adds, in Unix nanoseconds.
	held []int64

	// ledger has the numbers of pending timers. follow renews them until end is called. counts is true
	// once the ledger has the numbers that the owners of the shards have published.
	ledger    *quota.Ledger
	counts    atomic.Bool
	following sync.WaitGroup
	end       context.CancelFunc
}

func newLimiter(s *Service) *limiter {
	return &limiter{
		e: s.engine, write: s.write, sink: outcomes{s}, queues: map[string][]*Add{}, states: map[string]store.FlowKeyState{},
		ledger: quota.NewLedger(s.o.Store.Geometry().Shards), end: func() {},
	}
}

// start starts to follow the numbers of pending timers.
func (l *limiter) start() {
	var ctx context.Context
	ctx, l.end = context.WithCancel(l.e.run)
	l.following.Go(func() { l.follow(ctx) })
}

// unlimited returns the adds without a limit. The other adds ask their limits, and are settled later.
func (l *limiter) unlimited(adds []*Add) []*Add {
	set, _ := l.e.o.Store.FlowsNow()
	if set == nil {
		var err error
		if set, err = l.first(); err != nil {
			l.delay(adds, err)
			return nil
		}
	}
	if !set.LimitsAdds() {
		return adds
	}
	free := adds[:0]
	for _, a := range adds {
		if a.Old || len(set.AddLimits(a.Spec.Service)) == 0 { // an old add stores nothing
			free = append(free, a)
			continue
		}
		l.ask(a)
	}
	return free
}

// first reads the limits on a node that has none yet.
func (l *limiter) first() (*store.FlowSet, error) {
	ctx, cancel := context.WithTimeout(l.e.run, OperationTimeout)
	defer cancel()
	return l.e.o.Store.RefreshFlows(ctx)
}

// ask queues an add. The caller is a group that is being processed; see close.
func (l *limiter) ask(a *Add) {
	svc := a.Spec.Service
	l.mu.Lock()
	if l.asking >= maxAsking {
		l.mu.Unlock()
		l.sink.Delay(a, schemas.Errorf(schemas.CodeUnavailable, "%d adds wait for the limits of their services, which is the limit; nothing was done: try again", maxAsking))
		return
	}
	l.asking++
	queue, runs := l.queues[svc]
	l.queues[svc] = append(queue, a)
	l.mu.Unlock()
	if !runs {
		l.tasks.Go(func() { l.serve(svc) })
	}
}

// close waits until all adds are settled. No group may be processed any more.
func (l *limiter) close() {
	l.tasks.Wait()
	l.end()
	l.following.Wait()
}

// serve decides about the adds of a service until none asks.
func (l *limiter) serve(svc string) {
	for {
		l.mu.Lock()
		queue := l.queues[svc]
		if len(queue) == 0 {
			delete(l.queues, svc)
			l.mu.Unlock()
			return
		}
		batch := slices.Clone(queue[:min(len(queue), MaxBatch)])
		l.queues[svc] = queue[len(batch):]
		l.asking -= len(batch)
		l.mu.Unlock()
		l.decide(svc, batch)
	}
}

// decide admits, delays or refuses the adds of a service.
func (l *limiter) decide(svc string, batch []*Add) {
	set, _ := l.e.o.Store.FlowsNow()
	batch = slices.DeleteFunc(batch, func(a *Add) bool { return a.settled.Load() }) // OperationTimeout has passed
	inTurn(batch)
	limits := set.AddLimits(svc)
	if i := slices.IndexFunc(limits, func(limit store.AddLimit) bool { return errors.Is(limit.Err, schemas.ErrNewer) }); i >= 0 {
		l.complain(limits[i].Key, limits[i].Err)
		l.delay(batch, schemas.Errorf(schemas.CodeUnavailable, "the limit of %s cannot be read by this node; nothing was stored: try again at a node of a newer version (%w)", limits[i].Key, limits[i].Err))
		return
	}
	// Check the pending timers before the rates, so that an add over that limit does not use up a rate.
	batch = l.reserve(svc, limits, batch)
	reserved := slices.Clone(batch)
	// Check the service first, so that an add that its limit refuses does not use up the tenant's.
	for _, limit := range limits {
		if len(batch) > 0 {
			batch = l.pass(set, limit, batch)
		}
	}
	if len(batch) == 0 {
		l.settle(svc, reserved)
		return
	}
	l.e.batcher.permits <- struct{}{}
	l.tasks.Go(func() {
		defer func() { <-l.e.batcher.permits }()
		defer l.settle(svc, reserved)
		l.write(batch)
	})
}

// inTurn sorts adds as pass admits them: adds that were delivered before, which have reserved a time, the
// other adds of the stream, which may reserve a time, adds of callers.
func inTurn(adds []*Add) {
	turn := func(a *Add) int {
		switch {
		case a.Returned:
			return 0
		case a.Seq != 0:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(adds, func(a, b *Add) int { return turn(a) - turn(b) })
}

// pass returns the adds of a batch that the rate of a limit admits, and settles the others. The batch
// must be in the order of inTurn.
func (l *limiter) pass(set *store.FlowSet, limit store.AddLimit, batch []*Add) []*Add {
	if limit.Err != nil {
		// The value is damaged; decide has delayed the adds under one of a newer version. No node can read a damaged
		// limit until an operator stores it again, and the adds do not wait for that: it limits nothing.
		l.complain(limit.Key, limit.Err)
		return batch
	}
	if limit.Limit.Rate.Count == 0 {
		return batch
	}
	ctx, cancel := context.WithTimeout(l.e.run, OperationTimeout)
	defer cancel()
	taken, nowNs, err := l.take(ctx, set, limit, batch)
	if err != nil {
		l.complain(limit.Key, err)
		l.delay(batch, schemas.Errorf(schemas.CodeUnavailable, "the limit of %s cannot be read; nothing was stored: try again (%w)", limit.Key, err))
		return nil
	}
	n := 0
	for n < len(batch) && batch[n].Returned {
		n++
	}
	admitted := append(slices.Clone(batch[:taken.Returned]), batch[n:n+taken.New]...)
	refused := append(slices.Clone(batch[taken.Returned:n]), batch[n+taken.New:]...)
	var rejects []refusal
	for i, a := range refused {
		wait := max(time.Duration(taken.NextNs+int64(i)*taken.StepNs-nowNs), time.Millisecond)
		reason := limited(limit, wait)
		if i < taken.Reserved {
			l.sink.Delay(a, reason)
			continue
		}
		rejects = append(rejects, refusal{a, reason})
	}
	each(rejects, func(f refusal) { l.sink.Reject(f.a, f.reason) })
	return admitted
}

// delay delays adds. An add of the stream is delivered again.
func (l *limiter) delay(adds []*Add, err error) {
	for _, a := range adds {
		l.sink.Delay(a, err)
	}
}

// limited is the refusal of an add.
func limited(l store.AddLimit, wait time.Duration) *schemas.Error {
	// Rounded up to milliseconds, as callers get it.
	wait = min((wait + time.Millisecond - 1).Truncate(time.Millisecond), schemas.MaxRetryAfterMs*time.Millisecond)
	err := schemas.Errorf(schemas.CodeLimited, "the adds of %s are limited to %s with a burst of %d: try again in %s", l.Key[len(schemas.AddsFlowPrefix):], l.Limit.Rate, l.Limit.Burst, wait)
	err.RetryAfter = wait
	return err
}

// errOldLimit is the error if another node decided by a later limit than this node has read.
var errOldLimit = errors.New("the limit was changed, and this node has not read the change yet")

// take decides about a batch, in the order of inTurn, by one compare-and-set of the limit's state, again
// after a conflict. nowNs is the time of the decision.
func (l *limiter) take(ctx context.Context, set *store.FlowSet, limit store.AddLimit, batch []*Add) (t flow.Taken, nowNs int64, err error) {
	a := flow.Asked{Within: maxHold}
	for _, add := range batch {
		switch {
		case add.Returned:
			a.Returned++
		case add.Seq != 0:
			a.Waiting++
			fallthrough
		default:
			a.New++
		}
	}
	for try := 0; ; try++ {
		st, known := l.state(limit.Key)
		if !known {
			if st, err = l.read(ctx, limit); err != nil {
				return t, 0, err
			}
		}
		nowNs = l.e.o.Time.LatestNs()
		a.Reserve = l.room(nowNs)
		next := st
		if next.State.Generation > limit.Rev && set.Seq >= next.State.Generation {
			next.State.Generation = 0 // the later limit was deleted, so this one applies again
		}
		if next.State.Generation > limit.Rev {
			return t, nowNs, errOldLimit
		}
		t = flow.Take(limit.Limit, limit.Rev, &next.State, nowNs, a)
		if t.Unchanged {
			return t, nowNs, nil
		}
		next.Rev, err = l.e.o.Store.PutFlowState(ctx, next, time.Duration(next.State.UsedUntilNs()-nowNs))
		if err == nil {
			l.remember(next)
			l.hold(nowNs, t)
			return t, nowNs, nil
		}
		l.forget(limit.Key)
		if !errors.Is(err, store.ErrRevision) || try >= limitTries {
			return t, nowNs, err
		}
		// Another node decided at the same time. A random pause lets one of them win.
		pause.Random(ctx, flow.ConflictPause)
	}
}

// read reads the state of a limit. It replaces a damaged state by one with no burst left.
func (l *limiter) read(ctx context.Context, limit store.AddLimit) (store.FlowKeyState, error) {
	st, err := l.e.o.Store.FlowState(ctx, limit.Key)
	if errors.Is(err, schemas.ErrDamaged) {
		l.complain(limit.Key, err)
		st.State, err = flow.Worst(limit.Limit, l.e.o.Time.LatestNs(), 0), nil
	}
	st.Key = limit.Key
	return st, err
}

func (l *limiter) state(key string) (store.FlowKeyState, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, ok := l.states[key]
	return st, ok
}

func (l *limiter) remember(st store.FlowKeyState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.states) >= maxLimitStates {
		clear(l.states)
	}
	l.states[st.Key] = st
}

func (l *limiter) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.states, key)
}

// room returns how many adds of the stream may still wait.
func (l *limiter) room(nowNs int64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = slices.DeleteFunc(l.held, func(untilNs int64) bool { return untilNs <= nowNs || untilNs > nowNs+2*int64(maxHold) })
	return max(0, maxHeld-len(l.held))
}

// hold counts the adds that wait until the times that they have reserved.
func (l *limiter) hold(nowNs int64, t flow.Taken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range t.Reserved {
		l.held = append(l.held, t.NextNs+int64(i)*t.StepNs)
	}
}

// complain logs the reason why a limit cannot be applied.
func (l *limiter) complain(key string, err error) {
	if l.e.run.Err() != nil {
		return
	}
	if suppressed, ok := l.e.limits.Allow(time.Now()); ok {
		l.e.o.Log.Warn().Err(err).Str("flow", key).Int("others_since_last_line", suppressed).Msg("a limit of adds cannot be applied")
	}
}
