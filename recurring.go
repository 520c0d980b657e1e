package belfry

import (
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// This file has the options that add a schedule: a timer that fires again and again. Each run
// fires as an event of its own; see [Firing.Run]. A schedule has one of [Cron] and [Every]
// instead of a due time; the other options of this file are for schedules only. The client itself
// checks them for adds without a server's answer, such as [Client.AddAsync].

// Cron adds a schedule with a cron expression, at most 256 bytes: five fields, or six with
// seconds first, such as "30 2 * * *", "0 9 * * MON#1" or "H/15 * * * *". Set the time zone
// with [Zone].
func Cron(expression string) AddOption { return due(schemas.AttrCron, expression) }

// Every adds a schedule with a period. "90m" and "PT90M" are elapsed time; "P1D", "P2W" and
// "P1M" step the wall clock of [Zone], and the 31st becomes the last day of shorter months.
// The runs are at the start plus n periods: the time of [Starting], or that of the add. The
// shortest period is 1 s.
func Every(period string) AddOption { return due(schemas.AttrEvery, period) }

// dueAttributes are the attributes of which an add has one.
var dueAttributes = [...]string{schemas.AttrAt, schemas.AttrAfter, schemas.AttrCron, schemas.AttrEvery}

// due returns the option that sets one of the dueAttributes and removes the others.
func due(name, value string) AddOption {
	return addOption(func(s *settings) { s.setDue(name, value) })
}

// Zone sets the time zone of a schedule: an IANA name such as "Europe/Berlin"; default
// "UTC". The zone data is that of the nodes, not of the client's host.
func Zone(name string) AddOption { return extension{schemas.AttrZone, name} }

// Starting sets the time of the first possible run, inclusive. [Every] counts from it.
func Starting(t time.Time) AddOption { return extension{schemas.AttrStart, rfc3339(t)} }

// Ending sets the time of the last possible run, inclusive.
func Ending(t time.Time) AddOption { return extension{schemas.AttrEnd, rfc3339(t)} }

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Limit ends a schedule after n runs, 1 or more. Runs that were skipped do not count.
func Limit(n uint32) AddOption {
	return extension{schemas.AttrLimit, strconv.FormatUint(uint64(n), 10)}
}

// Jitter delays each run by up to d, at most 24 h, so that many schedules do not fire at
// once. The delay follows from the timer's id and the nominal time.
func Jitter(d time.Duration) AddOption { return extension{schemas.AttrJitter, d.String()} }

// DST sets the rules for daylight saving: "auto", which is the default, or gap=shift|skip and
// overlap=first|last|both, such as "gap=skip,overlap=both".
func DST(rules string) AddOption { return extension{schemas.AttrDST, rules} }

// Days sets how a cron expression combines its day of month and its day of week, if it restricts
// both: "and", or "or".
func Days(rule string) AddOption { return extension{schemas.AttrDays, rule} }

// MisfirePolicy decides which missed runs fire. Runs are missed if two or more are due and have not
// fired, for example because Belfry was down.
type MisfirePolicy = schemas.Misfire

// The policies for missed runs.
const (
	MisfireOne  = schemas.MisfireOne  // the latest fires at once, for all; the default
	MisfireAll  = schemas.MisfireAll  // each fires, oldest first; at most 1,000, the rest as with MisfireOne
	MisfireSkip = schemas.MisfireSkip // none fires
)

// Misfire sets the policy for missed runs.
func Misfire(p MisfirePolicy) AddOption { return extension{schemas.AttrMisfire, p.String()} }

// Grace skips each run that is later than d, at least 1 s, instead of firing it. Without it
// a late run fires.
func Grace(d time.Duration) AddOption { return extension{schemas.AttrGrace, d.String()} }

// Expect publishes an event on timers.overdue.<service> for each nominal time that has no success
// d after it: its run failed, still runs, was skipped, or Belfry was down. The schedule needs
// a callback. d is from 1 s to 31 days, and spans at most 60 runs.
func Expect(d time.Duration) AddOption { return extension{schemas.AttrExpect, d.String()} }

// OverlapPolicy decides about a run that is due while the callback of the previous run has no result.
// It does not apply to schedules without a callback.
type OverlapPolicy = schemas.Overlap

// The policies for overlapping runs.
const (
	OverlapSkip    = schemas.OverlapSkip    // the run is skipped; the default
	OverlapQueue   = schemas.OverlapQueue   // the run waits; a later one takes its place
	OverlapAllow   = schemas.OverlapAllow   // the run fires
	OverlapReplace = schemas.OverlapReplace // the run waits, and the previous run gets no further attempt
)

// Overlap sets the policy for overlapping runs.
func Overlap(p OverlapPolicy) AddOption { return extension{schemas.AttrOverlap, p.String()} }

// Exclude names calendars of dates on which the schedule does not run, at most 8; see
// [Client.PutCalendar]. The date of a run is that of its local time in the schedule's zone. A
// calendar that does not exist is an error.
func Exclude(calendars ...string) AddOption {
	return extension{schemas.AttrExclude, strings.Join(calendars, ",")}
}

// ExcludeShift decides about a run on an excluded date: "skip", the default, skips it; "next" and
// "previous" move it to the same local time on the next or previous date that is not excluded.
func ExcludeShift(rule string) AddOption { return extension{schemas.AttrExcludeShift, rule} }
