package recurrence

import (
	"cmp"

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
	rec := schemas.NewRecord(&spec, body, addedMs)
	if rec.Schedule == nil {
		return rec, spec, nil
	}
	if err := begin(&rec, spec.Timer, cals); err != nil {
		return schemas.Record{}, schemas.Spec{}, err
	}
	if horizon := cmp.Or(lim.MaxHorizon, schemas.DefaultLimitHorizon); rec.DueMs-addedMs > horizon.Milliseconds() {
		return schemas.Record{}, schemas.Spec{}, schemas.Errorf(schemas.CodeInvalidAttribute, "the first run of the schedule is due at %s, further ahead than the limit of %s", schemas.FormatTime(rec.DueMs), schemas.Days(horizon))
	}
	spec.DueMs = rec.DueMs
	return rec, spec, nil
}

// begin sets the first run of a schedule.
func begin(rec *schemas.Record, id schemas.TimerID, cals Calendars) error {
	plan, err := PlanOf(id, rec.Schedule, cals)
	if err != nil {
		return err
	}
	return plan.Begin(rec)
}
