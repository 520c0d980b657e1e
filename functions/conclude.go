package functions

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// conclude writes down what the attempt came to, then ends the message. It
// returns without either only when functions stops first.
func (d *delivery) conclude(out callback.Outcome) {
	attempt := d.timer.Record.Attempt + 1
	if !out.Success && !d.complete && !d.rebase(attempt, out) {
		return // the retry needs the body, and the record has moved on
	}
	for wait := minPause; ; {
		p := d.f.policy.next(d.timer.Record, out, d.spec, d.f.o.Now(), random())
		if p.step == stepDead && !d.deadSent && !d.publishDead(p, out) {
			return
		}
		err := d.write(p)
		switch {
		case err == nil:
			d.finish(p, out)
			return
		case errors.Is(err, store.ErrRevision):
			if !d.rebase(attempt, out) {
				return
			}
		case store.Permanent(err) && p.step != stepDead && p.step != stepSuccess:
			// The record of a retry keeps the event, which the server takes no longer:
			// max_payload was lowered. No retry can be stored, so this was the last.
			out = callback.Permanent(callback.ReasonTooLarge, "cannot be retried: "+err.Error()+", after: "+out.Err)
		default:
			if !d.retryStore("update", err, wait) {
				return
			}
			wait = min(wait*2, maxPause)
		}
	}
}

// rebase reads the record and continues upon it, or ends the message if there
// is nothing left to write.
func (d *delivery) rebase(attempt uint32, out callback.Outcome) bool {
	t, ok := d.read()
	if !ok {
		if d.newer {
			d.giveBack()
		}
		return false
	}
	nowMs := d.f.o.Now()
	t, a := rebase(d.claim, attempt, out.Success, t, nowMs)
	switch {
	case t != nil:
		d.timer, d.complete = *t, true
		return true
	case a.wait > 0:
		d.skip("concluded", func() error { return d.msg.NakWithDelay(a.wait) })
	default:
		d.skip("concluded", d.msg.Ack)
	}
	return false
}

func (d *delivery) write(p plan) error {
	w := store.Write{ID: d.timer.ID, Rev: d.timer.Rev, Record: &p.record}
	if p.record.State.Final() {
		w.TTL = d.f.o.Retention
	}
	_, err := d.f.o.Store.Update(d.f.writing, w)
	return err
}

// finish ends the message as the plan says.
func (d *delivery) finish(p plan, out callback.Outcome) {
	m := d.f.metrics
	switch p.step {
	case stepSuccess:
		d.end(d.msg.Ack)
	case stepShort:
		m.retries.WithLabelValues(d.svc.label, "short").Inc()
		d.end(func() error { return d.msg.NakWithDelay(p.delay) })
	case stepLong:
		m.retries.WithLabelValues(d.svc.label, "long").Inc()
		// Confirmed, so that this message is gone before the wheel's comes.
		d.end(func() error {
			ctx, cancel := context.WithTimeout(d.f.writing, maxPause)
			defer cancel()
			return d.msg.DoubleAck(ctx)
		})
	case stepDead:
		m.dead.WithLabelValues(d.svc.label, string(out.Reason)).Inc()
		d.f.o.Log.Warn().Str("service", d.svc.name).Str("timer", d.claim.Timer.String()).Str("callback", schemas.RedactURL(d.spec.Callback)).
			Uint32("attempts", p.record.Attempt).Str("reason", string(out.Reason)).Str("error", out.Err).Msg("callback failed for good; the event is a dead letter")
		d.end(func() error { return d.msg.TermWithReason("dead letter: " + string(out.Reason)) })
	}
}

// publishDead publishes the dead letter, trying until it is acknowledged; false
// when functions stops first.
func (d *delivery) publishDead(p plan, out callback.Outcome) bool {
	m := d.deadLetter(p, out)
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		_, err := d.f.o.Store.PublishLetter(d.f.writing, m)
		if err == nil {
			d.deadSent = true
			return true
		}
		if !d.retryStore("dead letter", err, wait) {
			return false
		}
	}
}

// deadLetter is the event with timererrorcode, timererrordata and the attempts.
func (d *delivery) deadLetter(p plan, out callback.Outcome) store.Msg {
	msg := store.Msg{
		Subject: schemas.SubjectDead(d.svc.name),
		MsgID:   d.claim.Timer.RetryMsgID(d.claim.Run, p.record.Attempt) + ".dead",
	}
	body := d.timer.Record.Body
	if body.Mode == schemas.ModeNone { // not read: only a success is concluded so
		msg.Header, msg.Data = d.plainDeadLetter(p, out)
		return msg
	}
	r := &p.record
	sealed := d.f.o.Store.SealCallback(d.claim.Timer, r.Callback)
	msg.Header, msg.Data = body.DeadMessage(schemas.Fired{ScheduledMs: r.ScheduledMs, FiredMs: r.FiredMs, Run: r.Run, Attempt: r.Attempt, NoCallback: sealed != ""},
		string(out.Reason), callback.Clip(out.Err, schemas.MaxOutcomeError))
	if sealed != "" {
		msg.Header[schemas.HeaderCallback] = []string{sealed}
	}
	d.annotate(msg.Header, p, out)
	return msg
}

// plainDeadLetter is the message as it came, with the reason in headers alone.
func (d *delivery) plainDeadLetter(p plan, out callback.Outcome) (nats.Header, []byte) {
	hdr := nats.Header{}
	for name, values := range d.msg.Headers() {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			hdr[name] = values
		}
	}
	d.annotate(hdr, p, out)
	return hdr, d.msg.Data()
}

// annotate adds the headers that tools read without decoding the event.
func (d *delivery) annotate(hdr nats.Header, p plan, out callback.Outcome) {
	c := d.claim
	c.Attempt, c.MaxAttempt = p.record.Attempt, p.record.MaxAttempt
	hdr[schemas.HeaderClaim] = []string{c.String()}
	hdr[schemas.HeaderErrorCode] = []string{string(out.Reason)}
	hdr[schemas.HeaderError] = []string{callback.Clip(out.Err, schemas.MaxOutcomeError)}
}
