package scheduler

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// TestLeisure: a tick that is far enough ahead is read in small pages with pauses; a near
// or missed tick is read without pauses.
func TestLeisure(t *testing.T) {
	t.Parallel()
	start := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: start}, 1)
	now := start
	if a := one[ActLoad](t, k.Step(now, EvTick{})); a.Limit != loadLimit || a.Delay != 0 {
		t.Errorf("at the start: %+v", a)
	}
	k.Step(now, EvLoaded{Load: store.Load{Complete: true}})

	// The next tick enters the horizon: five seconds ahead.
	now += 1000
	page := func(want time.Duration, limit int, ev Event) {
		t.Helper()
		if a := one[ActLoad](t, k.Step(now, ev)); a.Limit != limit || a.Delay != want {
			t.Errorf("%d ms after the start: limit %d, delay %s; want %d, %s", now-start, a.Limit, a.Delay, limit, want)
		}
	}
	page(0, minPage, EvTick{})
	page(pacedPagePause, minPage, EvLoaded{Load: store.Load{Complete: true, Next: 10}})
	now += 2000
	page(pacedPagePause, minPage, EvLoaded{Load: store.Load{Complete: true, Next: 20}})
	now += 1500 // due in less than half of the horizon
	page(0, loadLimit, EvLoaded{Load: store.Load{Complete: true, Next: 30}})
}
