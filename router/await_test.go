package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// awaitedStore counts the waits for adds on their way.
type awaitedStore struct {
	*store.Store
	waits atomic.Int64
}

func (s *awaitedStore) AwaitAdds(ctx context.Context, most time.Duration) bool {
	s.waits.Add(1)
	return s.Store.AwaitAdds(ctx, most)
}

// TestFindsAddsOnTheirWay: an operation finds a timer whose add was acknowledged before, also while the add waits for
// others in the router.
func TestFindsAddsOnTheirWay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{GroupCommit: true})
	st := &awaitedStore{Store: f.store}
	f.r = f.startWith(router.Options{Store: st, Time: f.clock, Linger: true, Log: zerolog.Nop()})
	const together = 64
	// waits adds timers and carries out an operation on the last one, until the operation has waited for its add.
	tries := 0
	waits := func(what, attributes string, operate func(id string) (code, text string)) {
		t.Helper()
		waittest.Until(t, what+" has waited", func() bool {
			tries++
			f.publishAll(together, func(n int) []byte { return add(fmt.Sprintf("%d-%d", tries, n), attributes) })
			st.waits.Store(0)
			if code, text := operate(fmt.Sprintf("%d-%d", tries, together-1)); code != "" {
				t.Errorf("%s of a timer that was added a moment ago: %s: %s", what, code, text)
				return true
			}
			return st.waits.Load() > 0
		})
	}
	const timer, schedule = `"timerafter":"1h"`, `"timerevery":"1h"`
	for _, c := range []struct{ verb, more, attributes string }{
		{"get", "", timer}, {"cancel", "", timer}, {"reschedule", `,"after":"2h"`, timer}, {"schedule.pause", "", schedule},
		{"schedule.trigger", "", schedule}, {"schedule.preview", "", schedule}, {"schedule.runs", "", schedule},
	} {
		waits(c.verb, c.attributes, func(id string) (code, text string) {
			return f.answer(c.verb, fmt.Appendf(nil, `{"id":%q,"source":"/test"%s}`, id, c.more), new(any))
		})
	}
	waits("schedule.update", schedule, func(id string) (code, text string) {
		_, code, text = f.updateSchedule(id, `"timerevery":"2h"`, nil)
		return code, text
	})
	// The run of a one-shot timer is in the record of the timer.
	waits("get of a run", timer, func(id string) (code, text string) {
		run := schemas.RunID{Timer: schemas.NewTimerID("/test", id), Run: 1}
		return f.answer("get", fmt.Appendf(nil, `{"timer":%q}`, run), new(any))
	})
	if code := f.request("get", []byte(`{"id":"none","source":"/test"}`), nil); code != "not_found" {
		t.Errorf("get of a timer that was never added: %q, want not_found", code)
	}
}
