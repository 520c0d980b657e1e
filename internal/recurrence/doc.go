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
//   - Each nominal time from the first on is decided once, in order: Turn decides the times
//     from Progress.NextMs on and moves NextMs past them in the same record. Only the time
//     of Progress.Waiting is decided later than its successors.
//   - No run fires before its due time.
//   - Every skip has a reason in Progress.Decisions. The ranges there never contain a nominal
//     time that ended otherwise, unless a backfill fired it later.
//   - A turn looks at no more than maxLook nominal times, and maxPassed times on excluded
//     dates. It fires at most one run, or claims one overdue event. If more is due, the
//     returned record is due at once.
//   - Run numbers have no gaps: a run gets its number when it fires, and skips use none.
//
// # What fires first
//
// If several things are due, a turn does one of them, in this order: an overdue event
// (timerexpect), the run that waited for the previous one, the first run that somebody asked
// for, nominal times, the next run of a backfill.
//
// # How nominal times are decided
//
//  1. After a resume, the times that were due during the pause follow the catchup of the
//     resume, without regard to timergrace.
//  2. Times later than timergrace are skipped. A run that waits is skipped when it is later
//     than timergrace, too.
//  3. If the callback of the last run has no result, timeroverlap decides: skip skips all due
//     times; with queue and replace the latest waits, and replaces a run that waits already.
//     The last run may also be a run that somebody asked for, or a run of a backfill.
//  4. If one time is due, it fires. If two or more are due, timermisfire decides. With skip
//     the latest fires only if it is at most onTimeMs late.
//
// If more than maxLook times are due, the turns before the last only count them, so that one
// decision is about all of them.
//
// # Failures
//
// Compile returns an error of schemas.CodeInvalidAttribute for a recurrence that the calendar
// refuses, and the errors of its Calendars. Turn cannot fail. An operation fails only for a
// request or a state that does not permit it. A schedule without a run left is completed.
package recurrence
