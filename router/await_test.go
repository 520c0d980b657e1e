package router_test

import (
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestFindsAddsOnTheirWay: an operation finds a timer whose add was acknowledged before, also while the add waits for
// others in the router.
func TestFindsAddsOnTheirWay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{GroupCommit: true})
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Linger: true, Log: zerolog.Nop()})
	const together = 64
	for i, c := range []struct{ verb, more string }{
		{"get", ""}, {"cancel", ""}, {"reschedule", `,"after":"2h"`}, {"schedule.pause", ""}, {"schedule.trigger", ""}, {"schedule.preview", ""}, {"schedule.runs", ""},
	} {
		due := `"timerevery":"1h"`
		if c.verb == "reschedule" {
			due = `"timerafter":"1h"`
		}
		id := func(n int) string { return fmt.Sprintf("%d-%d", i, n) }
		f.publishAll(together, func(n int) []byte { return add(id(n), due) })
		if code, text := f.answer(c.verb, fmt.Appendf(nil, `{"id":%q,"source":"/test"%s}`, id(together-1), c.more), new(any)); code != "" {
			t.Errorf("%s of a timer that was added a moment ago: %s: %s", c.verb, code, text)
		}
	}
	f.publishAll(together, func(n int) []byte { return add(fmt.Sprint("s", n), `"timerevery":"1h"`) })
	if _, code, text := f.updateSchedule(fmt.Sprint("s", together-1), `"timerevery":"2h"`, nil); code != "" {
		t.Errorf("an update of a schedule that was added a moment ago: %s: %s", code, text)
	}
	// The run of a one-shot timer is in the record of the timer.
	f.publishAll(together, func(n int) []byte { return add(fmt.Sprint("r", n), `"timerafter":"1h"`) })
	run := schemas.RunID{Timer: schemas.NewTimerID("/test", fmt.Sprint("r", together-1)), Run: 1}
	if code, text := f.answer("get", fmt.Appendf(nil, `{"timer":%q}`, run), new(any)); code != "" {
		t.Errorf("get of a run: %s: %s", code, text)
	}
	if code := f.request("get", []byte(`{"id":"none","source":"/test"}`), nil); code != "not_found" {
		t.Errorf("get of a timer that was never added: %q, want not_found", code)
	}
}
