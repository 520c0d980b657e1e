package recurrence

import (
	"fmt"

	"github.com/belfryio/belfry/schemas"
)

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
		Origin: &schemas.Origin{Schedule: id, Missed: l.Missed, Trigger: l.Trigger, Waited: mayWait(s), DeadlineMs: deadlineOf(s, l.Run)},
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

// EndRun changes the record of a run so that it gets no further attempt, because run by of
// its schedule replaces it (OverlapReplace). It returns false if nothing is left to change. An
// attempt under way may still succeed.
func EndRun(r *schemas.Record, nowMs int64, by uint32) bool {
	switch {
	case r.State == schemas.StateRetrying:
		r.State, r.Queued, r.NextMs, r.DoneMs, r.Body, r.Deferral = schemas.StateCancelled, false, 0, nowMs, schemas.Body{}, nil
	case r.State == schemas.StateDelivered && r.MaxAttempt > r.Attempt+1:
		r.MaxAttempt = r.Attempt + 1
	default:
		return false
	}
	r.Note(schemas.Operation{Kind: schemas.OperationCancel, AtMs: nowMs, Caller: schemas.Caller{By: fmt.Sprintf(schemas.ByBelfry+"replaced by run %d", by)}})
	return true
}
