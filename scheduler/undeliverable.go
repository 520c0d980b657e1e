package scheduler

import (
	"errors"
	"strconv"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file handles a timer whose event JetStream will never store, for example because the
// server's limits were lowered after its add. The timer ends as a dead letter, so that it
// does not hold back its shard's low watermark.
//
//	claim, or publish ──▶ permanently rejected ──▶ dead letter ──▶ record: fail ──▶ done
//
// The owner repeats the dead letter and the record until they are acknowledged. If it dies,
// the next owner finds the record unchanged: JetStream rejects its publish too, and its dead
// letter has the same message id. If the stream's dedup window may have passed, the owner
// searches for the dead letter before it publishes it again.
//
// A rejected claim may come after a claim without an answer, which is stored once its dead letter is. The event of
// the stored claim is then published. If JetStream rejects it too, there is no second dead letter.

// unclaim restores the record to its state before the claim.
func (k *Core) unclaim(e *entry) {
	e.rec.State, e.rec.Queued, e.rec.FiredMs = e.stateBefore, true, 0
	if e.extra != nil {
		e.rec.FiredMs = e.extra.firedMsBefore
	}
	if e.rec.FirstFiredMs == e.rec.FiredMs {
		e.rec.FirstFiredMs = 0 // the claim set it
	}
}

// refuseClaim ends a timer whose claim JetStream permanently rejects. The timer stays
// unclaimed, so a cancel may still succeed: the cancelled timer then has a dead letter.
func (k *Core) refuseClaim(e *entry, err error) {
	k.unclaim(e)
	k.refuse(e, err)
	k.publishChecked(e)
}

// refuse stores the reason why JetStream will never store an entry's event.
func (k *Core) refuse(e *entry, err error) {
	e.fails = 0
	e.more().refusal = schemas.Clip("the event cannot be published: "+err.Error(), schemas.MaxOutcomeError)
}

// refused returns the reason of refuse, or "".
func (e *entry) refused() string {
	if e.extra == nil {
		return ""
	}
	return e.extra.refusal
}

// deadTarget returns the subject and message id of the dead letter of a rejected event.
// The message id includes the time of the claim, which differs after a replay.
func deadTarget(e *entry) (subject, msgID string) {
	if e.alarm() != nil {
		return schemas.SubjectDead(e.rec.Service), schemas.OverdueID(e.rec.Origin.Schedule, e.rec.ScheduledMs) + ".dead"
	}
	id := e.rec.RunID(e.id).RetryMsgID(e.rec.Attempt + 1)
	return schemas.SubjectDead(e.rec.Service), id + "." + strconv.FormatInt(e.rec.FiredMs, 10) + ".dead"
}

// deadLetter publishes the event with the reason as a dead letter.
func (k *Core) deadLetter(e *entry) {
	e.phase = phaseDeadLetter
	if k.paused {
		k.repeats = append(k.repeats, e)
		return
	}
	r := &e.rec
	sealed := k.seal(e)
	fired := r.Fired(r.Attempt, sealed != "")
	if e.alarm() != nil {
		fired = e.overdue()
	}
	hdr, data := r.Body.DeadMessage(fired, schemas.ReasonUndeliverable, e.refused())
	if sealed != "" {
		hdr[schemas.HeaderCallback] = []string{sealed}
	}
	if e.alarm() == nil { // an overdue event has no callback
		hdr[schemas.HeaderClaim] = []string{schemas.NewClaim(e.id, e.rev, r).String()}
	}
	if policy := r.Retry.RetryHeader(); policy != "" {
		hdr[schemas.HeaderRetry] = []string{policy}
	}
	hdr[schemas.HeaderErrorCode] = []string{schemas.ReasonUndeliverable}
	hdr[schemas.HeaderError] = []string{e.refused()}
	subject, msgID := deadTarget(e)
	k.inflight++
	k.do(ActDeadLetter{ID: e.id, Msg: store.Msg{Subject: subject, MsgID: msgID, Header: hdr, Data: data}, Ends: r.Origin != nil && r.Callback == ""})
}

func (k *Core) onDeadLettered(ev EvDeadLettered) {
	k.inflight--
	e := k.entries[ev.ID]
	switch {
	case e == nil || e.phase != phaseDeadLetter:
	case ev.Err != nil:
		k.again(e)
	default:
		e.fails = 0
		k.fail(e)
	}
}

// unrefuse forgets that the entry's claim was rejected, because another claim, r, is stored: an earlier one of the entry,
// or that of another owner, which may have published the event. If JetStream rejects the event of that claim too,
// the dead letter that is stored serves both.
func (e *entry) unrefuse(r *schemas.Record) {
	if e.extra != nil {
		e.extra.refusal = ""
		e.extra.lettered = e.extra.lettered && r.Run == max(e.rec.Run, 1) && r.Attempt == e.rec.Attempt
	}
}

// fail writes the final record, after the dead letter is stored. Until then the entry holds back the low watermark, so that
// the next owner finds the unfinished timer.
//
// A run of a schedule without a callback has no record: the schedule goes on.
func (k *Core) fail(e *entry) {
	if e.rec.Origin != nil && e.rec.Callback == "" {
		k.finish(e)
		return
	}
	e.phase = phaseFailing
	rec := e.rec
	rec.State, rec.Queued, rec.Run, rec.NextMs = schemas.StateFail, false, max(rec.Run, 1), 0
	rec.DoneMs = max(k.now, rec.FiredMs)
	if rec.FiredMs == 0 {
		rec.FiredMs = rec.DoneMs // the claim was rejected, so there is no time of firing
	}
	rec.SetOutcome(schemas.Outcome{Error: e.refused()})
	rec.Body, rec.Deferral = schemas.Body{}, nil
	x := e.more()
	x.lettered = true
	if x.failedMs == 0 || rec.DoneMs < x.failedMs { // the clock may have gone back
		x.failedMs = rec.DoneMs
	}
	e.wasPending = e.rec.State.Waits() && !e.left()
	k.inflight++
	k.do(ActFail{ID: e.id, Rev: e.rev, Record: &rec})
}

func (k *Core) onFailed(ev EvFailed) {
	k.inflight--
	e := k.entries[ev.ID]
	switch {
	case e == nil || e.phase != phaseFailing:
	case ev.Err == nil:
		k.failed(e, ev.Rev)
		k.done(e)
	case isRevision(ev.Err) || errors.Is(ev.Err, schemas.ErrUnavailable):
		k.reread(e)
	default:
		k.again(e)
	}
}

// isFailOf reports whether a record is the final record of an ActFail for the entry's revision, whose result may be lost or not
// here yet. A record with an earlier DoneMs is that of an earlier ActFail of this term, which was counted: a load has brought
// the old revision again, and JetStream has rejected it again.
func (e *entry) isFailOf(r *schemas.Record) bool {
	return r.State == schemas.StateFail && e.failing() && r.DoneMs >= e.extra.failedMs
}

// failed removes a timer whose claim was rejected from the number of pending timers, unless that
// number takes account of its final record already. rev is the revision of the final record. A
// running count needs it to tell that the record has changed since the count began.
func (k *Core) failed(e *entry, rev uint64) {
	if e.wasPending {
		e.wasPending = false
		k.pending.leftAhead(e.id, rev, k.tailSeen)
	}
}

// again plans the retry of a failed step.
func (k *Core) again(e *entry) {
	e.countFailure()
	k.wheel.Add(&e.node, k.now+max(k.backoff(int(e.fails)), minRetryDelay).Milliseconds())
}
