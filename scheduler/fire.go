package scheduler

import (
	"errors"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler/wheel"
	"github.com/belfryio/belfry/schemas"
)

// fire moves what is due into the fair queue and claims as much of it as there
// is room for in flight.
func (k *Core) fire() {
	if k.paused {
		return
	}
	k.wheel.Advance(k.now, func(n *wheel.Timer[*entry]) {
		e := n.Value
		switch e.phase {
		case phaseWaiting:
			e.phase = phaseReady
			k.ready.push(e)
		case phasePublishing, phaseDeadLetter, phaseFailing:
			k.repeat = append(k.repeat, e)
		}
	})
	for len(k.repeat) > 0 && k.inflight < k.cfg.MaxInflight {
		e := k.repeat[0]
		k.repeat = k.repeat[1:]
		switch e.phase {
		case phasePublishing, phaseDeadLetter:
			k.publishOrLook(e)
		case phaseFailing:
			k.fail(e)
		}
	}
	if k.draining {
		return
	}
	for k.inflight < k.cfg.MaxInflight {
		e := k.ready.pop()
		if e == nil {
			break
		}
		if e.rec.DueMs > k.now {
			// The cluster's clock was set back while it waited for its turn.
			e.phase = phaseWaiting
			k.wheel.Add(&e.node, e.rec.DueMs)
			continue
		}
		k.claim(e)
	}
	k.confirmSome()
}

func (k *Core) claim(e *entry) {
	e.phase = phaseClaiming
	e.wasPending = e.rec.State == schemas.StatePending
	rec := e.rec
	e.beforeClaim = claimed{rec.State, rec.FiredMs}
	rec.State, rec.Queued = schemas.StateDelivered, false
	rec.Run = max(rec.Run, 1)
	rec.FiredMs, rec.NextMs, rec.Epoch = k.now, 0, k.epoch
	e.rec = rec
	k.inflight++
	k.do(ActClaim{ID: e.id, Rev: e.rev, Record: &e.rec})
}

// claimed takes a claimed timer off the count of those that wait.
func (k *Core) claimed(e *entry) {
	if !e.wasPending {
		return
	}
	e.wasPending = false
	k.pending--
	k.noteChange(e.id, e.rev, false, false)
}

// countClaim takes a timer off the count of those that wait when the tail brings the claim
// before its answer comes. The clock would otherwise state a position that includes the
// claim with a count that does not, and the next owner's count would miss the timer.
func (k *Core) countClaim(t store.Timer) {
	if e := k.entries[t.ID]; e != nil && e.wasPending && t.Rev > e.rev {
		e.wasPending = false
		k.pending--
	}
}

func (k *Core) onClaimed(ev EvClaimed) {
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phaseClaiming {
		return
	}
	switch {
	case ev.Err == nil:
		e.rev, e.fails = ev.Rev, 0
		k.claimed(e)
		k.publish(e)
	case isRevision(ev.Err) || errors.Is(ev.Err, schemas.ErrUnavailable):
		// Another writer won, or ours was applied and its answer lost: look.
		k.reread(e)
	case store.Permanent(ev.Err):
		k.refuseClaim(e, ev.Err)
	default:
		k.retryClaim(e)
	}
}

// retryClaim puts an entry back into the wheel as it was before the claim.
func (k *Core) retryClaim(e *entry) {
	e.fails++
	e.phase = phaseWaiting
	k.unclaim(e)
	k.wheel.Add(&e.node, k.now+k.backoff(e.fails).Milliseconds())
}

func (k *Core) reread(e *entry) {
	e.fails++
	e.phase = phaseRereading
	k.inflight++
	k.do(ActReread{ID: e.id, Delay: k.backoff(e.fails - 1)})
}

// staleTries is how often a record is looked for anew that the leader does not
// have, or has an older revision of: some 11 s.
const staleTries = 10

func (k *Core) onReread(ev EvReread) {
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phaseRereading {
		return
	}
	stale := errors.Is(ev.Err, schemas.ErrNotFound) || ev.Err == nil && ev.Timer.Rev < e.rev
	if stale && e.stale < staleTries {
		// A replica that has applied more than the leader has shown it to the tail.
		// The leader is to come to it yet; a record that is gone stays gone.
		e.stale++
		k.inflight++
		k.do(ActReread{ID: e.id, Delay: k.backoff(e.stale)})
		return
	}
	if errors.Is(ev.Err, schemas.ErrNotFound) || errors.Is(ev.Err, schemas.ErrNewer) || errors.Is(ev.Err, schemas.ErrDamaged) {
		k.done(e)
		return
	}
	if ev.Err != nil {
		k.reread(e)
		return
	}
	r := &ev.Timer.Record
	switch {
	case r.Pending():
		if e.newer == nil || e.newer.Rev < ev.Timer.Rev {
			e.newer = &ev.Timer
		}
		fails := e.fails
		k.done(e)
		if n := k.entries[ev.ID]; n != nil {
			n.fails = fails
		}
	case r.State == schemas.StateDelivered && r.Epoch == k.epoch:
		// The claim is ours: only its answer was lost.
		e.rev, e.rec, e.fails = ev.Timer.Rev, *r, 0
		k.claimed(e)
		// Or an earlier claim of ours, long published, and what was claimed now had
		// been read before it.
		k.publishOrLook(e)
	case r.State == schemas.StateDelivered:
		e.rev, e.rec, e.phase = ev.Timer.Rev, *r, phaseConfirming
		k.confirm = append(k.confirm, e)
	default:
		if r.State == schemas.StateFail && e.rec.State == schemas.StatePending {
			// The final record of a refused claim is stored: only its answer was lost.
			k.failed(e, ev.Timer.Rev)
		}
		k.done(e)
	}
}

// publishOrLook publishes an event or dead letter that may have been published before. If
// the stream's dedup window may have passed since then, it first searches the stream.
func (k *Core) publishOrLook(e *entry) {
	if k.claimedLongAgo(e) {
		e.phase = phaseConfirming
		k.confirm = append(k.confirm, e)
		return
	}
	k.publish(e)
}

// claimedLongAgo reports whether the stream may have forgotten an event's id.
func (k *Core) claimedLongAgo(e *entry) bool { return k.now-takenMs(e) > k.doubtMs }

// takenMs returns the earliest time, in Unix milliseconds, at which the entry's event or
// dead letter may have been published: its claim or, if the claim is refused, its due
// time.
func takenMs(e *entry) int64 {
	if e.rec.State == schemas.StateDelivered {
		return e.rec.FiredMs
	}
	return max(e.rec.DueMs, e.rec.AddedMs)
}

// publish sends the claimed event, or the dead letter of a refused event. A run that was
// attempted before goes only to functions; timers.fired gets each run once.
func (k *Core) publish(e *entry) {
	if e.refusal != "" {
		k.deadLetter(e)
		return
	}
	e.phase = phasePublishing
	if k.paused {
		k.repeat = append(k.repeat, e)
		return
	}
	r := &e.rec
	sealed := k.seal(e)
	hdr, data := r.Body.Message(schemas.Fired{ScheduledMs: r.ScheduledMs, FiredMs: r.FiredMs, Run: r.Run, Attempt: r.Attempt + 1, NoCallback: sealed != ""})
	if sealed != "" {
		hdr[schemas.HeaderCallback] = []string{sealed}
	}
	hdr[schemas.HeaderClaim] = []string{schemas.Claim{
		Timer: e.id, Revision: e.rev, Run: r.Run, Attempt: r.Attempt, MaxAttempt: r.MaxAttempt,
		AddedMs: r.AddedMs, FiredMs: r.FiredMs, Epoch: r.Epoch, Hash: r.Hash,
	}.String()}
	if policy := r.Retry.RetryHeader(); policy != "" {
		hdr[schemas.HeaderRetry] = []string{policy}
	}
	if r.Extended() {
		hdr[schemas.HeaderExtended] = []string{"1"}
	}
	subject, msgID := target(e)
	m := store.Msg{Subject: subject, Header: hdr, Data: data, MsgID: msgID}
	if r.Callback != "" {
		m.Service = r.Service
	}
	k.inflight++
	k.do(ActPublish{ID: e.id, Service: r.Service, LateMs: max(r.FiredMs-r.LateFromMs(), 0), Msg: m})
}

// seal returns the encrypted callback for HeaderCallback, or "" if the event keeps its
// callback or has none.
func (k *Core) seal(e *entry) string {
	if e.rec.Callback == "" || k.cfg.Seal == nil {
		return ""
	}
	return k.cfg.Seal(e.id, e.rec.Callback)
}

func target(e *entry) (subject, msgID string) {
	if e.refusal != "" {
		return deadTarget(e)
	}
	if e.rec.Attempt > 0 {
		return schemas.SubjectRetry(e.rec.Service), e.id.RetryMsgID(e.rec.Run, e.rec.Attempt+1)
	}
	return schemas.SubjectFired(e.rec.Service), e.id.MsgID(e.rec.Run)
}

func (k *Core) onPublished(ev EvPublished) {
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phasePublishing {
		return
	}
	if store.Permanent(ev.Err) {
		k.refuse(e, ev.Err)
		k.publishOrLook(e)
		return
	}
	if ev.Err != nil {
		// The claim stands, so the publish is repeated until it is acknowledged;
		// the Msg-Id makes a repetition harmless.
		e.fails++
		k.wheel.Add(&e.node, k.now+max(k.backoff(e.fails), minRetryDelay).Milliseconds())
		return
	}
	k.finish(e)
}

// finish ends a published entry; without a callback the run is a success.
func (k *Core) finish(e *entry) {
	if e.rec.Callback == "" {
		rec := e.rec
		rec.State, rec.DoneMs, rec.Body = schemas.StateSuccess, max(k.now, rec.FiredMs), schemas.Body{}
		k.unsettled = append(k.unsettled, ActFinish{ID: e.id, Rev: e.rev, Record: &rec})
	}
	if e.hold != 0 && e.rec.DueMs < k.MarkMs()-k.cfg.SweepMs {
		// The sweeper has been where its index entry is. It is to come by once more,
		// since ActFinish may be lost, or a callback's event.
		e.phase, e.fails = phaseIndexing, 0
		k.index(e)
		return
	}
	k.done(e)
}

func (k *Core) index(e *entry) {
	k.inflight++
	k.do(ActIndex{ID: e.id, Tick: k.mark + 1, Delay: k.backoff(e.fails)})
}

func (k *Core) onIndexed(ev EvIndexed) {
	k.inflight--
	e := k.entries[ev.ID]
	switch {
	case e == nil || e.phase != phaseIndexing:
	case ev.Err != nil && !store.Permanent(ev.Err): // else the sweeper does without it
		e.fails++
		k.index(e)
	default:
		k.done(e)
	}
}

// confirmSome asks for a batch of claims of earlier owners.
func (k *Core) confirmSome() {
	if k.confirming || len(k.confirm) == 0 {
		return
	}
	a := ActConfirm{IDs: map[string]struct{}{}, SinceMs: k.now}
	subjects := map[string]struct{}{}
	fails := 0
	k.confirmN = min(len(k.confirm), confirmBatch)
	for _, e := range k.confirm[:k.confirmN] {
		if e.phase != phaseConfirming {
			continue
		}
		subject, id := target(e)
		a.IDs[id] = struct{}{}
		if _, ok := subjects[subject]; !ok {
			subjects[subject] = struct{}{}
			a.Subjects = append(a.Subjects, subject)
		}
		slack := int64(confirmSlackMs)
		if k.claimedLongAgo(e) {
			slack = oldConfirmSlackMs
		}
		a.SinceMs = min(a.SinceMs, takenMs(e)-slack)
		fails = max(fails, e.fails)
	}
	if len(a.IDs) == 0 {
		k.confirm = k.confirm[k.confirmN:]
		return
	}
	a.Delay = k.backoff(fails)
	k.confirming = true
	k.do(a)
}

func (k *Core) onConfirmed(ev EvConfirmed) {
	k.confirming = false
	batch := k.confirm[:k.confirmN]
	if ev.Err != nil {
		for _, e := range batch {
			e.fails++
		}
		return
	}
	k.confirm = k.confirm[len(batch):]
	for _, e := range batch {
		if e.phase != phaseConfirming {
			continue
		}
		e.fails = 0
		_, found := ev.Found[first(target(e))]
		switch {
		case found && e.refusal != "":
			k.fail(e)
		case found:
			k.finish(e)
		default:
			k.publish(e)
		}
	}
}

func first(_, msgID string) string { return msgID }

// onSwept takes up what the sweeper found behind the mark. The sweeper holds its
// own mark until it finds nothing there, so nothing needs to be held here.
func (k *Core) onSwept(ev EvSwept) {
	if k.entries[ev.Timer.ID] != nil {
		return
	}
	tick := k.cfg.Geometry.Tick(ev.Timer.Record.DueMs)
	if tick > k.mark {
		return
	}
	switch r := &ev.Timer.Record; {
	case r.Pending():
		k.insert(ev.Timer, tick, 0, phaseWaiting)
	case ev.Refire:
		// Claimed anew, so that the record says when it was fired last.
		e := k.insert(ev.Timer, tick, 0, phaseReady)
		e.rec.Attempt = r.Attempt
		k.ready.push(e)
	case r.State == schemas.StateDelivered:
		k.confirm = append(k.confirm, k.insert(ev.Timer, tick, 0, phaseConfirming))
	}
}
