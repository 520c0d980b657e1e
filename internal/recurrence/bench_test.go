package recurrence_test

import (
	"testing"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// benchmarks are schedules that take a turn at each of their times.
var benchmarks = []struct {
	name string
	rule schemas.Recurrence
}{
	{"every-second", schemas.Recurrence{Every: "1s"}},
	{"every-minute", schemas.Recurrence{Cron: "* * * * *"}},
	{"jitter", schemas.Recurrence{Cron: "*/5 * * * *", JitterMs: 30_000}},
	{"daily-Berlin", schemas.Recurrence{Cron: "30 2 * * *", Zone: "Europe/Berlin"}},
}

// benchmarkStartMs is 2027-01-01.
const benchmarkStartMs = 1_798_761_600_000

// begin compiles a schedule and sets its first run.
func begin(t testing.TB, r schemas.Recurrence) (*recurrence.Plan, schemas.Record) {
	t.Helper()
	rec := record(r, "", benchmarkStartMs)
	plan, err := recurrence.Compile(scriptID, &r, rec.Schedule.AnchorMs, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Begin(&rec); err != nil {
		t.Fatal(err)
	}
	return plan, rec
}

// BenchmarkTurn is the turn of a run that is on time.
func BenchmarkTurn(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			plan, rec := begin(b, c.rule)
			first := rec
			b.ReportAllocs()
			for range b.N {
				t := plan.Turn(&rec, rec.DueMs, false, recurrence.Claim{Epoch: 1, Before: 2})
				if rec = t.Record; t.Run == nil || rec.State != schemas.StatePending {
					rec = first // the end of the calendar
				}
			}
		})
	}
}

// BenchmarkCompile is what a node does for each schedule that it loads.
func BenchmarkCompile(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := recurrence.Compile(scriptID, &c.rule, benchmarkStartMs, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestTurnAllocations: a turn of a run that is on time allocates the copy of the schedule,
// the range of decisions and the run.
func TestTurnAllocations(t *testing.T) {
	for _, c := range benchmarks {
		plan, rec := begin(t, c.rule)
		n := testing.AllocsPerRun(200, func() {
			turn := plan.Turn(&rec, rec.DueMs, false, recurrence.Claim{Epoch: 1, Before: 2})
			rec = turn.Record
		})
		if n > 3 {
			t.Errorf("%s: %.1f allocations, want at most 3", c.name, n)
		}
	}
}
