package flow

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestAtMost: a limit with AtMost is valid, and permits no minute with more calls than that, nor
// more than the limit alone.
func TestAtMost(t *testing.T) {
	t.Parallel()
	if got, want := (Limit{}).AtMost(120), (Limit{Rate: Rate{120, time.Minute}, Burst: 1}); got != want {
		t.Errorf("without a limit: got %+v, want %+v", got, want)
	}
	slow := Limit{Rate: Rate{5, time.Minute}, Burst: 2, Parallel: 3, Paused: true}
	if got := slow.AtMost(120); got != slow {
		t.Errorf("a lower limit: got %+v, want it unchanged", got)
	}
	if got, want := (Limit{Rate: Rate{100, time.Minute}, Burst: 50}).AtMost(120), (Limit{Rate: Rate{100, time.Minute}, Burst: 21}); got != want {
		t.Errorf("a lower rate with a large burst: got %+v, want %+v", got, want)
	}
	if got := (Limit{Parallel: 3}).AtMost(1); got.Parallel != 3 || got.Rate != (Rate{1, time.Minute}) {
		t.Errorf("parallel calls alone: got %+v", got)
	}
	for range 20_000 {
		n := 1 + rand.IntN(1<<(1+rand.IntN(24)))
		l := Limit{Parallel: 1}
		if rand.IntN(4) > 0 {
			l.Rate = Rate{1 + rand.IntN(100_000), []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}[rand.IntN(4)]}
			l.Burst = 1 + rand.IntN(2000)
		}
		if l.Check() != nil {
			continue
		}
		got := l.AtMost(n)
		if err := got.Check(); err != nil {
			t.Fatalf("%+v at most %d a minute is %+v: %v", l, n, got, err)
		}
		if calls := inOneMinute(got); calls > n {
			t.Fatalf("%+v at most %d a minute is %+v, which permits %d calls in a minute", l, n, got, calls)
		}
		if l.Rate.Count > 0 && (got.Rate.Interval() < l.Rate.Interval() || got.Rate == l.Rate && got.Burst > l.Burst) {
			t.Fatalf("%+v at most %d a minute is %+v, which permits more", l, n, got)
		}
	}
}

// inOneMinute returns the most calls that a limit permits in a minute: n calls that begin up to the
// tolerance after their admission take (n-1)·T - τ - D or longer.
func inOneMinute(l Limit) int {
	return int((time.Minute-1+time.Duration(l.Burst-1)*l.Rate.Interval())/l.Rate.Interval()) + 1
}
