package recurrence

import "github.com/belfryio/belfry/schemas"

// Claimed returns the run that was claimed last in the record of a schedule. ok is false if
// none was.
func Claimed(rec *schemas.Record) (r Run, ok bool) {
	l := &rec.Schedule.Last
	return Run{Number: l.Run, NominalMs: l.NominalMs, Missed: l.Missed, Trigger: l.Trigger}, l.Run != 0
}

// RunRecord returns the record of the run that was claimed last, under the timer id
// schemas.RunTimer(id, run). Its state is delivered: the owner that makes it publishes the
// run's event next. It depends on the schedule's record only, so every owner makes the same.
func RunRecord(id schemas.TimerID, rec *schemas.Record) schemas.Record {
	s := rec.Schedule
	l := &s.Last
	return schemas.Record{
		Definition: rec.Definition,
		RunState: schemas.RunState{
			State: schemas.StateDelivered, Run: l.Run, MaxAttempt: rec.MaxAttempt,
			DueMs: l.DueMs, ScheduledMs: l.NominalMs, FiredMs: l.ClaimedMs, Epoch: l.Epoch,
		},
		Origin: &schemas.Origin{Schedule: id, Missed: l.Missed, Trigger: l.Trigger, Waited: mayWait(s)},
	}
}

// mayWait reports whether the schedule may hold a run back until the last one has concluded.
func mayWait(s *schemas.Schedule) bool {
	switch s.Overlap {
	case schemas.OverlapAllow:
		return false
	case schemas.OverlapSkip:
		return s.Backfill != nil && !s.Backfill.Allow
	}
	return true
}
