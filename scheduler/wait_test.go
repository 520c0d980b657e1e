package scheduler

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// TestPrecision: the precision follows the spare CPU time, with a margin between its two bounds, and is high where
// the spare CPU time is not known.
func TestPrecision(t *testing.T) {
	t.Parallel()
	if p := new(precision); !p.high() {
		t.Error("low without a measurement of the CPU time")
	}
	synctest.Test(t, func(t *testing.T) {
		var part float64
		var looks int
		known := false
		p := &precision{spare: func() (float64, bool) {
			looks++
			return part * float64(runtime.GOMAXPROCS(0)), known
		}}
		for i, c := range []struct {
			part  float64
			known bool
			want  bool
		}{
			{0, false, true},
			{0.3, true, true}, // between the bounds: as before
			{0.1, true, false},
			{0.3, true, false},
			{0.5, true, true},
			{0.1, true, false},
			{0.1, false, true},
		} {
			part, known = c.part, c.known
			for range 3 {
				if got := p.high(); got != c.want {
					t.Errorf("step %d, %g of the cores to spare (known: %t): high is %t", i, c.part, c.known, got)
				}
			}
			if looks != i+1 {
				t.Errorf("step %d: %d looks at the CPU time, want one a step", i, looks)
			}
			time.Sleep(lookSpare)
		}
	})
}

// TestWaiter: both precisions end a wait, also if the precision changes between two waits.
func TestWaiter(t *testing.T) {
	t.Parallel()
	p := new(precision)
	w := newWaiter(p)
	defer w.stop()
	exact := 0
	for i := range 20 {
		low := i%2 == 0
		p.low.Store(low)
		w.set(time.Millisecond)
		for ended := false; !ended; {
			select {
			case <-w.exact.C: // in a wait of low precision it is the late signal of an earlier wait
				if !low {
					exact, ended = exact+1, true
				}
			case <-w.coarse.C: // in a wait of high precision it is the backstop
				ended = true
			case <-time.After(time.Minute):
				t.Fatalf("wait %d, low precision %t: not ended", i, low)
			}
		}
		w.set(time.Hour)
	}
	if exact == 0 {
		t.Error("the timer of high resolution has ended no wait")
	}
}
