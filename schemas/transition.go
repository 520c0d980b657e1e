package schemas

// This file has the changes of a record that a caller may ask for. They are pure:
// whoever applies one writes the result by compare-and-set on the revision that
// it was made from.

// Cancel makes a waiting record cancelled. It reports that nothing changed for one
// that is cancelled already, and an error of CodeAlreadyFired for one that no
// longer waits. nowMs is the cluster's time; by goes into the history.
func (r *Record) Cancel(nowMs int64, by Caller) (unchanged bool, err error) {
	switch {
	case r.State == StateCancelled:
		return true, nil
	case !r.Pending():
		return false, r.tooLate("cancel")
	}
	r.State, r.Queued, r.NextMs, r.DoneMs, r.Body = StateCancelled, false, 0, nowMs, Body{}
	r.Note(Operation{OperationCancel, nowMs, by})
	return false, nil
}

// Reschedule moves a pending record to another due time. nowMs is the cluster's
// time; by goes into the history. Its errors are of CodeAlreadyFired and, for a
// cancelled timer, CodeAlreadyDone.
func (r *Record) Reschedule(dueMs, nowMs int64, by Caller) error {
	if r.State != StatePending {
		return r.tooLate("reschedule")
	}
	r.DueMs, r.ScheduledMs = dueMs, dueMs
	r.Moves++
	r.Note(Operation{OperationReschedule, nowMs, by})
	return nil
}

// Replay puts a dead-lettered run back into the wheel, due at nowMs, with attempts
// more attempts. body is the event of the dead letter. If published is true, the run was
// on timers.fired and goes only to functions; otherwise it is published there first.
func (r *Record) Replay(body Body, attempts uint32, published bool, nowMs int64, by Caller) {
	r.State, r.Queued, r.Body, r.DoneMs = StateRetrying, true, body, 0
	r.DueMs, r.NextMs = nowMs, nowMs
	if published {
		r.Attempt = max(r.Attempt, 1)
	} else {
		// Mark in the record that this dead letter has been replayed.
		r.FiredMs = nowMs
	}
	r.MaxAttempt = r.Attempt + attempts
	r.Note(Operation{OperationReplay, nowMs, by})
}

// tooLate says why a record can no longer be changed.
func (r *Record) tooLate(what string) error {
	if r.State == StateCancelled {
		return Errorf(CodeAlreadyDone, "cannot %s: the timer is cancelled", what)
	}
	return Errorf(CodeAlreadyFired, "cannot %s: the timer fired at %s and is %s", what, FormatTime(r.FiredMs), r.State)
}
