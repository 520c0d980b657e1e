package compare

import (
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/belfryio/belfry/internal/calendar"
)

var expressions = []struct{ name, cron string }{
	{"EveryMinute", "* * * * *"}, {"Quarters", "*/15 * * * *"}, {"Daily", "30 2 * * *"}, {"Weekdays", "0 9 * * 1-5"}, {"Monthly", "0 0 1 * *"}, {"Yearly", "0 0 1 1 *"},
}

const zone = "Europe/Berlin"

var (
	first = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	last  = time.Date(2034, 1, 1, 0, 0, 0, 0, time.UTC)
)

func BenchmarkNext(b *testing.B) {
	for _, e := range expressions {
		b.Run(e.name+"/belfry", func(b *testing.B) {
			s, err := calendar.New(calendar.Spec{Cron: e.cron, Zone: zone})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			at := first.UnixMilli()
			for b.Loop() {
				if at, _ = s.Next(at); at > last.UnixMilli() {
					at = first.UnixMilli()
				}
			}
		})
		b.Run(e.name+"/robfig", func(b *testing.B) {
			s, loc := robfig(b, e.cron)
			b.ReportAllocs()
			at := first.In(loc)
			for b.Loop() {
				if at = s.Next(at); at.After(last) {
					at = first.In(loc)
				}
			}
		})
	}
}

func robfig(t testing.TB, expression string) (cron.Schedule, *time.Location) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Skipf("the host has no zone data: %v", err)
	}
	s, err := cron.ParseStandard("CRON_TZ=" + zone + " " + expression)
	if err != nil {
		t.Fatal(err)
	}
	return s, loc
}

// TestSameRuns: until daylight saving begins both libraries name the same times, so the
// benchmarks compare the same work.
func TestSameRuns(t *testing.T) {
	summer := time.Date(2027, 3, 28, 0, 0, 0, 0, time.UTC)
	for _, e := range expressions {
		ours, err := calendar.New(calendar.Spec{Cron: e.cron, Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		theirs, loc := robfig(t, e.cron)
		at := first.In(loc)
		for want := theirs.Next(at); want.Before(summer); want = theirs.Next(at) {
			if next, ok := ours.Next(at.UnixMilli()); !ok || next != want.UnixMilli() {
				t.Fatalf("%q: %s, and robfig/cron %s", e.cron, time.UnixMilli(next).UTC(), want.UTC())
			}
			at = want
		}
	}
}

// TestChangesOfDaylightSaving: the rows of the table in docs/schedules.md that a test can
// show. A daily run at 02:30 in Berlin, on the days on which the clock changes.
func TestChangesOfDaylightSaving(t *testing.T) {
	for _, c := range []struct {
		day                         time.Time
		belfry, robfig              int
		belfryFirst, robfigFirstUTC string
	}{
		{time.Date(2027, 3, 28, 0, 0, 0, 0, time.UTC), 1, 0, "01:00", ""},
		{time.Date(2027, 10, 31, 0, 0, 0, 0, time.UTC), 1, 2, "00:30", "00:30"},
	} {
		ours, err := calendar.New(calendar.Spec{Cron: "30 2 * * *", Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		theirs, loc := robfig(t, "30 2 * * *")
		noon := c.day.Add(12 * time.Hour)
		n, first := 0, ""
		for at := range ours.Between(c.day.UnixMilli(), noon.UnixMilli()) {
			if n++; n == 1 {
				first = time.UnixMilli(at).UTC().Format("15:04")
			}
		}
		if n != c.belfry || first != c.belfryFirst {
			t.Errorf("%s: Belfry runs %d times, first at %q UTC; want %d, %q", c.day.Format(time.DateOnly), n, first, c.belfry, c.belfryFirst)
		}
		n, first = 0, ""
		for at := theirs.Next(c.day.In(loc)); at.Before(noon); at = theirs.Next(at) {
			if n++; n == 1 {
				first = at.UTC().Format("15:04")
			}
		}
		if n != c.robfig || first != c.robfigFirstUTC {
			t.Errorf("%s: robfig/cron runs %d times, first at %q UTC; want %d, %q", c.day.Format(time.DateOnly), n, first, c.robfig, c.robfigFirstUTC)
		}
	}
}
