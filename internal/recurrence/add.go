package recurrence

import (
	"cmp"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// ParseAdd parses an add like schemas.ParseAdd, and makes the timer's record. For a schedule it
// compiles the recurrence and sets the first run, so every record that it returns can be stored
// and fires. Spec.DueMs is the time at which the first run is due. Errors: those of
// schemas.ParseAdd and of cals; schemas.CodeInvalidAttribute for a recurrence that the calendar
// refuses, that never fires, or whose first run is further ahead than Limits.MaxHorizon.
func ParseAdd(hdr map[string][]string, data []byte, addedMs int64, lim schemas.Limits, cals Calendars) (schemas.Record, schemas.Spec, error) {
	body, spec, err := schemas.ParseAdd(hdr, data, addedMs, lim)
	if err != nil {
		return schemas.Record{}, spec, err
	}
	return record(body, spec, addedMs, lim, cals)
}

// EncodeAdd encodes an event with further settings as schemas.EncodeAdd does, and checks it by the
// rules of ParseAdd. It returns the message of the add. Errors: those of ParseAdd.
func EncodeAdd(e *event.Event, set []schemas.Setting, addedMs int64, lim schemas.Limits, cals Calendars) ([]byte, error) {
	body, spec, err := schemas.EncodeValidAdd(e, set, addedMs, lim)
	if err == nil && spec.Recurrence != nil {
		_, _, err = record(body, spec, addedMs, lim, cals)
	}
	return body.Data, err
}

// record makes the record of an add, with the first run of a schedule.
func record(body schemas.Body, spec schemas.Spec, addedMs int64, lim schemas.Limits, cals Calendars) (schemas.Record, schemas.Spec, error) {
	rec := schemas.NewRecord(&spec, body, addedMs)
	if rec.Schedule == nil {
		return rec, spec, nil
	}
	if err := begin(&rec, spec.Timer, cals); err != nil {
		return schemas.Record{}, schemas.Spec{}, err
	}
	if err := CheckHorizon(rec.DueMs, addedMs, lim.MaxHorizon); err != nil {
		return schemas.Record{}, schemas.Spec{}, err
	}
	spec.DueMs = rec.DueMs
	return rec, spec, nil
}

// ParseUpdate parses the event of an update like schemas.ParseAdd, and makes the record for
// Plan.Update, which compiles the recurrence. Errors: those of schemas.ParseAdd.
func ParseUpdate(hdr map[string][]string, data []byte, atMs int64, lim schemas.Limits) (schemas.Record, schemas.Spec, error) {
	body, spec, err := schemas.ParseAdd(hdr, data, atMs, lim)
	if err != nil {
		return schemas.Record{}, spec, err
	}
	return schemas.NewRecord(&spec, body, atMs), spec, nil
}

// CheckHorizon returns an error of schemas.CodeInvalidAttribute for a first run that is due more
// than horizon after nowMs; 0 stands for schemas.DefaultLimitHorizon. Times are Unix milliseconds.
func CheckHorizon(dueMs, nowMs int64, horizon time.Duration) error {
	if horizon = cmp.Or(horizon, schemas.DefaultLimitHorizon); dueMs-nowMs > horizon.Milliseconds() {
		return schemas.Errorf(schemas.CodeInvalidAttribute, "the first run of the schedule is due at %s, further ahead than the limit of %s", schemas.FormatTime(dueMs), schemas.Days(horizon))
	}
	return nil
}

// begin sets the first run of a schedule.
func begin(rec *schemas.Record, id schemas.TimerID, cals Calendars) error {
	plan, err := PlanOf(id, rec.Schedule, cals)
	if err != nil {
		return err
	}
	return plan.Begin(rec)
}
