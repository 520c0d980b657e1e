package schemas

// This file implements the changes that a caller can request. They only change the Record
// in memory. The caller writes it by compare-and-set on the revision that it has read.

// Cancel sets a waiting or paused record to cancelled. It returns unchanged for a record that
// is cancelled already, and an error of CodeAlreadyFired or CodeAlreadyDone for a record that
// no longer waits. nowMs is the cluster's time in Unix milliseconds; Cancel adds by to the
// history.
//
// A schedule keeps its event: a run that was claimed just before may still have to be
// published. Its runs that wait are skipped.
func (r *Record) Cancel(nowMs int64, by Caller) (unchanged bool, err error) {
	switch {
	case r.State == StateCancelled:
		return true, nil
	case r.State != StatePaused && !r.Pending():
		return false, r.tooLate("cancel")
	}
	r.State, r.Queued, r.NextMs, r.DoneMs, r.PauseNote, r.Deferral = StateCancelled, false, 0, nowMs, "", nil
	if r.Schedule != nil {
		r.Schedule = r.Schedule.cancelled(nowMs)
	} else {
		r.Body = Body{}
	}
	r.Note(Operation{OperationCancel, nowMs, by})
	return false, nil
}

// cancelled returns a copy without the runs that wait.
func (s *Schedule) cancelled(nowMs int64) *Schedule {
	c := s.Clone()
	if w := c.Waiting; w != nil {
		c.Waiting = nil
		c.Decide(Decision{Kind: DecisionCancelled, FromMs: w.NominalMs, ToMs: w.NominalMs, Count: 1, AtMs: nowMs})
	}
	for _, m := range c.Manual {
		c.Decide(Decision{Kind: DecisionTriggerCancelled, FromMs: m.AtMs, ToMs: m.AtMs, Count: 1, AtMs: nowMs})
	}
	c.Manual, c.Backfill, c.PauseNote = nil, nil, ""
	return c
}

// Reschedule moves a pending or paused record to another due time. dueMs and nowMs, the
// cluster's time, are Unix milliseconds; Reschedule adds by to the history. Its errors have
// CodeAlreadyFired, for a cancelled timer CodeAlreadyDone, for a schedule CodeBadRequest.
func (r *Record) Reschedule(dueMs, nowMs int64, by Caller) error {
	switch {
	case r.Schedule != nil:
		return Errorf(CodeBadRequest, "cannot reschedule: the timer is a schedule; use update to change when it runs")
	case r.State != StatePending && r.State != StatePaused:
		return r.tooLate("reschedule")
	}
	was := r.DueMs
	r.DueMs, r.ScheduledMs = dueMs, dueMs
	r.MovedFrom(was)
	r.Moves++
	r.Note(Operation{OperationReschedule, nowMs, by})
	return nil
}

// Pause makes a pending one-shot timer wait until Resume. It returns unchanged for a timer
// that is paused with the same note. Its errors have CodeAlreadyFired, or CodeAlreadyDone
// for a cancelled timer. Times and by are as in Reschedule.
func (r *Record) Pause(nowMs int64, note string, by Caller) (unchanged bool, err error) {
	switch {
	case r.State == StatePaused && r.PauseNote == note:
		return true, nil
	case r.State != StatePending && r.State != StatePaused:
		return false, r.tooLate("pause")
	}
	r.State, r.Queued, r.PauseNote = StatePaused, false, note
	r.Moves++
	r.Note(Operation{OperationPause, nowMs, by})
	return false, nil
}

// Resume puts a paused one-shot timer back into the wheel. A due time that has passed is due
// now. It returns unchanged for a pending timer. Errors, times and by are as in Pause.
func (r *Record) Resume(nowMs int64, by Caller) (unchanged bool, err error) {
	switch r.State {
	case StatePending:
		return true, nil
	case StatePaused:
	default:
		return false, r.tooLate("resume")
	}
	r.State, r.Queued, r.PauseNote = StatePending, true, ""
	r.Moves++
	r.Note(Operation{OperationResume, nowMs, by})
	return false, nil
}

// Replay puts the run of a dead letter back into the wheel, due at nowMs (Unix
// milliseconds), and grants it further attempts. body is the event of the dead letter.
// published is true if the run was on timers.fired before: it then goes only to functions.
// Otherwise the scheduler publishes it there first. Replay adds by to the history.
func (r *Record) Replay(body Body, attempts uint32, published bool, nowMs int64, by Caller) {
	r.State, r.Queued, r.Body, r.DoneMs, r.Deferral = StateRetrying, true, body, 0, nil
	r.DueMs, r.NextMs = nowMs, nowMs
	if published {
		r.Attempt = max(r.Attempt, 1)
	} else {
		// Mark in the record that this dead letter has been replayed.
		r.FiredMs = nowMs
	}
	r.MaxAttempt, r.Replayed = r.Attempt+attempts, r.Attempt
	r.Unattempted, r.UnattemptedInRow = 0, 0
	r.Note(Operation{OperationReplay, nowMs, by})
}

// tooLate returns the error of an operation on a record that can no longer change.
func (r *Record) tooLate(operation string) error {
	what := "timer"
	if r.Schedule != nil {
		what = "schedule"
	}
	switch r.State {
	case StateCancelled:
		return Errorf(CodeAlreadyDone, "cannot %s: the %s is cancelled", operation, what)
	case StateCompleted:
		return Errorf(CodeAlreadyDone, "cannot %s: the schedule ended at %s; to run it again, add it under another id", operation, FormatTime(r.DoneMs))
	}
	return Errorf(CodeAlreadyFired, "cannot %s: already fired at %s (state: %s)", operation, FormatTime(r.FirstMs()), r.State)
}
