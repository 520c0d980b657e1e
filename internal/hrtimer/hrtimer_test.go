package hrtimer

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is the time limit of a wait in a test.
const bound = time.Minute

// each runs a test with timers of this system's clock and of Go's timer.
func each(t *testing.T, test func(t *testing.T, newTimer func() *Timer)) {
	t.Helper()
	for name, newClock := range map[string]func(func()) clock{
		"system": newClock,
		"Go":     func(expired func()) clock { return newGoClock(expired) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func() *Timer {
				tm := New()
				tm.clock.stop()
				tm.clock = newClock(func() { signal(tm.signals) })
				t.Cleanup(tm.Stop)
				return tm
			})
		})
	}
}

func signals(t *testing.T, tm *Timer) {
	t.Helper()
	select {
	case <-tm.C:
	case <-time.After(bound):
		t.Fatal("no signal")
	}
}

func silent(t *testing.T, tm *Timer) {
	t.Helper()
	select {
	case <-tm.C:
		t.Fatal("a signal")
	default:
	}
}

// TestSignals: each Set causes one signal, which does not come before its instant.
func TestSignals(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, newTimer func() *Timer) {
		tm := newTimer()
		for range 100 {
			d := rand.N(3 * time.Millisecond)
			begin := time.Now()
			tm.Set(d)
			signals(t, tm)
			if took := time.Since(begin); took < d-Tolerance {
				t.Fatalf("set to %s, signal after %s", d, took)
			}
			silent(t, tm)
		}
	})
}

// TestEarlier: a Set to an earlier instant counts, and no Set before it.
func TestEarlier(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, newTimer func() *Timer) {
		tm := newTimer()
		for range 10 {
			tm.Set(time.Hour)
			tm.Set(time.Millisecond)
			signals(t, tm)
			silent(t, tm)
		}
	})
}

// TestLater: a Set to a later instant counts, and no Set before it.
func TestLater(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, newTimer func() *Timer) {
		const first, second = 20 * time.Millisecond, 40 * time.Millisecond
		for range 10 {
			tm := newTimer()
			begin := time.Now()
			tm.Set(first)
			tm.Set(second)
			slow := time.Since(begin) >= first // so the first instant has passed before the second Set
			signals(t, tm)
			if took := time.Since(begin); !slow && took < second-Tolerance {
				t.Fatalf("signal after %s, set to %s and then to %s", took, first, second)
			}
		}
	})
}

// TestAtOnce: a Set to an instant that has passed signals at once.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, newTimer func() *Timer) {
		tm := newTimer()
		tm.Set(time.Hour)
		for _, d := range []time.Duration{0, -time.Second, -1} {
			tm.Set(d)
			select {
			case <-tm.C:
			default:
				t.Fatalf("Set(%d): no signal", d)
			}
		}
		silent(t, tm)
	})
}

// counter is a clock that counts its settings.
type counter struct{ sets int }

func (c *counter) set(time.Duration) { c.sets++ }

func (c *counter) stop() {}

// TestTolerance: a Set to nearly the same instant leaves the clock as it is.
func TestTolerance(t *testing.T) {
	t.Parallel()
	tm := New()
	tm.clock.stop()
	var c counter
	tm.clock = &c
	tm.Set(time.Hour)
	at := tm.at
	for i := range 100 {
		tm.Set(time.Until(at) + time.Duration(i%2)*Tolerance/2) // later, by the time between the two calls less
	}
	// Between time.Until and the Set that follows, this goroutine may stop for longer than Tolerance.
	if c.sets > 50 {
		t.Errorf("the clock was set %d times", c.sets)
	}
	before := c.sets
	tm.Set(2 * time.Hour)
	tm.Set(time.Hour)
	if c.sets != before+2 {
		t.Errorf("two other instants set the clock %d times", c.sets-before)
	}
}

// TestStop: stopped timers have no files.
func TestStop(t *testing.T) {
	New().Stop() // the runtime opens the files of its poller
	before := files(t)
	for range 100 {
		tm := New()
		tm.Set(time.Nanosecond)
		tm.Set(time.Hour)
		tm.Stop()
	}
	if after := files(t); after > before {
		t.Errorf("%d open files after 100 timers, %d before", after, before)
	}
}

func files(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// BenchmarkLate measures how late a Timer and a timer of Go expire in an idle process, for durations of up to
// 3 ms: the median and the 99 % quantile, in µs.
func BenchmarkLate(b *testing.B) {
	b.Run("Timer", func(b *testing.B) {
		tm := New()
		defer tm.Stop()
		late(b, func(d time.Duration) { tm.Set(d); <-tm.C })
	})
	b.Run("timer of Go", func(b *testing.B) {
		t := time.NewTimer(time.Hour)
		defer t.Stop()
		late(b, func(d time.Duration) { t.Reset(d); <-t.C })
	})
}

func late(b *testing.B, wait func(time.Duration)) {
	var all []time.Duration
	for b.Loop() {
		d := 20*time.Microsecond + rand.N(3*time.Millisecond)
		at := time.Now().Add(d)
		wait(d)
		all = append(all, time.Since(at))
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "µs-late-p50")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, "µs-late-p99")
}

// BenchmarkSet measures Set to another instant, which is a system call on Linux.
func BenchmarkSet(b *testing.B) {
	tm := New()
	defer tm.Stop()
	d := time.Hour
	for b.Loop() {
		d += time.Millisecond
		tm.Set(d)
	}
}
