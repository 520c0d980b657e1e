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
	p, err := recurrence.Compile(spec.Timer, &r, added, nil)
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
		if info := f.op("schedule.trigger", "many", fmt.Sprintf(`,"allow":%v,"request":"%d"`, i == 1, i)); info.Schedule.Triggered != i+1 || info.State != schemas.StatePaused {
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
	if info := f.op("schedule.trigger", "many", `,"request":"0"`); info.Schedule.Triggered != schemas.MaxManual {
		t.Errorf("a repeated request: %+v", info.Schedule)
	}
	if code, text := f.answer("schedule.trigger", []byte(`{"id":"many","source":"/test","request":"`+strings.Repeat("x", schemas.MaxRequestName+1)+`"}`), nil); code != "bad_request" || !strings.Contains(text, "128") {
		t.Errorf("a long name: got %s %q", code, text)
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
		if ttl := f.ttl(schemas.NewTimerID("/test", id)); ttl != "3600s" {
			t.Errorf("%s: the record expires after %q", verb, ttl)
		}
	}
}

// TestRefusedOperations: a wrong request is refused with a reason, and so is an operation that
// comes too late.
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
	p, err := recurrence.Compile(s.ID, &s.Record.Schedule.Recurrence, s.Record.Schedule.AnchorMs, nil)
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
		// At most 16 runs wait for their turn, which may lose many times against these operations.
		waittest.Until(t, "a run can be asked for", func() bool {
			code, text := f.answer("schedule.trigger", []byte(`{"id":"many","source":"/test"}`), new(json.RawMessage))
			if code != "" && code != "unavailable" {
				t.Fatalf("schedule.trigger: %s %s", code, text)
			}
			return code == ""
		})
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
	}{{`,"dry_run":true`, []int{1, 2, 5}}, {`,"dry_run":true,"again":true`, []int{1, 2, 3, 4, 5}}} {
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
