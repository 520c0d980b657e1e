package functions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// delivery is an event that this process handles, from its arrival until it is settled.
type delivery struct {
	f     *Functions
	svc   *service
	msg   *store.Delivery
	claim schemas.Claim
	key   string // idempotency key
	event *event.Event
	spec  schemas.Spec
	// caller is set by allowed; the call uses it, so that it does what the target was asked for.
	caller *caller
	fired  schemas.Fired
	// timer is the record: read from the store (then complete is true and the record has its
	// body), or built from the claim.
	timer    store.Timer
	complete bool
	// undecrypted is true if the callback in the event's header could not be decrypted.
	undecrypted bool
	deadSent    bool
	// unreadable is the reason why this node cannot read the record; the zero value if it can.
	unreadable unreadable
	// release returns the permit. Calls after the first do nothing.
	release func()
	// slot is the slot of the flow key that the call holds; nil for none.
	slot *flowSlot
	// validNs is the time until which the call may begin under the rate of its key, in Unix
	// nanoseconds; 0 for no bound.
	validNs int64
	// probe is the opening (flow.Hold.OpenNs) of the circuit for which the call is a probe; 0 for
	// none.
	probe int64
	// turn is the lease of an event with an ordering key; nil for none.
	turn *turn
	// parked is true while the delivery waits for its slot without a permit.
	parked bool
	// recording is true if the delivery holds a slot of Functions.results.
	recording bool
}

// handle processes an event until it is acknowledged, terminated or handed back. If functions
// stops first, the event is redelivered later. handle calls released when the delivery has
// returned its permit.
func (f *Functions) handle(s *service, m *store.Delivery, released func()) {
	d := &delivery{f: f, svc: s, msg: m}
	var err error
	if d.claim, err = schemas.ParseClaim(m.Get(schemas.HeaderClaim)); err != nil {
		// A scheduler did not publish this event, so it has no record and gets no call.
		d.skip("foreign", func() error { return m.Term("no valid " + schemas.HeaderClaim) })
		return
	}
	d.key = d.claim.RunID().String()
	d.event, d.spec, d.fired, err = schemas.ParseFired(m.Header, m.Data)
	d.spec.Of(s.name)
	if err == nil {
		d.openCallback()
	}
	if err == nil && d.spec.Callback == "" && !d.undecrypted {
		d.skip("no_callback", m.Ack)
		return
	}
	if !f.live.enter(d.key, m) {
		again := f.o.AckWait / 2
		if d.spec.Key != "" {
			again = turnPause // woken while this process still acknowledged the event before
		}
		d.skip("in_flight", func() error { return m.Nak(again) })
		return
	}
	defer f.live.leave(d.key)
	if f.semaphore.acquire(f.pulling, s.quota) != nil {
		d.handBack()
		return
	}
	d.release = sync.OnceFunc(func() {
		f.semaphore.release(s.quota)
		released()
	})
	defer d.close()
	if !d.prepare() {
		return
	}
	if err != nil {
		d.record(callback.Permanent(callback.ReasonUndecodable, err.Error()))
		return
	}
	if d.inTurn() && d.allowed() {
		d.call()
	}
}

// openCallback decrypts the callback in the event's header. If the key has been replaced since,
// prepare takes the callback from the record.
func (d *delivery) openCallback() {
	sealed := d.msg.Get(schemas.HeaderCallback)
	if sealed == "" {
		return
	}
	callback, err := d.f.o.Store.OpenCallback(d.claim.Timer, sealed)
	if err != nil {
		d.undecrypted = true
		return
	}
	d.spec.Callback = callback
}

// prepare sets d.timer. It returns false, and settles the event, if there is no attempt to
// make.
func (d *delivery) prepare() bool {
	if !d.undecrypted && !d.msg.BeforeConsumer && !MustRead(d.claim, d.msg.Header, d.msg.Deliveries, d.msg.Stored) {
		d.timer = store.Timer{ID: d.claim.Timer, Rev: d.claim.Revision, Record: d.claim.Record(&d.spec, d.fired)}
		return true
	}
	return d.readAgain()
}

// admitRead sets d.timer to the record that was read, nil if it is gone. It returns false, and
// settles the event, if there is no attempt to make.
func (d *delivery) admitRead(t *store.Timer) bool {
	a := Admit(d.claim, t, d.f.o.Now())
	switch {
	case a.Run:
		d.timer, d.complete = *t, true
		if d.undecrypted {
			d.spec.Callback = t.Record.Callback
		}
		return true
	case a.Wait > 0:
		d.skip("not_due", func() error { return d.msg.Nak(a.Wait) })
	default:
		d.skip("concluded", d.msg.Ack)
	}
	return false
}

// call makes the attempt and records its result.
func (d *delivery) call() {
	timeout := d.spec.Timeout
	if timeout <= 0 || timeout > maxTimeout {
		timeout = maxTimeout
	}
	c := d.caller
	d.event.SetExtension(schemas.AttrAttempt, int32(d.timer.Record.Attempt+1))
	req := callback.Request{
		Service: d.svc.name, Target: d.spec.Callback, Event: d.event, Trace: d.trace(), Key: d.key,
		Timeout: timeout, NowMs: d.f.o.Now(),
	}
	m := d.f.metrics
	m.inFlight.WithLabelValues(d.svc.label).Inc()
	bound := timeout
	if strings.HasPrefix(d.spec.Callback, schemas.NATSScheme+schemas.WorkSubjectPrefix) {
		bound = schemas.MaxWork // timertimeout bounds the worker's silence
	}
	ctx, cancel := context.WithTimeout(d.f.calling, bound)
	begin := time.Now()
	defer d.turn.cancelWith(cancel)()
	span := d.beginTrace(c, &req)
	out := d.invokeInSlot(ctx, c, req)
	took := time.Since(begin)
	endTrace(span, &out)
	out.AtMs, out.Took = req.NowMs, took
	cancel()
	m.inFlight.WithLabelValues(d.svc.label).Dec()
	if !out.Success && d.f.calling.Err() != nil && ctx.Err() == context.Canceled {
		d.handBack() // functions stops: not a failure of the callee
		return
	}
	if !out.Success && d.slot.lost() {
		d.skip("flow_slot_lost", func() error { return d.msg.Nak(flowFullPause) })
		return
	}
	if !out.Success && d.turn.lost() {
		d.skip("turn_lost", func() error { return d.msg.Nak(flowFullPause) })
		return
	}
	word := "success"
	if !out.Success {
		word = string(out.Reason)
	}
	m.callbacks.WithLabelValues(d.svc.label, word).Inc()
	m.duration.WithLabelValues(d.svc.label).Observe(took.Seconds())
	if out.Unattempted && d.f.complaints.Allow("worker "+d.svc.name, time.Now()) {
		d.f.o.Log.Warn().Str("service", d.svc.name).Str("reason", word).Msg("no worker takes the timers of this service; they wait, and the waiting uses no attempts")
	}
	d.hear(out)
	d.releaseEarly()
	d.record(out)
}

// releaseEarly returns the permit before the result is recorded, because with synced writes
// recording takes longer than most calls. At most cap(Functions.results) deliveries record
// without a permit; beyond that, a slow store slows the callbacks down instead of filling the
// memory with results.
func (d *delivery) releaseEarly() {
	select {
	case d.f.results <- struct{}{}:
		d.recording = true
		d.release()
	default:
	}
}

// close returns the permit, the slot and the turn of the delivery.
func (d *delivery) close() {
	d.release()
	d.unpark()
	if d.recording {
		<-d.f.results
	}
	d.leaveTurn()
}

// invoke calls the callback if the rules of the service allow it. The router applied the
// rules when the timer was added; if the configuration has changed since, the attempt fails
// and may be repeated, so that the operator can correct it.
func (d *delivery) invoke(ctx context.Context, c *caller, req callback.Request) callback.Outcome {
	target, err := c.target(req.Target, d.svc.name)
	if err != nil {
		return callback.Retry(callback.ReasonNotAllowed, "timercallback "+schemas.RedactURL(req.Target)+" is not called: "+err.Error())
	}
	req.Target = target
	return invoke(ctx, d.f.invoker(c, req.Target), req)
}

// invoke turns a panic into a failed attempt, so that an event which triggers a defect
// uses up its attempts like any other.
func invoke(ctx context.Context, i callback.Invoker, r callback.Request) (out callback.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = callback.Retry(callback.ReasonInternal, fmt.Sprintf("defect in belfry: %v", p))
		}
	}()
	return i.Invoke(ctx, r)
}

// traceHeaders are passed on to the callee, from the event's headers or attributes.
var traceHeaders = [...]string{"traceparent", "tracestate", "baggage"}

func (d *delivery) trace() map[string]string {
	var out map[string]string
	for _, name := range traceHeaders {
		v := d.msg.Get(name)
		if v == "" {
			v, _ = d.event.Extensions()[name].(string)
		}
		if v != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = v
		}
	}
	return out
}

// read reads the record and retries until the store answers. It refuses a revision that is older than the claim or than
// the newest revision that d has read. An older record makes the event look obsolete; acknowledging it then would leave
// the timer without a result. t is nil if the record is gone. ok is false if functions stops first, or the record is
// unreadable.
func (d *delivery) read() (t *store.Timer, ok bool) {
	rev := max(d.claim.Revision, d.timer.Rev)
	behind := time.Duration(0)
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		got, err := d.f.o.Store.GetAsOf(d.f.recording, d.claim.Timer, rev)
		switch {
		case !errors.Is(err, store.ErrBehind):
			behind = 0
		case behind < d.f.o.claimLost:
			behind += wait
		default:
			got, err = d.f.o.Store.Get(d.f.recording, d.claim.Timer)
		}
		switch {
		case err == nil:
			return &got, true
		case errors.Is(err, schemas.ErrNotFound):
			return nil, true
		case errors.Is(err, schemas.ErrNewer):
			// Only a node that reads the format can record a result.
			d.unreadable = unreadable{"newer", newerPause}
			return nil, false
		case errors.Is(err, schemas.ErrDamaged):
			// The shard's owner reports it. Until it is repaired, no result can be recorded.
			d.unreadable = unreadable{"damaged", damagedPause}
			return nil, false
		}
		if !d.retryStore("read", err, wait) {
			return nil, false
		}
	}
}

// claimLost is how long delivery.read waits for a server that has the claim, while each of its reads is answered. After
// it, read assumes that the stream has lost the claim. A server that no longer leads a stream learns this within 10 s
// after it continues (nats-server, server/raft.go, lostQuorumIntervalDefault).
const claimLost = 30 * time.Second

// unreadable is why a record cannot be read, and the delay of its event's redelivery.
type unreadable struct {
	why   string
	after time.Duration
}

const (
	// newerPause is the delay if the record has a newer format than this node reads. Another
	// node may receive the event then.
	newerPause = time.Second
	// damagedPause is the delay if the record is damaged. Until an operator has repaired it,
	// each redelivery costs one read.
	damagedPause = 30 * time.Second
)

// retryStore logs a failed store call and waits. It returns false if functions stops.
func (d *delivery) retryStore(call string, err error, wait time.Duration) bool {
	if d.f.recording.Err() != nil {
		return false
	}
	if d.f.complaints.Allow(call+" "+d.svc.name, time.Now()) {
		d.f.o.Log.Warn().Err(err).Str("service", d.svc.name).Str("timer", d.claim.Timer.String()).Str("call", call).
			Msg("a store call for a callback failed; retrying")
	}
	return pause.For(d.f.recording, wait)
}

// skip settles an event without a call.
func (d *delivery) skip(why string, settle func() error) {
	d.f.metrics.skipped.WithLabelValues(d.svc.label, why).Inc()
	d.settle(settle)
}

// handBack requests a redelivery, to another process or, after a restart, to this one.
func (d *delivery) handBack() {
	why, after := "stopping", time.Duration(0)
	if d.unreadable.why != "" {
		why, after = d.unreadable.why, d.unreadable.after
	}
	d.skip(why, func() error { return d.msg.Nak(after) })
}

// settle acknowledges, naks or terminates the event. If the acknowledgement is lost, the event
// is redelivered, and the record then shows that nothing is left to do.
func (d *delivery) settle(how func() error) {
	if err := how(); err != nil {
		d.f.o.Log.Debug().Err(err).Str("service", d.svc.name).Msg("an acknowledgement was not sent; the event will be redelivered")
	}
}
