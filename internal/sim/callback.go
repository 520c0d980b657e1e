package sim

import (
	"errors"
	"strings"
	"time"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file handles a delivery as package functions does. Its decisions are those of
// functions' policy.go.

// Short delays wait in the consumer, longer ones in the wheel. Production's limit
// is 30 s; here retries are to pass through the wheel often.
const shortDelay = 2 * time.Second

var policy = functions.Policy{ShortDelay: shortDelay, MaxNotNow: 2}

// These are constants of package functions. minPause and maxPause are between two tries of a
// store call, newerPause and damagedPause before the redelivery of an event whose record is
// unreadable. damagedPause is shorter here, so that it passes within a run.
const (
	minPause     = 50 * time.Millisecond
	maxPause     = 2 * time.Second
	newerPause   = time.Second
	damagedPause = 5 * time.Second
)

// callBack works on one message.
func (n *node) callBack(m *msg) {
	claim, err := schemas.ParseClaim(m.Header.Get(schemas.HeaderClaim))
	if err != nil {
		n.w.check.fail("state", "an event without a claim: %v", err)
		return
	}
	l := n.w.byID[claim.Timer]
	if !l.callback {
		m.ack()
		return
	}
	key := claim.RunID().String()
	if n.calls[key] {
		m.nak(m.c.ackWait / 2)
		return
	}
	n.calls[key] = true
	n.w.spawn(n, func(p *proc) {
		d := delivery{p: p, n: n, m: m, l: l, claim: claim, validAt: m.sentAt}
		d.handle()
		delete(n.calls, key)
	})
}

type delivery struct {
	p        *proc
	n        *node
	m        *msg
	l        *life
	claim    schemas.Claim
	t        store.Timer
	complete bool
	deadSent bool
	// validAt is the true time at which the last read of the record was requested. Before the first
	// read it is msg.sentAt: see checker.permits.
	validAt int64
	// unreadable is the pause before the redelivery if the record cannot be read, because it
	// has a newer format or is damaged; otherwise 0.
	unreadable time.Duration
}

func (d *delivery) handle() {
	if functions.MustRead(d.claim, d.m.Header, d.m.deliveries, time.Unix(0, d.m.StampNs)) {
		if !d.readAgain() {
			return
		}
	} else {
		spec := d.l.spec()
		d.t = store.Timer{ID: d.claim.Timer, Rev: d.claim.Revision, Record: d.claim.Record(&spec, d.l.asFired())}
	}
	if !d.permitted() {
		return
	}
	d.n.w.check.permits(d)
	d.n.w.check.called(d.l, d.n, d.t.Record.Attempt+1)
	atMs, took := d.n.nowMs(), d.l.callTakes(d.n.w)
	d.p.sleep(took)
	out := d.l.outcome(d.n.w, d.t.Record.Attempt+1)
	out.AtMs, out.Took = atMs, took
	d.record(out)
}

// acknowledged checks that an event is acknowledged only when the attempt for which it was published has a result, and
// no further attempt waits for the event.
func (c *checker) acknowledged(d *delivery) {
	t, err := c.w.server.Record(d.claim.Timer)
	r := &t.Record
	if err != nil || r.Run != d.claim.Run || r.Hash != d.claim.Hash || r.Deferrals() != d.claim.Deferred {
		return
	}
	// After a later claim, the event of that claim makes the next attempt, so this event may be acknowledged.
	claimedAgain := r.FiredMs != d.claim.FiredMs || r.Epoch != d.claim.Epoch
	if r.State == schemas.StateDelivered && r.Attempt == d.claim.Attempt || r.State == schemas.StateRetrying && !r.Queued && !claimedAgain {
		c.fail(PropCalled, "%s: the event of attempt %d is acknowledged; it is %s after %d attempts", d.l, d.claim.Attempt+1, r.State, r.Attempt)
	}
}

// end acknowledges the message, or requests a redelivery after a delay.
func (d *delivery) end(wait time.Duration) {
	if wait > 0 {
		d.m.nak(wait)
		return
	}
	d.n.w.check.acknowledged(d)
	d.m.ack()
}

// read reads the record and retries until the store answers. It returns nil if the record
// is gone or unreadable.
func (d *delivery) read() *store.Timer {
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		rev := max(d.claim.Revision, d.t.Rev)
		if d.n.w.cfg.Plant == PlantStaleRead {
			rev = 0
		}
		t, err := d.n.client.GetAsOf(within(callTimeout), d.claim.Timer, rev)
		switch {
		case err == nil:
			return &t
		case errors.Is(err, schemas.ErrNotFound):
			return nil
		case errors.Is(err, schemas.ErrNewer):
			d.unreadable = newerPause
			return nil
		case errors.Is(err, schemas.ErrDamaged):
			d.unreadable = damagedPause
			return nil
		}
		d.p.sleep(wait)
	}
}

// record writes the result of an attempt to the record, then settles the message.
func (d *delivery) record(out callback.Outcome) {
	attempt := d.t.Record.Attempt + 1
	if !out.Success && !d.complete && !d.resolveConflict(attempt, out) {
		return
	}
	for wait := minPause; ; {
		plan := policy.Next(d.t.Record, out, d.l.spec(), d.n.nowMs(), d.n.w.rng.Float64())
		if plan.Step == functions.StepDead && !d.deadSent {
			d.publishDead(plan)
		}
		w := store.Write{ID: d.t.ID, Rev: d.t.Rev, Record: &plan.Record}
		if plan.Record.State.Final() {
			w.TTL = d.n.w.p.retention + time.Duration(plan.Record.ExpectedForMs())*time.Millisecond
		}
		_, err := d.n.client.Update(within(callTimeout), w)
		switch {
		case err == nil:
			d.end(plan.RedeliverAfter())
			return
		case errors.Is(err, store.ErrRevision):
			rev := d.t.Rev
			if !d.resolveConflict(attempt, out) {
				return
			}
			if d.t.Rev == rev {
				d.p.sleep(wait)
				wait = min(wait*2, maxPause)
			}
		case store.Permanent(err) && plan.Record.Body.Mode != schemas.ModeNone:
			last := callback.Permanent(callback.ReasonTooLarge, err.Error())
			last.AtMs, last.Took = out.AtMs, out.Took
			out = last
		default:
			d.p.sleep(wait)
			wait = min(wait*2, maxPause)
		}
	}
}

func (d *delivery) resolveConflict(attempt uint32, out callback.Outcome) bool {
	t, a := functions.ResolveConflict(d.claim, attempt, out.Success, d.read(), d.n.nowMs())
	if d.unreadable > 0 {
		a = functions.Admission{Wait: d.unreadable}
	}
	if t == nil {
		d.end(a.Wait)
		return false
	}
	d.t, d.complete = *t, true
	return true
}

func (d *delivery) publishDead(plan functions.Plan) {
	m := store.Msg{Subject: schemas.SubjectDead(d.l.service), MsgID: d.claim.RunID().RetryMsgID(plan.Record.Attempt) + ".dead"}
	r := &plan.Record
	m.Header, m.Data = d.t.Record.Body.DeadMessage(r.Fired(r.Attempt, false), "failed", strings.Repeat("e", schemas.MaxOutcomeError))
	for wait := minPause; !d.deadSent; wait = min(wait*2, maxPause) {
		_, err := d.n.client.PublishLetter(within(callTimeout), m)
		if d.deadSent = err == nil; !d.deadSent {
			d.p.sleep(wait)
		}
	}
}
