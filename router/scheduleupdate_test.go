package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// updateSchedule sends an update of a schedule of /test.
func (f *fixture) updateSchedule(id, attributes string, hdr nats.Header) (reply schemas.UpdateReply, code, text string) {
	f.t.Helper()
	m, err := f.nc.RequestMsg(&nats.Msg{Subject: schemas.SubjectAPIPrefix + "schedule.update", Header: hdr, Data: add(id, attributes)}, bound)
	if err != nil {
		f.t.Fatal(err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return reply, code, m.Header.Get(micro.ErrorHeader)
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		f.t.Fatal(err)
	}
	return reply, "", ""
}

// TestUpdateSchedule: an update replaces event and recurrence, keeps the progress, says which
// of the next runs change, and honours the revision.
func TestUpdateSchedule(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	var log logtest.Buffer
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	s := f.scheduled("many", schemas.Recurrence{Cron: "30 2 * * *", Zone: "Europe/Berlin"}, func(r *schemas.Record) {
		r.Run = 5
		r.Schedule.Fired = 4
		r.Schedule.Last = schemas.LastRun{Run: 4, NominalMs: r.AddedMs, ClaimedMs: r.AddedMs}
	})
	const next = `"timercron":"0 6 * * *","timertz":"Europe/Berlin","timersvc":"other","timercallback":"nats:y","timergroup":"g"`
	if _, code, text := f.updateSchedule("many", next, nats.Header{schemas.HeaderIfMatch: {fmt.Sprint(s.Rev + 1)}}); code != "conflict" || !strings.Contains(text, fmt.Sprint(s.Rev)) {
		t.Errorf("another revision: %s %q", code, text)
	}
	got, code, text := f.updateSchedule("many", next, nats.Header{schemas.HeaderIfMatch: {fmt.Sprint(s.Rev)}, schemas.HeaderBy: {"ann"}})
	if code != "" {
		t.Fatal(code, text)
	}
	tm := got.Timer
	if tm.Run != 5 || tm.Schedule.Fired != 4 || tm.Schedule.Last == nil || tm.Schedule.Cron != "0 6 * * *" || tm.Service != "other" || tm.Group != "g" || tm.Callback != "nats:y" || !tm.Added.Equal(schemas.TimeOf(s.Record.AddedMs)) {
		t.Errorf("updated: %+v %+v", tm, tm.Schedule)
	}
	if h := tm.History; len(h) != 1 || h[0].Op != "update" || h[0].By != "ann" || len(log.Lines(t, "schedule updated")) != 1 {
		t.Errorf("history %+v", h)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("this host has no zone data")
	}
	for i := range schemas.UpdateTimes {
		if len(got.Before) != schemas.UpdateTimes || len(got.After) != schemas.UpdateTimes || got.Before[i].In(berlin).Hour() != 2 || got.After[i].In(berlin).Hour() != 6 {
			t.Fatalf("before %v\nafter %v", got.Before, got.After)
		}
	}
	if !got.After[0].Equal(tm.Schedule.Next) || tm.Due.Before(time.Now()) {
		t.Errorf("next %s, due %s, after %v", tm.Schedule.Next, tm.Due, got.After)
	}
	// The same event again changes nothing, whatever the revision.
	again, code, text := f.updateSchedule("many", next, nats.Header{schemas.HeaderIfMatch: {fmt.Sprint(s.Rev)}})
	if code != "" || again.Timer.Revision != tm.Revision || len(again.Timer.History) != 1 {
		t.Errorf("again: %s %s %+v", code, text, again.Timer)
	}
	f.scheduled("limited", daily, func(r *schemas.Record) { r.Schedule.Fired = 3 })
	f.scheduled("cancelled", daily, func(r *schemas.Record) { r.State, r.Queued, r.DoneMs = schemas.StateCancelled, false, 1 })
	f.old("one", nil)
	run := recurrence.RunRecord(s.ID, &s.Record)
	run.Source, run.EventID = "/test", "run"
	if res := f.store.Create(t.Context(), []store.Write{{ID: schemas.NewTimerID("/test", "run"), Record: &run}}); res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	for _, c := range []struct{ id, attributes, hdr, code, text string }{
		{"no", next, "", "not_found", ""},
		{"one", next, "", "bad_request", "not a schedule"},
		{"run", next, "", "bad_request", "name the schedule"},
		{"cancelled", next, "", "already_done", "another id"},
		{"many", `"timerafter":"1h"`, "", "bad_request", "reschedule"},
		{"many", `"timercron":"0 6 * *"`, "", "invalid_attribute", "timercron"},
		{"many", `"timercron":"0 6 * * *","timercallback":"ftp://x"`, "", "invalid_attribute", "timercallback"},
		{"many", `"timercron":"0 6 * * *","timerend":"2020-01-01T00:00:00Z"`, "", "invalid_attribute", ""},
		{"limited", `"timercron":"0 6 * * *","timerlimit":"3"`, "", "invalid_attribute", "3 runs have fired"},
		{"many", next, "x", "bad_request", "not a revision"},
		{"many", next, "0", "bad_request", "not a revision"},
	} {
		hdr := nats.Header{}
		if c.hdr != "" {
			hdr.Set(schemas.HeaderIfMatch, c.hdr)
		}
		if _, code, text := f.updateSchedule(c.id, c.attributes, hdr); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s to %s, revision %q: %s %q, want %s %q", c.id, c.attributes, c.hdr, code, text, c.code, c.text)
		}
	}
	if _, code, _ := f.updateSchedule("many", next, nats.Header{schemas.HeaderBy: {"a\tb"}}); code != "bad_request" {
		t.Errorf("a wrong name: %q", code)
	}
}

// TestUpdateForgetsTheAdd: a redelivery of the first add must not be a conflict with the
// updated schedule.
func TestUpdateForgetsTheAdd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	f.publishAll(1, func(int) []byte { return add("many", `"timercron":"30 2 * * *"`) })
	if len(f.storeOnly(1)) != 1 {
		t.Fatal("the add was not delivered")
	}
	f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	if _, code, text := f.updateSchedule("many", `"timercron":"0 6 * * *"`, nil); code != "" {
		t.Fatal(code, text)
	}
	waittest.Until(t, "no add is left", func() bool { return f.waiting() == 0 })
	if r := f.stored("many"); r.Schedule.Cron != "0 6 * * *" || len(r.History) > 1 {
		t.Errorf("stored %+v", r)
	}
	s, err := f.js.Stream(t.Context(), schemas.StreamRejected)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Info(t.Context()); err != nil || info.State.Msgs != 0 {
		t.Errorf("%d adds are rejected, %v", info.State.Msgs, err)
	}
}
