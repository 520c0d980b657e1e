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

// This file is functions' way with a delivery: its decisions are functions' own.

// Short delays wait in the consumer, longer ones in the wheel. Production's limit
// is 30 s; here retries are to pass through the wheel often.
const shortDelay = 2 * time.Second

var decider = functions.NewDecider(shortDelay, 2)

// minPause and maxPause are functions': between two tries of a store call.
const (
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
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
	key := claim.Timer.MsgID(claim.Run)
	if n.calls[key] {
		m.nak(m.c.ackWait / 2)
		return
	}
	n.calls[key] = true
	n.w.spawn(n, func(p *proc) {
		d := delivery{p: p, n: n, m: m, l: l, claim: claim}
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
	newer    bool // the record has a newer format
}

func (d *delivery) handle() {
	if decider.Doubtful(d.claim, d.m.Header, d.m.deliveries, time.Unix(0, d.m.StampNs)) {
		t := d.read()
		run, wait := decider.Admit(d.claim, t, d.n.nowMs())
		if d.newer {
			run, wait = false, time.Second // for a node that reads it
		}
		if !run {
			d.end(wait)
			return
		}
		d.t, d.complete = *t, true
	} else {
		d.t = store.Timer{ID: d.claim.Timer, Rev: d.claim.Revision, Record: decider.FromClaim(d.claim, d.l.spec(), schemas.Fired{ScheduledMs: d.l.due()})}
	}
	d.n.w.check.called(d.l, d.n, d.t.Record.Attempt+1)
	d.p.sleep(d.l.callTakes(d.n.w))
	d.conclude(d.l.outcome(d.n.w, d.t.Record.Attempt+1))
}

// end acknowledges the message, or has it come again.
func (d *delivery) end(wait time.Duration) {
	if wait > 0 {
		d.m.nak(wait)
		return
	}
	d.m.ack()
}

// read gets the record, trying until the store answers; nil is "gone".
func (d *delivery) read() *store.Timer {
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		t, err := d.n.client.Get(within(callTimeout), d.claim.Timer)
		switch {
		case err == nil:
			return &t
		case errors.Is(err, schemas.ErrNotFound):
			return nil
		case errors.Is(err, schemas.ErrNewer):
			d.newer = true
			return nil
		}
		d.p.sleep(wait)
	}
}

// conclude writes down what the attempt came to, then ends the message.
func (d *delivery) conclude(out callback.Outcome) {
	attempt := d.t.Record.Attempt + 1
	if !out.Success && !d.complete && !d.rebase(attempt, out) {
		return
	}
	for wait := minPause; ; {
		plan := decider.Next(d.t.Record, out, d.l.spec(), d.n.nowMs(), d.n.w.rng.Float64())
		if plan.Dead && !d.deadSent {
			d.publishDead(plan)
		}
		w := store.Write{ID: d.t.ID, Rev: d.t.Rev, Record: &plan.Record}
		if plan.Record.State.Final() {
			w.TTL = d.n.w.p.retention
		}
		_, err := d.n.client.Update(within(callTimeout), w)
		switch {
		case err == nil:
			d.end(plan.Again)
			return
		case errors.Is(err, store.ErrRevision):
			if !d.rebase(attempt, out) {
				return
			}
		case store.Permanent(err) && plan.Record.Body.Mode != schemas.ModeNone:
			out = callback.Permanent(callback.ReasonTooLarge, err.Error())
		default:
			d.p.sleep(wait)
			wait = min(wait*2, maxPause)
		}
	}
}

func (d *delivery) rebase(attempt uint32, out callback.Outcome) bool {
	t, wait := decider.Rebase(d.claim, attempt, out.Success, d.read(), d.n.nowMs())
	if t == nil {
		d.end(wait)
		return false
	}
	d.t, d.complete = *t, true
	return true
}

func (d *delivery) publishDead(plan functions.Plan) {
	m := store.Msg{Subject: schemas.SubjectDead(d.l.service), MsgID: d.claim.Timer.RetryMsgID(d.claim.Run, plan.Record.Attempt) + ".dead"}
	r := &plan.Record
	m.Header, m.Data = d.t.Record.Body.DeadMessage(schemas.Fired{ScheduledMs: r.ScheduledMs, FiredMs: r.FiredMs, Run: r.Run, Attempt: r.Attempt}, "failed", strings.Repeat("e", schemas.MaxOutcomeError))
	for wait := minPause; !d.deadSent; wait = min(wait*2, maxPause) {
		_, err := d.n.client.PublishLetter(within(callTimeout), m)
		if d.deadSent = err == nil; !d.deadSent {
			d.p.sleep(wait)
		}
	}
}
