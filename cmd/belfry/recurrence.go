package main

import (
	"context"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// calendarFlags are the attributes that determine the nominal times of a schedule, except for
// the dates that it excludes.
type calendarFlags struct {
	cron, every, tz, start, end, limit string
	jitter, dst, days, excludeShift    string
}

// add adds the flags. origin says from when --every counts without --start.
func (f *calendarFlags) add(fs *pflag.FlagSet, origin string) {
	fs.StringVar(&f.cron, "cron", "", "a schedule: cron expression of 5 fields, or 6 with seconds first")
	fs.StringVar(&f.every, "every", "", "a schedule: period; 90m and PT90M are elapsed time, P1D, P2W, P1M step the wall clock")
	fs.StringVar(&f.tz, "tz", "", "IANA time zone of the schedule, for example Europe/Berlin (default UTC)")
	fs.StringVar(&f.start, "start", "", "no run before this RFC 3339 time; --every counts from it (default: "+origin+")")
	fs.StringVar(&f.end, "end", "", "no run after this RFC 3339 time")
	fs.StringVar(&f.limit, "limit", "", "end after this many runs (default: no limit)")
	fs.StringVar(&f.jitter, "jitter", "", "delay each run by up to this duration, derived from the timer ID")
	fs.StringVar(&f.dst, "dst", "", "daylight saving: auto, or gap=shift|skip and overlap=first|last|both (default auto)")
	fs.StringVar(&f.days, "days", "", "how to combine day of month and day of week if the expression restricts both: \"and\" or \"or\"")
	fs.StringVar(&f.excludeShift, "exclude-shift", "", "a run on an excluded date: skip it, or move it to the next or previous date: skip, next or previous (default skip)")
}

// names returns the names of the flags.
func (f *calendarFlags) names() []string {
	var names []string
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&calendarFlags{}).add(fs, "")
	fs.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	return names
}

// recurrenceFlags are the attributes of a schedule as flags.
type recurrenceFlags struct {
	calendarFlags
	exclude                         string
	misfire, grace, overlap, expect string
}

func (f *recurrenceFlags) add(fs *pflag.FlagSet) {
	f.calendarFlags.add(fs, "the time of the add")
	fs.StringVar(&f.misfire, "misfire", "", "runs missed in an outage: one fires the latest for all, all fires each, skip fires none (default one)")
	fs.StringVar(&f.exclude, "exclude", "", "names of calendars, with commas between them: no run on their dates")
	fs.StringVar(&f.grace, "grace", "", "skip a run that is later than this duration (default: fire it, however late)")
	fs.StringVar(&f.expect, "expect", "", "publish an overdue event for each run without a success this long after its nominal time; needs a callback (default: none)")
	fs.StringVar(&f.overlap, "overlap", "", "for a run that is due while the callback of the previous run has no result: skip, queue, allow or replace (default skip)")
}

// recurrenceFlag is a flag with its attribute.
type recurrenceFlag struct{ name, attribute, value string }

// options are the flags for schedules only.
func (f *recurrenceFlags) options() []recurrenceFlag {
	return []recurrenceFlag{
		{"--tz", schemas.AttrZone, f.tz}, {"--start", schemas.AttrStart, f.start}, {"--end", schemas.AttrEnd, f.end}, {"--limit", schemas.AttrLimit, f.limit},
		{"--jitter", schemas.AttrJitter, attributeDuration(f.jitter)}, {"--dst", schemas.AttrDST, f.dst}, {"--days", schemas.AttrDays, f.days},
		{"--exclude", schemas.AttrExclude, f.exclude}, {"--exclude-shift", schemas.AttrExcludeShift, f.excludeShift},
		{"--misfire", schemas.AttrMisfire, f.misfire}, {"--grace", schemas.AttrGrace, attributeDuration(f.grace)}, {"--overlap", schemas.AttrOverlap, f.overlap}, {"--expect", schemas.AttrExpect, attributeDuration(f.expect)},
	}
}

// recurs reports whether the flags make a schedule.
func (f *recurrenceFlags) recurs() bool { return f.cron != "" || f.every != "" }

// apply sets the attributes of a schedule. Without --cron and --every it returns an error for
// each flag that only schedules have.
func (f *recurrenceFlags) apply(e *event.Event) error {
	for _, o := range append(f.options(), recurrenceFlag{"--cron", schemas.AttrCron, f.cron}, recurrenceFlag{"--every", schemas.AttrEvery, f.every}) {
		switch {
		case o.value == "":
		case !f.recurs():
			return usagef("%s belongs to a schedule, and without --cron and --every the timer fires once: give one of them, too", o.name)
		default:
			e.SetExtension(o.attribute, o.value)
		}
	}
	return nil
}

// checkSchedule compiles an event with the attributes of a schedule as the server does, so
// that a mistake is found before any request. It returns nil for a one-shot timer.
func checkSchedule(e event.Event) (*calendar.Schedule, error) {
	hdr, data, err := schemas.EncodeEvent(e, schemas.ModeStructured)
	if err != nil {
		return nil, usagef("%v", namingFlag(err))
	}
	rec, spec, err := recurrence.ParseAdd(hdr, data, time.Now().UnixMilli(), schemas.Limits{MaxHorizon: noMaxAhead}, recurrence.UnknownCalendars)
	if err != nil {
		return nil, usagef("%v", namingFlag(err))
	}
	if spec.Recurrence == nil {
		return nil, nil
	}
	plan, err := recurrence.PlanOf(spec.Timer, rec.Schedule, recurrence.UnknownCalendars)
	if err != nil {
		return nil, usagef("%v", namingFlag(err))
	}
	return plan.Calendar(), nil
}

// describe returns a sentence about the times of a schedule of the flags, which the server has
// stored as id. A period without --start counts from the time at which the server stored the schedule, so the
// server describes it. Without its answer the text describes only the flags.
func (f *recurrenceFlags) describe(ctx context.Context, s session, id schemas.TimerID, schedule *calendar.Schedule) string {
	if f.every == "" || f.start != "" {
		return schedule.Describe()
	}
	reply, err := s.Preview(ctx, id, time.Time{}, 1)
	if err != nil {
		return "Every " + f.every + ", counted from the time at which the server stored it" // the schedule is stored, even if its description could not be read
	}
	return reply.Description
}

// noMaxAhead replaces the server's setting max-ahead, which the program does not know. It
// must stay below the longest time.Duration, 292 years.
const noMaxAhead = 200 * 365 * 24 * time.Hour
