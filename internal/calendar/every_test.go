package calendar_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// TestElapsedPeriods: runs are at start + n × period of real time, whatever the zone does.
func TestElapsedPeriods(t *testing.T) {
	t.Parallel()
	for text, period := range map[string]time.Duration{
		"90m": 90 * time.Minute, "PT90M": 90 * time.Minute, "PT336H": 336 * time.Hour, "1s": time.Second, "1h30m": 90 * time.Minute,
		"PT1H1.5S": time.Hour + 1500*time.Millisecond, "PT1,5S": 1500 * time.Millisecond, "1.5h": 90 * time.Minute, "PT0H90M": 90 * time.Minute,
	} {
		start := ms(t, "2027-03-27T12:34:56.789Z")
		s := mustNew(t, calendar.Spec{Every: text, StartMs: start, Zone: "Europe/Berlin"})
		at := start - 1
		for n := range int64(300) {
			next, ok := s.Next(at)
			if want := start + n*period.Milliseconds(); !ok || next != want {
				t.Fatalf("%s: run %d is at %d, want %d", text, n, next, want)
			}
			at = next
		}
		// A far run needs no walk from the start: no drift, no dependence on earlier calls.
		far := start + 1_000_000*period.Milliseconds()
		if next, ok := s.Next(far - 1); far < calendar.MaxMs && (!ok || next != far) {
			t.Errorf("%s: run 1,000,000 is at %d, want %d", text, next, far)
		}
	}
}

// TestWallClockPeriods compares periods of days, weeks, months and years with Go's calendar
// arithmetic, at a time of day that every date has.
func TestWallClockPeriods(t *testing.T) {
	t.Parallel()
	loc := locate(t, "Europe/Berlin")
	for _, c := range []struct {
		text             string
		days, months     int
		year, month, day int
	}{
		{"P1D", 1, 0, 2027, 3, 20}, {"P2W", 14, 0, 2027, 1, 4}, {"P3D", 3, 0, 2027, 10, 1}, {"P1W1D", 8, 0, 2027, 10, 1}, {"P400D", 400, 0, 2027, 1, 1},
		{"P1M", 0, 1, 2027, 1, 31}, {"P1M", 0, 1, 2027, 1, 30}, {"P2M", 0, 2, 2027, 12, 31}, {"P7M", 0, 7, 2028, 2, 29}, {"P1Y", 0, 12, 2028, 2, 29}, {"P1Y6M", 0, 18, 2027, 8, 31},
	} {
		start := time.Date(c.year, time.Month(c.month), c.day, 9, 30, 15, 250e6, loc)
		s := mustNew(t, calendar.Spec{Every: c.text, StartMs: start.UnixMilli(), Zone: "Europe/Berlin"})
		at := start.UnixMilli() - 1
		for n := range 300 {
			first := time.Date(c.year, time.Month(c.month+n*c.months), 1, 0, 0, 0, 0, time.UTC)
			length := first.AddDate(0, 1, -1).Day()
			want := time.Date(first.Year(), first.Month(), min(c.day, length)+n*c.days, 9, 30, 15, 250e6, loc)
			next, ok := s.Next(at)
			if want.Year() >= 2199 {
				break
			}
			if !ok || next != want.UnixMilli() {
				t.Fatalf("%s from %s: run %d is at %s, want %s", c.text, start, n, text(next), want)
			}
			at = next
		}
	}
}

// TestPeriodStartsInAnOverlap: run 0 is at the start, in either pass and under every rule.
func TestPeriodStartsInAnOverlap(t *testing.T) {
	t.Parallel()
	for _, dst := range []string{"auto", "overlap=last", "overlap=both"} {
		for _, start := range []string{"2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"} {
			s := mustNew(t, calendar.Spec{Every: "P1D", StartMs: ms(t, start), Zone: "Europe/Berlin", DST: dst})
			var got []string
			for at := range s.Between(0, ms(t, "2027-11-02T00:00:00Z")) {
				got = append(got, text(at))
			}
			if want := []string{start, "2027-11-01T01:30:00Z"}; !slices.Equal(got, want) {
				t.Errorf("start %s, dst %s: got %v, want %v", start, dst, got, want)
			}
		}
	}
}

// TestPeriodInOverlap: later runs of a period follow the rule for overlaps.
func TestPeriodInOverlap(t *testing.T) {
	t.Parallel()
	for dst, want := range map[string][]string{
		"":             {"2027-10-31T00:30:00Z"},
		"overlap=last": {"2027-10-31T01:30:00Z"},
		"overlap=both": {"2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"},
	} {
		s := mustNew(t, calendar.Spec{Every: "P1W", StartMs: ms(t, "2027-10-03T00:30:00Z"), Zone: "Europe/Berlin", DST: dst})
		var got []string
		for at := range s.Between(ms(t, "2027-10-30T12:00:00Z"), ms(t, "2027-10-31T12:00:00Z")) {
			got = append(got, text(at))
		}
		if !slices.Equal(got, want) {
			t.Errorf("dst %q: got %v, want %v", dst, got, want)
		}
	}
	// The wall clock of a month period: 02:30 on the 28th falls into the gap of March.
	s := mustNew(t, calendar.Spec{Every: "P1M", StartMs: ms(t, "2027-01-28T01:30:00Z"), Zone: "Europe/Berlin"})
	want := []string{"2027-02-28T02:30:00+01:00", "2027-03-28T03:00:00+02:00", "2027-04-28T02:30:00+02:00"}
	if got := nextLocal(t, s, "2027-01-28T01:30:00Z", 3); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func ExampleSchedule_Next() {
	s, err := calendar.New(calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"})
	if err != nil {
		fmt.Println(err)
		return
	}
	noon := time.Date(2027, 3, 27, 12, 0, 0, 0, time.UTC)
	next, _ := s.Next(noon.UnixMilli())
	fmt.Println(time.UnixMilli(next).UTC().Format(time.RFC3339))
	// Output: 2027-03-28T01:00:00Z
}

func ExampleSchedule_Explain() {
	s, err := calendar.New(calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"})
	if err != nil {
		fmt.Println(err)
		return
	}
	from := time.Date(2027, 10, 30, 12, 0, 0, 0, time.UTC).UnixMilli()
	fmt.Println(s.Describe())
	for _, o := range s.Explain(from, calendar.MaxMs, 2) {
		fmt.Println(o.Local(), o.Reasons)
	}
	// Output:
	// At 02:30, Europe/Berlin
	// 2027-10-31T02:30:00+02:00 [overlap-first: 02:30 occurs twice on 2027-10-31; runs in the first pass only, not at +01:00]
	// 2027-11-01T02:30:00+01:00 []
}
