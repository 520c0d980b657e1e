package recurrence

import (
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// Plan is the compiled recurrence of a schedule. It is immutable and safe for concurrent
// use.
type Plan struct {
	calendar *calendar.Schedule
	// all is the schedule without the excluded calendars; nil if it excludes none.
	all  *calendar.Schedule
	rule schemas.Recurrence
}

// Compile compiles the recurrence of the schedule with this timer id. anchorMs is
// Progress.AnchorMs. cals are the calendars; nil if the schedule excludes none. Its errors
// have schemas.CodeInvalidAttribute, or are those of cals.
func Compile(id schemas.TimerID, r *schemas.Recurrence, anchorMs int64, cals Calendars) (*Plan, error) {
	spec := calendar.Spec{
		ID: id.String(), Cron: r.Cron, Every: r.Every, Zone: r.Zone, StartMs: r.StartMs, EndMs: r.EndMs,
		Jitter: time.Duration(r.JitterMs) * time.Millisecond, DST: r.DST, Days: r.Days, ExcludeShift: r.ExcludeMode,
	}
	if r.Every != "" && spec.StartMs == 0 {
		spec.StartMs = anchorMs
	}
	if len(r.Exclude) > 0 {
		if cals == nil {
			return nil, schemas.Errorf(schemas.CodeUnavailable, "the calendars that the schedule excludes are not known here")
		}
		var err error
		if spec.Exclude, err = cals.Exclusions(r.Exclude); err != nil {
			return nil, err
		}
	}
	s, err := calendar.New(spec)
	if err != nil {
		var bad *calendar.Error
		if errors.As(err, &bad) {
			return nil, schemas.Errorf(schemas.CodeInvalidAttribute, "%w", bad)
		}
		return nil, err
	}
	p := &Plan{calendar: s, rule: *r}
	if p.excludes() {
		p.all = s.Without()
	}
	return p, nil
}

// PlanOf compiles the recurrence of a stored schedule.
func PlanOf(id schemas.TimerID, s *schemas.Schedule, cals Calendars) (*Plan, error) {
	return Compile(id, &s.Recurrence, s.AnchorMs, cals)
}

// Calendar returns the nominal times of the recurrence.
func (p *Plan) Calendar() *calendar.Schedule { return p.calendar }

// Begin sets the first nominal time of a new schedule: the first after its add, which the
// stream stored at rec.AddedMs. It returns an error of schemas.CodeInvalidAttribute if there
// is none.
func (p *Plan) Begin(rec *schemas.Record) error {
	s := rec.Schedule.Clone()
	next, ok := p.calendar.Next(max(rec.AddedMs, s.StartMs-1))
	if !ok {
		return schemas.Errorf(schemas.CodeInvalidAttribute, "the schedule has no run after %s: check timerstart and timerend", schemas.FormatTime(rec.AddedMs))
	}
	if err := p.checkExpect(next); err != nil {
		return err
	}
	p.setNext(s, next)
	if p.excludes() {
		s.PassedMs, s.Calendars = max(rec.AddedMs, s.StartMs-1), p.calendar.Revision()
	}
	rec.Schedule, rec.Run = s, 1
	rec.ScheduledMs, rec.DueMs, rec.Queued = next, s.NextDueMs, true
	return nil
}

// after returns the nominal time that follows another and its due time; 0 if none is left.
func (p *Plan) after(nominalMs int64) (nextMs, dueMs int64) {
	next, ok := p.calendar.Next(nominalMs)
	if !ok {
		return 0, 0
	}
	return next, p.calendar.DueMs(next)
}
