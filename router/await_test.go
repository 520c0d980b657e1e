package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

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

func (s *awaitedStore) AwaitAdds(ctx context.Context) bool {
	s.waits.Add(1)
	return s.Store.AwaitAdds(ctx)
}

// TestFindsAddsOnTheirWay: an operation finds a timer whose add was acknowledged before, also while the add waits for
// others in the router.
func TestFindsAddsOnTheirWay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{GroupCommit: true})
	st := &awaitedStore{Store: f.store}
	f.r = f.startWith(router.Options{Store: st, Time: f.clock, Linger: true, Log: zerolog.Nop()})
	const together = 64
	// add publishes adds of timers until the last one has not been stored when it is acknowledged, and returns its id.
	add := func(prefix, attributes string) (id string) {
		t.Helper()
		waittest.Until(t, "an acknowledged add is on its way", func() bool {
			prefix += "x"
			f.publishAll(together, func(n int) []byte { return add(fmt.Sprint(prefix, n), attributes) })
			id = fmt.Sprint(prefix, together-1)
			_, err := f.store.Get(t.Context(), schemas.NewTimerID("/test", id))
			return err != nil
		})
		st.waits.Store(0)
		return id
	}
	waits := int64(0)
	for _, c := range []struct{ verb, more string }{
		{"get", ""}, {"cancel", ""}, {"reschedule", `,"after":"2h"`}, {"schedule.pause", ""}, {"schedule.trigger", ""}, {"schedule.preview", ""}, {"schedule.runs", ""},
	} {
		due := `"timerevery":"1h"`
		if c.verb == "reschedule" {
			due = `"timerafter":"1h"`
		}
		id := add(c.verb, due)
		if code, text := f.answer(c.verb, fmt.Appendf(nil, `{"id":%q,"source":"/test"%s}`, id, c.more), new(any)); code != "" {
			t.Errorf("%s of a timer that was added a moment ago: %s: %s", c.verb, code, text)
		}
		waits += st.waits.Load()
	}
	if waits == 0 {
		t.Error("no operation has waited")
	}
	if _, code, text := f.updateSchedule(add("update", `"timerevery":"1h"`), `"timerevery":"2h"`, nil); code != "" {
		t.Errorf("an update of a schedule that was added a moment ago: %s: %s", code, text)
	}
	// The run of a one-shot timer is in the record of the timer.
	run := schemas.RunID{Timer: schemas.NewTimerID("/test", add("run", `"timerafter":"1h"`)), Run: 1}
	if code, text := f.answer("get", fmt.Appendf(nil, `{"timer":%q}`, run), new(any)); code != "" {
		t.Errorf("get of a run: %s: %s", code, text)
	}
	if code := f.request("get", []byte(`{"id":"none","source":"/test"}`), nil); code != "not_found" {
		t.Errorf("get of a timer that was never added: %q, want not_found", code)
	}
}
