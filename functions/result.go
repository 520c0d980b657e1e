package functions

import (
	"errors"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// record writes the result of an attempt to the record, then settles the event. If
// functions stops first, it does neither.
func (d *delivery) record(out callback.Outcome) {
	attempt := d.timer.Record.Attempt + 1
	if !out.Success && !d.complete && !d.resolveConflict(attempt, out) {
		return // the retry needs the body, and the record has changed
	}
	for wait := minPause; ; {
		p := d.f.policy.Next(d.timer.Record, out, d.spec, d.f.o.Now(), random())
		if p.Step == StepDead && !d.deadSent && !d.publishDead(p, out) {
			return
		}
		err := d.write(p)
		switch {
		case err == nil:
			d.finish(p, out)
			return
		case errors.Is(err, store.ErrRevision):
			rev := d.timer.Rev
			if !d.resolveConflict(attempt, out) {
				return
			}
			if d.timer.Rev == rev {
				// The server that refused the write does not have the revision: another one leads the stream.
				if !d.retryStore("update", err, wait) {
					return
				}
				wait = min(wait*2, maxPause)
			}
		case store.Permanent(err) && p.Step != StepDead && p.Step != StepSuccess:
			// The record of a retry has the event, which the server no longer accepts because
			// max_payload was lowered. No retry can be stored, so this attempt was the last one.
			last := callback.Permanent(callback.ReasonTooLarge, "the retry cannot be stored: "+err.Error()+"; the attempt before it failed: "+out.Err)
			last.AtMs, last.Took = out.AtMs, out.Took
			out = last
		default:
			if !d.retryStore("update", err, wait) {
				return
			}
			wait = min(wait*2, maxPause)
		}
	}
}

// resolveConflict reads the record and sets d.timer to it, or settles the event and returns
// false if there is no result left to write.
func (d *delivery) resolveConflict(attempt uint32, out callback.Outcome) bool {
	t, ok := d.read()
	if !ok {
		if d.unreadable.why != "" {
			d.handBack()
		}
		return false
	}
	t, a := ResolveConflict(d.claim, attempt, out.Success, t, d.f.o.Now())
	switch {
	case t != nil:
		d.timer, d.complete = *t, true
		return true
	case a.Wait > 0:
		d.turn.ended(false)
		d.skip("concluded", func() error { return d.msg.Nak(a.Wait) })
	default:
		d.skip("concluded", d.msg.Ack)
	}
	return false
}

func (d *delivery) write(p Plan) error {
	w := store.Write{ID: d.timer.ID, Rev: d.timer.Rev, Record: &p.Record}
	if p.Record.State.Final() {
		w.TTL = d.f.o.Retention + time.Duration(p.Record.ExpectedForMs())*time.Millisecond
	}
	_, err := d.f.o.Store.Update(d.f.recording, w)
	return err
}

// finish settles the event as the plan says.
func (d *delivery) finish(p Plan, out callback.Outcome) {
	m := d.f.metrics
	if d.turn.ended(p.Record.State.Final()); !p.Record.State.Final() {
		d.leaveTurn() // before the event is delivered again
	}
	switch p.Step {
	case StepSuccess:
		d.settle(d.msg.Ack)
	case StepShortRetry:
		m.retries.WithLabelValues(d.svc.label, "short").Inc()
		d.settle(func() error { return d.msg.Nak(p.RedeliverAfter()) })
	case StepLongRetry:
		m.retries.WithLabelValues(d.svc.label, "long").Inc()
		d.settle(d.ackConfirmed)
	case StepDead:
		m.dead.WithLabelValues(d.svc.label, string(out.Reason)).Inc()
		d.f.o.Log.Warn().Str("service", d.svc.name).Str("timer", d.claim.Timer.String()).Str("callback", schemas.RedactURL(d.spec.Callback)).
			Uint32("attempts", p.Record.Attempt).Str("reason", string(out.Reason)).Str("error", out.Err).Msg("callback failed permanently or used all attempts; stored the event as a dead letter")
		d.settle(func() error { return d.msg.Term("dead letter: " + string(out.Reason)) })
	}
}

// publishDead publishes the dead letter and retries until it is acknowledged. It returns
// false if functions stops first.
func (d *delivery) publishDead(p Plan, out callback.Outcome) bool {
	m := d.deadLetter(p, out)
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		_, err := d.f.o.Store.PublishLetter(d.f.recording, m)
		if err == nil {
			d.deadSent = true
			return true
		}
		if !d.retryStore("dead letter", err, wait) {
			return false
		}
	}
}

// deadLetter returns the event with timererrorcode, timererrordata and the attempts.
func (d *delivery) deadLetter(p Plan, out callback.Outcome) store.Msg {
	msg := store.Msg{
		Subject: schemas.SubjectDead(d.svc.name),
		MsgID:   d.claim.RunID().RetryMsgID(p.Record.Attempt) + ".dead",
	}
	body := d.timer.Record.Body
	if body.Mode == schemas.ModeNone { // the record has no event
		msg.Header, msg.Data = d.plainDeadLetter(p, out)
		return msg
	}
	r := &p.Record
	sealed := d.f.o.Store.SealCallback(d.claim.Timer, r.Callback)
	msg.Header, msg.Data = body.DeadMessage(r.Fired(r.Attempt, sealed != ""),
		string(out.Reason), callback.Clip(out.Err, schemas.MaxOutcomeError))
	if sealed != "" {
		msg.Header[schemas.HeaderCallback] = []string{sealed}
	}
	d.annotate(msg.Header, p, out)
	return msg
}

// plainDeadLetter returns the event as it came, with the reason in headers only.
func (d *delivery) plainDeadLetter(p Plan, out callback.Outcome) (map[string][]string, []byte) {
	header := d.msg.UserHeader()
	d.annotate(header, p, out)
	return header, d.msg.Data
}

// annotate adds the headers that tools read without decoding the event.
func (d *delivery) annotate(hdr map[string][]string, p Plan, out callback.Outcome) {
	c := d.claim
	c.Attempt, c.MaxAttempt = p.Record.Attempt, p.Record.MaxAttempt
	hdr[schemas.HeaderClaim] = []string{c.String()}
	if policy := d.spec.RetryHeader(); policy != "" {
		hdr[schemas.HeaderRetry] = []string{policy}
	}
	hdr[schemas.HeaderErrorCode] = []string{string(out.Reason)}
	hdr[schemas.HeaderError] = []string{callback.Clip(out.Err, schemas.MaxOutcomeError)}
}
