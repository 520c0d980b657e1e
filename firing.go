package belfry

import (
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// Firing is what Belfry adds to an event when it fires.
type Firing struct {
	Timer TimerID
	// Scheduled is when it was due, Fired when it was fired by the cluster's clock,
	// both to the millisecond.
	Scheduled, Fired time.Time
	// Run counts the due occurrences of the timer, from 1.
	Run uint32
}

// FiringOf reads the attributes that Belfry added to a fired event. Use it in programs
// that subscribe to timers.fired themselves; a Handler has the Firing in its Run.
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
		*t = time.UnixMilli(ms)
	}
	run, err := strconv.ParseUint(text(schemas.AttrRun), 10, 32)
	if err != nil {
		return Firing{}, schemas.Errorf(schemas.CodeInvalidAttribute, "this is not a fired event: %s: %w", schemas.AttrRun, err)
	}
	f.Run = uint32(run)
	return f, nil
}

// Key names the run: the same for each delivery of it, and for no other. It is
// the Nats-Msg-Id of the fired event and the idempotency key of its callback: a
// handler that remembers the keys that it has served serves each run once.
func (f Firing) Key() string { return f.Timer.MsgID(f.Run) }

// Late is how long after it was due it was fired.
func (f Firing) Late() time.Duration { return f.Fired.Sub(f.Scheduled) }
