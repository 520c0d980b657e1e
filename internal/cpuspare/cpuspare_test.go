package cpuspare

import (
	"math"
	"runtime"
	"testing"
	"time"
)

func TestBetween(t *testing.T) {
	t.Parallel()
	begun := time.Unix(1000, 0)
	second := begun.Add(time.Second)
	for _, c := range []struct {
		name     string
		from, to reading
		most     float64
		want     float64
		ok       bool
	}{
		{"an idle machine", reading{begun, 10, 5}, reading{second, 12, 5}, 2, 2, true},
		{"a busy process", reading{begun, 10, 5}, reading{second, 10.2, 6.7}, 2, 0.2, true},
		{"another process is busy", reading{begun, 10, 5}, reading{second, 10.5, 5}, 2, 0.5, true},
		{"a container's limit is used up", reading{begun, 10, 5}, reading{second, 16, 6}, 1, 0, true},
		{"a container's limit leaves half", reading{begun, 10, 5}, reading{second, 16, 5.5}, 1, 0.5, true},
		{"more used than GOMAXPROCS", reading{begun, 10, 5}, reading{second, 10, 8}, 2, 0, true},
		{"the machine is not known", reading{begun, -1, 5}, reading{second, -1, 5.5}, 2, 1.5, true},
		{"the process is not known", reading{begun, 10, -1}, reading{second, 11, -1}, 2, 1, true},
		{"nothing is known", reading{begun, -1, -1}, reading{second, -1, -1}, 2, 2, false},
		{"no time has passed", reading{begun, 10, 5}, reading{begun, 11, 6}, 2, 0, false},
	} {
		if got, ok := between(c.from, c.to, c.most); math.Abs(got-c.want) > 1e-9 || ok != c.ok {
			t.Errorf("%s: got %v cores, %v; want %v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

// TestMeter: the counters of this system never go back, and a period gives a number of cores that
// the process can have. Where the system reports nothing, the meter says so.
func TestMeter(t *testing.T) {
	t.Parallel()
	m := New()
	if _, ok := m.Spare(); ok {
		t.Error("a number of cores is known before the first period has ended")
	}
	reports := m.last.idle >= 0 || m.last.used >= 0
	first := m.last
	for time.Since(first.at) < Least {
		time.Sleep(Least / 10)
	}
	got, ok := m.Spare()
	if ok != reports || got < 0 || got > float64(runtime.GOMAXPROCS(0)) {
		t.Errorf("got %v cores, %v; want 0 to %d, %v", got, ok, runtime.GOMAXPROCS(0), reports)
	}
	if m.last.idle < first.idle || m.last.used < first.used {
		t.Errorf("a counter goes back: %+v after %+v", m.last, first)
	}
	if runtime.GOOS == "linux" && !ok {
		t.Error("Linux reports these counters")
	}
}
