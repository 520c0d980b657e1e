package calendar_test

import (
	"testing"

	"github.com/belfryio/belfry/internal/calendar"
)

var benchmarks = []struct {
	name string
	spec calendar.Spec
}{
	{"EveryMinute", calendar.Spec{Cron: "* * * * *", Zone: "Europe/Berlin"}},
	{"Daily", calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"}},
	{"LastWeekday", calendar.Spec{Cron: "30 2 LW * *", Zone: "Europe/Berlin"}},
	{"LeapDay", calendar.Spec{Cron: "0 0 29 2 *", Zone: "Europe/Berlin"}},
	{"Elapsed", calendar.Spec{Every: "90m", Zone: "Europe/Berlin", StartMs: 1_800_000_000_000}},
	{"EveryMonth", calendar.Spec{Every: "P1M", Zone: "Europe/Berlin", StartMs: 1_800_000_000_000}},
	{"Excluded", calendar.Spec{Cron: "0 9 * * *", Zone: "Europe/Berlin", ExcludeShift: "next"}},
}

func benchmarkSpec(b testing.TB, i int) *calendar.Schedule {
	spec := benchmarks[i].spec
	if spec.ExcludeShift != "" {
		d, err := calendar.NewDates("x", "2027-12-24", "2027-12-25", "2027-12-26", "2028-01-01", "2028-12-25")
		if err != nil {
			b.Fatal(err)
		}
		spec.Exclude = calendar.Join(d)
	}
	return mustNew(b, spec)
}

const benchmarkFrom, benchmarkTo = 1_800_000_000_000, 3_000_000_000_000

func BenchmarkNext(b *testing.B) {
	for i, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			s := benchmarkSpec(b, i)
			b.ReportAllocs()
			at := int64(benchmarkFrom)
			for b.Loop() {
				next, ok := s.Next(at)
				if at = next; !ok || at > benchmarkTo {
					at = benchmarkFrom
				}
			}
		})
	}
}

func BenchmarkPrev(b *testing.B) {
	s := benchmarkSpec(b, 1)
	b.ReportAllocs()
	at := int64(benchmarkTo)
	for b.Loop() {
		last, ok := s.Prev(at)
		if at = last; !ok || at < benchmarkFrom {
			at = benchmarkTo
		}
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := calendar.New(benchmarks[2].spec); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNextAllocatesNothing holds for Next, Prev and DueMs of every kind of schedule.
func TestNextAllocatesNothing(t *testing.T) {
	for i, c := range benchmarks {
		s := benchmarkSpec(t, i)
		at := int64(benchmarkFrom)
		if n := testing.AllocsPerRun(1000, func() {
			next, ok := s.Next(at)
			s.DueMs(next)
			if at = next; !ok {
				at = benchmarkFrom
			}
		}); n != 0 {
			t.Errorf("%s: Next allocates %v times", c.name, n)
		}
		if n := testing.AllocsPerRun(100, func() { at, _ = s.Prev(at) }); n != 0 {
			t.Errorf("%s: Prev allocates %v times", c.name, n)
		}
	}
}
