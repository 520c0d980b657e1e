package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// scheduled stores a schedule that was added an hour ago.
func (f *fixture) scheduled(id string, r schemas.Recurrence, change func(*schemas.Record)) store.Timer {
	f.t.Helper()
	added := time.Now().Add(-time.Hour).UnixMilli()
	spec := schemas.Spec{Service: "s", Source: "/test", EventID: id, Type: "t", Timer: schemas.NewTimerID("/test", id)}
	rec := schemas.NewRecord(&spec, schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{"id":"` + id + `"}`)}, added)
	rec.Schedule = &schemas.Schedule{Recurrence: r, Progress: schemas.Progress{AnchorMs: added}}
	p, err := recurrence.Compile(spec.Timer, &r, added)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := p.Begin(&rec); err != nil {
		f.t.Fatal(err)
	}
	if change != nil {
		change(&rec)
	}
	w := store.Write{ID: spec.Timer, Record: &rec}
	if rec.State.Final() {
		w.TTL = time.Hour
	}
	res := f.store.Create(f.t.Context(), []store.Write{w})
	if res[0].Err != nil {
		f.t.Fatal(res[0].Err)
	}
	return store.Timer{ID: spec.Timer, Rev: res[0].Rev, Record: rec}
}

// op sends an operation on a timer of /test and returns the timer.
func (f *fixture) op(verb, id, more string) schemas.TimerInfo {
	f.t.Helper()
	var info schemas.TimerInfo
	if code, text := f.answer(verb, fmt.Appendf(nil, `{"id":%q,"source":"/test"%s}`, id, more), &info); code != "" {
		f.t.Fatalf("%s %s%s: %s %s", verb, id, more, code, text)
	}
	return info
}

// stored returns the record of a timer of /test.
func (f *fixture) stored(id string) schemas.Record {
	f.t.Helper()
	t, err := f.store.Get(f.t.Context(), schemas.NewTimerID("/test", id))
	if err != nil {
		f.t.Fatal(err)
	}
	return t.Record
}

var daily = schemas.Recurrence{Cron: "30 2 * * *", Zone: "Europe/Berlin"}

// TestPauseAndResume: a paused timer or schedule does not wait in the wheel; pausing and
// resuming again changes nothing; note, caller and time are in the record and the log.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	var log logtest.Buffer
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	one := f.old("one", nil)
	f.scheduled("many", daily, nil)
	for _, id := range []string{"one", "many"} {
		before := f.stored(id)
		for range 2 {
			if p := f.op("schedule.pause", id, `,"note":"broken","by":"ann"`); p.State != schemas.StatePaused || p.PauseNote != "broken" || len(p.History) != 1 || p.History[0].Op != "pause" || p.History[0].By != "ann" {
				t.Errorf("paused: %+v", p)
			}
		}
		rec := f.stored(id)
		if rec.Queued || rec.Pending() || rec.Moves == 0 || rec.DueMs != before.DueMs || len(rec.Body.Data) != len(before.Body.Data) {
			t.Errorf("%s is stored as %+v", id, rec)
		}
		if got := f.op("get", id, ""); got.PauseNote != "broken" || (got.Schedule == nil) != (id == "one") {
			t.Errorf("get %s: %+v", id, got)
		}
		if p := f.op("schedule.pause", id, `,"note":"still broken"`); p.PauseNote != "still broken" || len(p.History) != 2 {
			t.Errorf("another note: %+v", p)
		}
		for range 2 {
			if r := f.op("schedule.resume", id, `,"catchup":"one","by":"bob"`); r.State != schemas.StatePending || r.PauseNote != "" || len(r.History) != 3 || r.History[2].Op != "resume" {
				t.Errorf("resumed: %+v", r)
			}
		}
		if rec := f.stored(id); !rec.Queued || rec.DueMs != before.DueMs || rec.PauseNote != "" {
			t.Errorf("%s is stored as %+v after the resume", id, rec)
		}
	}
	if paused, resumed := log.Lines(t, "timer paused"), log.Lines(t, "timer resumed"); len(paused) != 4 || len(resumed) != 2 || paused[0]["by"] != "ann" || paused[0]["timer"] != one.ID.String() {
		t.Errorf("logged %v, %v", paused, resumed)
	}
	// A paused timer can be moved, and cancelled.
	f.op("schedule.pause", "one", "")
	if m := f.op("reschedule", "one", `,"after":"3h"`); m.State != schemas.StatePaused || m.Due.Before(time.Now().Add(2*time.Hour)) {
		t.Errorf("moved while paused: %+v", m)
	}
	if c := f.op("cancel", "one", ""); c.State != schemas.StateCancelled || c.PauseNote != "" {
		t.Errorf("cancelled while paused: %+v", c)
	}
}

// TestResumeAfterDue: what a resume does with the time that has passed.
func TestResumeAfterDue(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	past := time.Now().Add(-10 * time.Minute).UnixMilli()
	f.old("one", func(r *schemas.Record) {
		r.State, r.Queued, r.DueMs, r.ScheduledMs = schemas.StatePaused, false, past, past
	})
	f.op("schedule.resume", "one", "")
	if r := f.stored("one"); !r.Pending() || r.DueMs != past || r.LateFromMs() <= past {
		t.Errorf("resumed as %+v, late from %d", r, r.LateFromMs())
	}
	for catchUp, want := range map[string]schemas.Misfire{"": schemas.MisfireSkip, "skip": schemas.MisfireSkip, "one": schemas.MisfireOne, "all": schemas.MisfireAll} {
		id := "many" + catchUp
		f.scheduled(id, schemas.Recurrence{Every: "1m"}, nil)
		f.op("schedule.pause", id, "")
		f.op("schedule.resume", id, fmt.Sprintf(`,"catchup":%q`, catchUp))
		r := f.stored(id)
		if s := r.Schedule; s.CatchUp == nil || *s.CatchUp != want || s.PausedUntilMs == 0 || !r.Pending() || r.DueMs > time.Now().UnixMilli() {
			t.Errorf("catchup %q: %+v of %+v", catchUp, s.Progress, r.RunState)
		}
	}
}

// TestGroups: pause and resume of a group change all its waiting timers and schedules, page
// by page, and nothing else. Repeating them changes nothing.
func TestGroups(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	const n = 450 // more than two pages
	var writes []store.Write
	due := time.Now().Add(time.Hour).UnixMilli()
	for i := range n + 20 {
		rec := schemas.Record{
			Definition: schemas.Definition{Service: "s", Group: "g", Source: "/test", EventID: fmt.Sprint(i), Type: "t", AddedMs: time.Now().Add(-time.Hour).UnixMilli()},
			RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: due, ScheduledMs: due},
		}
		switch {
		case i >= n+10:
			rec.State, rec.Queued = schemas.StateDelivered, false
		case i >= n:
			rec.Group = "other"
		}
		writes = append(writes, store.Write{ID: schemas.NewTimerID("/test", fmt.Sprint(i)), Record: &rec})
	}
	for _, r := range f.store.Create(t.Context(), writes) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	f.scheduled("many", daily, func(r *schemas.Record) { r.Group = "g" })
	all := func(verb, more string) (changed int) {
		t.Helper()
		for cursor, pages := "", 0; ; pages++ {
			var reply schemas.GroupReply
			if code, text := f.answer(verb, fmt.Appendf(nil, `{"group":"g","cursor":%q%s}`, cursor, more), &reply); code != "" {
				t.Fatal(code, text)
			}
			if changed += reply.Changed; reply.Changed > 200 || reply.Refused > 0 {
				t.Errorf("got %+v", reply)
			}
			if cursor = reply.Cursor; cursor == "" {
				return changed
			}
			if pages > 20 {
				t.Fatal("the pages do not end")
			}
		}
	}
	count := func(state string) int {
		t.Helper()
		var page schemas.ListReply
		if code := f.request("list", fmt.Appendf(nil, `{"state":[%q],"limit":1000}`, state), &page); code != "" {
			t.Fatal(code)
		}
		return len(page.Timers)
	}
	for i, want := range []int{n + 1, 0} {
		if got := all("schedule.pause", `,"note":"stop"`); got != want {
			t.Errorf("pause %d changed %d, want %d", i, got, want)
		}
	}
	if paused, pending := count("paused"), count("pending"); paused != n+1 || pending != 10 {
		t.Errorf("%d are paused, %d pending", paused, pending)
	}
	for i, want := range []int{n + 1, 0} {
		if got := all("schedule.resume", ""); got != want {
			t.Errorf("resume %d changed %d, want %d", i, got, want)
		}
	}
	if paused, pending := count("paused"), count("pending"); paused != 0 || pending != n+11 {
		t.Errorf("%d are paused, %d pending after the resume", paused, pending)
	}
}

// TestTrigger: each trigger is a run that waits, up to the limit, also while the schedule is
// paused.
func TestTrigger(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.scheduled("many", daily, nil)
	f.op("schedule.pause", "many", "")
	for i := range schemas.MaxManual {
		if info := f.op("schedule.trigger", "many", fmt.Sprintf(`,"allow":%v`, i == 1)); info.Schedule.Triggered != i+1 || info.State != schemas.StatePaused {
			t.Errorf("trigger %d: %+v", i, info.Schedule)
		}
	}
	r := f.stored("many")
	if m := r.Schedule.Manual; !r.Pending() || r.DueMs > time.Now().UnixMilli()+60_000 || m[0].Allow || !m[1].Allow || m[0].AtMs == 0 {
		t.Errorf("stored %+v %+v", r.RunState, m)
	}
	if code, text := f.answer("schedule.trigger", []byte(`{"id":"many","source":"/test"}`), nil); code != "unavailable" || !strings.Contains(text, "16") {
		t.Errorf("got %s %q", code, text)
	}
}

// TestDeleteSchedule: a cancelled schedule has no runs that wait, says what became of them,
// and keeps its event.
func TestDeleteSchedule(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	for i, verb := range []string{"schedule.delete", "cancel"} {
		id := fmt.Sprint(i)
		f.scheduled(id, daily, func(r *schemas.Record) {
			r.Callback, r.Run = "nats:x", 4
			r.Schedule.Waiting = &schemas.WaitingRun{NominalMs: 1000}
			r.Schedule.Manual = []schemas.ManualRun{{AtMs: 5000}, {AtMs: 6000}}
			r.Schedule.Backfill = &schemas.Backfill{NextMs: 1, ToMs: 2}
			if i == 1 {
				r.State, r.Queued, r.Schedule.PauseNote = schemas.StatePaused, false, "broken"
			}
		})
		for range 2 {
			if info := f.op(verb, id, ""); info.State != schemas.StateCancelled || info.Done.IsZero() || info.PauseNote != "" {
				t.Errorf("%s: %+v", verb, info)
			}
		}
		r := f.stored(id)
		s := r.Schedule
		if s.Waiting != nil || s.Manual != nil || s.Backfill != nil || len(r.Body.Data) == 0 || r.Queued {
			t.Errorf("%s: stored %+v", verb, r)
		}
		want := []schemas.Decision{
			{Kind: schemas.DecisionCancelled, FromMs: 1000, ToMs: 1000, Count: 1, AtMs: r.DoneMs},
			{Kind: schemas.DecisionTriggerCancelled, FromMs: 5000, ToMs: 6000, Count: 2, AtMs: r.DoneMs},
		}
		if !slices.Equal(s.Decisions, want) {
			t.Errorf("%s: decisions %+v", verb, s.Decisions)
		}
		if ttl := f.ttl(schemas.NewTimerID("/test", id)); ttl != "86400s" {
			t.Errorf("%s: the record expires after %q", verb, ttl)
		}
	}
}

// TestRefusedOperations: wrong requests, and operations for which it is too late, say why.
func TestRefusedOperations(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.scheduled("many", daily, nil)
	f.scheduled("cancelled", daily, func(r *schemas.Record) { r.State, r.Queued, r.DoneMs = schemas.StateCancelled, false, 1 })
	f.scheduled("completed", daily, func(r *schemas.Record) {
		r.State, r.Queued, r.DoneMs = schemas.StateCompleted, false, 1_700_000_000_000
	})
	f.scheduled("last", daily, func(r *schemas.Record) {
		r.State, r.Queued, r.FiredMs = schemas.StateDelivered, false, 1_700_000_000_000
	})
	f.old("one", nil)
	f.old("fired", func(r *schemas.Record) {
		r.State, r.Queued, r.FiredMs = schemas.StateDelivered, false, 1_700_000_000_000
	})
	f.old("retrying", func(r *schemas.Record) { r.State, r.FiredMs = schemas.StateRetrying, 1_700_000_000_000 })
	long := strings.Repeat("n", schemas.MaxPauseNote+1)
	const period = `,"from":"2026-01-01T00:00:00Z","to":"2026-02-01T00:00:00Z"`
	for _, c := range []struct{ verb, id, more, code, text string }{
		{"schedule.pause", "no", "", "not_found", "never added"},
		{"schedule.pause", "many", `,"note":"` + long + `"`, "bad_request", "257 bytes"},
		{"schedule.pause", "many", `,"note":"a\nb"`, "bad_request", "printable"},
		{"schedule.pause", "many", `,"note":5`, "bad_request", "JSON"},
		{"schedule.pause", "many", `,"by":"a\nb"`, "bad_request", "by"},
		{"schedule.pause", "many", `,"group":"g"`, "bad_request", "either"},
		{"schedule.pause", "cancelled", "", "already_done", "cancelled"},
		{"schedule.pause", "completed", "", "already_done", "another id"},
		{"schedule.pause", "last", "", "already_done", "last run"},
		{"schedule.pause", "fired", "", "already_fired", "already fired at 2023"},
		{"schedule.pause", "retrying", "", "already_fired", "retrying"},
		{"schedule.resume", "many", `,"catchup":"some"`, "bad_request", "one, all or skip"},
		{"schedule.resume", "completed", "", "already_done", "another id"},
		{"schedule.resume", "fired", "", "already_fired", ""},
		{"schedule.trigger", "one", "", "bad_request", "not a schedule"},
		{"schedule.trigger", "cancelled", "", "already_done", "cancelled"},
		{"schedule.backfill", "one", period, "bad_request", "not a schedule"},
		{"schedule.backfill", "completed", period, "already_done", "another id"},
		{"schedule.backfill", "many", "", "bad_request", "from"},
		{"schedule.backfill", "many", `,"from":"2026-01-01T00:00:00Z"`, "bad_request", "to"},
		{"schedule.backfill", "many", `,"from":"2026-01-03T00:00:00Z","to":"2026-01-01T00:00:00Z"`, "bad_request", "before it begins"},
		{"schedule.backfill", "many", `,"from":"2026-01-03T00:00:00Z","to":"2126-01-01T00:00:00Z"`, "bad_request", "not past"},
		{"schedule.backfill", "many", `,"from":"1971-01-03T00:00:00Z","to":"2026-01-01T00:00:00Z"`, "bad_request", "10000"},
		{"schedule.backfill", "many", period + `,"rate":"soon"`, "bad_request", "rate"},
		{"schedule.backfill", "many", period + `,"rate":"-1s"`, "bad_request", "rate"},
		{"schedule.backfill", "many", period + `,"rate":"25h"`, "bad_request", "24h"},
		{"schedule.preview", "one", "", "bad_request", "not a schedule"},
		{"schedule.preview", "many", `,"n":1001`, "bad_request", "1000"},
		{"schedule.preview", "many", `,"n":-1`, "bad_request", "1000"},
		{"schedule.preview", "many", `,"from":"x"`, "bad_request", "from"},
		{"schedule.why", "one", `,"at":"2027-03-28"`, "bad_request", "not a schedule"},
		{"schedule.why", "many", "", "bad_request", "2027-03-28"},
		{"schedule.why", "many", `,"at":"soon"`, "bad_request", "2027-03-28"},
		{"schedule.runs", "one", "", "bad_request", "not a schedule"},
		{"schedule.runs", "many", `,"limit":101`, "bad_request", "100"},
		{"schedule.runs", "many", `,"cursor":"x"`, "bad_request", "cursor"},
		{"reschedule", "many", `,"after":"1h"`, "bad_request", "use update"},
		{"schedule.delete", "completed", "", "already_done", "ended"},
		{"schedule.delete", "fired", "", "already_fired", ""},
	} {
		code, text := f.answer(c.verb, fmt.Appendf(nil, `{"id":%q,"source":"/test"%s}`, c.id, c.more), new(json.RawMessage))
		if code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %s%s: %s %q, want %s %q", c.verb, c.id, c.more, code, text, c.code, c.text)
		}
	}
	for _, verb := range []string{"pause", "resume", "trigger", "backfill", "delete", "preview", "runs", "why", "update"} {
		for _, body := range []string{"", "{}", "x", `{"timer":"zz"}`, `{"timer":"zz.1"}`} {
			if code := f.request("schedule."+verb, []byte(body), new(json.RawMessage)); code != "bad_request" && code != "invalid_timer_id" && (verb != "update" || code != "invalid_event") {
				t.Errorf("%s %q: %q", verb, body, code)
			}
		}
	}
	if r := f.stored("many"); r.Moves != 0 || len(r.History) > 0 {
		t.Errorf("a refused operation changed the schedule: %+v", r)
	}
}

// TestOperationsWhileFiring: operations on a schedule and its turns exclude each other: each
// pause is followed by no run until its resume, and no run, pause or trigger is lost.
func TestOperationsWhileFiring(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	s := f.scheduled("many", schemas.Recurrence{Every: "1s"}, nil)
	p, err := recurrence.Compile(s.ID, &s.Record.Schedule.Recurrence, s.Record.Schedule.AnchorMs)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 60
	var mu sync.Mutex
	paused := false // an acknowledged pause that no resume has followed
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		now := s.Record.AddedMs
		for {
			select {
			case <-stop:
				return
			default:
			}
			mu.Lock()
			before := paused
			mu.Unlock()
			tm, err := f.store.Get(t.Context(), s.ID)
			if err != nil {
				t.Error(err)
				return
			}
			now += 1000
			turn := p.Turn(&tm.Record, now, false, recurrence.Claim{Epoch: 1, Before: tm.Rev})
			_, err = f.store.Update(t.Context(), store.Write{ID: tm.ID, Rev: tm.Rev, Record: &turn.Record})
			switch {
			case errors.Is(err, store.ErrRevision):
			case err != nil:
				t.Error(err)
				return
			case before && turn.Run != nil && turn.Run.Trigger == schemas.TriggerSchedule:
				mu.Lock()
				if paused {
					t.Errorf("run %d fired after a pause was acknowledged", turn.Run.Number)
				}
				mu.Unlock()
			}
		}
	})
	for range rounds {
		f.op("schedule.pause", "many", "")
		mu.Lock()
		paused = true
		mu.Unlock()
		f.op("schedule.trigger", "many", "")
		mu.Lock()
		paused = false
		mu.Unlock()
		f.op("schedule.resume", "many", `,"catchup":"all"`)
	}
	close(stop)
	wg.Wait()
	r := f.stored("many")
	triggered := uint32(len(r.Schedule.Manual))
	for _, d := range r.Schedule.Decisions {
		if d.Kind == schemas.DecisionTriggered {
			triggered += d.Count
		}
	}
	if len(r.Schedule.Decisions) < schemas.MaxDecisions && triggered != rounds {
		t.Errorf("%d runs were asked for, %d fired or wait: %+v", rounds, triggered, r.Schedule.Decisions)
	}
}

// TestBackfill: a dry run lists what a backfill fires and changes nothing. A second backfill
// has to wait.
func TestBackfill(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.scheduled("many", schemas.Recurrence{Cron: "0 12 * * *"}, func(r *schemas.Record) {
		at := func(day int) int64 { return time.Date(2026, 1, day, 12, 0, 0, 0, time.UTC).UnixMilli() }
		r.Schedule.Decide(schemas.Decision{Kind: schemas.DecisionFired, FromMs: at(3), ToMs: at(4), Count: 2, Run: 1, AtMs: at(4)})
		r.Run = 3
	})
	const period = `"id":"many","source":"/test","from":"2026-01-01T00:00:00Z","to":"2026-01-05T12:00:00Z"`
	for _, c := range []struct {
		more string
		want []int
	}{{`,"dryrun":true`, []int{1, 2, 5}}, {`,"dryrun":true,"again":true`, []int{1, 2, 3, 4, 5}}} {
		var reply schemas.BackfillReply
		if code, text := f.answer("schedule.backfill", []byte("{"+period+c.more+"}"), &reply); code != "" {
			t.Fatal(code, text)
		}
		var days []int
		for _, at := range reply.Times {
			days = append(days, at.Day())
		}
		if reply.Count != len(c.want) || !slices.Equal(days, c.want) {
			t.Errorf("%s: %d %v", c.more, reply.Count, days)
		}
	}
	if r := f.stored("many"); r.Schedule.Backfill != nil || len(r.History) > 0 {
		t.Errorf("a dry run changed the schedule: %+v", r.Schedule.Progress)
	}
	var reply schemas.BackfillReply
	if code, text := f.answer("schedule.backfill", []byte("{"+period+`,"rate":"5m","allow":true,"by":"ann"}`), &reply); code != "" {
		t.Fatal(code, text)
	}
	b := reply.Timer.Schedule.Backfill
	if reply.Count != 3 || len(reply.Times) > 0 || b == nil || b.Next.Day() != 1 || b.To.Day() != 5 || reply.Timer.History[0].By != "ann" {
		t.Errorf("got %+v", reply)
	}
	if r := f.stored("many"); r.Schedule.Backfill.EveryMs != 300_000 || !r.Schedule.Backfill.Allow || r.DueMs > time.Now().UnixMilli()+60_000 {
		t.Errorf("stored %+v", r)
	}
	if code, text := f.answer("schedule.backfill", []byte("{"+period+"}"), new(json.RawMessage)); code != "conflict" || !strings.Contains(text, "wait until it is done") {
		t.Errorf("a second backfill: %s %q", code, text)
	}
	// A period whose nominal times have all fired changes nothing.
	f.scheduled("other", schemas.Recurrence{Cron: "0 12 * * *"}, func(r *schemas.Record) { r.Schedule.KnownFromMs = time.Now().UnixMilli() })
	reply = schemas.BackfillReply{}
	if code, text := f.answer("schedule.backfill", []byte("{"+strings.Replace(period, "many", "other", 1)+"}"), &reply); code != "" || reply.Count != 0 || reply.Timer.Schedule.Backfill != nil {
		t.Errorf("%s %s %+v", code, text, reply)
	}
}

// TestPreview shows a stored schedule.
func TestPreview(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.scheduled("many", daily, nil)
	var reply schemas.PreviewReply
	if code, text := f.answer("schedule.preview", []byte(`{"id":"many","source":"/test","from":"2027-03-27T00:00:00Z","n":3}`), &reply); code != "" {
		t.Fatal(code, text)
	}
	if len(reply.Runs) != 3 || reply.Zones == "" || !strings.Contains(reply.Description, "Europe/Berlin") || reply.Runs[1].Local != "2027-03-28T03:00:00+02:00" || len(reply.Runs[1].Why) != 1 || reply.Runs[1].Why[0].Code != "gap-shifted" {
		t.Errorf("got %+v", reply)
	}
	f.scheduled("limited", daily, func(r *schemas.Record) { r.Schedule.Limit, r.Schedule.Fired = 5, 3 })
	if f.request("schedule.preview", []byte(`{"id":"limited","source":"/test"}`), &reply); len(reply.Runs) != 2 {
		t.Errorf("with two runs left: %+v", reply.Runs)
	}
	f.scheduled("ended", daily, func(r *schemas.Record) {
		r.State, r.Queued, r.DoneMs, r.Schedule.NextMs = schemas.StateCompleted, false, 1, 0
	})
	reply = schemas.PreviewReply{}
	if code := f.request("schedule.preview", []byte(`{"id":"ended","source":"/test"}`), &reply); code != "" || len(reply.Runs) != 0 {
		t.Errorf("of an ended schedule: %s %+v", code, reply.Runs)
	}
}

// TestRuns pages through the runs of a schedule: those with a record have its outcome, the
// others what the schedule's record says.
func TestRuns(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	day := func(n int) int64 { return time.Date(2026, 1, n, 12, 0, 0, 0, time.UTC).UnixMilli() }
	s := f.scheduled("many", schemas.Recurrence{Cron: "0 12 * * *"}, func(r *schemas.Record) {
		r.Callback, r.Run = "nats:x", 7
		r.Schedule.Decisions = []schemas.Decision{
			{Kind: schemas.DecisionFired, FromMs: day(1), ToMs: day(4), Count: 4, Run: 1, AtMs: day(4)},
			{Kind: schemas.DecisionCoalesced, FromMs: day(5), ToMs: day(6), Count: 2, Run: 5, AtMs: day(7)},
			{Kind: schemas.DecisionFired, FromMs: day(7), ToMs: day(7), Count: 1, Run: 5, AtMs: day(7)},
			{Kind: schemas.DecisionTriggered, FromMs: day(7) + 5, ToMs: day(7) + 5, Count: 1, Run: 6, AtMs: day(7) + 6},
		}
		r.Schedule.Last = schemas.LastRun{Run: 6, NominalMs: day(7) + 5, ClaimedMs: day(7) + 6, Trigger: schemas.TriggerManual}
		r.Schedule.Waiting = &schemas.WaitingRun{NominalMs: day(8)}
	})
	run := recurrence.RunRecord(s.ID, &s.Record)
	run.Run, run.ScheduledMs, run.Origin.Missed, run.Origin.Trigger = 5, day(7), 2, 0
	run.State, run.Queued, run.Attempt, run.FiredMs, run.NextMs = schemas.StateRetrying, true, 2, day(7)+1, day(9)
	run.Outcome = schemas.Outcome{Code: 503, Error: "HTTP 503"}
	if res := f.store.Create(t.Context(), []store.Write{{ID: schemas.RunTimer(s.ID, 5), Record: &run}}); res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	var got []schemas.RunInfo
	var decisions []schemas.DecisionInfo
	for cursor := ""; ; {
		var page schemas.RunsReply
		if code, text := f.answer("schedule.runs", fmt.Appendf(nil, `{"id":"many","source":"/test","limit":2,"cursor":%q}`, cursor), &page); code != "" {
			t.Fatal(code, text)
		}
		got, decisions = append(got, page.Runs...), append(decisions, page.Decisions...)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if len(got) != 6 || len(decisions) != 4 || decisions[0].Kind != "triggered" || decisions[2].Kind != "coalesced" || decisions[2].Run != 5 {
		t.Fatalf("%d runs, decisions %+v", len(got), decisions)
	}
	for i, want := range []schemas.RunInfo{
		{Run: 6, Scheduled: schemas.TimeOf(day(7) + 5), Fired: schemas.TimeOf(day(7) + 6), Trigger: "manual"},
		{Run: 5, Timer: schemas.RunTimer(s.ID, 5), Scheduled: schemas.TimeOf(day(7)), Fired: schemas.TimeOf(day(7) + 1), Missed: 2, State: schemas.StateRetrying, Attempts: 2},
		{Run: 4, Scheduled: schemas.TimeOf(day(4))}, {Run: 3, Scheduled: schemas.TimeOf(day(3))}, {Run: 2, Scheduled: schemas.TimeOf(day(2))}, {Run: 1, Scheduled: schemas.TimeOf(day(1))},
	} {
		have := got[i]
		if outcome := have.Outcome; (outcome != nil) != (want.Run == 5) || outcome != nil && outcome.Code != 503 {
			t.Errorf("run %d: outcome %+v", want.Run, outcome)
		}
		want.ID, have.Outcome = fmt.Sprintf("%s.%d", s.ID, want.Run), nil
		if have != want {
			t.Errorf("got  %+v\nwant %+v", have, want)
		}
	}
	// A run is read, and cancelled, by its identity.
	for _, c := range []struct{ verb, run, code string }{{"get", "5", ""}, {"get", "4", "not_found"}, {"get", "9", "not_found"}, {"cancel", "5", ""}, {"schedule.trigger", "5", "bad_request"}} {
		var info schemas.TimerInfo
		if code, text := f.answer(c.verb, fmt.Appendf(nil, `{"timer":"%s.%s"}`, s.ID, c.run), &info); code != c.code || code == "" && (info.Origin == nil || info.Origin.Schedule != s.ID || info.Run != 5) {
			t.Errorf("%s run %s: %s %s %+v", c.verb, c.run, code, text, info)
		}
	}
	one := f.old("one", nil)
	if code := f.request("get", fmt.Appendf(nil, `{"timer":"%s.1"}`, one.ID), &schemas.TimerInfo{}); code != "" {
		t.Errorf("get of run 1 of a one-shot timer: %s", code)
	}
}

// TestWhy: a date in the schedule's zone, and an instant.
func TestWhy(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	at := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC).UnixMilli() // 02:30 does not exist
	f.scheduled("many", daily, func(r *schemas.Record) {
		r.Run = 3
		r.Schedule.Decide(schemas.Decision{Kind: schemas.DecisionOverlap, FromMs: at, ToMs: at, Count: 1, Run: 2, AtMs: at})
		r.Schedule.Decide(schemas.Decision{Kind: schemas.DecisionTriggerCancelled, FromMs: at + 86_400_000, ToMs: at + 86_400_000, Count: 1, AtMs: at})
	})
	ask := func(at string) (r schemas.WhyReply) {
		t.Helper()
		if code, text := f.answer("schedule.why", fmt.Appendf(nil, `{"id":"many","source":"/test","at":%q}`, at), &r); code != "" {
			t.Fatal(code, text)
		}
		return r
	}
	for _, text := range []string{"2026-03-29", "2026-03-29T01:00:00Z", "2026-03-29T02:30"} {
		r := ask(text)
		if len(r.Answers) != 1 || r.More {
			t.Fatalf("%s: %+v", text, r)
		}
		if a := r.Answers[0]; a.Fate != schemas.FateSkipped || a.Reason != "overlap" || a.Run != 2 || !a.At.Equal(schemas.TimeOf(at)) || len(a.Notes) != 1 || !strings.Contains(a.Text, "overlapped run 2") {
			t.Errorf("%s: %+v", text, a)
		}
	}
	// A request that was cancelled is no decision about a nominal time.
	if a := ask("2026-03-30T01:00:00Z").Answers[0]; a.Reason == "trigger_cancelled" || a.Fate == schemas.FateSkipped {
		t.Errorf("got %+v", a)
	}
	if r := ask("2030-05-01"); len(r.Answers) != 1 || r.Answers[0].Fate != schemas.FatePlanned {
		t.Errorf("in the future: %+v", r)
	}
	f.scheduled("often", schemas.Recurrence{Every: "1s"}, nil)
	var r schemas.WhyReply
	if code, text := f.answer("schedule.why", []byte(`{"id":"often","source":"/test","at":"2030-05-01"}`), &r); code != "" || len(r.Answers) != schemas.MaxAnswers || !r.More {
		t.Errorf("every second: %s %s, %d answers", code, text, len(r.Answers))
	}
}

// TestListSchedules selects schedules, or other timers.
func TestListSchedules(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.old("one", nil)
	f.scheduled("many", daily, nil)
	for filter, want := range map[string][]string{`{"schedule":true}`: {"many"}, `{"schedule":false}`: {"one"}, `{}`: {"many", "one"}} {
		var page schemas.ListReply
		if code := f.request("list", []byte(filter), &page); code != "" {
			t.Fatal(code)
		}
		var ids []string
		for _, i := range page.Timers {
			ids = append(ids, i.ID)
			if s := i.Schedule; s != nil && (s.Next.IsZero() || !s.Next.Equal(i.Scheduled) || s.Cron != daily.Cron || s.Misfire != "one" || s.Overlap != "skip") {
				t.Errorf("listed %+v", s)
			}
		}
		if slices.Sort(ids); !slices.Equal(ids, want) {
			t.Errorf("%s lists %v", filter, ids)
		}
	}
}

// TestGroupsOfOtherAccounts: only callers of Belfry's own account operate on groups.
func TestGroupsOfOtherAccounts(t *testing.T) {
	t.Parallel()
	f := accounts(t)
	orders := f.srv.Connect(nats.UserInfo("orders", "p"))
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	f.scheduled("many", daily, func(r *schemas.Record) { r.Group = "g" })
	m, err := orders.Request(schemas.SubjectAPIPrefix+"schedule.pause", []byte(`{"group":"g"}`), bound)
	if err != nil || !strings.Contains(string(m.Data), "bad_request") || !strings.Contains(string(m.Data), "name each timer") {
		t.Fatalf("%v %s", err, m.Data)
	}
	// Without a reply subject nothing shows where the request comes from.
	if err := orders.Publish(schemas.SubjectAPIPrefix+"schedule.pause", []byte(`{"group":"g"}`)); err != nil {
		t.Fatal(err)
	}
	m, err = orders.Request(schemas.SubjectAPIPrefix+"schedule.pause", []byte(`{"id":"many","source":"/test","by":"x"}`), bound)
	var info schemas.TimerInfo
	if err != nil || json.Unmarshal(m.Data, &info) != nil || info.State != schemas.StatePaused || len(info.History) != 1 || info.History[0].Account != "ORDERS" {
		t.Errorf("%v %s", err, m.Data)
	}
}

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

// TestPreviewOfAttributes: attributes are read as in an add.
func TestPreviewOfAttributes(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	preview := func(body string) (r schemas.PreviewReply, code, text string) {
		t.Helper()
		code, text = f.answer("schedule.preview", []byte(body), &r)
		return r, code, text
	}
	r, code, text := preview(`{"attributes":{"timercron":"30 2 * * *","timertz":"Europe/Berlin"},"from":"2027-03-28T00:00:00Z","n":1}`)
	if code != "" || len(r.Runs) != 1 || r.Runs[0].Local != "2027-03-28T03:00:00+02:00" || r.Runs[0].At.UTC().Hour() != 1 {
		t.Errorf("%s %s %+v", code, text, r)
	}
	// H is derived from id and source, as in an add of that event.
	const hashed = `"attributes":{"timercron":"H H * * *","timerjitter":"1h"},"id":"many","source":"/test","n":2}`
	r, code, text = preview("{" + hashed)
	if code != "" || len(r.Runs) != 2 || r.Resolved == "" || r.Runs[0].Due.Before(r.Runs[0].At) {
		t.Errorf("%s %s %+v", code, text, r)
	}
	if r2, _, _ := preview("{" + strings.Replace(hashed, "many", "other", 1)); r2.Resolved == r.Resolved {
		t.Errorf("the same times for another id: %s", r.Resolved)
	}
	if r, code, _ := preview(`{"attributes":{"timerevery":"1h","timerlimit":"2"}}`); code != "" || len(r.Runs) != 2 {
		t.Errorf("a limit: %s %+v", code, r)
	}
	for body, want := range map[string]string{
		`{"attributes":{"timercron":"30 2 * * * * *"}}`: "invalid_attribute",
		`{"attributes":{"timerafter":"1h"}}`:            "bad_request",
		`{"attributes":{"timercron":5}}`:                "bad_request",
		`{"attributes":{"timercron":"@daily"},"timer":"` + schemas.NewTimerID("/s", "1").String() + `"}`: "bad_request",
		`{"attributes":{"timertypo":"1"}}`: "invalid_attribute",
	} {
		if _, code, text := preview(body); code != want {
			t.Errorf("%s: %s %q, want %s", body, code, text, want)
		}
	}
}
