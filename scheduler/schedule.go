package scheduler

import (
	"errors"
	"math"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file fires schedules; see docs/adr/0012. The record of a schedule waits in the wheel
// like that of a timer. When it is due, recurrence.Turn decides, and the claim writes the
// decision: at most one run fires, and the next due time is planned. The run gets an entry of
// its own, under the timer id schemas.RunTimer, which publishes its event like that of a
// timer. A run with a callback gets a record first.
//
//	schedule:  waiting ──due──▶ ready ──▶ turn ──────────▶ claiming ──▶ waiting, due next
//	              ▲                       │ ▲                 │
//	              │                 blocked, looking,         ▼ a run fires
//	              │                 preparing        run:  creating ──▶ publishing ──▶ done
//	              └── newer record ── rereading               ▲
//	                       (claimed by an earlier owner) ──▶ dedup check
//
//   - blocked: the event of the last run is not published yet, or the run's record may lack its
//     index entry. The schedule's record keeps the claim of one run only, so the next claim
//     waits.
//   - looking: the decision depends on the result of a callback: that of the last run, or of a
//     run whose deadline has passed (timerexpect). The owner reads the run's record from the
//     leader.
//   - preparing: the write of the next due time's index entry is in flight. Usually the entry
//     was written when the record came into the wheel.
//
// A turn may also claim an overdue event (timerexpect). It is published like the event of a run
// without a callback, in an entry under the timer id schemas.OverdueTimer.
//
// A term completes the last claim of an earlier owner if the clock from which it resumed may
// be older than that claim; see resumeClaims (schedulerecovery.go).

const (
	// maxPreparing bounds the index entries of next due times in flight.
	maxPreparing = 256
	// maxTurnAgeMs bounds the age of a decision when it is claimed, and of the answer that the last
	// run is open. An older one is made again.
	maxTurnAgeMs = 10_000
)

// recurring is the part of an entry for a schedule, or for a run of one.
type recurring struct {
	// plan is the compiled recurrence of a schedule; nil until it is needed.
	plan *recurrence.Plan
	// turn is the decision to be claimed, made at turnMs; nil for none.
	turn   *recurrence.Turn
	turnMs int64
	// prepared is a tick with an acknowledged index entry for the schedule. preparing is a tick
	// whose index entry is in flight. noTick for none.
	prepared, preparing int64
	// open is true if the callback of the last run has no result. It is known if looked is
	// true, after an ActLook.
	looked, open bool
	// waits is true if the schedule has waited for its calendars, or could not be planned, since its last turn.
	waits bool
	// result is the result of a run whose deadline has passed; nil until the leader has
	// answered. asked is the run of the ActLook in flight, 0 for the last run.
	result *recurrence.Result
	asked  uint32
	// woken is true if the schedule is turned before it is due, because its last run has a
	// result.
	woken bool
	// concluded is the last run whose result the tail has brought, 0 for none: a step in flight
	// may not know it. lookMs is the time of the last ActLook.
	concluded uint32
	lookMs    int64
	// lookSeen is ActLook.Seen of the looks since the last success, and 0 after one. lookFails counts the
	// failed looks since then. behind counts the successive answers that were as of an earlier sequence.
	lookSeen  uint64
	lookFails int
	behind    int

	// unindexed is true for a run whose record may have no index entry: its create was not
	// acknowledged, or an earlier owner has created it.
	unindexed bool
	// completes is the record of the schedule, if this is its last run or overdue event: the
	// schedule is completed when this entry is done. nil otherwise.
	completes *store.Timer
	// blocks is the entry of the schedule whose claim waits for this one; nil for none.
	blocks *entry
	// alarm has the reason and the text of an overdue event; nil for all other entries.
	alarm *alarm
}

// noTick is no tick.
const noTick = -1 << 63

// turn decides a due schedule and claims the decision. If the decision needs something first
// (calendars, the result of a run, an index entry), turn requests that, and runs again later.
func (k *Core) turn(e *entry) {
	if e.newer() != nil {
		k.done(e) // and take up the newer revision
		return
	}
	r := e.extra
	e.keepFields()
	if !k.followsCalendars(e) {
		r.waits = true
		k.retryClaim(e)
		return
	}
	s := e.rec.Schedule
	if s.Last.Run != 0 && k.blocked(e, schemas.RunTimer(e.id, s.Last.Run)) {
		return
	}
	if len(s.Expected) > 0 && s.Alarm.Run != 0 && k.blocked(e, schemas.OverdueTimer(e.id, s.Alarm.Run)) {
		return
	}
	if r.turn == nil || r.turnMs > k.now || k.now-r.turnMs > maxTurnAgeMs {
		if run := recurrence.NeedsResult(&e.rec, k.now); run == 0 {
			r.result = nil
		} else if r.result == nil || r.result.Run != run {
			k.look(e, run)
			return
		}
		if recurrence.NeedsLast(&e.rec) && !r.looked {
			k.look(e, 0)
			return
		}
		plan := k.planOf(e)
		if plan == nil {
			r.waits = true
			k.retryClaim(e)
			return
		}
		k.pinClaim(e)
		rec := e.rec
		rec.DueMs = min(rec.DueMs, k.now) // the schedule may be turned early; see wake
		turn := plan.Turn(&rec, k.now, r.open, recurrence.Claim{Epoch: k.epoch, Before: max(e.rev, e.pin), Result: r.result})
		r.turn, r.turnMs = &turn, k.now
		if r.waits {
			r.waits, e.fails = false, 0 // the next step begins at once
		}
		r.looked, r.open, r.result = false, false, nil
	}
	if next := &r.turn.Record; next.Queued {
		// The due time that the claim replaces has an index entry.
		if tick := k.cfg.Geometry.Tick(next.DueMs); tick != r.prepared && tick != e.tick {
			e.phase = phasePreparing
			if tick != r.preparing {
				k.prepare(e, tick, k.backoff(int(e.fails)))
			}
			return
		}
	}
	e.phase, r.woken = phaseClaiming, false
	e.wasPending = e.rec.State.Waits() && !e.left() && !r.turn.Record.State.Waits()
	k.inflight++
	k.do(ActClaim{ID: e.id, Rev: e.rev, Record: &r.turn.Record})
}

// blocked reports whether the event of a run, or an overdue event, may not be published yet. The
// schedule's turn then waits for it.
func (k *Core) blocked(e *entry, id schemas.TimerID) bool {
	run := k.entries[id]
	if run == nil || !run.unpublished() {
		return false
	}
	e.phase = phaseBlocked
	run.more().blocks = e
	return true
}

// look requests the result of a run. With run 0 it asks whether the last run is open.
func (k *Core) look(e *entry, run uint32) {
	e.phase, e.extra.asked, e.extra.lookMs = phaseLooking, run, k.now
	result := run != 0
	if !result {
		run = e.rec.Schedule.Last.Run
	}
	r := e.extra
	if r.lookSeen == 0 {
		r.lookSeen = max(k.stored, e.rev)
	}
	// A delayed look counts as a write in flight during its delay, and so holds up other timers. Only a look that
	// follows a failed one is delayed.
	a := ActLook{ID: e.id, Run: schemas.RunTimer(e.id, run), Result: result, Seen: r.lookSeen, Delay: k.backoff(r.lookFails)}
	if r.behind > maxStaleRereads {
		a.Seen = 0 // the stream has lost its newest messages
	}
	k.inflight++
	k.do(a)
}

// pinClaim pins the applied offset before the claim of a schedule, so that the next owner reads
// the claim. It is necessary where neither the low watermark nor a pin holds: if the sweeper
// found the schedule, or if the schedule is turned before it is due.
func (k *Core) pinClaim(e *entry) {
	if e.pin == 0 && (!e.counted || e.rec.DueMs > k.now) {
		k.pins.add(e, k.tailSeen+1)
	}
}

// unpublished reports whether the event of a run may not be published yet.
func (e *entry) unpublished() bool {
	return e.phase != phaseWaiting && e.phase != phaseReady && e.phase != phaseDone
}

// more returns e.extra, and creates it for an entry that has none.
func (e *entry) more() *extra {
	if e.extra == nil {
		e.extra = &extra{recurring: recurring{prepared: noTick, preparing: noTick}}
	}
	return e.extra
}

// followsCalendars drops the plan and the decision of a schedule if one of its excluded
// calendars has changed. It returns false if the schedule must wait, because the calendars are
// not known or one does not exist.
func (k *Core) followsCalendars(e *entry) bool {
	names, r := e.rec.Schedule.Exclude, e.extra
	if len(names) == 0 {
		return true
	}
	if !k.calendarsFresh {
		k.do(ActUnplanned{ID: e.id, Err: errCalendars})
		return false
	}
	x, err := k.calendars.Exclusions(names)
	if err != nil {
		k.do(ActUnplanned{ID: e.id, Calendar: k.calendars.Missing(names), Err: err})
		return false
	}
	if r.plan != nil && r.plan.Calendar().Revision() != x.Revision {
		r.plan, r.turn = nil, nil
	}
	return true
}

// errCalendars is the reported reason while schedules that exclude calendars wait.
var errCalendars = schemas.Errorf(schemas.CodeUnavailable, "the calendars that it excludes cannot be read at present")

// planOf returns the compiled recurrence of a schedule. It returns nil if the recurrence does
// not compile, which only a record of another version can cause: the schedule then holds back
// the low watermark, like a record of a newer format.
func (k *Core) planOf(e *entry) *recurrence.Plan {
	r := e.extra
	if r.plan == nil {
		plan, err := recurrence.Basis{Zones: k.cfg.Zones, Calendars: k.calendars}.PlanOf(e.id, e.rec.Schedule)
		if err != nil {
			k.do(ActUnplanned{ID: e.id, Err: err})
			return nil
		}
		r.plan = plan
	}
	return r.plan
}

// --- index entries of next due times ---

// prepareSome writes index entries for the next due times of the schedules in the wheel, so
// that their claims need not wait for them. It predicts these due times; readers ignore the
// entry of a wrong prediction.
func (k *Core) prepareSome() {
	for len(k.toPrepare) > 0 && k.preparing < maxPreparing {
		e := k.toPrepare[0]
		k.toPrepare[0] = nil
		k.toPrepare = k.toPrepare[1:]
		if e.phase != phaseWaiting || e.extra.prepared != noTick || e.extra.preparing != noTick || len(e.rec.Schedule.Exclude) > 0 && !k.calendarsFresh {
			continue // the claim prepares it
		}
		plan := k.planOf(e)
		if plan == nil {
			continue
		}
		next := plan.Turn(&e.rec, e.rec.DueMs, false, recurrence.Claim{}).Record
		if tick := k.cfg.Geometry.Tick(next.DueMs); next.Queued && tick != e.tick {
			k.prepare(e, tick, 0)
		}
	}
	if len(k.toPrepare) == 0 {
		k.toPrepare = nil
	}
}

// prepare requests the index entry of a schedule for a tick, after a delay.
func (k *Core) prepare(e *entry, tick int64, delay time.Duration) {
	e.extra.preparing = tick
	k.preparing++
	k.do(ActIndex{ID: e.id, Record: e.id, Tick: tick, Ahead: true, Delay: delay})
}

// onPrepared processes the result of an index entry for a next due time.
func (k *Core) onPrepared(ev EvIndexed) {
	k.preparing--
	e := k.entries[ev.ID]
	if e == nil || e.extra == nil || e.extra.preparing != ev.Tick {
		return
	}
	e.extra.preparing = noTick
	if ev.Err != nil {
		e.countFailure() // the claim writes the entry again
	} else {
		e.extra.prepared, e.fails = ev.Tick, 0
	}
	if e.phase == phasePreparing {
		k.makeReady(e)
	}
}

// makeReady puts an entry into the queue of its service.
func (k *Core) makeReady(e *entry) {
	e.phase = phaseReady
	k.ready.push(e)
}

// onLooked processes the state of a run's record.
func (k *Core) onLooked(ev EvLooked) {
	k.inflight--
	e := k.entries[ev.ID]
	if e == nil || e.phase != phaseLooking {
		return
	}
	r := e.extra
	if errors.Is(ev.Err, store.ErrBehind) {
		r.behind++
	} else {
		r.behind = 0
	}
	if ev.Err != nil {
		r.lookFails = min(r.lookFails+1, maxFails)
	} else {
		r.lookFails, r.lookSeen = 0, 0
		if r.asked != 0 {
			r.result = &recurrence.Result{Run: r.asked, State: ev.State, DoneMs: ev.DoneMs}
		}
		if last := e.rec.Schedule.Last.Run; r.asked == 0 || r.asked == last {
			r.looked, r.open = true, ev.Open && r.concluded != last
			if r.open && k.now-r.lookMs > maxTurnAgeMs {
				r.looked = false // the process was paused: look again
			}
		}
	}
	k.makeReady(e)
}

// --- the claim ---

// turned processes the stored claim of a schedule: its run fires, and the schedule waits for
// its next due time. t is the record with the claim or, if the claim's answer was lost, a
// later revision.
func (k *Core) turned(e *entry, t store.Timer) {
	e.replaced(t.Rev)
	s, turn := t.Record.Schedule, e.extra.turn
	switch {
	case turn.Run != nil && k.started(schemas.RunTimer(t.ID, s.Last.Run), &s.Last),
		turn.Overdue != nil && k.started(schemas.OverdueTimer(t.ID, s.Alarm.Run), &s.Alarm):
		e.wasPending = false // counted then
	default:
		k.obey(e, t)
	}
	e.keepNewer(t)
	if n := k.doneOrWoken(e, e.extra.concluded == s.Last.Run); n != nil && n.rev == t.Rev && n.extra != nil && n.rec.Hash == e.rec.Hash {
		n.extra.plan = e.extra.plan // t may be an update
	}
}

// doneOrWoken ends a step of a schedule and takes up the latest revision. With woken, it turns
// the schedule if one of its runs waits, also if it is not due soon. It returns the entry of the
// latest revision; nil if it is not in the wheel.
func (k *Core) doneOrWoken(e *entry, woken bool) *entry {
	newer := e.newer()
	k.done(e)
	n := k.entries[e.id]
	if !woken {
		return n
	}
	if n == nil && newer != nil && newer.Record.Pending() && waitsForRun(&newer.Record) {
		n = k.insert(*newer, k.cfg.Geometry.Tick(newer.Record.DueMs), newer.Rev, phaseWaiting)
	}
	if n != nil {
		k.wake(n)
	}
	return n
}

// obey carries out the stored claim of a schedule: it publishes the run or overdue event, and adds the
// schedule again.
func (k *Core) obey(e *entry, t store.Timer) {
	k.claimed(e)
	turn := e.extra.turn
	if len(turn.Skipped) > 0 {
		k.do(ActSkipped{ID: e.id, Skipped: turn.Skipped})
	}
	if turn.EndsRun != 0 {
		k.do(ActEndRun{ID: schemas.RunTimer(e.id, turn.EndsRun), By: turn.Record.Run, Seen: k.stored})
	}
	if turn.Run != nil {
		k.start(e, k.insertRun(t, phaseCreating), &t.Record.Schedule.Last)
	}
	if turn.Overdue != nil {
		k.start(e, k.insertAlarm(t, phasePublishing), &t.Record.Schedule.Alarm)
	}
}

// started reports whether this term has processed a claim before, and its run or overdue event
// is not done. That is so if the entry of the schedule was gone when the tail brought the
// revision before the claim: the schedule was then claimed again and the claim refused.
//
// An entry with another claim is a run of an earlier schedule with the same identity. started
// drops it, because its number is taken.
func (k *Core) started(id schemas.TimerID, l *schemas.LastRun) bool {
	e := k.entries[id]
	if e == nil {
		return false
	}
	if e.rec.Epoch == l.Epoch && e.rec.FiredMs == l.ClaimedMs {
		return true
	}
	k.replace(e, math.MaxUint64)
	return false
}

// start publishes the event of a run or an overdue event that this term has claimed. l is the
// claim, claimed the entry of the run or overdue event, e that of the schedule. The event may
// have been published before; see started.
func (k *Core) start(e, claimed *entry, l *schemas.LastRun) {
	if e.pin != 0 && claimed.pin == 0 {
		k.pins.add(claimed, l.Before)
	}
	k.publishChecked(claimed)
}

// insertRun adds the entry of the last run of a schedule. Until the run's record is stored,
// the entry's revision is 0. A run without a callback has no record: its claim is in that of
// the schedule.
func (k *Core) insertRun(t store.Timer, p phase) *entry {
	last := &t.Record.Schedule.Last
	run := store.Timer{ID: schemas.RunTimer(t.ID, last.Run), Record: recurrence.RunRecord(t.ID, &t.Record)}
	if run.Record.Callback == "" {
		run.Rev = t.Rev
	}
	e := k.insert(run, k.cfg.Geometry.Tick(last.DueMs), last.Before, p)
	if p == phaseDedupCheck && run.Record.Callback != "" {
		e.more().unindexed = true
	}
	e.completes(t)
	return e
}

// completes sets e.extra.completes if e, a run or overdue event, is the last of the schedule t.
func (e *entry) completes(t store.Timer) {
	if t.Record.State == schemas.StateDelivered && t.Record.Schedule.AlarmIsLast() == (e.alarm() != nil) {
		e.more().completes = &t
	}
}

// createRun writes the record of a run. It must not exist or, if rev is not 0, have that
// revision.
func (k *Core) createRun(e *entry, rev uint64) {
	e.phase = phaseCreating
	k.inflight++
	k.do(ActCreateRun{ID: e.id, Rev: rev, Record: &e.rec})
}

// onRunCreated processes the result of ActCreateRun: it publishes the run's event.
func (k *Core) onRunCreated(ev EvRunCreated) {
	k.inflight--
	e := k.entries[ev.ID]
	switch {
	case e == nil || e.phase != phaseCreating:
	case ev.Err == nil:
		k.know(ev.Rev)
		e.rev, e.fails = ev.Rev, 0
		k.publishChecked(e)
	case isRevision(ev.Err):
		// The record exists: an earlier request or an earlier owner has written it. Its state
		// says whether the event was published.
		e.more().unindexed = true
		k.reread(e)
	case store.Permanent(ev.Err):
		k.refuse(e, ev.Err)
		k.publishChecked(e)
	default:
		k.again(e)
	}
}

// endRun is called when the entry of a run or overdue event is done. It completes the schedule
// after its last one, and continues a claim that this entry blocks.
func (k *Core) endRun(e *entry) {
	r := e.extra
	if t := r.completes; t != nil {
		r.completes = nil
		k.completeSchedule(*t)
	}
	if s := r.blocks; s != nil {
		r.blocks = nil
		if s.phase == phaseBlocked {
			if s.newer() != nil {
				k.done(s) // and take up the newer revision
			} else {
				k.makeReady(s)
			}
		}
	}
}

// completeSchedule queues the final record of a schedule whose last run was published. The
// record keeps its event; see schemas.State.Final.
func (k *Core) completeSchedule(t store.Timer) {
	rec := t.Record
	rec.State, rec.DoneMs = schemas.StateCompleted, max(k.now, rec.FiredMs)
	k.completions.queue = append(k.completions.queue, ActFinish{ID: t.ID, Rev: t.Rev, Record: &rec})
}

// --- results of runs ---

// onConcluded wakes a schedule whose run may wait for the run that has concluded. If the
// schedule is not in the wheel, its record is read; if that fails, the schedule is turned
// when it is due, within a minute. A step in flight may have read that the run is open: the
// schedule is woken after it.
func (k *Core) onConcluded(o *schemas.Origin, run uint32) {
	if e := k.entries[o.Schedule]; e != nil {
		e.more().concluded = run
		k.wake(e)
		return
	}
	e := &entry{id: o.Schedule, phase: phaseWaiting}
	e.node.Value = e
	e.more().woken = true
	k.entries[e.id] = e
	k.reread(e)
}

// wake turns a schedule now if one of its runs waits.
func (k *Core) wake(e *entry) {
	if e.rec.Schedule == nil || e.phase != phaseWaiting || !waitsForRun(&e.rec) {
		return
	}
	k.wheel.Remove(&e.node)
	e.extra.woken = true
	k.makeReady(e)
}

// waitsForRun reports whether a schedule has a run that may wait for its last run.
func waitsForRun(r *schemas.Record) bool {
	s := r.Schedule
	return s.Waiting != nil || len(s.Manual) > 0 || s.Backfill != nil
}

// woken reports whether the entry may be claimed before it is due.
func (e *entry) woken() bool { return e.extra != nil && e.extra.woken }
