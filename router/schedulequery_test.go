package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

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
		{Run: 4, Scheduled: schemas.TimeOf(day(4)), Fired: schemas.TimeOf(day(4))}, {Run: 3, Scheduled: schemas.TimeOf(day(3))}, {Run: 2, Scheduled: schemas.TimeOf(day(2))}, {Run: 1, Scheduled: schemas.TimeOf(day(1))},
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
	// Runs without a callback have no records: what is known is that they fired.
	f.scheduled("silent", schemas.Recurrence{Cron: "0 12 * * *"}, func(r *schemas.Record) {
		r.Run = 5
		r.Schedule.Decisions = []schemas.Decision{{Kind: schemas.DecisionFired, FromMs: day(2), ToMs: day(4), Count: 3, Run: 2, AtMs: day(4)}}
		r.Schedule.Last = schemas.LastRun{Run: 4, NominalMs: day(4), ClaimedMs: day(4)}
	})
	var silent schemas.RunsReply
	if code, text := f.answer("schedule.runs", []byte(`{"id":"silent","source":"/test"}`), &silent); code != "" || len(silent.Runs) != 4 {
		t.Fatal(code, text, silent.Runs)
	}
	for _, r := range silent.Runs {
		if r.State != schemas.StateSuccess || r.Scheduled.IsZero() != (r.Run == 1) || r.Fired.IsZero() != (r.Run != 4) {
			t.Errorf("a run without a callback: %+v", r)
		}
	}
	// A run is read, and cancelled, by its identity.
	for _, c := range []struct{ verb, run, code string }{{"get", "5", ""}, {"get", "4", "not_found"}, {"get", "9", "not_found"}, {"cancel", "5", ""}, {"schedule.trigger", "5", "bad_request"}} {
		var info schemas.TimerInfo
		if code, text := f.answer(c.verb, fmt.Appendf(nil, `{"timer":"%s.%s"}`, s.ID, c.run), &info); code != c.code || code == "" && (info.Origin == nil || info.Origin.Schedule != s.ID || info.Run != 5) {
			t.Errorf("%s run %s: %s %s %+v", c.verb, c.run, code, text, info)
		}
	}
	// The run of a one-shot timer is in the timer's record.
	one := f.old("one", nil)
	for _, c := range []struct{ verb, run, more, code, text string }{
		{"get", "1", "", "", ""},
		{"reschedule", "1", `,"after":"2h"`, "", ""},
		{"schedule.pause", "1", "", "", ""},
		{"schedule.resume", "1", "", "", ""},
		{"cancel", "2", "", "not_found", "is not a schedule, and its run is number 1"},
		{"cancel", "1", "", "", ""},
	} {
		var info schemas.TimerInfo
		code, text := f.answer(c.verb, fmt.Appendf(nil, `{"timer":"%s.%s"%s}`, one.ID, c.run, c.more), &info)
		if code != c.code || !strings.Contains(text, c.text) || code == "" && info.Timer != one.ID {
			t.Errorf("%s of run %s of a one-shot timer: %s %q %+v", c.verb, c.run, code, text, info)
		}
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
