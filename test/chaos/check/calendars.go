package check

import (
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// This file checks that schedules follow the calendars that they exclude. A change is in
// force from its acknowledgement until the next call for the calendar is made.

// namedCalendar has the calls for one calendar, in the order in which they were made.
type namedCalendar struct{ ops []*operation }

// takeCalendar takes the calls for calendars. It returns false for all other events.
func (c *checker) takeCalendar(e Event) bool {
	if e.Kind != PutCalendar && e.Kind != DeleteCalendar {
		return false
	}
	k := c.calendars[e.ID]
	if k == nil {
		k = &namedCalendar{}
		c.calendars[e.ID] = k
	}
	k.ops = append(k.ops, c.operation(e))
	return true
}

// judgeCalendars checks the calls for calendars themselves.
func (c *checker) judgeCalendars() {
	if len(c.calendars) > 0 && c.began == 0 {
		c.fail(BadHistory, "", "", "calls for calendars without a %s", Begin)
		return
	}
	for name, k := range c.calendars {
		for _, o := range k.ops {
			if o.outcome != always {
				continue
			}
			c.rep.Schedules.Calendars++
			if o.call.Kind == DeleteCalendar {
				c.deleted(name, o)
			}
		}
	}
}

// deleted checks that no schedule with the calendar fires after its deletion: only a calendar
// that no schedule excludes can be deleted.
func (c *checker) deleted(name string, o *operation) {
	for _, s := range c.recurring {
		if !slices.ContainsFunc(s.adds, func(add *operation) bool {
			return add.outcome == always && add.answer.AtNs < o.call.AtNs && slices.Contains(add.call.Recurrence.Exclude, name)
		}) {
			continue
		}
		for _, e := range s.fired {
			if e.Trigger == schemas.TriggerSchedule && e.ClaimedMs*1_000_000 > c.began+o.answer.AtNs {
				s.fail(c, CalendarInUse, "calendar %s was deleted, and run %d was claimed later", name, e.Run)
				break
			}
		}
	}
}

// has reports whether a put has a date, written as 2027-12-25.
func (o *operation) has(date string) bool {
	return o.call.Kind == PutCalendar && (slices.Contains(o.call.Dates, date) || slices.Contains(o.call.Dates, "*"+date[4:]))
}

// excludes returns the put that excluded a date during the whole period, in Unix nanoseconds;
// nil for none.
func (k *namedCalendar) excludes(c *checker, date string, fromNs, toNs int64) *operation {
	for i, o := range k.ops {
		if o.outcome != always || !o.has(date) || c.began+o.answer.AtNs >= fromNs {
			continue
		}
		if i+1 == len(k.ops) {
			return o
		}
		if next := k.ops[i+1].call.AtNs; next >= o.answer.AtNs && c.began+next > toNs {
			return o
		}
	}
	return nil
}

// excluded checks the dates of the nominal times that fired, and of those recorded as
// excluded.
func (s *schedule) excluded(c *checker) {
	for _, e := range s.fired {
		v := s.at(e.DueMs)
		if e.Trigger == schemas.TriggerManual || v == nil {
			continue
		}
		date := v.date(e.DueMs)
		for _, name := range v.rule.Exclude {
			if k := c.calendars[name]; k != nil {
				if o := k.excludes(c, date, e.ClaimedMs*1_000_000, e.TimeNs); o != nil {
					s.fail(c, FiredExcluded, "run %d for %s was claimed at %s; %s has excluded %s since %s", e.Run,
						schemas.FormatTime(e.DueMs), schemas.FormatTime(e.ClaimedMs), name, date, time.Unix(0, c.began+o.answer.AtNs).UTC().Format(time.RFC3339Nano))
				}
			}
		}
	}
	for at, f := range s.fates {
		if v := s.at(at); f.kind == schemas.DecisionExcluded && v != nil && !v.mayExclude(c, at) {
			s.fail(c, NotExcluded, "%s is recorded as excluded, and none of %q ever had the date", schemas.FormatTime(at), v.rule.Exclude)
		}
	}
}

// date returns the local date of a nominal time.
func (v *version) date(ms int64) string { return v.calendar.Local(ms)[:len(time.DateOnly)] }

// mayExclude reports whether any put that may have taken effect has the date of a nominal
// time.
func (v *version) mayExclude(c *checker, ms int64) bool {
	return slices.ContainsFunc(v.rule.Exclude, func(name string) bool {
		k := c.calendars[name]
		return k != nil && slices.ContainsFunc(k.ops, func(o *operation) bool { return o.outcome != never && o.has(v.date(ms)) })
	})
}
