// Package calendar computes when a schedule runs. It is pure: the results depend only on
// the specification and on the zone data embedded in the binary, never on the host's
// clock, its zone files or the process that asks. All nodes of one version agree.
//
// A Schedule is a cron expression (timercron) or a period (timerevery) in a time zone,
// with a start, an end, excluded dates and jitter:
//
//	s, err := calendar.New(calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"})
//	next, ok := s.Next(nowMs)
//
// Times are Unix milliseconds between MinMs and MaxMs. A *nominal* time is an instant that
// the specification names. A *due* time is the nominal time plus jitter.
//
// # Guarantees
//
//   - Next returns an instant strictly after its argument. Repeated calls visit every
//     nominal time once, in order. Prev visits the same instants backwards.
//   - Next does a bounded amount of work (maxSteps) and allocates no memory.
//   - The result does not depend on earlier calls. A Schedule is immutable and safe for
//     concurrent use.
//   - Jitter depends on the timer ID and the nominal time only, so restarts and changes
//     of the owner do not move a run. A due time is always before the next nominal time.
//
// # Failures
//
// New reports a specification that it does not accept as an *Error: the attribute, the
// position in its value, the reason, and a correction. After New nothing can fail:
// Next returns false when no run is left before the end of the schedule or before MaxMs.
//
// # Daylight saving
//
// The wall clock skips some local times (a gap) and repeats others (an overlap). The
// default rule, DST "auto", follows cronie and distinguishes two kinds of schedules.
//
// A schedule is *fixed* if it is a cron expression whose minute and hour fields do not begin
// with "*", or a period of days, weeks, months or years. It runs once for each local time:
//
//   - In a gap it runs at the first instant after the gap, once, even if several of its
//     local times are missing. "30 2 * * *" in Europe/Berlin on 2027-03-28, when 02:00
//     becomes 03:00: one run at 03:00+02:00 (01:00Z).
//   - In an overlap it runs in the first pass only. "30 2 * * *" in Europe/Berlin on
//     2027-10-31, when 03:00 becomes 02:00: one run at 02:30+02:00 (00:30Z), none at
//     02:30+01:00 (01:30Z).
//   - A gap longer than 3 h is not daylight saving: Pacific/Apia had no 2011-12-30. Local
//     times in it are skipped. "0 12 30 12 *" there runs in 2010, then in 2012.
//
// A cron expression is *wildcard* if its minute or hour field begins with "*". It follows real
// time: "*/15 * * * *" in Europe/Berlin runs every 15 minutes on both days, with nothing
// between 01:45 and 03:00 in March and eight runs from 02:00 to 02:45 in October.
//
// The overrides gap=shift|skip and overlap=first|last|both replace the rule for either
// kind. An elapsed period such as PT90M follows real time and takes no override.
//
// # Structure
//
// New compiles the expression into bit sets (cron.go) or a period (every.go), which find
// the next matching local time. Excluded dates are removed or moved at that level
// (exclude.go). The search (search.go) maps local times to instants by walking the
// zone's segments, stretches of real time with a constant offset (zone.go).
package calendar
