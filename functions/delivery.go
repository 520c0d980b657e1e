package functions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// delivery is one message on its way to a conclusion.
type delivery struct {
	f     *Functions
	svc   *service
	msg   jetstream.Msg
	claim schemas.Claim
	key   string
	event *event.Event
	spec  schemas.Spec
	fired schemas.Fired
	// timer is the record where it was read or could be rebuilt; complete says
	// that it was read, and so has its body.
	timer    store.Timer
	complete bool
	// sealed says that the message's callback could not be opened.
	sealed   bool
	deadSent bool
	// newer says that this node does not know the format of the record.
	newer bool
	// leave gives the place back, once, when the call is over.
	leave func()
	// writing says that the outcome is written without holding a place.
	writing bool
}

// handle works on one message until it is concluded, left to its redelivery, or
// handed back because functions stops. born is when the consumer was made; left is
// called when the delivery holds no place any more.
func (f *Functions) handle(s *service, m jetstream.Msg, born time.Time, left func()) {
	if _, err := m.Metadata(); err != nil {
		// Somebody who guesses the inbox has sent it. To settle it would be a publish to a
		// subject of the sender's choice.
		return
	}
	d := &delivery{f: f, svc: s, msg: m}
	var err error
	if d.claim, err = schemas.ParseClaim(m.Headers().Get(schemas.HeaderClaim)); err != nil {
		// Not from a scheduler: there is no record to conclude, and so no right to call.
		d.skip("foreign", func() error { return m.TermWithReason("no valid " + schemas.HeaderClaim) })
		return
	}
	d.key = d.claim.Timer.MsgID(d.claim.Run)
	d.event, d.spec, d.fired, err = schemas.ParseFired(m.Headers(), m.Data())
	if err == nil {
		d.openCallback()
	}
	if err == nil && d.spec.Callback == "" && !d.sealed {
		d.skip("no_callback", m.Ack)
		return
	}
	if !f.live.enter(d.key, m) {
		d.skip("in_flight", func() error { return m.NakWithDelay(f.o.AckWait / 2) })
		return
	}
	defer f.live.leave(d.key)
	if f.places.acquire(f.pulling, s.seat) != nil {
		d.giveBack()
		return
	}
	d.leave = sync.OnceFunc(func() {
		f.places.release(s.seat)
		left()
	})
	defer d.over()
	if !d.prepare(born) {
		return
	}
	if err != nil {
		d.conclude(callback.Permanent(callback.ReasonUndecodable, err.Error()))
		return
	}
	d.call()
}

// openCallback takes the callback from its header. One that cannot be opened, since
// the key has been replaced, is read from the record.
func (d *delivery) openCallback() {
	sealed := d.msg.Headers().Get(schemas.HeaderCallback)
	if sealed == "" {
		return
	}
	callback, err := d.f.o.Store.OpenCallback(d.claim.Timer, sealed)
	if err != nil {
		d.sealed = true
		return
	}
	d.spec.Callback = callback
}

// prepare finds out what attempt this is; false means that there is none to make.
func (d *delivery) prepare(born time.Time) bool {
	if !d.sealed && !d.doubtful(born) {
		d.timer = store.Timer{ID: d.claim.Timer, Rev: d.claim.Revision, Record: fromClaim(d.claim, d.spec, d.fired)}
		return true
	}
	t, ok := d.read()
	if !ok {
		d.giveBack()
		return false
	}
	a := admit(d.claim, t, d.f.o.Now())
	switch {
	case a.run:
		d.timer, d.complete = *t, true
		if d.sealed {
			d.spec.Callback = t.Record.Callback
		}
		return true
	case a.wait > 0:
		d.skip("not_due", func() error { return d.msg.NakWithDelay(a.wait) })
	default:
		d.skip("concluded", d.msg.Ack)
	}
	return false
}

// doubtful reports whether the claim on the message may no longer be the
// record's state: a redelivery, an event older than its consumer (which was
// deleted and made again), or one published again after an outage. It also reports
// a record that holds more than the claim does.
func (d *delivery) doubtful(born time.Time) bool {
	md, err := d.msg.Metadata()
	return err != nil || md.Timestamp.Before(born) || Decider{}.Doubtful(d.claim, d.msg.Headers(), md.NumDelivered, md.Timestamp)
}

// call makes the attempt and concludes it.
func (d *delivery) call() {
	timeout := d.spec.Timeout
	if timeout <= 0 || timeout > maxTimeout {
		timeout = maxTimeout
	}
	c := d.svc.calling.Load()
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
	out := d.invoke(ctx, c, req)
	took := time.Since(begin)
	cancel()
	m.inFlight.WithLabelValues(d.svc.label).Dec()
	if !out.Success && d.f.calling.Err() != nil && ctx.Err() == context.Canceled {
		d.giveBack() // cut short by us: not the callee's failure
		return
	}
	word := "success"
	if !out.Success {
		word = string(out.Reason)
	}
	m.callbacks.WithLabelValues(d.svc.label, word).Inc()
	m.duration.WithLabelValues(d.svc.label).Observe(took.Seconds())
	if out.Unattempted && d.f.complaints.Allow("worker "+d.svc.name, time.Now()) {
		d.f.o.Log.Warn().Str("service", d.svc.name).Str("reason", word).Msg("no worker takes the timers of this service; they wait, and use no attempts")
	}
	d.called()
	d.conclude(out)
}

// called lets another callback begin while the outcome of this one is written:
// where writes are synced that takes longer than most calls. So many may be
// written without a place, and no more: a store that is slow is to slow down
// callbacks, not to fill the memory.
func (d *delivery) called() {
	select {
	case d.f.outcomes <- struct{}{}:
		d.writing = true
		d.leave()
	default:
	}
}

// over ends what called began.
func (d *delivery) over() {
	d.leave()
	if d.writing {
		<-d.f.outcomes
	}
}

// invoke calls what the callback names, if the rules of the service allow it. They
// were applied when the timer was added; where the configuration has changed since,
// the attempt fails and another follows, so that the operator can repair it.
func (d *delivery) invoke(ctx context.Context, c *calling, req callback.Request) callback.Outcome {
	rules := &c.rules
	err := rules.Check(req.Target, d.svc.name)
	if err == nil {
		req.Target, err = rules.Resolve(req.Target, d.svc.name)
	}
	if err != nil {
		return callback.Retry(callback.ReasonNotAllowed, "timercallback "+schemas.RedactURL(req.Target)+" is not called: "+err.Error())
	}
	return invoke(ctx, d.f.invoker(c, req.Target), req)
}

// invoke calls and turns a panic into a failed attempt, so that an event that
// trips over a defect is counted down like any other.
func invoke(ctx context.Context, i callback.Invoker, r callback.Request) (out callback.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = callback.Retry(callback.ReasonInternal, fmt.Sprintf("defect in belfry: %v", p))
		}
	}()
	return i.Invoke(ctx, r)
}

// traceHeaders are passed on to the callee.
var traceHeaders = [...]string{"traceparent", "tracestate", "baggage"}

func (d *delivery) trace() map[string]string {
	var out map[string]string
	for _, name := range traceHeaders {
		v := d.msg.Headers().Get(name)
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

// read gets the record, trying until the store answers; nil is "gone". ok is
// false when functions stopped first, or cannot read the record.
func (d *delivery) read() (t *store.Timer, ok bool) {
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		got, err := d.f.o.Store.Get(d.f.writing, d.claim.Timer)
		switch {
		case err == nil:
			return &got, true
		case errors.Is(err, schemas.ErrNotFound):
			return nil, true
		case errors.Is(err, schemas.ErrNewer):
			// Only a node of that version can conclude it.
			d.newer = true
			return nil, false
		}
		if !d.retryStore("read", err, wait) {
			return nil, false
		}
	}
}

// newerPause is the delay after which a message comes again whose record has a newer
// format than this node reads. Another node may receive it then.
const newerPause = time.Second

// retryStore logs a failed store call and waits; false when functions stops.
func (d *delivery) retryStore(what string, err error, wait time.Duration) bool {
	if d.f.writing.Err() != nil {
		return false
	}
	if d.f.complaints.Allow(what+" "+d.svc.name, time.Now()) {
		d.f.o.Log.Warn().Err(err).Str("service", d.svc.name).Str("timer", d.claim.Timer.String()).Str("call", what).
			Msg("the store did not take the outcome of a callback; it is tried again")
	}
	return pause.For(d.f.writing, wait)
}

// skip ends a delivery without a call.
func (d *delivery) skip(why string, end func() error) {
	d.f.metrics.skipped.WithLabelValues(d.svc.label, why).Inc()
	d.end(end)
}

// giveBack hands the message back for another process, or a later one.
func (d *delivery) giveBack() {
	if d.newer {
		d.skip("newer", func() error { return d.msg.NakWithDelay(newerPause) })
		return
	}
	d.skip("stopping", d.msg.Nak)
}

// end acknowledges in some way. If that is lost the message is redelivered, and
// the record says then what is left to do: nothing.
func (d *delivery) end(how func() error) {
	if err := how(); err != nil {
		d.f.o.Log.Debug().Err(err).Str("service", d.svc.name).Msg("an acknowledgement was not sent; the event will be redelivered")
	}
}
