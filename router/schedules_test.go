package router_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestAddSchedule: an add with timercron or timerevery stores one pending record with the
// recurrence and the first run, by either door. A repetition is a duplicate.
func TestAddSchedule(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "schedules to be allowed", func() bool { return f.store.CanSchedule() == nil })
	const attrs = `"timercron":"30 2 * * *","timertz":"Europe/Berlin","timerlimit":3,"timeroverlap":"queue"`
	var reply schemas.AddReply
	if code := f.request("add", add("a", attrs), &reply); code != "" {
		t.Fatal(code)
	}
	next := reply.Due
	if reply.State != schemas.StatePending || reply.Duplicate || next.Second() != 0 || time.Until(next) < -time.Minute || time.Until(next) > 50*time.Hour {
		t.Errorf("the answer is %+v", reply)
	}
	if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add("b", `"timerevery":"PT1H"`)); err != nil {
		t.Fatal(err)
	}
	for id, check := range map[string]func(r schemas.Record) bool{
		"a": func(r schemas.Record) bool {
			return r.Schedule.Cron == "30 2 * * *" && r.Schedule.Zone == "Europe/Berlin" && r.Schedule.Limit == 3 && r.Schedule.Overlap == schemas.OverlapQueue && r.DueMs == next.UnixMilli()
		},
		"b": func(r schemas.Record) bool {
			return r.Schedule.Every == "PT1H" && r.Schedule.AnchorMs == r.AddedMs && r.DueMs == r.AddedMs+3_600_000
		},
	} {
		tm := f.await("/test", id)
		r := tm.Record
		if r.Schedule == nil || !check(r) || r.State != schemas.StatePending || r.Run != 1 || r.FiredMs != 0 || r.Schedule.NextMs != r.ScheduledMs || r.Schedule.NextDueMs != r.DueMs {
			t.Errorf("%s is stored as %+v with %+v", id, r, r.Schedule)
		}
	}
	var again schemas.AddReply
	if code := f.request("add", add("a", attrs), &again); code != "" || !again.Duplicate || !again.Due.Equal(next) {
		t.Errorf("a repeated add: %q %+v", code, again)
	}
	if code := f.request("add", add("a", `"timercron":"30 3 * * *","timertz":"Europe/Berlin"`), &again); code != string(schemas.CodeConflict) {
		t.Errorf("another schedule with the id: %q", code)
	}
	if code := f.request("add", add("c", `"timercron":"0 0 30 2 *"`), &again); code != string(schemas.CodeInvalidAttribute) {
		t.Errorf("a schedule that never fires: %q", code)
	}
}

// TestSchedulesWaitForUpgrade: while a node runs that does not know schedules, a request to
// add one is refused with the name of that node, and a published one waits in TIMERS_ADD. It
// is stored, not rejected, once the node is gone.
func TestSchedulesWaitForUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	older, err := store.Open(t.Context(), f.nc, store.Config{Node: "older", Level: store.LevelSealedCallback}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	if _, err := older.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "schedules to be refused", func() bool {
		err := f.store.CanSchedule()
		return err != nil && strings.Contains(err.Error(), "node older ")
	})
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := f.r.Add(ctx, nil, add("a", `"timerevery":"1h"`)); !errors.Is(err, schemas.ErrUnavailable) || !strings.Contains(err.Error(), "node older ") {
		t.Errorf("%v; want an error that names the older node", err)
	}
	if _, err := f.js.Publish(ctx, schemas.SubjectAdd, add("a", `"timerevery":"1h"`)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.js.Publish(ctx, schemas.SubjectAdd, add("once", `"timerafter":"1h"`)); err != nil {
		t.Fatal(err)
	}
	f.await("/test", "once")
	older.Close()
	kv, err := f.js.KeyValue(ctx, schemas.BucketClock)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(ctx, "node.older"); err != nil {
		t.Fatal(err)
	}
	tm := f.await("/test", "a")
	if tm.Record.Schedule == nil || tm.Record.Schedule.AnchorMs != tm.Record.AddedMs {
		t.Errorf("stored as %+v", tm.Record)
	}
	if info, err := f.js.Stream(ctx, schemas.StreamRejected); err != nil || info.CachedInfo().State.Msgs != 0 {
		t.Errorf("an add was rejected: %+v %v", info, err)
	}
}
