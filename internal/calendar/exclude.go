package calendar

import (
	"fmt"
	"slices"
	"time"
)

const (
	// MaxDates bounds the dates of one excluded calendar.
	MaxDates = 4000
	// MaxCalendars bounds the calendars that one schedule excludes.
	MaxCalendars = 16
)

// Dates is a named calendar of dates on which a schedule does not run. It is immutable.
type Dates struct {
	name string
	days []int32 // since 1970-01-01, sorted, unique
}

// NewDates makes a calendar of dates written as 2027-12-25. It accepts at most MaxDates
// dates, in any order, and returns an *Error for a date that does not exist.
func NewDates(name string, dates ...string) (Dates, error) {
	d := Dates{name: name, days: make([]int32, 0, len(dates))}
	if len(dates) > MaxDates {
		return Dates{}, &Error{attrExclude, name, whole, fmt.Sprintf("%d dates in one calendar; the limit is %d", len(dates), MaxDates), "remove past dates, or use several calendars"}
	}
	for _, text := range dates {
		t, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return Dates{}, &Error{attrExclude, text, whole, "not a date of the calendar", "write year, month and day, for example 2027-12-25"}
		}
		d.days = append(d.days, int32(t.Unix()/(dayMs/secondMs)))
	}
	slices.Sort(d.days)
	d.days = slices.Compact(d.days)
	return d, nil
}

// Name returns the calendar's name.
func (d Dates) Name() string { return d.name }

// Len returns the number of different dates.
func (d Dates) Len() int { return len(d.days) }

func (d Dates) contains(day int64) bool {
	_, found := slices.BinarySearch(d.days, int32(day))
	return found
}

// shift is the rule for a run on an excluded date.
type shift uint8

const (
	shiftSkip     shift = iota // it does not happen
	shiftNext                  // it moves to the same local time on the next date not excluded
	shiftPrevious              // it moves to the previous date not excluded
)

// exclusion removes or moves the local times of excluded dates.
type exclusion struct {
	calendars []Dates
	// stretches are the excluded dates of all calendars as stretches of adjacent days, in
	// order, with at least one day between two of them.
	stretches []stretchOfDays
	shift     shift
	count     int // excluded dates
}

type stretchOfDays struct{ first, last int64 }

func newExclusion(calendars []Dates, s shift) exclusion {
	x := exclusion{calendars: slices.Clone(calendars), shift: s}
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
