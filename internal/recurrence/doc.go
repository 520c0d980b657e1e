// Package recurrence decides what a schedule does: which nominal times fire, which are
// skipped and why, and when the schedule is due next. It is pure: no I/O, no clock.
//
// A Plan is the compiled recurrence of one schedule. Plan.Turn takes the schedule's record
// and the cluster's time and returns the record after the decision, with the run that
// fires, if any. The scheduler writes that record by one compare-and-set, and fires the run
// only if the write succeeds. The operations (Pause, Resume, Trigger, Backfill, Update) take
// a record and return the changed one for a compare-and-set of their own.
//
// # Guarantees
//
//   - Each nominal time from the first on is decided once: Turn decides the times from
//     Progress.NextMs on, in order, and moves NextMs past them in the same record.
//   - No run fires before its due time.
//   - Every skip has a reason in Progress.Decisions.
//   - A turn looks at no more than maxLook nominal times and fires at most one run. If more
//     is due, the returned record is due at once.
//   - A run's number is Record.Run; it grows by one for each run, and skips use none.
//
// # What fires first
//
// If several things are due, a turn does the first of: a run that waited for the previous
// one, a run that somebody asked for, a nominal time, the next run of a backfill.
//
// # Failures
//
// Compile returns an error of schemas.CodeInvalidAttribute for a recurrence that the
// calendar refuses. After that nothing fails. A schedule without a run left is completed.
package recurrence
