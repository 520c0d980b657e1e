package schemas

// This file has the changes of a record that a caller may ask for. They are pure:
// whoever applies one writes the result by compare-and-set on the revision that
// it was made from.

// Cancel makes a waiting record cancelled. It reports that nothing changed for one
// that is cancelled already, and an error of CodeAlreadyFired for one that no
// longer waits. nowMs is the cluster's time.
func (r *Record) Cancel(nowMs int64) (unchanged bool, err error) {
	switch {
	case r.State == StateCancelled:
		return true, nil
	case !r.Pending():
		return false, r.tooLate("cancel")
	}
	r.State, r.Queued, r.NextMs, r.DoneMs, r.Body = StateCancelled, false, 0, nowMs, Body{}
	return false, nil
}

// Reschedule moves a pending record to another due time. Its errors are of
// CodeAlreadyFired and, for a cancelled timer, CodeAlreadyDone.
func (r *Record) Reschedule(dueMs int64) error {
	if r.State != StatePending {
		return r.tooLate("reschedule")
	}
	r.DueMs, r.ScheduledMs = dueMs, dueMs
	r.Moves++
	return nil
}

// tooLate says why a record can no longer be changed.
func (r *Record) tooLate(what string) error {
	if r.State == StateCancelled {
		return Errorf(CodeAlreadyDone, "cannot %s: the timer is cancelled", what)
	}
	return Errorf(CodeAlreadyFired, "cannot %s: the timer fired at %s and is %s", what, FormatTime(r.FiredMs), r.State)
}
