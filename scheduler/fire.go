package scheduler

import (
	"errors"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler/wheel"
	"github.com/belfryio/belfry/schemas"
)

// fire moves due entries from the wheel to the fair queue, repeats failed steps, and claims
// entries while the claim window permits it. tick is true for an EvTick. If dueBatch leaves due entries
// in the wheel, Next asks for another EvTick at once.
func (k *Core) fire(tick bool) {
	if k.paused {
		return
	}
	if tick || !k.due.left {
		k.moveDue()
	}
	for len(k.repeats) > 0 && k.inflight < k.cfg.MaxInflight {
		e := k.repeats[0]
		k.repeats = k.repeats[1:]
		switch e.phase {
		case phasePublishing, phaseDeadLetter, phaseCreating:
			k.publishChecked(e)
		case phaseFailing:
			k.fail(e)
		}
	}
	if k.draining {
		return
	}
	if len(k.toPrepare) > 0 {
		k.prepareSome()
	}
	if k.inflight == 0 {
		k.window.reset()
	}
	for k.inflight < k.window.size {
		e := k.ready.pop()
		if e == nil {
			break
		}
		if e.rec.DueMs > k.now && !e.woken() {
			// The cluster's clock was set back while the entry was queued.
			e.phase = phaseWaiting
			k.wheel.Add(&e.node, e.rec.DueMs)
			continue
		}
		if k.justClaimed.has(e, k.now) {
			e.phase = phaseWaiting
			k.wheel.Add(&e.node, k.now+1)
			continue
		}
		if e.rec.Schedule != nil {
			k.turn(e)
			continue
		}
		k.claim(e)
	}
	k.dedupCheckSome()
}

// moveDue moves due entries from the wheel to the fair queue, or to the steps to repeat.
func (k *Core) moveDue() {
	k.due.moved(k.wheel.AdvanceSome(k.now, k.due.size, func(n *wheel.Timer[*entry]) {
		e := n.Value
		switch e.phase {
		case phaseWaiting:
			e.phase = phaseReady
			k.ready.push(e)
		case phasePublishing, phaseDeadLetter, phaseFailing, phaseCreating:
			k.repeats = append(k.repeats, e)
		}
	}))
}

func (k *Core) claim(e *entry) {
	e.phase = phaseClaiming
	e.wasPending = e.rec.State == schemas.StatePending && !e.left()
	rec := e.rec
	e.keepFields()
	rec.Reclaim()
	rec.State, rec.Queued = schemas.StateDelivered, false
	rec.Run = max(rec.Run, 1)
	rec.FiredMs, rec.NextMs, rec.Epoch = k.now, 0, k.epoch
	e.rec = rec
	k.inflight++
	k.do(ActClaim{ID: e.id, Rev: e.rev, Record: &e.rec})
}

// claimed removes a claimed timer from the number of pending timers.
func (k *Core) claimed(e *entry) {
	if !e.wasPending {
		return
	}
	e.wasPending = false
	k.pending.left(e.id, e.rev)
}

// countClaim removes a timer from the number of pending timers if the tail delivers its
// claim, or the final record of a rejected claim, before the result of that write arrives, or
// after a reread has found the revision before it.
// Otherwise the clock could have an applied offset that includes the write and a number that
// does not, and the next owner's count would report a missing timer.
func (k *Core) countClaim(t store.Timer) {
	e := k.entries[t.ID]
	switch {
	case e == nil || t.Rev <= e.rev:
	case e.wasPending && e.claimed(&t.Record):
		e.wasPending = false
		k.pending.n--
	case (e.isFailOf(&t.Record) || k.isLateClaim(e, &t.Record)) && e.waits():
		e.wasPending, e.more().left = false, true
		k.pending.n--
	}
}

// isLateClaim reports whether a record has an unclear claim of the entry, and not the entry's last one: the claim
// was stored after a reread had found the revision before it. A record with an earlier claim of this term is none:
// the tail has brought the revision before that claim since.
func (k *Core) isLateClaim(e *entry, r *schemas.Record) bool {
	if r.Epoch != k.epoch || e.claimed(r) {
		return false
	}
	if r.Schedule == nil {
		return r.State == schemas.StateDelivered && e.isUnclear(r.FiredMs)
	}
	return !r.State.Waits() && e.isUnclear(max(r.Schedule.Last.ClaimedMs, r.Schedule.Alarm.ClaimedMs, r.DoneMs))
}

// noteUnclear takes note that the entry's claim got no answer, or was refused because of its revision.
func (e *entry) noteUnclear() {
	x := e.more()
	at := x.turnMs
	if e.rec.Schedule == nil {
		at = e.rec.FiredMs
	}
	if x.unclearMs == 0 || at < x.unclearMs { // the clock may have gone back
		x.unclearMs = at
	}
}

// replaced sets the revision of a claim that is stored. No other write that expects the revision before it can succeed then.
func (e *entry) replaced(rev uint64) {
	e.rev, e.fails = rev, 0
	if e.extra != nil {
		e.extra.unclearMs, e.extra.failedMs = 0, 0
	}
}

// unclear reports whether a claim of the entry's revision may be stored although the core has no such answer.
func (e *entry) unclear() bool { return e.extra != nil && e.extra.unclearMs != 0 }

// isUnclear reports whether a claim of a time may be an unclear one of the entry.
func (e *entry) isUnclear(claimedMs int64) bool { return e.unclear() && claimedMs >= e.extra.unclearMs }

// hasUnclear reports whether a write without an answer may still be stored: a claim, or the final record of a rejected
// claim.
func (k *Core) hasUnclear() bool {
	for _, e := range k.entries {
		if e.unclear() || e.failing() && e.waits() {
			return true
		}
	}
	return false
}

// failing reports whether an ActFail of the entry's revision was sent. Its answer may have been lost.
func (e *entry) failing() bool { return e.extra != nil && e.extra.failedMs != 0 }

// inherit copies from an entry of the same revision, which e replaces, what is known of writes without an answer. If
// the tail has brought the unclear claim, or the final record of a rejected claim, the number of pending timers no longer includes the timer.
func (e *entry) inherit(before *entry) {
	if e.rev != before.rev || before.extra == nil {
		return
	}
	if before.failing() {
		x := e.more()
		x.failedMs, x.left = before.extra.failedMs, x.left || before.left()
		x.lettered = true
	}
	if !before.unclear() {
		return
	}
	ended := before.rec.Schedule == nil || before.extra.turn != nil && !before.extra.turn.Record.State.Waits()
	x := e.more()
	x.unclearMs = before.extra.unclearMs
	x.left = x.left || before.left() || ended && !before.wasPending
}

// left returns extra.left, or false without an extra.
func (e *entry) left() bool { return e.extra != nil && e.extra.left }

// claimed reports whether a record of this term is the entry's claim, in flight or stored. It
// may also be an earlier claim of this term, which was counted then: the tail has brought the
// revision before that claim since, and the entry claims it again.
func (e *entry) claimed(r *schemas.Record) bool {
	if r.Schedule == nil {
		return r.FiredMs == e.rec.FiredMs
	}
	if e.extra == nil || e.extra.turn == nil {
		return false
	}
	next := &e.extra.turn.Record
	return r.Schedule.Last == next.Schedule.Last && r.Schedule.Alarm == next.Schedule.Alarm && (next.State == schemas.StateDelivered || r.DoneMs == next.DoneMs)
}

func (k *Core) onClaimed(ev EvClaimed) {
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phaseClaiming {
		return
	}
	if ev.Err == nil {
		k.know(ev.Rev)
		k.window.grow()
		k.backlog.claimed(k.now)
	}
	switch {
	case ev.Err == nil && e.rec.Schedule != nil:
		k.turned(e, store.Timer{ID: e.id, Rev: ev.Rev, Record: e.extra.turn.Record})
	case ev.Err == nil:
		k.claims = claimTime{tookMs: k.now - e.rec.FiredMs, atMs: k.now}
		e.replaced(ev.Rev)
		k.claimed(e)
		k.publish(e)
	case errors.Is(ev.Err, schemas.ErrUnavailable), isRevision(ev.Err):
		// The claim may be stored now or later, or lost. A wrong revision may be the answer of a server that led the stream
		// before, and the leader may have received the claim too.
		e.noteUnclear()
		k.reread(e)
	case store.Permanent(ev.Err):
		k.refuseClaim(e, ev.Err)
	default:
		k.retryClaim(e)
	}
}

// retryClaim puts an entry back into the wheel as it was before the claim.
func (k *Core) retryClaim(e *entry) {
	e.countFailure()
	e.phase = phaseWaiting
	k.unclaim(e)
	k.wheel.Add(&e.node, k.now+k.backoff(int(e.fails)).Milliseconds())
}

func (k *Core) reread(e *entry) {
	e.countFailure()
	e.phase = phaseRereading
	k.inflight++
	k.do(ActReread{ID: e.id, Delay: k.backoff(int(e.fails) - 1)})
}

// maxStaleRereads bounds the repeated rereads of a record that the leader does not have yet
// in the known revision. They take about 11 s.
const maxStaleRereads = 10

func (k *Core) onReread(ev EvReread) {
	if a, ok := k.completions.rereading[ev.ID]; ok {
		// An entry may read the same record at the same time. Either result serves both, so the first one goes to
		// the final record.
		delete(k.completions.rereading, ev.ID)
		k.completions.onReread(k.now, a, ev)
		return
	}
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phaseRereading {
		return
	}
	if n := e.newer(); n != nil && (isGone(ev.Err) || ev.Err == nil && ev.Timer.Rev < n.Rev) {
		// The tail or a load has brought a later revision. It may contain the claim.
		if errors.Is(ev.Err, schemas.ErrDamaged) {
			k.damaged.add(e)
		}
		ev.Timer, ev.Err = *n, nil
	}
	// Of a schedule that is read because its run has concluded (onConcluded), no revision is
	// known: its record may have expired.
	known := e.rev != 0 || e.rec.Origin != nil
	stale := errors.Is(ev.Err, schemas.ErrNotFound) && known || ev.Err == nil && ev.Timer.Rev < e.rev
	if stale && e.stale < maxStaleRereads {
		// The tail read the record from a replica that has applied more than the leader.
		// The leader will apply it too, unless the record is gone.
		e.stale++
		k.inflight++
		k.do(ActReread{ID: e.id, Delay: k.backoff(int(e.stale))})
		return
	}
	if isGone(ev.Err) {
		if errors.Is(ev.Err, schemas.ErrDamaged) {
			k.damaged.add(e)
		}
		k.done(e)
		return
	}
	if ev.Err != nil {
		k.reread(e)
		return
	}
	k.know(ev.Timer.Rev)
	if ev.Timer.Rev > k.tailSeen { // otherwise the tail has brought the revision
		k.countEarlierClaim(&ev.Timer)
	}
	r := &ev.Timer.Record
	switch {
	case r.Schedule != nil:
		k.rereadSchedule(e, ev.Timer)
	case e.rec.Origin != nil && e.rev == 0 && r.AddedMs != e.rec.AddedMs:
		// A schedule with this id was added before, and the record of its run with the same
		// number has not expired yet.
		k.createRun(e, ev.Timer.Rev)
	case r.Pending():
		e.keepNewer(ev.Timer)
		fails := e.fails
		k.done(e)
		if n := k.entries[ev.ID]; n != nil {
			n.fails = fails
			n.inherit(e)
		}
	case r.State == schemas.StateDelivered && r.Epoch == k.epoch:
		// This term's claim is stored; only its answer was lost. It may also be an earlier
		// claim of this term, which was counted then and published long ago: the tail brought
		// the revision before it, and this entry claimed that one.
		e.wasPending = e.wasPending && (e.claimed(r) || k.isLateClaim(e, r))
		e.unrefuse(r)
		e.rec = *r
		e.replaced(ev.Timer.Rev)
		k.claimed(e)
		k.publishChecked(e)
	case r.State == schemas.StateDelivered:
		e.unrefuse(r)
		e.rev, e.rec, e.phase = ev.Timer.Rev, *r, phaseDedupCheck
		k.dedup.queue = append(k.dedup.queue, e)
	default:
		if e.isFailOf(r) {
			// The final record of a rejected claim is stored; only its answer was lost.
			k.failed(e, ev.Timer.Rev)
		}
		k.done(e)
	}
}

// isGone reports whether an error of a reread says that there is no record that this node can read.
func isGone(err error) bool {
	return errors.Is(err, schemas.ErrNotFound) || errors.Is(err, schemas.ErrNewer) || errors.Is(err, schemas.ErrDamaged)
}

// publish sends the claimed event. For an event that JetStream rejects it sends the dead letter or, if that is stored,
// the final record.
// A repeated attempt goes to timers.retry, because timers.fired gets each run once; so does an
// event that waited for its slot.
func (k *Core) publish(e *entry) {
	switch {
	case e.refused() == "":
	case e.extra.lettered:
		k.fail(e)
		return
	default:
		k.deadLetter(e)
		return
	}
	e.phase = phasePublishing
	if k.paused {
		k.repeats = append(k.repeats, e)
		return
	}
	if e.alarm() != nil {
		k.publishAlarm(e)
		return
	}
	r := &e.rec
	if r.Origin != nil && e.rev == 0 {
		k.createRun(e, 0)
		return
	}
	sealed := k.seal(e)
	hdr, data := r.Body.Message(r.Fired(r.Attempt+1, sealed != ""))
	if sealed != "" {
		hdr[schemas.HeaderCallback] = []string{sealed}
	}
	hdr[schemas.HeaderClaim] = []string{schemas.NewClaim(e.id, e.rev, r).String()}
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

// target returns the subject and message id of the message that publish sends.
func target(e *entry) (subject, msgID string) {
	if e.refused() != "" {
		return deadTarget(e)
	}
	if e.alarm() != nil {
		return schemas.SubjectOverdue(e.rec.Service), schemas.OverdueID(e.rec.Origin.Schedule, e.rec.ScheduledMs)
	}
	if n := e.rec.Deferrals(); e.rec.Attempt > 0 || n > 0 {
		return schemas.SubjectRetry(e.rec.Service), e.rec.RunID(e.id).RetryMsgIDAfter(e.rec.Attempt+1, n)
	}
	return schemas.SubjectFired(e.rec.Service), e.rec.RunID(e.id).String()
}

func (k *Core) onPublished(ev EvPublished) {
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phasePublishing {
		return
	}
	switch {
	case store.Permanent(ev.Err) && e.published():
		k.finish(e)
		return
	case store.Permanent(ev.Err):
		k.refuse(e, ev.Err)
		k.publishChecked(e)
		return
	case ev.Err != nil:
		// The claim is stored, so repeat the publish until it is acknowledged. The message
		// id makes a repetition harmless.
		e.countFailure()
		k.wheel.Add(&e.node, k.now+max(k.backoff(int(e.fails)), minRetryDelay).Milliseconds())
		return
	}
	k.finish(e)
}

// published reports whether an event whose publish is refused was stored by an earlier try, whose
// answer was lost: the tail has brought a later revision, in which the event's callback has a result
// or waits. Only a node that has received the event writes such a revision.
func (e *entry) published() bool {
	n := e.newer()
	return n != nil && n.Rev > e.rev && e.rec.State == schemas.StateDelivered && n.Record.State == schemas.StateRetrying
}

// finish ends a published entry. Without a callback it queues the final record, success,
// unless the entry is a run of a schedule, which has no record then.
func (k *Core) finish(e *entry) {
	audited := e.id
	switch {
	case e.rec.Callback != "":
	case e.rec.Origin != nil:
		if audited = (schemas.TimerID{}); e.extra != nil && e.extra.completes != nil {
			audited = e.extra.completes.ID
		}
	default:
		rec := e.rec
		rec.State, rec.DoneMs, rec.Body = schemas.StateSuccess, max(k.now, rec.FiredMs), schemas.Body{}
		k.completions.queue = append(k.completions.queue, ActFinish{ID: e.id, Rev: e.rev, Record: &rec})
	}
	passed := e.pin != 0 && e.rec.DueMs < k.ProgressMs()-k.cfg.SweepMs
	if !audited.IsZero() && (passed || e.extra != nil && e.extra.unindexed) {
		// The sweeper has passed the tick of the record's index entry, or the record may have
		// none. ActFinish or the event for the callback may still be lost, so let the sweeper
		// audit the record again.
		e.phase, e.fails = phaseIndexing, 0
		k.index(e, audited)
		return
	}
	k.done(e)
}

// index writes an index entry for the record of an entry or, for the last run of a schedule
// without a callback, that of the schedule.
func (k *Core) index(e *entry, record schemas.TimerID) {
	k.inflight++
	k.do(ActIndex{ID: e.id, Record: record, Tick: k.watermark + 1, Delay: k.backoff(int(e.fails))})
}

func (k *Core) onIndexed(ev EvIndexed) {
	if ev.Ahead {
		k.onPrepared(ev)
		return
	}
	k.inflight--
	e := k.entries[ev.ID]
	switch {
	case e == nil || e.phase != phaseIndexing:
	case ev.Err != nil && !store.Permanent(ev.Err): // a permanent error ends the entry without the audit
		e.countFailure()
		k.index(e, ev.Record)
	default:
		k.done(e)
	}
}

// onSwept processes a record that the sweeper found behind the low watermark. It needs no
// pin: the sweeper's own position stays until the sweeper finds nothing there.
func (k *Core) onSwept(ev EvSwept) {
	if k.entries[ev.Timer.ID] != nil {
		return
	}
	tick := k.cfg.Geometry.Tick(ev.Timer.Record.DueMs)
	if tick > k.watermark {
		return
	}
	switch r := &ev.Timer.Record; {
	case r.Pending():
		k.insert(ev.Timer, tick, 0, phaseWaiting)
	case r.Schedule != nil:
		s := r.Schedule
		switch {
		case r.State != schemas.StateDelivered:
		case s.AlarmIsLast():
			if k.entries[schemas.OverdueTimer(ev.Timer.ID, s.Alarm.Run)] == nil {
				k.checkAlarm(ev.Timer)
			}
		case k.entries[schemas.RunTimer(ev.Timer.ID, s.Last.Run)] == nil:
			k.checkRun(ev.Timer)
		}
	case ev.Redispatch:
		// Claim the record again, so that it has the time of the last firing.
		e := k.insert(ev.Timer, tick, 0, phaseReady)
		e.rec.Attempt = r.Attempt
		k.ready.push(e)
	case r.State == schemas.StateDelivered:
		k.dedup.queue = append(k.dedup.queue, k.insert(ev.Timer, tick, 0, phaseDedupCheck))
	}
}
