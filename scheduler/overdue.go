package scheduler

import (
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file publishes overdue events (timerexpect). A turn claims an overdue event as it claims
// a run. An overdue event has no record and no callback.

// alarm describes an overdue event: its reason (timererrorcode), a text (timererrordata), and
// the number of nominal times that are overdue.
type alarm struct {
	reason, text string
	count        uint32
}

// insertAlarm adds the entry of the last overdue event of a schedule. The claim of the event
// is in the schedule's record.
func (k *Core) insertAlarm(t store.Timer, p phase) *entry {
	c := &t.Record.Schedule.Alarm
	a := store.Timer{ID: schemas.OverdueTimer(t.ID, c.Run), Rev: t.Rev, Record: recurrence.OverdueRecord(t.ID, &t.Record)}
	e := k.insert(a, k.cfg.Geometry.Tick(c.DueMs), c.Before, p)
	x := &alarm{count: c.Missed + 1}
	x.reason, x.text = recurrence.OverdueReason(&t.Record)
	e.more().alarm = x
	e.completes(t)
	return e
}

// alarm returns the description of an overdue event; nil for all other entries.
func (e *entry) alarm() *alarm {
	if e.extra == nil {
		return nil
	}
	return e.extra.alarm
}

// publishAlarm publishes an overdue event.
func (k *Core) publishAlarm(e *entry) {
	hdr, data := e.rec.Body.OverdueMessage(e.overdue(), e.extra.alarm.reason, e.extra.alarm.text)
	subject, msgID := target(e)
	k.inflight++
	k.do(ActOverdue{ID: e.id, Msg: store.Msg{Subject: subject, Header: hdr, Data: data, MsgID: msgID}, Count: e.extra.alarm.count})
}

// overdue returns the attributes of an overdue event.
func (e *entry) overdue() schemas.Fired {
	r := &e.rec
	return schemas.Fired{ScheduledMs: r.ScheduledMs, FiredMs: r.FiredMs, Run: r.Run, Missed: r.Origin.Missed, OverdueMs: r.Origin.DeadlineMs, NoCallback: true}
}

// checkAlarm queues a dedup check for the last overdue event of a schedule.
func (k *Core) checkAlarm(t store.Timer) {
	k.dedup.queue = append(k.dedup.queue, k.insertAlarm(t, phaseDedupCheck))
}
