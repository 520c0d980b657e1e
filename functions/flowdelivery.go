package functions

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// permitted waits until the limit of the delivery's flow key permits the call, its service and its
// group are not paused, and no hold stops the key. It returns false, and settles the event, if the
// event waits in its consumer or in the wheel. When it returns true, the delivery holds a permit of its
// service.
func (d *delivery) permitted() bool {
	set, fresh := d.f.o.Store.FlowsNow()
	if fresh && set.Undisturbed() {
		return true
	}
	key := d.flowKey()
	if fresh {
		if wait := d.stopped(set, key); wait != nil {
			wait()
			return false
		}
		if l, limited := set.Find(key); !limited || l.Err == nil && !l.Limit.Bounds() {
			return d.mayProbe(set, key)
		}
	}
	if !d.passFlow(key) {
		return false
	}
	// The event may have waited. The gate has seen a fresh copy, and this one is not older.
	set, _ = d.f.o.Store.FlowsNow()
	wait := d.stopped(set, key)
	if wait != nil {
		wait()
	}
	if wait != nil || !d.mayProbe(set, key) {
		d.slot.leave()
		d.slot = nil
		return false
	}
	return true
}

// stopped returns nil if the service and the group of the delivery are not paused and no hold stops the
// key. Otherwise it returns the function that makes the event wait: in the wheel, or in its consumer if
// this node cannot read the pause. The gate handles a pause of the key itself.
func (d *delivery) stopped(set *store.FlowSet, key string) (wait func()) {
	if by, l, ok := set.Hold(d.svc.name, d.spec.Group); ok && by != key {
		return func() { d.awaitResume(by, &l) }
	}
	if h, ok := set.HoldOf(key); ok {
		if p, atNs := h.Hold.Ask(d.f.flows.nowNs()); p == flow.Held {
			return func() { d.awaitTarget(set, key, &h.Hold, atNs) }
		}
	}
	return nil
}

// awaitResume makes the event wait for the end of a pause of its service or its group.
func (d *delivery) awaitResume(by string, l *store.FlowLimit) {
	if l.Err != nil {
		d.f.flows.complain(by, l.Err)
		d.skip("flow_unreadable", func() error { return d.msg.Nak(damagedPause) })
		return
	}
	ahead := flow.PauseFor(d.timer.Record.Deferrals())
	d.postpone(by, flowAnswer{Verdict: flow.Verdict{Kind: flow.Defer, AtNs: d.f.flows.nowNs() + int64(ahead)}, generation: heldGeneration}, ahead)
}

// heldGeneration is schemas.Deferral.Generation of an event that waits because its service or its
// group is paused. It has no slot: after the pause it asks for one under its own flow key.
const heldGeneration = 0

// flowKey returns the key whose limits apply to the delivery's callback.
func (d *delivery) flowKey() string {
	target := d.spec.Callback
	if d.spec.Flow == "" {
		rules := &d.svc.caller.Load().rules
		if full, err := rules.Resolve(target, d.svc.name); err == nil {
			target = full
		}
	}
	return schemas.FlowKey(d.spec.Flow, target, d.svc.name)
}

// passFlow asks the gate of a flow key until the call may begin or the event waits elsewhere.
func (d *delivery) passFlow(key string) bool {
	c := d.f.flows
	began := time.Now()
	var a flow.Arrival
	if r := d.timer.Record.Deferral; r != nil {
		a = flow.Arrival{SlotNs: r.SlotMs * int64(time.Millisecond), Generation: r.Generation, Deferrals: r.Count}
	}
	for hold := flowHold; ; {
		// With a permit: an admission is valid for a short time only.
		if !d.comeBack(began) {
			return false
		}
		asked := c.nowNs()
		got, ok := d.awaitVerdict(key, a)
		if !ok {
			return false
		}
		answered := c.nowNs()
		switch {
		case got.free:
			return d.comeBack(began)
		case got.unreadable:
			d.skip("flow_unreadable", func() error { return d.msg.Nak(damagedPause) })
			return false
		}
		ahead := time.Duration(got.AtNs - c.nowNs())
		switch {
		case got.Kind == flow.Go:
			if !d.idle(ahead, hold) || !d.comeBack(began) {
				got.slot.leave()
				return false
			}
			if c.nowNs() <= got.UntilNs && !got.slot.lost() {
				d.validNs = got.UntilNs
				d.slot = got.slot
				d.slot.begin()
				return true
			}
			got.slot.leave()
			hold = maxFlowAhead // the permit, or the answer of the store, came too late
			a.LeadNs = 2 * (answered - asked)
		case ahead > maxFlowAhead:
			if got.Kind != flow.Defer {
				got.generation = a.Generation // an event keeps the place that it has reserved
			}
			d.postpone(key, got, ahead)
			return false
		default:
			if got.Kind == flow.Defer {
				a.SlotNs, a.Generation = got.AtNs, got.generation
			}
			if !d.idle(max(ahead, time.Millisecond), hold) {
				return false
			}
		}
	}
}

// awaitVerdict asks and waits for the answer. If that takes longer than askHold, the delivery
// returns its permit. It returns false, and settles the event, if functions stops or too many
// deliveries wait.
func (d *delivery) awaitVerdict(key string, a flow.Arrival) (flowAnswer, bool) {
	q := d.f.flows.ask(key, d.svc.label, a)
	held := time.NewTimer(askHold)
	defer held.Stop()
	for {
		select {
		case got := <-q.answer:
			return got, true
		case <-held.C:
			if !d.leavePermit() {
				d.f.flows.withdraw(key, q)
				return flowAnswer{}, false
			}
		case <-d.f.pulling.Done():
			d.f.flows.withdraw(key, q)
			d.handBack()
			return flowAnswer{}, false
		}
	}
}

// idle waits for a duration, without a permit if that is longer than hold. It returns false,
// and settles the event, as awaitVerdict.
func (d *delivery) idle(wait, hold time.Duration) bool {
	if wait <= 0 {
		return true
	}
	if wait > hold && !d.leavePermit() {
		return false
	}
	if !pause.For(d.f.pulling, wait) {
		d.handBack()
		return false
	}
	return true
}

// leavePermit returns the permit of the service while the delivery waits. It returns false,
// and settles the event, if too many deliveries wait.
func (d *delivery) leavePermit() bool {
	if d.parked {
		return true
	}
	if !d.f.flows.park(len(d.msg.Data)) {
		d.skip("flow_full", func() error { return d.msg.Nak(flowFullPause) })
		return false
	}
	d.parked = true
	d.f.metrics.flowWaiting.WithLabelValues(d.svc.label).Inc()
	d.release()
	return true
}

// comeBack gets a permit again if the delivery has none. If began is maxClaimAge ago or more, the record may have
// changed, and comeBack reads it. It returns false, and settles the event, if there is no attempt to make.
func (d *delivery) comeBack(began time.Time) bool {
	if d.parked {
		if d.f.semaphore.acquire(d.f.pulling, d.svc.quota) != nil {
			d.handBack()
			return false
		}
		d.unpark()
		d.release = sync.OnceFunc(func() { d.f.semaphore.release(d.svc.quota) })
	}
	return time.Since(began) < maxClaimAge || d.readAgain()
}

// unpark ends the wait without a permit.
func (d *delivery) unpark() {
	if d.parked {
		d.parked = false
		d.f.metrics.flowWaiting.WithLabelValues(d.svc.label).Dec()
		d.f.flows.unpark(len(d.msg.Data))
	}
}

// readAgain reads the record. It returns false, and settles the event, if there is no attempt
// to make.
func (d *delivery) readAgain() bool {
	t, ok := d.read()
	if !ok {
		d.handBack()
		return false
	}
	return d.admitRead(t)
}

// invokeInSlot makes the call. It cancels the call if its slot is lost, and returns the slot at
// the end.
func (d *delivery) invokeInSlot(ctx context.Context, c *caller, req callback.Request) callback.Outcome {
	if d.slot == nil {
		return d.invoke(ctx, c, req)
	}
	defer d.slot.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.slot.slots.ctx, cancel)()
	return d.invoke(ctx, c, req)
}

// flowShare is the part of MaxAckPending that events of a service may take in their consumer
// while they wait for their slots. Beyond it they wait in the wheel, so that the events of
// other keys still come.
const flowShare = 4

// postpone makes the event wait for its slot, which is the duration ahead away: in its consumer if that
// is short, otherwise in the wheel. It writes the record first, as for a retry, and counts no attempt.
func (d *delivery) postpone(key string, got flowAnswer, ahead time.Duration) {
	slotMs := (got.AtNs + int64(time.Millisecond) - 1) / int64(time.Millisecond)
	crowded := ahead <= d.f.o.ShortDelay && !d.svc.waiting.add(time.Now(), ahead, d.f.o.MaxAckPending/flowShare)
	p, ok := d.putBack("defer", "flow_too_large", ahead, func() Plan {
		return d.f.policy.Defer(d.timer.Record, key, got.generation, slotMs, d.f.o.Now(), crowded)
	})
	if !ok {
		return
	}
	d.f.metrics.flowDeferred.WithLabelValues(d.svc.label).Inc()
	if p.Step == StepLongRetry {
		d.settle(d.ackConfirmed)
	} else {
		d.settle(func() error { return d.msg.Nak(p.RedeliverAfter()) })
	}
}

// putBack writes the record of an event that must wait, and returns the plan that it wrote. plan makes
// the record from the delivery's record. putBack returns false, and settles the event, in two cases:
// no call is left to wait for, or the record with its event exceeds a lowered max_payload. In the
// second case the event asks again from its consumer after delay, at most ShortDelay, and its call
// then shows the error. operation names the write in the log, tooLarge the second case in metrics.
func (d *delivery) putBack(operation, tooLarge string, delay time.Duration, plan func() Plan) (Plan, bool) {
	for wait := minPause; ; {
		if !d.complete && !d.readAgain() {
			return Plan{}, false
		}
		p := plan()
		err := d.write(p)
		switch {
		case err == nil:
			return p, true
		case errors.Is(err, store.ErrRevision):
			d.complete = false // the record has changed: read it
		case store.Permanent(err):
			d.skip(tooLarge, func() error { return d.msg.Nak(min(delay, d.f.o.ShortDelay)) })
			return Plan{}, false
		default:
			if !d.retryStore(operation, err, wait) {
				return Plan{}, false
			}
			wait = min(wait*2, maxPause)
		}
	}
}

// ackConfirmed acknowledges the event and waits for the confirmation, so that this event is
// gone before the event comes that the scheduler publishes next.
func (d *delivery) ackConfirmed() error {
	ctx, cancel := context.WithTimeout(d.f.recording, maxPause)
	defer cancel()
	return d.msg.AckConfirmed(ctx)
}

// slotsAhead counts the events of a service that wait in their consumers for their slots, by
// the second in which their wait ends.
type slotsAhead struct {
	mu     sync.Mutex
	first  int64 // Unix seconds of counts[0]
	counts []int
	sum    int
}

// add counts an event that waits for a duration, unless limit events wait.
func (s *slotsAhead) add(now time.Time, wait time.Duration, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; len(s.counts) > 0 && s.first < now.Unix(); s.first++ {
		s.sum -= s.counts[0]
		s.counts = s.counts[1:]
	}
	if s.sum >= limit {
		return false
	}
	if len(s.counts) == 0 {
		s.first = now.Unix()
	}
	i := int(now.Add(wait).Unix() - s.first)
	for len(s.counts) <= i {
		s.counts = append(s.counts, 0)
	}
	s.counts[i]++
	s.sum++
	return true
}
