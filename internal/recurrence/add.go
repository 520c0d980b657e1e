package recurrence

import (
	"cmp"

	"github.com/belfryio/belfry/schemas"
)

// ParseAdd is schemas.ParseAdd, and compiles the recurrence of a schedule: every event that
// it accepts can be stored and fires. Spec.DueMs is the time at which the first run is due.
// Errors are those of schemas.ParseAdd; also schemas.CodeInvalidAttribute for a recurrence
// that the calendar refuses, that never fires, or whose first run is further ahead than
// Limits.MaxHorizon.
func ParseAdd(hdr map[string][]string, data []byte, addedMs int64, lim schemas.Limits) (schemas.Body, schemas.Spec, error) {
	body, spec, err := schemas.ParseAdd(hdr, data, addedMs, lim)
	if err != nil || spec.Recurrence == nil {
		return body, spec, err
	}
	rec, err := NewRecord(&spec, body, addedMs)
	if err != nil {
		return schemas.Body{}, schemas.Spec{}, err
	}
	if horizon := cmp.Or(lim.MaxHorizon, schemas.DefaultLimitHorizon); rec.DueMs-addedMs > horizon.Milliseconds() {
		return schemas.Body{}, schemas.Spec{}, schemas.Errorf(schemas.CodeInvalidAttribute, "the first run of the schedule is due at %s, further ahead than the limit of %s", schemas.FormatTime(rec.DueMs), schemas.Days(horizon))
	}
	spec.DueMs = rec.DueMs
	return body, spec, nil
}

// NewRecord is schemas.NewRecord, and sets the first run of a schedule. It returns no error
// for a spec that ParseAdd has returned.
func NewRecord(spec *schemas.Spec, body schemas.Body, addedMs int64) (schemas.Record, error) {
	rec := schemas.NewRecord(spec, body, addedMs)
	if rec.Schedule == nil {
		return rec, nil
	}
	plan, err := PlanOf(spec.Timer, rec.Schedule)
	if err != nil {
		return rec, err
	}
	err = plan.Begin(&rec)
	return rec, err
}
