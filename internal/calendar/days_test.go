package calendar_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// The oracle for days asks, for each date, whether an item of an expression names it. It
// works with calendar arithmetic of Go's time package and shares no code with the package.

// dayItem is an item of the day-of-month or day-of-week field and its meaning.
type dayItem struct {
	text  string
	names func(date time.Time) bool
}

func sameMonth(a, b time.Time) bool { return a.Month() == b.Month() && a.Year() == b.Year() }

func isWeekday(d time.Time) bool {
	return d.Weekday() != time.Saturday && d.Weekday() != time.Sunday
}

// nearest returns the weekday of the month that is nearest to a date.
func nearest(d time.Time) time.Time {
	for _, delta := range []int{0, -1, 1, -2, 2} {
		if c := d.AddDate(0, 0, delta); sameMonth(c, d) && isWeekday(c) {
			return c
		}
	}
	panic("no weekday near " + d.String())
}

func lastDay(d time.Time) time.Time { return time.Date(d.Year(), d.Month()+1, 0, 0, 0, 0, 0, time.UTC) }

func monthItems() []dayItem {
	items := []dayItem{
		{"L", func(d time.Time) bool { return !sameMonth(d, d.AddDate(0, 0, 1)) }},
		{"LW", func(d time.Time) bool { return d.Equal(nearest(lastDay(d))) }},
	}
	for n := range 31 {
		items = append(items,
			dayItem{fmt.Sprintf("L-%d", n), func(d time.Time) bool { return d.AddDate(0, 0, n).Equal(lastDay(d)) }},
			dayItem{fmt.Sprintf("%dW", n+1), func(d time.Time) bool {
				want := time.Date(d.Year(), d.Month(), n+1, 0, 0, 0, 0, time.UTC)
				return sameMonth(want, d) && d.Equal(nearest(want))
			}},
			dayItem{fmt.Sprint(n + 1), func(d time.Time) bool { return d.Day() == n+1 }})
	}
	return items
}

func weekItems() (items []dayItem) {
	for i, name := range []string{"sun", "Mon", "TUE", "3", "4", "FRI", "6", "7"} {
		w := time.Weekday(i % 7)
		for k := 1; k <= 5; k++ {
			items = append(items, dayItem{fmt.Sprintf("%s#%d", name, k), func(d time.Time) bool {
				n := 0
				for c := time.Date(d.Year(), d.Month(), 1, 0, 0, 0, 0, time.UTC); !c.After(d); c = c.AddDate(0, 0, 1) {
					if c.Weekday() == w {
						n++
					}
				}
				return n == k && d.Weekday() == w
			}})
		}
		items = append(items,
			dayItem{name + "L", func(d time.Time) bool { return d.Weekday() == w && !sameMonth(d, d.AddDate(0, 0, 7)) }},
			dayItem{name, func(d time.Time) bool { return d.Weekday() == w }})
	}
	return items
}

// checkDays compares the dates of a schedule with the dates that the oracle names.
func checkDays(t *testing.T, spec calendar.Spec, fromYear, toYear int, names func(time.Time) bool) {
	t.Helper()
	s, err := calendar.New(spec)
	from, to := time.Date(fromYear, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(toYear, 1, 1, 0, 0, 0, 0, time.UTC)
	var want, got []string
	for d := from; d.Before(to); d = d.AddDate(0, 0, 1) {
		if names(d) {
			want = append(want, d.Format(time.DateOnly))
		}
	}
	if err != nil {
		if len(want) > 0 {
			t.Errorf("%q: %v", spec.Cron, err)
		}
		return
	}
	for ms := range s.Between(from.UnixMilli(), to.UnixMilli()-1) {
		got = append(got, time.UnixMilli(ms).UTC().Format(time.DateOnly))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, days %q: got %d dates, want %d; the first difference is %s", spec.Cron, spec.Days, len(got), len(want), difference(got, want))
	}
}

func difference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return want[i] + " is missing"
		case i >= len(want):
			return got[i] + " is too much"
		case got[i] != want[i]:
			return got[i] + " instead of " + want[i]
		}
	}
	return ""
}

// TestDaysOfMonth compares every single item with the oracle, and seeded lists of items, alone
// and combined with a month or with the other day field.
func TestDaysOfMonth(t *testing.T) {
	t.Parallel()
	years := [][2]int{{2026, 2032}, {2095, 2105}}
	if everything {
		years = append(years, [2]int{1970, 2095}, [2]int{2105, 2200})
	}
	months, weeks := monthItems(), weekItems()
	for _, y := range years {
		for _, it := range months {
			checkDays(t, calendar.Spec{Cron: "0 0 " + it.text + " * *"}, y[0], y[1], it.names)
		}
		for _, it := range weeks {
			checkDays(t, calendar.Spec{Cron: "0 0 ? * " + it.text}, y[0], y[1], it.names)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	choose := func(items []dayItem) (string, func(time.Time) bool) {
		var texts []string
		var chosen []dayItem
		for range 1 + r.IntN(3) {
			it := items[r.IntN(len(items))]
			texts, chosen = append(texts, it.text), append(chosen, it)
		}
		return strings.Join(texts, ","), func(d time.Time) bool {
			return slices.ContainsFunc(chosen, func(it dayItem) bool { return it.names(d) })
		}
	}
	for range 150 {
		monthText, inMonth := choose(months)
		weekText, inWeek := choose(weeks)
		m := 1 + r.IntN(12)
		checkDays(t, calendar.Spec{Cron: fmt.Sprintf("0 0 %s %d *", monthText, m)}, 2026, 2030, func(d time.Time) bool { return int(d.Month()) == m && inMonth(d) })
		checkDays(t, calendar.Spec{Cron: fmt.Sprintf("0 0 %s * %s", monthText, weekText), Days: "or"}, 2026, 2030, func(d time.Time) bool { return inMonth(d) || inWeek(d) })
		checkDays(t, calendar.Spec{Cron: fmt.Sprintf("0 0 %s * %s", monthText, weekText), Days: "and"}, 2026, 2030, func(d time.Time) bool { return inMonth(d) && inWeek(d) })
	}
}

// TestFieldValues compares the values of every range, with every step, with a plain expansion.
func TestFieldValues(t *testing.T) {
	t.Parallel()
	fields := []struct {
		name      string
		min, max  int
		expr      string
		span      time.Duration
		valueOf   func(time.Time) int
		maxSteps  int
		textStart int // least value to write, to keep the test short
	}{
		{"second", 0, 59, "%s 0 0 * * *", time.Minute, time.Time.Second, 60, 40},
		{"minute", 0, 59, "%s 0 * * *", time.Hour, time.Time.Minute, 60, 45},
		{"hour", 0, 23, "0 %s * * *", 24 * time.Hour, time.Time.Hour, 24, 0},
		{"day", 1, 31, "0 0 %s 1 *", 31 * 24 * time.Hour, time.Time.Day, 31, 20},
		{"month", 1, 12, "0 0 1 %s *", 365 * 24 * time.Hour, func(d time.Time) int { return int(d.Month()) }, 12, 1},
		{"weekday", 0, 6, "0 0 * * %s", 7 * 24 * time.Hour, func(d time.Time) int { return int(d.Weekday()) }, 7, 0},
	}
	from := time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, f := range fields {
		size := f.max - f.min + 1
		check := func(text string, a, b, step int) {
			var want, got []int
			for v, n := a, (b-a+size)%size; n >= 0; v, n = v+step, n-step {
				want = append(want, f.min+(v-f.min)%size)
			}
			slices.Sort(want)
			s := mustNew(t, calendar.Spec{Cron: fmt.Sprintf(f.expr, text)})
			for ms := range s.Between(from.UnixMilli(), from.Add(f.span).UnixMilli()-1) {
				got = append(got, f.valueOf(time.UnixMilli(ms).UTC()))
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s %q: got %v, want %v", f.name, text, got, want)
			}
		}
		for a := f.textStart; a <= f.max; a++ {
			check(fmt.Sprint(a), a, a, 1)
			for step := 1; step <= f.maxSteps; step += 1 + step/5 {
				check(fmt.Sprintf("%d/%d", a, step), a, f.max, step)
				for b := f.min; b <= f.max; b += 1 + f.max/20 {
					check(fmt.Sprintf("%d-%d/%d", a, b, step), a, b, step)
				}
			}
		}
		for step := 1; step <= f.maxSteps; step++ {
			check(fmt.Sprintf("*/%d", step), f.min, f.max, step)
		}
	}
}
