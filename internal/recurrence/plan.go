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

// Basis is what the nominal times of a schedule depend on beside its record.
type Basis struct {
	// Zones is the zone data; nil for that of the process.
	Zones *calendar.ZoneData
	// Calendars are the calendars; nil if the schedule excludes none.
	Calendars Calendars
}

// Compile compiles a recurrence on the zone data of the process; see Basis.Compile.
func Compile(id schemas.TimerID, r *schemas.Recurrence, anchorMs int64, cals Calendars) (*Plan, error) {
	return Basis{Calendars: cals}.Compile(id, r, anchorMs)
}

// PlanOf compiles the recurrence of a stored schedule on the zone data of the process; see
// Basis.Compile.
func PlanOf(id schemas.TimerID, s *schemas.Schedule, cals Calendars) (*Plan, error) {
	return Basis{Calendars: cals}.PlanOf(id, s)
}

// PlanOf compiles the recurrence of a stored schedule; see Compile.
func (b Basis) PlanOf(id schemas.TimerID, s *schemas.Schedule) (*Plan, error) {
	return b.Compile(id, &s.Recurrence, s.AnchorMs)
}

// Compile compiles the recurrence of the schedule with this timer id. anchorMs is
// Progress.AnchorMs. Its errors have schemas.CodeInvalidAttribute, or are those of the
// calendars.
func (b Basis) Compile(id schemas.TimerID, r *schemas.Recurrence, anchorMs int64) (*Plan, error) {
	spec := calendar.Spec{
		ID: id.String(), Cron: r.Cron, Every: r.Every, Zone: r.Zone, Zones: b.Zones, StartMs: r.StartMs, EndMs: r.EndMs,
		Jitter: time.Duration(r.JitterMs) * time.Millisecond, DST: r.DST, Days: r.Days, ExcludeShift: r.ExcludeMode,
	}
	if r.Every != "" && spec.StartMs == 0 {
		spec.StartMs = anchorMs
	}
	if len(r.Exclude) > 0 {
		if b.Calendars == nil {
			return nil, schemas.Errorf(schemas.CodeUnavailable, "the calendars that the schedule excludes are not known here")
		}
		var err error
		if spec.Exclude, err = b.Calendars.Exclusions(r.Exclude); err != nil {
			return nil, err
		}
	}
	s, err := calendar.New(spec)
	if err != nil {
		var bad *calendar.Error
		if errors.As(err, &bad) {
			return nil, schemas.Errorf(schemas.CodeInvalidAttribute, "%w", bad).About(bad.Attribute)
		}
		return nil, err
	}
	p := &Plan{calendar: s, rule: *r}
	if p.excludes() {
		p.all = s.Without()
	}
	return p, nil
}

// Calendar returns the nominal times of the recurrence.
func (p *Plan) Calendar() *calendar.Schedule { return p.calendar }

// release returns the release of the plan's zone data.
func (p *Plan) release() string { return p.calendar.Zones().Release() }

// Begin sets the first nominal time of a new schedule: the first after its add, which the
// stream stored at rec.AddedMs. It returns an error of schemas.CodeInvalidAttribute if there
// is none.
func (p *Plan) Begin(rec *schemas.Record) error {
	s := rec.Schedule.Clone()
	next, ok := p.calendar.Next(max(rec.AddedMs, s.StartMs-1))
	if !ok {
		return schemas.Errorf(schemas.CodeInvalidAttribute, "the schedule has no run after %s: check timerstart, timerend and timerexclude", schemas.FormatTime(rec.AddedMs))
	}
	if err := p.checkExpect(next); err != nil {
		return err
	}
	p.setNext(s, next, rec.AddedMs)
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
