package calendar

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// MaxDates bounds the dates of one excluded calendar, as they are written.
	MaxDates = 4000
	// MaxCalendars bounds the calendars that one schedule excludes.
	MaxCalendars = 8
	// maxDays bounds the days of one calendar: a date of every year counts once for each
	// year from MinMs to MaxMs.
	maxDays = MaxDates + 366*(lastYear-firstYear+1)
	// firstYear and lastYear are the years of MinMs and MaxMs.
	firstYear, lastYear = 1970, 2199
)

// Dates is a named calendar of dates on which a schedule does not run. It is immutable.
type Dates struct {
	name string
	days []int32 // since 1970-01-01, sorted, unique
}

// everyYear begins a date of every year.
const everyYear = "*-"

// NewDates makes a calendar of dates written as 2027-12-25, or as *-12-25 for every year;
// *-02-29 exists in leap years. It accepts at most MaxDates dates, in any order, and returns
// an *Error for a date that does not exist.
func NewDates(name string, dates ...string) (Dates, error) {
	d := Dates{name: name, days: make([]int32, 0, len(dates))}
	if len(dates) > MaxDates {
		return Dates{}, &Error{attrExclude, name, whole, fmt.Sprintf("%d dates in one calendar; the limit is %d", len(dates), MaxDates), "remove past dates, or use several calendars"}
	}
	yearly := map[string]bool{}
	for _, text := range dates {
		day, of := strings.CutPrefix(text, everyYear)
		if of {
			text = "2028-" + day // a leap year
		}
		t, err := time.Parse(time.DateOnly, text)
		if err != nil || t.Year() < firstYear || t.Year() > lastYear {
			if of {
				text = everyYear + day
			}
			return Dates{}, &Error{attrExclude, text, whole, fmt.Sprintf("not a date of the years %d to %d", firstYear, lastYear), "write year, month and day, for example 2027-12-25, or *-12-25 for every year"}
		}
		if !of {
			d.days = append(d.days, dayNumber(t))
			continue
		}
		for year := firstYear; year <= lastYear && !yearly[day]; year++ {
			if at := time.Date(year, t.Month(), t.Day(), 0, 0, 0, 0, time.UTC); at.Day() == t.Day() {
				d.days = append(d.days, dayNumber(at))
			}
		}
		yearly[day] = true
	}
	slices.Sort(d.days)
	d.days = slices.Compact(d.days)
	return d, nil
}

// dayNumber returns the number of days from 1970-01-01 to a date.
func dayNumber(t time.Time) int32 { return int32(t.Unix() / (dayMs / secondMs)) }

// Name returns the calendar's name.
func (d Dates) Name() string { return d.name }

// Len returns the number of different dates.
func (d Dates) Len() int { return len(d.days) }

func (d Dates) contains(day int64) bool {
	_, found := slices.BinarySearch(d.days, int32(day))
	return found
}

// Exclusions are the dates of several calendars. Schedules may share them; they are immutable.
type Exclusions struct {
	// Revision tells two versions of the calendars apart. The caller of Join sets it before
	// anybody else uses the Exclusions.
	Revision uint64
	// SinceMs is the time of the newest change of these calendars, in Unix milliseconds; 0 if
	// it is not known. The caller of Join sets it like Revision.
	SinceMs   int64
	calendars []Dates
	// stretches are the excluded dates of all calendars as stretches of adjacent days, in
	// order, with at least one day between two of them.
	stretches []stretchOfDays
	count     int // excluded dates
}

// Join joins calendars.
func Join(calendars ...Dates) *Exclusions {
	x := &Exclusions{calendars: slices.Clone(calendars)}
	var days []int32
	for _, c := range calendars {
		days = append(days, c.days...)
	}
	slices.Sort(days)
	days = slices.Compact(days)
	x.count = len(days)
	for _, d := range days {
		day := int64(d)
		if n := len(x.stretches); n > 0 && x.stretches[n-1].last == day-1 {
			x.stretches[n-1].last = day
		} else {
			x.stretches = append(x.stretches, stretchOfDays{day, day})
		}
	}
	return x
}

// Dates returns the calendars, in the order of Join.
func (x *Exclusions) Dates() []Dates { return slices.Clone(x.calendars) }

// shift is the rule for a run on an excluded date.
type shift uint8

const (
	shiftSkip     shift = iota // it does not happen
	shiftNext                  // it moves to the same local time on the next date not excluded
	shiftPrevious              // it moves to the previous date not excluded
)

// exclusion removes or moves the local times of excluded dates.
type exclusion struct {
	Exclusions
	shift shift
}

type stretchOfDays struct{ first, last int64 }

func newExclusion(x *Exclusions, s shift) exclusion {
	e := exclusion{shift: s}
	if x != nil {
		e.Exclusions = *x
	}
	return e
}

// stretch returns the stretch that contains a day.
func (x *exclusion) stretch(day int64) (s stretchOfDays, ok bool) {
	low, high := 0, len(x.stretches)
	for low < high {
		if mid := (low + high) / 2; x.stretches[mid].last >= day {
			high = mid
		} else {
			low = mid + 1
		}
	}
	if low == len(x.stretches) || x.stretches[low].first > day {
		return stretchOfDays{}, false
	}
	return x.stretches[low], true
}

func (x *exclusion) excluded(day int64) bool {
	_, found := x.stretch(day)
	return found
}

// onOrAfter returns the first date that is not excluded, from day on.
func (x *exclusion) onOrAfter(day int64) int64 {
	if s, found := x.stretch(day); found {
		return s.last + 1
	}
	return day
}

// onOrBefore returns the last date that is not excluded, up to day.
func (x *exclusion) onOrBefore(day int64) int64 {
	if s, found := x.stretch(day); found {
		return s.first - 1
	}
	return day
}

// sources returns the dates [first, last] whose local times run on a date that is not
// excluded: the date itself, and the excluded dates that move to it.
func (x *exclusion) sources(day int64) (first, last int64) {
	switch x.shift {
	case shiftNext:
		return x.onOrBefore(day-1) + 1, day
	case shiftPrevious:
		return day, x.onOrAfter(day+1) - 1
	}
	return day, day
}

// names returns the names of the calendars that contain a date.
func (x *exclusion) names(day int64) string {
	names := ""
	for _, c := range x.calendars {
		if c.contains(day) {
			if names != "" {
				names += ", "
			}
			names += c.name
		}
	}
	return names
}

// by returns the calendars that contain a date: bit n is set for the n-th one.
func (x *exclusion) by(day int64) (mask uint32) {
	for n, c := range x.calendars {
		if c.contains(day) {
			mask |= 1 << n
		}
	}
	return mask
}

// ExcludedTimes is a range of adjacent times that a schedule would have without excluded
// calendars, on dates that the same calendars contain. FromMs and ToMs are the first and the
// last one, in Unix milliseconds. By has bit n set for the n-th calendar of the schedule; it
// is 0 for times on dates that no calendar contains.
type ExcludedTimes struct {
	FromMs, ToMs int64
	Count        uint32
	By           uint32
}

// ExcludedBetween returns the times from fromMs to toMs, both inclusive, that the schedule would
// have without excluded calendars, and whose dates are excluded. With all, it also returns the
// times on other dates. It looks at no more than limit times; reachedMs is the end of the period
// that it has read, toMs for the whole period.
func (s *Schedule) ExcludedBetween(fromMs, toMs int64, all bool, limit int) (list []ExcludedTimes, reachedMs int64) {
	rule := s.Without()
	before := false // the previous time is the last one in list
	for at, ok := rule.after(fromMs - 1); ok && at.atMs <= min(toMs, s.endMs); at, ok = rule.after(at.atMs) {
		if limit--; limit < 0 {
			return list, at.atMs - 1
		}
		day := dayOf(at.wantedMs)
		if !all && !s.exclude.excluded(day) {
			before = false
			continue
		}
		by := s.exclude.by(day)
		if n := len(list); before && list[n-1].By == by {
			list[n-1].ToMs = at.atMs
			list[n-1].Count++
			continue
		}
		list, before = append(list, ExcludedTimes{at.atMs, at.atMs, 1, by}), true
	}
	return list, toMs
}

// after returns the first time after an instant.
func (s *Schedule) after(ms int64) (found, bool) {
	q := search{Schedule: s}
	return q.after(ms)
}

// Revision returns the revision of the calendars that the schedule excludes; 0 for none.
func (s *Schedule) Revision() uint64 { return s.exclude.Revision }

// ExcludedSinceMs returns the time of the newest change of the calendars that the schedule
// excludes, in Unix milliseconds; 0 if it is not known.
func (s *Schedule) ExcludedSinceMs() int64 { return s.exclude.SinceMs }

// ExcludedBy returns the calendars that contain the date of an instant in the schedule's zone:
// bit n is set for the n-th one.
func (s *Schedule) ExcludedBy(ms int64) uint32 { return s.exclude.by(dayOf(s.zone.localMs(ms))) }

// Without returns the same schedule without excluded calendars.
func (s *Schedule) Without() *Schedule {
	all := *s
	all.exclude = exclusion{}
	return &all
}
