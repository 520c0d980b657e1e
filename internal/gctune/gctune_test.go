package gctune

import (
	"context"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	t.Parallel()
	const gb = 1 << 30
	for _, c := range []struct {
		live, budget uint64
		want         int
	}{
		{0, gb, 100},        // not known yet
		{gb / 100, gb, 625}, // a sixteenth of the budget
		{gb / 64, gb, 400},
		{gb / 10, gb, 300},
		{gb / 4, gb, 300},
		{gb / 3, gb, 200},
		{gb / 2, gb, 100},
		{gb, gb, 100},
		{100 * gb, gb, 100}, // never worse than Go's default
		{gb, 0, 100},
	} {
		got := percent(c.live, c.budget, true)
		if d := got - c.want; d < -1 || d > 1 {
			t.Errorf("%d alive, budget %d: %d %%; want %d", c.live, c.budget, got, c.want)
		}
		if quiet := percent(c.live, c.budget, false); quiet != min(got, mostPercent) {
			t.Errorf("%d alive, budget %d: %d %% of a quiet process; want %d", c.live, c.budget, quiet, min(got, mostPercent))
		}
		if heap := c.live + c.live/100*uint64(got); got > leastPercent && heap > c.budget {
			t.Errorf("%d alive, budget %d: the heap grows to %d", c.live, c.budget, heap)
		}
	}
}

// TestFollow: the setting follows the live heap, and the former setting is restored. It
// is not parallel, because the setting belongs to the process.
func TestFollow(t *testing.T) {
	current := func() int {
		gogc := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(gogc)
		return int(gogc[0].Value.Uint64())
	}
	was := current()
	alive := make([]byte, 64<<20)
	runtime.GC() // the live heap is known after a collection
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(ctx, 64<<20)
	}()
	eventually := func(right func(percent int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !right(current()); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the setting is %d %%", current())
			}
		}
	}
	if was != leastPercent {
		eventually(func(percent int) bool { return percent == leastPercent })
	}
	runtime.KeepAlive(alive) // keep it alive until here
	runtime.GC()
	eventually(func(percent int) bool { return percent >= mostPercent })
	cancel()
	<-done
	if got := current(); got != was {
		t.Errorf("%d %% afterwards; it was %d", got, was)
	}
}

// TestEnvironment: GOGC and GOMEMLIMIT of the environment have precedence.
func TestEnvironment(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv("GOGC", "")
		t.Setenv("GOMEMLIMIT", "")
		t.Setenv(name, "1GiB")
		done := make(chan struct{})
		go func() {
			defer close(done)
			tune(t.Context())
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s is set, and it tunes on", name)
		}
	}
}
