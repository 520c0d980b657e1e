package recurrence

import (
	"time"

	"github.com/belfryio/belfry/schemas"
)

// This file has the operations on schedules. Each changes a record in memory; the caller
// writes it by compare-and-set on the revision that it has read. Times are Unix
// milliseconds of the cluster's clock. Each adds by to the record's history.

// MaxBackfill bounds the nominal times of one backfill.
const MaxBackfill = 10_000

// Pause stops the schedule: nothing fires until Resume but what somebody asks for. A run
// that waits for the previous one is skipped. It returns unchanged for a paused schedule
// with the same note. Errors: schemas.CodeAlreadyDone for a final state,
// schemas.CodeBadRequest for a note that is too long.
func (p *Plan) Pause(rec *schemas.Record, nowMs int64, note string, by schemas.Caller) (unchanged bool, err error) {
	if err := open(rec, "pause"); err != nil {
		return false, err
	}
	if len(note) > schemas.MaxPauseNote {
		return false, schemas.Errorf(schemas.CodeBadRequest, "note has %d bytes; the limit is %d", len(note), schemas.MaxPauseNote)
	}
	if rec.State == schemas.StatePaused && rec.Schedule.PauseNote == note {
		return true, nil
	}
	s := rec.Schedule.Clone()
	s.PauseNote = note
	if w := s.Waiting; w != nil {
		s.Decide(schemas.Decision{Kind: schemas.DecisionPaused, FromMs: w.NominalMs, ToMs: w.NominalMs, Count: 1, AtMs: nowMs})
		s.Waiting = nil
	}
	rec.Schedule, rec.State = s, schemas.StatePaused
	rec.Note(schemas.Operation{Kind: schemas.OperationPause, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return false, nil
}

// Resume starts a paused schedule again. catchUp says what happens to the nominal times of
// the pause; with schemas.MisfireSkip none of them fires. It returns unchanged for a
// schedule that is not paused.
func (p *Plan) Resume(rec *schemas.Record, nowMs int64, catchUp schemas.Misfire, by schemas.Caller) (unchanged bool, err error) {
	if err := open(rec, "resume"); err != nil {
		return false, err
	}
	if rec.State != schemas.StatePaused {
		return true, nil
	}
	s := rec.Schedule.Clone()
	s.PauseNote, s.PausedUntilMs, s.CatchUp = "", nowMs, nil
	if s.NextMs != 0 && s.NextDueMs <= nowMs {
		s.CatchUp = &catchUp
	}
	rec.Schedule, rec.State = s, schemas.StatePending
	rec.Note(schemas.Operation{Kind: schemas.OperationResume, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return false, nil
}

// Trigger asks for a run now, also of a paused schedule. The run has a number of its own and
// does not move the schedule. allow fires it also while the previous run is open.
func (p *Plan) Trigger(rec *schemas.Record, nowMs int64, allow bool, by schemas.Caller) error {
	if err := open(rec, "trigger"); err != nil {
		return err
	}
	s := rec.Schedule.Clone()
	if len(s.Manual) == schemas.MaxManual {
		return schemas.Errorf(schemas.CodeUnavailable, "%d runs that were asked for have not fired yet, which is the limit: try again later", schemas.MaxManual)
	}
	s.Manual = append(s.Manual, schemas.ManualRun{AtMs: nowMs, Allow: allow})
	rec.Schedule = s
	rec.Note(schemas.Operation{Kind: schemas.OperationTrigger, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return nil
}

// BackfillRequest describes a backfill. FromMs and ToMs are inclusive.
type BackfillRequest struct {
	FromMs, ToMs int64
	// Every is the least time between two runs.
	Every time.Duration
	// Again also fires nominal times that have fired already. Allow fires a run also while
	// the previous one is open.
	Again, Allow bool
}

// Times returns the nominal times that a backfill fires. Errors: schemas.CodeBadRequest for
// a period that ends before it begins, is not past, or has more than MaxBackfill nominal
// times.
func (p *Plan) Times(rec *schemas.Record, nowMs int64, q BackfillRequest) ([]int64, error) {
	switch {
	case q.FromMs > q.ToMs:
		return nil, schemas.Errorf(schemas.CodeBadRequest, "the backfill ends (%s) before it begins (%s)", schemas.FormatTime(q.ToMs), schemas.FormatTime(q.FromMs))
	case q.ToMs > nowMs:
		return nil, schemas.Errorf(schemas.CodeBadRequest, "the backfill ends at %s, which is not past: a backfill fires nominal times of the past", schemas.FormatTime(q.ToMs))
	}
	var all []int64
	n := 0
	for at := range p.calendar.Between(q.FromMs, q.ToMs) {
		if n++; n > MaxBackfill {
			return nil, schemas.Errorf(schemas.CodeBadRequest, "the period has more than %d nominal times, which is the limit: backfill a shorter one", MaxBackfill)
		}
		if q.Again || !rec.Schedule.MayHaveFired(at) {
			all = append(all, at)
		}
	}
	return all, nil
}

// Backfill starts a backfill and returns the nominal times that it fires. A schedule has one
// at a time. Errors: those of Times, schemas.CodeConflict while another one is under way,
// schemas.CodeAlreadyDone.
func (p *Plan) Backfill(rec *schemas.Record, nowMs int64, q BackfillRequest, by schemas.Caller) ([]int64, error) {
	if err := open(rec, "backfill"); err != nil {
		return nil, err
	}
	if b := rec.Schedule.Backfill; b != nil {
		return nil, schemas.Errorf(schemas.CodeConflict, "a backfill is under way, from %s to %s: wait until it is done", schemas.FormatTime(b.NextMs), schemas.FormatTime(b.ToMs))
	}
	times, err := p.Times(rec, nowMs, q)
	if err != nil || len(times) == 0 {
		return nil, err
	}
	s := rec.Schedule.Clone()
	s.Backfill = &schemas.Backfill{
		NextMs: times[0], ToMs: times[len(times)-1], EveryMs: q.Every.Milliseconds(), DueMs: nowMs, Again: q.Again, Allow: q.Allow,
	}
	rec.Schedule = s
	rec.Note(schemas.Operation{Kind: schemas.OperationBackfill, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return times, nil
}

// Update replaces definition and recurrence of a schedule by those of next, a record that
// NewRecord and Begin have made. The schedule keeps its progress: the number of runs, what was
// decided, and its anchor, unless next has another timerstart. Nominal times of the old
// recurrence that are due and not decided are skipped (schemas.DecisionUpdated). Errors:
// schemas.CodeAlreadyDone.
func (p *Plan) Update(rec *schemas.Record, next *schemas.Record, nowMs int64, by schemas.Caller) error {
	if err := open(rec, "update"); err != nil {
		return err
	}
	s := rec.Schedule.Clone()
	if s.NextMs != 0 && s.NextDueMs <= nowMs {
		var missed span
		for at, due := s.NextMs, s.NextDueMs; at != 0 && due <= nowMs && missed.n < MaxBackfill; at, due = p.after(at) {
			missed.add(at)
		}
		d := missed.decision(schemas.DecisionUpdated, 0)
		d.AtMs = nowMs
		s.Decide(d)
	}
	s.Recurrence = next.Schedule.Recurrence
	if s.StartMs != 0 {
		s.AnchorMs = s.StartMs
	}
	plan, err := Compile(schemas.NewTimerID(next.Source, next.EventID), &s.Recurrence, s.AnchorMs)
	if err != nil {
		return err
	}
	s.CatchUp, s.CaughtUp, s.Missed = nil, 0, 0
	s.NextMs, s.NextDueMs = plan.after(max(nowMs, s.Last.NominalMs, s.StartMs-1))
	addedMs := rec.AddedMs
	rec.Definition = next.Definition
	rec.AddedMs, rec.MaxAttempt, rec.Schedule = addedMs, next.MaxAttempt, s
	rec.Note(schemas.Operation{Kind: schemas.OperationUpdate, AtMs: nowMs, Caller: by})
	plan.replan(rec, nowMs)
	return nil
}

// replan sets when a schedule is due next, after an operation.
func (p *Plan) replan(rec *schemas.Record, nowMs int64) {
	t := turn{p: p, s: rec.Schedule, now: nowMs}
	t.Record = *rec
	t.plan(rec.State == schemas.StatePending)
	*rec = t.Record
}

// open returns an error for a schedule that has ended.
func open(rec *schemas.Record, operation string) error {
	switch rec.State {
	case schemas.StatePending, schemas.StatePaused:
		return nil
	}
	return schemas.Errorf(schemas.CodeAlreadyDone, "cannot %s: the schedule is %s", operation, rec.State)
}
