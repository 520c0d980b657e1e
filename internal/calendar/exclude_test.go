package calendar_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// TestExcludedDates compares seeded sets of excluded dates with an oracle that lists all local
// times, removes or moves those of excluded dates one day at a time, and sorts the rest.
func TestExcludedDates(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	loc := locate(t, "Europe/Berlin")
	first := time.Date(2027, 5, 1, 0, 0, 0, 0, loc) // no change of the offset until October
	const days = 120
	schedules := []struct {
		cron  string
		times func(d time.Time) []int // minutes of the day
	}{
		{"0 9,15 * * *", func(time.Time) []int { return []int{540, 900} }},
		{"0 */6 * * *", func(time.Time) []int { return []int{0, 360, 720, 1080} }},
		{"30 23 * * 1,2", func(d time.Time) []int {
			if d.Weekday() == time.Monday || d.Weekday() == time.Tuesday {
				return []int{1410}
			}
			return nil
		}},
		{"15 8 13 * *", func(d time.Time) []int {
			if d.Day() == 13 {
				return []int{495}
			}
			return nil
		}},
		{"0 12-14 1-5 * *", func(d time.Time) []int {
			if d.Day() <= 5 {
				return []int{720, 780, 840}
			}
			return nil
		}},
	}
	for round := range 120 {
		excluded := map[int]bool{}
		var dates []string
		for range r.IntN(days) {
			day := r.IntN(days)
			excluded[day] = true
			dates = append(dates, first.AddDate(0, 0, day).Format(time.DateOnly))
		}
		calendars := make([]calendar.Dates, 2) // of two calendars, some dates in both
		var err1, err2 error
		calendars[0], err1 = calendar.NewDates("a", dates[:len(dates)/2]...)
		calendars[1], err2 = calendar.NewDates("b", dates[len(dates)/3:]...)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		c := schedules[round%len(schedules)]
		for _, shift := range []string{"skip", "next", "previous"} {
			want := map[int64]bool{}
			for day := -days; day < 2*days; day++ {
				to := day
				step := map[string]int{"skip": 0, "next": 1, "previous": -1}[shift]
				for step != 0 && excluded[to] {
					to += step
				}
				for _, minute := range c.times(first.AddDate(0, 0, day)) {
					if !excluded[to] {
						want[time.Date(2027, 5, 1+to, minute/60, minute%60, 0, 0, loc).UnixMilli()] = true
					}
				}
			}
			s := mustNew(t, calendar.Spec{Cron: c.cron, Zone: "Europe/Berlin", Exclude: calendar.Join(calendars...), ExcludeShift: shift})
			got := slices.Collect(s.Between(first.UnixMilli(), first.AddDate(0, 0, days).UnixMilli()-1))
			inside := func(at int64) bool {
				return at >= first.UnixMilli() && at < first.AddDate(0, 0, days).UnixMilli()
			}
			var expected []int64
			for at := range want {
				if inside(at) {
					expected = append(expected, at)
				}
			}
			slices.Sort(expected)
			if !slices.Equal(got, expected) {
				t.Fatalf("round %d: %q %s without %v:\n got %v\nwant %v", round, c.cron, shift, dates, texts(got), texts(expected))
			}
		}
	}
}

func texts(list []int64) (out []string) {
	for _, at := range list {
		out = append(out, text(at))
	}
	return out
}

// TestExclusionOfPeriods: elapsed periods skip excluded dates of the zone; periods of days move.
func TestExclusionOfPeriods(t *testing.T) {
	t.Parallel()
	dates, err := calendar.NewDates("x", "2027-01-02", "2027-01-03")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec calendar.Spec
		want []string
	}{
		{calendar.Spec{Every: "PT8H", StartMs: ms(t, "2027-01-01T00:00:00Z")}, []string{"2027-01-01T00:00:00Z", "2027-01-01T08:00:00Z", "2027-01-01T16:00:00Z", "2027-01-04T00:00:00Z"}},
		{calendar.Spec{Every: "PT8H", StartMs: ms(t, "2027-01-01T00:00:00Z"), Zone: "Asia/Tokyo"}, []string{"2027-01-01T00:00:00Z", "2027-01-01T08:00:00Z", "2027-01-03T16:00:00Z"}},
		{calendar.Spec{Every: "P1D", StartMs: ms(t, "2027-01-01T06:00:00Z")}, []string{"2027-01-01T06:00:00Z", "2027-01-04T06:00:00Z"}},
		{calendar.Spec{Every: "P1D", StartMs: ms(t, "2027-01-02T06:00:00Z")}, []string{"2027-01-04T06:00:00Z"}},
		{calendar.Spec{Every: "P3D", StartMs: ms(t, "2027-01-02T06:00:00Z"), ExcludeShift: "next"}, []string{"2027-01-04T06:00:00Z", "2027-01-05T06:00:00Z"}},
	} {
		c.spec.Exclude = calendar.Join(dates)
		s := mustNew(t, c.spec)
		var got []string
		for at := range s.Between(0, calendar.MaxMs) {
			if got = append(got, text(at)); len(got) == len(c.want) {
				break
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %v, want %v", c.spec, got, c.want)
		}
	}
}

// TestExcludedAndShiftedByDaylightSaving: the date of a run is that of the local time that the
// schedule asks for, and a moved run obeys daylight saving on its new date.
func TestExcludedAndShiftedByDaylightSaving(t *testing.T) {
	t.Parallel()
	dates, err := calendar.NewDates("x", "2027-03-27")
	if err != nil {
		t.Fatal(err)
	}
	s := mustNew(t, calendar.Spec{Cron: "30 2 27 3 *", Zone: "Europe/Berlin", Exclude: calendar.Join(dates), ExcludeShift: "next"})
	want := []string{"2027-03-28T03:00:00+02:00", "2028-03-27T02:30:00+02:00"}
	if got := nextLocal(t, s, "2027-01-01T00:00:00Z", 2); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNewDates(t *testing.T) {
	t.Parallel()
	d, err := calendar.NewDates("de-holidays", "2027-12-25", "2027-01-01", "2027-12-25")
	if err != nil || d.Len() != 2 || d.Name() != "de-holidays" {
		t.Errorf("got %d dates of %q, %v", d.Len(), d.Name(), err)
	}
	for _, bad := range []string{"2027-02-30", "25.12.2027", "2027-1-1", "", "2027-01-01T00:00:00Z", "*-02-30", "*-2-3", "*", "*-*-01", "1969-12-31", "2200-01-01"} {
		_, err := calendar.NewDates("x", bad)
		if e := (*calendar.Error)(nil); !errors.As(err, &e) || e.Attribute != "timerexclude" || e.Instead == "" {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	many := make([]string, calendar.MaxDates+1)
	for i := range many {
		many[i] = time.UnixMilli(int64(i) * 86_400_000).UTC().Format(time.DateOnly)
	}
	if _, err := calendar.NewDates("x", many...); err == nil {
		t.Errorf("%d dates are accepted", len(many))
	}
	if d, err := calendar.NewDates("x", many[1:]...); err != nil || d.Len() != calendar.MaxDates {
		t.Errorf("%d dates: %d, %v", calendar.MaxDates, d.Len(), err)
	}
}

// TestNothingLeft: a schedule all of whose dates are excluded ends instead of searching on.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	var dates []string
	for y := 1970; y < 2200; y++ {
		dates = append(dates, fmt.Sprintf("%d-12-25", y))
	}
	d, err := calendar.NewDates("christmas", dates...)
	if err != nil {
		t.Fatal(err)
	}
	s := mustNew(t, calendar.Spec{Cron: "* * 25 12 *", Exclude: calendar.Join(d)})
	if at, ok := s.Next(0); ok {
		t.Errorf("runs at %s", text(at))
	}
	if at, ok := s.Prev(calendar.MaxMs); ok {
		t.Errorf("ran at %s", text(at))
	}
}

// TestEveryYear: *-12-25 is Christmas of every year, *-02-29 the 29 February of leap years.
func TestEveryYear(t *testing.T) {
	t.Parallel()
	yearly, err := calendar.NewDates("yearly", "*-12-25", "*-02-29", "*-12-25", "2027-12-25")
	if err != nil {
		t.Fatal(err)
	}
	if want := 230 + 56; yearly.Len() != want { // 1972 to 2196, but 2100
		t.Errorf("%d dates; want %d", yearly.Len(), want)
	}
	s := mustNew(t, calendar.Spec{Cron: "0 9 25,28,29 2,12 *", Exclude: calendar.Join(yearly)})
	var got []string
	for at := range s.Between(ms(t, "2027-12-01T00:00:00Z"), ms(t, "2029-01-01T00:00:00Z")) {
		got = append(got, text(at))
	}
	want := []string{"2027-12-28T09:00:00Z", "2027-12-29T09:00:00Z", "2028-02-25T09:00:00Z", "2028-02-28T09:00:00Z", "2028-12-28T09:00:00Z", "2028-12-29T09:00:00Z"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
}

// TestExcludedBetween: the times on excluded dates come as ranges, with the calendars that
// contain the date in the schedule's zone.
func TestExcludedBetween(t *testing.T) {
	t.Parallel()
	dates := func(name string, days ...string) calendar.Dates {
		d, err := calendar.NewDates(name, days...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	x := calendar.Join(dates("a", "2027-12-25", "2027-12-26"), dates("b", "2027-12-26", "2027-12-28"))
	for _, shift := range []string{"skip", "next", "previous"} {
		s := mustNew(t, calendar.Spec{Cron: "0 0,12 * * *", Zone: "Europe/Berlin", Exclude: x, ExcludeShift: shift})
		show := func(all bool, limit int) (list []string) {
			got, reached := s.ExcludedBetween(ms(t, "2027-12-24T00:00:00Z"), ms(t, "2027-12-28T11:00:00Z"), all, limit)
			for _, e := range got {
				list = append(list, fmt.Sprintf("%s %s %d %b", text(e.FromMs), text(e.ToMs), e.Count, e.By))
			}
			return append(list, text(reached))
		}
		want := []string{"2027-12-24T23:00:00Z 2027-12-25T11:00:00Z 2 1", "2027-12-25T23:00:00Z 2027-12-26T11:00:00Z 2 11", "2027-12-27T23:00:00Z 2027-12-28T11:00:00Z 2 10", "2027-12-28T11:00:00Z"}
		if got := show(false, 100); !slices.Equal(got, want) {
			t.Errorf("%s: got %v; want %v", shift, got, want)
		}
		want = []string{"2027-12-24T11:00:00Z 2027-12-24T11:00:00Z 1 0", "2027-12-24T23:00:00Z 2027-12-24T23:00:00Z 1 1", "2027-12-25T10:59:59Z"}
		if got := show(true, 2); !slices.Equal(got, want) {
			t.Errorf("%s, two times: got %v; want %v", shift, got, want)
		}
	}
	s := mustNew(t, calendar.Spec{Cron: "0 0 * * *", Zone: "Europe/Berlin", Exclude: x})
	if a, b := s.ExcludedBy(ms(t, "2027-12-25T22:59:00Z")), s.ExcludedBy(ms(t, "2027-12-25T23:00:00Z")); a != 1 || b != 3 {
		t.Errorf("excluded by %b and %b", a, b)
	}
	if at, _ := s.Without().Next(ms(t, "2027-12-24T12:00:00Z")); text(at) != "2027-12-24T23:00:00Z" {
		t.Errorf("without calendars it runs at %s", text(at))
	}
}
