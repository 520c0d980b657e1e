package router_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestOrderedTimers: get and why of a timer that waits for its turn name the timer whose turn it
// is. When that timer is cancelled, the next gets the turn and is due.
func TestOrderedTimers(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "timers with a key can be stored", func() bool { return f.store.CanOrder() == nil })
	k := store.OrderKey{Service: "default", Key: "c:1"}
	nowMs := f.clock.LatestNs() / 1e6
	now := func() int64 { return nowMs }
	for n, id := range []string{"head", "next"} {
		if code, text := f.answer("add", add(id, `"timerafter":"1h","timerkey":"c:1","timercallback":"https://example.com"`), &schemas.AddReply{}); code != "" {
			t.Fatal(code, text)
		}
		f.update(id, func(r *schemas.Record) {
			r.State, r.Run, r.FiredMs = schemas.StateDelivered, 1, r.DueMs
			if n == 0 {
				r.State, r.Queued, r.NextMs = schemas.StateRetrying, true, r.DueMs
				r.Attempt, r.Outcome = 2, schemas.Outcome{Code: 503, Error: "HTTP status 503"}
			} else {
				r.DeferTurn(nowMs + 3_600_000)
			}
		})
		rec := f.stored(id)
		asks := []order.Ask{{Kind: order.Join, Event: order.Event{DueMs: rec.ScheduledMs, AddedMs: rec.AddedMs, ID: schemas.NewTimerID("/test", id)}}}
		if _, err := f.store.DecideOrder(t.Context(), k, "n", now, asks); err != nil {
			t.Fatal(err)
		}
		if n == 0 { // its call has failed
			asks[0].Kind = order.Leave
			if _, err := f.store.DecideOrder(t.Context(), k, "n", now, asks); err != nil {
				t.Fatal(err)
			}
		}
	}
	head := schemas.NewTimerID("/test", "head").String()
	var info schemas.TimerInfo
	if code := f.request("get", []byte(`{"id":"next","source":"/test"}`), &info); code != "" || info.Order == nil || info.Order.Head != head || !info.Order.Waits || info.Order.Key != "c:1" {
		t.Errorf("get: %s %+v", code, info.Order)
	}
	var reply schemas.WhyReply
	if code, text := f.answer("schedule.why", []byte(`{"id":"next","source":"/test"}`), &reply); code != "" || len(reply.Answers) != 1 {
		t.Fatalf("why: %s %s %+v", code, text, reply)
	}
	if a := reply.Answers[0]; !strings.Contains(a.Text, "waits for its turn among the events of key c:1") || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "It waits for "+head+" of key c:1, which is retrying until ") || !strings.Contains(a.Notes[0], " after attempt 2 of 36 (HTTP status 503).") {
		t.Errorf("why: got %+v", a)
	}
	if code, text := f.answer("cancel", []byte(`{"id":"head","source":"/test"}`), &info); code != "" {
		t.Fatal(code, text)
	}
	waittest.Until(t, "the next is due", func() bool { rec := f.stored("next"); return rec.AwaitsTurn() && rec.DueMs < nowMs+3_600_000 })
	if s, _, err := f.store.OrderState(t.Context(), k); err != nil || s.Head.ID != schemas.NewTimerID("/test", "next") || len(s.Waiting) != 0 {
		t.Errorf("got %+v, %v", s, err)
	}
	var mine schemas.TimerInfo
	if code := f.request("get", []byte(`{"id":"next","source":"/test"}`), &mine); code != "" || mine.Order == nil || mine.Order.Head != "" {
		t.Errorf("get of the one whose turn it is: %s %+v", code, mine.Order)
	}
}

// TestOrderedTimersWaitForUpgrade: while a node runs that does not know ordering keys, an add with
// one is refused with the name of that node, and that node cannot read the record of one.
func TestOrderedTimersWaitForUpgrade(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "timers with a key can be stored", func() bool { return f.store.CanOrder() == nil })
	ordered := func(id string) []byte {
		return add(id, `"timerafter":"1h","timerkey":"k","timercallback":"https://example.com"`)
	}
	if code := f.request("add", ordered("before"), &schemas.AddReply{}); code != "" {
		t.Fatal(code)
	}
	older, err := store.Open(t.Context(), f.nc, store.Config{Node: "older", Level: store.LevelFlow}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	if _, err := older.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "timers with a key are refused", func() bool {
		err := f.store.CanOrder()
		return err != nil && strings.Contains(err.Error(), "node older ")
	})
	if err := f.store.CanLimit(); err != nil {
		t.Errorf("limits, which the older node knows: %v", err)
	}
	r := f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := r.Add(ctx, nil, ordered("a")); !errors.Is(err, schemas.ErrUnavailable) || !strings.Contains(err.Error(), "node older ") {
		t.Errorf("got %v, want an error that names the older node", err)
	}
	if _, err := r.Add(ctx, nil, add("plain", `"timerafter":"1h","timercallback":"https://example.com"`)); err != nil {
		t.Errorf("without a key: %v", err)
	}
	if _, err := older.Get(ctx, schemas.NewTimerID("/test", "before")); !errors.Is(err, schemas.ErrNewer) {
		t.Errorf("the older node reads the record: %v, want ErrNewer", err)
	}
}
