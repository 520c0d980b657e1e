package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !For(t.Context(), time.Hour) || time.Since(begin) != time.Hour {
			t.Errorf("waited for %s", time.Since(begin))
		}
		begin = time.Now()
		if !For(t.Context(), 0) || !For(t.Context(), -1) || time.Since(begin) != 0 {
			t.Error("a pause of nothing waits")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if For(ctx, time.Hour) || time.Since(begin) != time.Minute {
			t.Errorf("the end of the context ended the pause after %s", time.Since(begin))
		}
		if For(ctx, 0) {
			t.Error("true although the context has ended")
		}
	})
}

func TestRandom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 20 {
			begin := time.Now()
			if !Random(t.Context(), time.Hour) {
				t.Fatal("false although the context has not ended")
			}
			waits[time.Since(begin)] = true
		}
		for d := range waits {
			if d >= time.Hour {
				t.Errorf("waited for %s, want less than an hour", d)
			}
		}
		if len(waits) < 2 {
			t.Errorf("20 pauses of the same length: %v", waits)
		}
	})
}

func TestWithin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		sleep := func(d time.Duration) func() { return func() { For(t.Context(), d) } }
		if !Within(time.Hour, sleep(time.Minute)) || time.Since(begin) != time.Minute {
			t.Errorf("the end of the function came after %s", time.Since(begin))
		}
		begin = time.Now()
		if Within(time.Minute, sleep(time.Hour)) || time.Since(begin) != time.Minute {
			t.Errorf("the time limit came after %s", time.Since(begin))
		}
	})
}
