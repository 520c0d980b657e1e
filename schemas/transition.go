package schemas

// This file implements the changes that a caller can request. They only change the Record
// in memory. The caller writes it by compare-and-set on the revision that it has read.

// Cancel sets a waiting record to cancelled. It returns unchanged for a record that is
// cancelled already, and an error of CodeAlreadyFired for a record that no longer waits.
// nowMs is the cluster's time in Unix milliseconds; Cancel adds by to the history.
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

// Reschedule moves a pending record to another due time. dueMs and nowMs, the cluster's
// time, are Unix milliseconds; Reschedule adds by to the history. Its errors have
// CodeAlreadyFired or, for a cancelled timer, CodeAlreadyDone.
func (r *Record) Reschedule(dueMs, nowMs int64, by Caller) error {
	if r.State != StatePending {
		return r.tooLate("reschedule")
	}
	r.DueMs, r.ScheduledMs = dueMs, dueMs
	r.Moves++
	r.Note(Operation{OperationReschedule, nowMs, by})
	return nil
}

// Replay puts the run of a dead letter back into the wheel, due at nowMs (Unix
// milliseconds), and grants it further attempts. body is the event of the dead letter.
// published is true if the run was on timers.fired before: it then goes only to functions.
// Otherwise the scheduler publishes it there first. Replay adds by to the history.
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

// tooLate returns the error of an operation on a record that can no longer change.
func (r *Record) tooLate(operation string) error {
	if r.State == StateCancelled {
		return Errorf(CodeAlreadyDone, "cannot %s: the timer is cancelled", operation)
	}
	return Errorf(CodeAlreadyFired, "cannot %s: already fired at %s (state: %s)", operation, FormatTime(r.FiredMs), r.State)
}
