package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file completes the claims of schedules whose result is unclear: the answer was lost or came too late, or
// an earlier owner made the claim.

// rereadSchedule processes the record of a schedule that was read because the result of a
// claim is unclear, or because its last run has concluded.
func (k *Core) rereadSchedule(e *entry, t store.Timer) {
	r := &t.Record
	if k.isClaimOf(e, r) {
		// This term's claim is stored; only its answer was lost.
		k.turned(e, t)
		return
	}
	k.resumeClaims(t)
	switch {
	case r.State == schemas.StateCompleted && r.Epoch == k.epoch && e.claimed(r), k.isLateClaim(e, r):
		k.claimed(e)
	case e.isFailOf(r):
		// The final record of a rejected claim is stored; only its answer was lost.
		k.failed(e, t.Rev)
	}
	fails, woken := e.fails, e.woken() || e.extra != nil && e.extra.concluded != 0
	if r.Pending() {
		e.keepNewer(t)
	}
	// An unclear claim may have been made before the schedule was due. Its entry must stay, so that the claim is
	// completed if it is stored after all.
	n := k.doneOrWoken(e, woken || e.unclear() || e.failing())
	if n == nil {
		return
	}
	n.inherit(e)
	if n.unclear() {
		k.pinFor(n, e.pin) // the claim may still be stored, and the next owner looks for it from where its tail begins
	}
	if !woken {
		n.fails = fails
	}
}

// isClaimOf reports whether a record contains the entry's claim in flight. A claim that waits for its index entry is not in
// flight: a record with the same run and time then has an earlier, unclear claim.
func (k *Core) isClaimOf(e *entry, r *schemas.Record) bool {
	if e.extra == nil || e.extra.turn == nil || e.phase != phaseClaiming && e.phase != phaseRereading {
		return false
	}
	turn := e.extra.turn
	var number uint32
	l := &r.Schedule.Last
	switch {
	case turn.Run != nil:
		number = turn.Run.Number
	case turn.Overdue != nil:
		l, number = &r.Schedule.Alarm, turn.Record.Schedule.Alarm.Run
	default:
		return false
	}
	return l.Epoch == k.epoch && l.Run == number && l.ClaimedMs == e.extra.turnMs
}

// resumeClaims completes the last run and the last overdue event of a schedule if their events may be
// missing: an earlier owner claimed them, and the clock from which this term resumed may be older than the
// claim, or an unclear claim of this term is stored after all. The entry holds the low watermark before the claim's
// tick, or pins the applied offset before the claim, so the next owner also completes the claim if this term
// does not.
func (k *Core) resumeClaims(t store.Timer) {
	s := t.Record.Schedule
	e := k.entries[t.ID]
	known := s // the schedule before the entry's unclear claim; s for none
	if e != nil && e.unclear() && t.Rev > e.rev && !k.isClaimOf(e, &t.Record) {
		known = e.rec.Schedule
	}
	late := func(l, before *schemas.LastRun) bool {
		return *l != *before && l.Epoch == k.epoch && e.isUnclear(l.ClaimedMs)
	}
	if l := &s.Last; late(l, &known.Last) || k.resumes(l, t.Rev) {
		k.resume(t, schemas.RunTimer(t.ID, l.Run), l.ClaimedMs, !s.AlarmIsLast(), k.checkRun)
	}
	if a := &s.Alarm; late(a, &known.Alarm) || k.resumes(a, t.Rev) {
		k.resume(t, schemas.OverdueTimer(t.ID, a.Run), a.ClaimedMs, s.AlarmIsLast(), k.checkAlarm)
	}
}

// resumes reports whether this term has to complete a claim, which is in revision rev of its record
// or in an earlier one.
//
// An owner that died amid a claim has left the applied offset before LastRun.Before. The owner after
// it may have moved the offset beyond that, and died too before its tail brought the claim, which has
// a higher sequence. For this case the clock of the second owner also has the offset of the first; see
// earlierClaims. It counts for revisions after the applied offset of the clock.
//
// That offset does not cover a claim that was stored later than leastEarlier. So the term also completes a recent claim
// whose record has a revision above the applied offset of the clock. There are few of these. Within half of the dedup
// window the stream itself rejects the second event of a run.
func (k *Core) resumes(l *schemas.LastRun, rev uint64) bool {
	if l.Run == 0 || l.Epoch == k.epoch {
		return false
	}
	unread := rev > k.from.Tail && k.now-l.ClaimedMs <= store.DedupWindowFor(k.cfg.Retention).Milliseconds()/2
	return unread || k.from.Misses(k.cfg.Geometry, l, rev)
}

// leastEarlier is how late after the take-over a write of an earlier owner is expected to be stored at most. mostEarlier bounds
// the wait until the tail has reached the end of the stream: the last message may be an index entry, which the tail does
// not deliver. Both are in milliseconds.
const (
	leastEarlier = 30 * 1000
	mostEarlier  = 60 * 60 * 1000
)

// earlierClaims returns Clock.EarlierEpoch and Clock.EarlierTail for a clock whose applied offset is tail; zeros if the next
// owner does not need them. applied is the present applied offset. EarlierTail is the lower of that and the offset from which
// this term looked for earlier claims. The fields are set for leastEarlier, and then until the tail has reached what was known to be stored
// by then. After mostEarlier they no longer wait for the tail. In both cases they stay set while a pin is below tail: Clock.Tail
// never decreases, so a claim that this term has found late may be below it.
//
// From then on this term does not look for earlier claims before from.Tail either. Any later revision of a schedule has its last
// claim. If that is an old claim whose event the streams do not have any more, its run would fire twice.
func (k *Core) earlierClaims(applied, tail uint64) (epoch, earlier uint64) {
	took := k.now - k.fromMs
	if took >= leastEarlier && k.head == 0 {
		k.head = max(k.cfg.Head, k.from.Seen, k.stored)
	}
	if read := k.head != 0 && k.tailSeen >= k.head; (read || took >= mostEarlier) && applied >= tail {
		k.from.EarlierEpoch, k.from.EarlierTail = 0, 0
		return 0, 0
	}
	if earlier = min(applied, k.from.Tail); k.from.EarlierEpoch != 0 {
		earlier = min(earlier, k.from.EarlierTail)
	}
	return k.epoch - 1, earlier
}

// resume completes a claim, made at claimedMs, with check, once in a term. last is true for the last claim of the
// schedule.
func (k *Core) resume(t store.Timer, id schemas.TimerID, claimedMs int64, last bool, check func(store.Timer)) {
	if run := k.entries[id]; run != nil {
		if run.rec.AddedMs == t.Record.AddedMs {
			k.resumed[id] = claimedMs // the entry is not done before its event is published or found
		}
		switch {
		case run.unpublished():
			run.completes(t)
		case last && t.Record.State == schemas.StateDelivered:
			k.completeSchedule(t)
		}
		return
	}
	// A schedule that is added again has runs with the same numbers.
	if at, done := k.resumed[id]; done && at == claimedMs {
		return
	}
	k.resumed[id] = claimedMs
	check(t)
}

// checkRun queues a dedup check for the last run of a schedule.
func (k *Core) checkRun(t store.Timer) {
	k.dedup.queue = append(k.dedup.queue, k.insertRun(t, phaseDedupCheck))
}

// readRun replaces the entry of a run that checkRun added before the run's record was read. t is
// that record, which an earlier owner claimed: perhaps for a later attempt, whose event is another
// one than checkRun looks for. The new entry looks for that event, and takes over what waits for
// the run. readRun returns false for all other entries: theirs is the claim in question.
func (k *Core) readRun(e *entry, t store.Timer, tick int64, pin uint64) bool {
	if e.rev != 0 || e.rec.Origin == nil || e.phase != phaseDedupCheck && e.phase != phaseIndexing {
		return false
	}
	r, before := e.more(), e.pin
	completes, blocks, unindexed := r.completes, r.blocks, r.unindexed
	r.completes, r.blocks = nil, nil // done must not take them for ended
	k.done(e)
	n := k.insert(t, tick, pin, phaseDedupCheck)
	k.pinFor(n, before)
	x := n.more()
	x.completes, x.blocks, x.unindexed = completes, blocks, unindexed
	k.dedup.queue = append(k.dedup.queue, n)
	return true
}
