package sim

import (
	"errors"
	"time"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file gives each service a limit, if Config.Flow is set, and repeats what a delivery of
// package functions does before its call (flowdelivery.go). Package flow has a simulation of its
// own; here its decisions make events wait in their consumers and in the wheel.

const (
	// flowPauses bounds the time between two pauses of a service, and flowPaused their duration.
	flowPauses, flowPaused = 20 * time.Second, 6 * time.Second
	// flowSlack is how much longer than by the limit a window of calls may be counted in a
	// cluster without faults: the nodes' estimates of the time differ, and calls may begin late.
	flowSlack = 200 * time.Millisecond
	// flowQuiet is how much longer all may take with limits: the deferral of a paused key takes
	// one or two minutes.
	flowQuiet = 4 * time.Minute
	// maxAhead is a constant of package functions.
	maxAhead = time.Second
)

// flowLimit is the limit of all services while none is paused.
var flowLimit = flow.Limit{Rate: flow.Rate{Count: 6, Per: time.Second}, Burst: 4}

// flowKey is the state of a service's limit in the world.
type flowKey struct {
	limit      flow.Limit
	generation uint64
	calls      []int64 // true times of the calls
}

// scheduleFlow gives every service a limit, and pauses it at times.
func (w *world) scheduleFlow() {
	w.flows = map[string]*flowKey{}
	for _, svc := range services {
		k := &flowKey{limit: flowLimit, generation: 1}
		w.flows[svc] = k
		for at := w.between(0, flowPauses); at < w.p.active; at += w.between(flowPaused, flowPauses) {
			until := at + w.between(time.Second, flowPaused)
			w.after(at, func() { w.changeFlow(svc, flow.Limit{Paused: true}) })
			w.after(until, func() { w.changeFlow(svc, flowLimit) })
			at = until
		}
	}
}

func (w *world) changeFlow(svc string, l flow.Limit) {
	k := w.flows[svc]
	k.limit = l
	k.generation++
	w.trace("limit of %s: %+v, generation %d", svc, l, k.generation)
}

// permitted waits until the limit permits the call. It returns false, and settles the message,
// if the event waits elsewhere.
func (d *delivery) permitted() bool {
	w := d.n.w
	k := w.flows[d.l.service]
	if k == nil {
		return true
	}
	var a flow.Arrival
	if r := d.t.Record.Deferral; r != nil {
		a = flow.Arrival{SlotNs: r.SlotMs * int64(time.Millisecond), Generation: r.Generation, Deferrals: r.Count}
	}
	nowNs := func() int64 { return d.n.nowMs() * int64(time.Millisecond) }
	for {
		v, generation := d.decide(k, a)
		ahead := time.Duration(v.AtNs - nowNs())
		if ahead > maxAhead {
			if v.Kind != flow.Defer {
				generation = a.Generation
			}
			d.postpone(generation, v.AtNs)
			return false
		}
		d.p.sleep(max(ahead, 0))
		if v.Kind == flow.Go && nowNs() <= v.UntilNs {
			if k.limit.Paused && k.generation == generation {
				w.check.fail(PropPermitted, "%s is called while its key is paused", d.l)
			}
			k.calls = append(k.calls, w.now)
			return true
		}
		if v.Kind == flow.Defer {
			a.SlotNs, a.Generation = v.AtNs, generation
		}
	}
}

// decide decides about one arrival by one compare-and-set.
func (d *delivery) decide(k *flowKey, a flow.Arrival) (flow.Verdict, uint64) {
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		s, err := d.n.client.FlowState(within(callTimeout), d.l.service)
		if err == nil {
			limit, generation := k.limit, k.generation
			v := flow.Decide(limit, generation, d.n.name, &s.State, d.n.nowMs()*int64(time.Millisecond), 0, []flow.Arrival{a})
			if _, err = d.n.client.PutFlowState(within(callTimeout), s, 0); err == nil {
				return v[0], generation
			}
		}
		if !errors.Is(err, store.ErrRevision) {
			d.p.sleep(wait)
		}
	}
}

// postpone makes the event wait for its slot.
func (d *delivery) postpone(generation uint64, slotNs int64) {
	slotMs := (slotNs + int64(time.Millisecond) - 1) / int64(time.Millisecond)
	for wait := minPause; ; {
		if !d.complete && !d.readAgain() {
			return
		}
		plan := policy.Defer(d.t.Record, d.l.service, generation, slotMs, d.n.nowMs(), d.n.w.oneIn(10))
		_, err := d.n.client.Update(within(callTimeout), store.Write{ID: d.t.ID, Rev: d.t.Rev, Record: &plan.Record})
		switch {
		case err == nil:
			d.n.w.stats.Deferred++
			d.end(plan.RedeliverAfter())
			return
		case errors.Is(err, store.ErrRevision):
			d.complete = false
		case store.Permanent(err):
			d.end(shortDelay)
			return
		default:
			d.p.sleep(wait)
			wait = min(wait*2, maxPause)
		}
	}
}

// readAgain reads the record. It returns false, and settles the message, if there is no attempt
// to make.
func (d *delivery) readAgain() bool {
	d.validAt = d.n.w.now
	t := d.read()
	a := functions.Admit(d.claim, t, d.n.nowMs())
	if d.unreadable > 0 {
		a = functions.Admission{Wait: d.unreadable}
	}
	if !a.Run {
		d.end(a.Wait)
		return false
	}
	d.t, d.complete = *t, true
	return true
}

// deferred checks a change of a record that waits, or waited, for its slot.
func (c *checker) deferred(l *life, was, now *schemas.Record) {
	if now.Deferred() && (was.Deferrals() != now.Deferrals() || !was.Deferred()) && (now.Attempt != was.Attempt || now.MaxAttempt != was.MaxAttempt || len(now.Attempts) != len(was.Attempts)) {
		c.fail(PropDeferral, "%s: %d of %d attempts became %d of %d with a deferral", l, was.Attempt, was.MaxAttempt, now.Attempt, now.MaxAttempt)
	}
	if was.Deferrals() > now.Deferrals() && !now.State.Final() && !was.State.Final() {
		c.fail(PropDeferral, "%s: %d deferrals became %d", l, was.Deferrals(), now.Deferrals())
	}
}

// permits checks a call in a cluster with limits.
func (c *checker) permits(d *delivery) {
	k := c.w.flows[d.l.service]
	if k == nil {
		return
	}
	if r := &d.t.Record; r.State == schemas.StateDelivered && r.Deferrals() != d.claim.Deferred {
		c.fail(PropDeferral, "%s is called for an event with %d deferrals; its record has %d", d.l, d.claim.Deferred, r.Deferrals())
	}
	// A read that was requested after the cancel sees the cancel. A delivery that was sent after the
	// cancel is not the first one of its event, because the timer waits only after another delivery
	// has deferred it or made an attempt. So its record must be read.
	//
	// The time at which the process handles the delivery is no bound. The first delivery may reach a
	// paused process. After the ack wait another node gets the event and defers it, or its attempt fails,
	// and a client cancels the timer. The paused process then continues and makes the call by the
	// claim. The same happens if a process is paused between a read and the call, which package
	// functions cannot prevent.
	if d.l.endedAt != 0 && d.validAt > d.l.endedAt {
		c.fail(PropDeferral, "%s is called; it was cancelled at %s, and its event was sent or its record read after that, at %s", d.l, c.w.rel(d.l.endedAt), c.w.rel(d.validAt))
	}
	if c.w.p.faults {
		return // the clocks may jump
	}
	for i := len(k.calls) - 1; i >= 0; i-- {
		window := time.Duration(c.w.now - k.calls[i])
		if n, most := float64(len(k.calls)-i), 6*(window+flowSlack).Seconds()+float64(flowLimit.Burst); n > most {
			c.fail(PropPermitted, "%s: %.0f calls of %s within %s", d.l, n, d.l.service, window)
			return
		}
		if window > 10*time.Second {
			return
		}
	}
}
