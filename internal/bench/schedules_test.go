package bench

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

func TestSchedules(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "three loads, one after another")
	r := run(t, "schedules", func(c *Config) { c.Count, c.Seconds = 40, 2 })
	// 40 schedules of every second: 2 s, and 2 s before and after; then twice 80 one-shot timers.
	if want := 40*6 + 2*80; r.Verified.Found != want || len(r.Latencies) != 6 || r.Latencies[1].Count() == 0 {
		t.Errorf("got %+v, want %d runs and timers with their latencies", r, want)
	}
	if got := figure(t, r, "runs wanted"); got != 40 {
		t.Errorf("got %v runs wanted a second, want 40", got)
	}
	for _, name := range []string{"runs fired", "CPU a run", "messages stored a run", oneShot + "added before: " + cpuFigure, "CPU a run, of that of a one-shot timer added meanwhile"} {
		if figure(t, r, name) <= 0 {
			t.Errorf("figure %q is 0, want more", name)
		}
	}
}

func TestSchedulesInstant(t *testing.T) {
	t.Parallel()
	r := run(t, "schedules", func(c *Config) { c.Instant, c.Lead = 200, 3*time.Second })
	if r.Verified.Found != 400 || figure(t, r, "first, by the stream") > figure(t, r, "last, by the stream") || figure(t, r, oneShot+"last, by the stream") <= 0 {
		t.Errorf("got %+v, want 200 runs and 200 timers, and the first no later than the last", r)
	}
}

func TestSchedulesDaily(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "TestPending has its steps, and a server is started four times")
	r := run(t, "schedules", func(c *Config) { c.Daily, c.Seconds = 300, 1 })
	if r.Verified.Found != 301 || figure(t, r, restartFigure) <= 0 || r.Settings["daily"] != 300 {
		t.Errorf("got %+v, want 300 schedules, and the timer of the restart", r)
	}
}

// TestCoveredRuns: a run accounts for the nominal times that it stands for. A nominal time that
// fired and is covered by a later run counts as a duplicate.
func TestCoveredRuns(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC).UnixMilli()
	a := &Adder{mark: []byte("mark-"), recur: &recurring{runs: 4, everyMs: 1000, firstMs: func(n int) int64 { return first + int64(n)*250 }}}
	event := func(schedule string, afterMs int64, rest string) []byte {
		return []byte(`{"id":"mark-` + schedule + `","timerscheduled":"` + schemas.FormatTime(first+afterMs) + `"` + rest + `}`)
	}
	for _, c := range []struct {
		event  []byte
		number int
		ours   bool
		missed int
	}{
		{event("0", 0, ""), 0, true, 0},
		{event("2", 3500, `,"timermissed":3`), 11, true, 3},
		{event("2", 3501, ""), 0, false, 0},
		{event("2", 4500, `,"timermissed":12`), 0, false, 12},
		{event("2", 0, ""), 0, false, 0},
		{[]byte(`{"id":"mark-1"}`), 0, false, 0},
	} {
		n, ours := a.number(c.event)
		if missed := a.recur.missed(c.event); ours != c.ours || ours && n != c.number || missed != c.missed {
			t.Errorf("%s: got run %d (%t), %d missed, want run %d (%t), %d missed", c.event, n, ours, missed, c.number, c.ours, c.missed)
		}
	}
	acc := &Account{dueMs: make([]int64, 4), received: make([]int64, 4), stored: []int64{1, 0, 0, 1}}
	if marked := acc.cover(3, 2); marked != 2 {
		t.Errorf("a run with 2 missed times covers %d, want 2", marked)
	}
	if acc.verify(0); acc.Found != 4 || acc.Missing != 0 || acc.Duplicates != 0 {
		t.Errorf("got %+v, want 4 nominal times accounted for", acc.Verified)
	}
	acc.Verified = Verified{}
	acc.stored[2] = 1
	if acc.verify(0); acc.Duplicates != 1 {
		t.Errorf("got %+v, want 1 duplicate: a run fired, and a later one stands for it", acc.Verified)
	}
}
