package belfry

import (
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// Firing identifies a run: the timer that fired, and when.
type Firing struct {
	Timer TimerID
	// Scheduled is the due time, and Fired the time at which the timer fired, by the cluster's
	// clock. Both are exact to the millisecond.
	Scheduled, Fired time.Time
	// Run counts the due occurrences of the timer from 1.
	Run uint32
	// Missed is the number of missed nominal times of a schedule for which this run fired,
	// in addition to its own. Trigger is the reason why the run of a schedule fired.
	Missed  uint32
	Trigger Trigger
}

// Trigger is the reason why a run fires.
type Trigger = schemas.Trigger

// The triggers.
const (
	TriggerSchedule = schemas.TriggerSchedule // it was due
	TriggerManual   = schemas.TriggerManual   // requested by Client.Trigger
	TriggerBackfill = schemas.TriggerBackfill // requested by Client.Backfill
)

// FiringOf reads the attributes that Belfry added to a fired event. Use it in programs that
// subscribe to timers.fired themselves; a [Handler] gets the Firing in its [Run]. Its Timer is the
// id in the default tenant; for a tenant, the header Nats-Msg-Id has its id and the run. Errors:
// ErrInvalidAttribute for an event that Belfry did not fire.
func FiringOf(e *event.Event) (Firing, error) {
	text := func(name string) string {
		v, ok := e.Extensions()[name]
		if !ok {
			return ""
		}
		return schemas.ExtensionText(v)
	}
	f := Firing{Timer: NewTimerID(e.Source(), e.ID())}
	for name, t := range map[string]*time.Time{schemas.AttrScheduled: &f.Scheduled, schemas.AttrFired: &f.Fired} {
		ms, err := schemas.ParseTime(text(name))
		if err != nil {
			return Firing{}, schemas.Errorf(schemas.CodeInvalidAttribute, "this is not a fired event: %s: %w", name, err)
		}
		*t = schemas.TimeOf(ms)
	}
	run, err := strconv.ParseUint(text(schemas.AttrRun), 10, 32)
	if err != nil {
		return Firing{}, schemas.Errorf(schemas.CodeInvalidAttribute, "this is not a fired event: %s: %w", schemas.AttrRun, err)
	}
	f.Run = uint32(run)
	if v := text(schemas.AttrMissed); v != "" {
		missed, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return Firing{}, schemas.Errorf(schemas.CodeInvalidAttribute, "this is not a fired event: %s: %w", schemas.AttrMissed, err)
		}
		f.Missed = uint32(missed)
	}
	if v := text(schemas.AttrTrigger); v != "" {
		if f.Trigger, err = schemas.ParseTrigger(v); err != nil {
			return Firing{}, schemas.Errorf(schemas.CodeInvalidAttribute, "this is not a fired event: %s: %w", schemas.AttrTrigger, err)
		}
	}
	return f, nil
}

// Key returns the idempotency key of the run. It is the same for each delivery and attempt of
// the run, and no other run has it: a handler that skips the keys that it has processed
// processes each run once. It is also the Nats-Msg-Id of the fired event.
func (f Firing) Key() string { return f.Timer.MsgID(f.Run) }

// Late returns the time from the due time to the firing.
func (f Firing) Late() time.Duration { return f.Fired.Sub(f.Scheduled) }
