package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestWhyTimer explains one-shot timers in every state.
func TestWhyTimer(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	// Before the first heartbeat the store writes records of the first format, without history.
	waittest.Until(t, "the store writes histories", func() bool { return f.store.Writes() >= store.LevelRecord2 })
	now := time.Now().UnixMilli()
	by := schemas.Caller{By: "ann"}
	fire := func(r *schemas.Record) {
		r.State, r.Queued, r.FiredMs, r.Epoch = schemas.StateDelivered, false, r.DueMs+5, 1
		r.Callback, r.MaxAttempt = "https://shop.example/due", 3
	}
	for name, c := range map[string]struct {
		change func(*schemas.Record)
		fate   string
		want   []string
	}{
		"pending": {nil, schemas.FatePlanned, []string{"Planned for "}},
		"rescheduled": {func(r *schemas.Record) {
			r.Moves = 1
			r.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: now, Caller: by})
		}, schemas.FatePlanned, []string{"Planned for ", "rescheduled at ", "ann"}},
		"overdue": {func(r *schemas.Record) { r.DueMs, r.ScheduledMs = now-60_000, now-60_000 }, schemas.FatePlanned, []string{"Due since ", "belfry doctor"}},
		"paused": {func(r *schemas.Record) {
			if _, err := r.Pause(now, "printer is broken", by); err != nil {
				t.Error(err)
			}
		}, schemas.FatePlanned, []string{"if it is resumed: it was paused at ", "ann", "printer is broken"}},
		"delivered":                  {fire, schemas.FateFired, []string{"Fired at ", "5ms after it was due", "Attempt 1 of 3", "no result yet"}},
		"delivered without callback": {func(r *schemas.Record) { fire(r); r.Callback = "" }, schemas.FateFired, []string{"Its event is on timers.fired.s"}},
		"retrying": {func(r *schemas.Record) {
			fire(r)
			r.State, r.Attempt, r.NextMs, r.Queued = schemas.StateRetrying, 1, now+9000, true
			r.Outcome = schemas.Outcome{Code: 503, Error: "HTTP status 503"}
		}, schemas.FateFired, []string{"Attempt 1 of 3 of its callback failed (HTTP status 503)", "The next attempt is due at " + schemas.FormatTime(now+9000)}},
		"retried from the wheel": {func(r *schemas.Record) {
			fire(r)
			r.State, r.Attempt, r.DoneMs = schemas.StateSuccess, 2, now
			r.AddedMs, r.ScheduledMs, r.FirstFiredMs, r.DueMs, r.FiredMs = now-70_000, now-60_000, now-59_995, now-20, now-10
		}, schemas.FateFired, []string{"Fired at " + schemas.FormatTime(now-59_995), "5ms after its scheduled time", "Attempt 2 of 3 of its callback succeeded at " + schemas.FormatTime(now)}},
		"success": {func(r *schemas.Record) {
			fire(r)
			r.State, r.Attempt, r.DoneMs = schemas.StateSuccess, 2, now
		}, schemas.FateFired, []string{"Attempt 2 of 3 of its callback succeeded at " + schemas.FormatTime(now)}},
		"without callback": {func(r *schemas.Record) {
			fire(r)
			r.State, r.Callback, r.DoneMs = schemas.StateSuccess, "", now
		}, schemas.FateFired, []string{"Its event is on timers.fired.s."}},
		"fail": {func(r *schemas.Record) {
			fire(r)
			r.State, r.Attempt, r.DoneMs = schemas.StateFail, 3, now
			r.Outcome = schemas.Outcome{Code: 503, Error: "HTTP status 503"}
		}, schemas.FateFired, []string{"failed for good at " + schemas.FormatTime(now) + " after 3 of 3 attempts (HTTP status 503)", "belfry dead replay"}},
		"undeliverable": {func(r *schemas.Record) {
			r.State, r.Queued, r.DoneMs = schemas.StateFail, false, now
			r.Outcome = schemas.Outcome{Error: "too large for JetStream"}
		}, schemas.FateNone, []string{"Not fired. ", "too large for JetStream", "belfry dead ls"}},
		"cancelled": {func(r *schemas.Record) {
			if _, err := r.Cancel(now, by); err != nil {
				t.Error(err)
			}
		}, schemas.FateNone, []string{"Not fired: it was cancelled at " + schemas.FormatTime(now) + " by ann."}},
	} {
		t.Run(name, func(t *testing.T) {
			f.old(name, c.change)
			var reply schemas.WhyReply
			if code, text := f.answer("schedule.why", fmt.Appendf(nil, `{"id":%q,"source":"/test"}`, name), &reply); code != "" {
				t.Fatal(code, text)
			}
			if len(reply.Answers) != 1 || reply.Answers[0].Fate != c.fate {
				t.Fatalf("got %+v, want one answer with fate %s", reply, c.fate)
			}
			text := reply.Answers[0].Text + " " + strings.Join(reply.Answers[0].Notes, " ")
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q in it", text, want)
				}
			}
		})
	}
	if code, text := f.answer("schedule.why", []byte(`{"id":"pending","source":"/test","at":"2026-03-29"}`), nil); code != "bad_request" || !strings.Contains(text, "leave out at") {
		t.Errorf("a time of a one-shot timer: got %s %s", code, text)
	}
}

// TestWhyWithoutTime: without a time the answer is about the last decided nominal time of a
// schedule and the next one.
func TestWhyWithoutTime(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	last := time.Date(2026, 3, 28, 1, 30, 0, 0, time.UTC).UnixMilli()
	var next int64
	f.scheduled("many", daily, func(r *schemas.Record) {
		next = r.ScheduledMs
		r.Schedule.Decide(schemas.Decision{Kind: schemas.DecisionOverlap, FromMs: last, ToMs: last, Count: 1, Run: 2, AtMs: last})
		r.Schedule.Decide(schemas.Decision{Kind: schemas.DecisionTriggered, FromMs: last + 1000, ToMs: last + 1000, Count: 1, Run: 3, AtMs: last + 1000})
	})
	var reply schemas.WhyReply
	if code, text := f.answer("schedule.why", []byte(`{"id":"many","source":"/test"}`), &reply); code != "" {
		t.Fatal(code, text)
	}
	f.scheduled("asked", daily, func(r *schemas.Record) {
		r.Callback, r.Schedule.Overlap = "nats:x", schemas.OverlapQueue
		r.Schedule.Last = schemas.LastRun{Run: 1, NominalMs: last, ClaimedMs: last}
		r.Schedule.Manual = []schemas.ManualRun{{AtMs: last + 2000}, {AtMs: last + 3000, Allow: true}}
		r.Note(schemas.Operation{Kind: schemas.OperationTrigger, AtMs: last + 2000, Caller: schemas.Caller{By: "ann"}})
	})
	for at, want := range map[string]int{"": 3, "2026-03-28T01:30:02Z": 2, "2026-03-29": 1} {
		var asked schemas.WhyReply
		if code, text := f.answer("schedule.why", fmt.Appendf(nil, `{"id":"asked","source":"/test","at":%q}`, at), &asked); code != "" || len(asked.Answers) != want {
			t.Fatalf("at %q: %s %s, %+v, want %d answers", at, code, text, asked.Answers, want)
		}
		if want == 1 {
			continue
		}
		if a := asked.Answers[1]; a.Fate != schemas.FateWaiting || a.Reason != schemas.ReasonRequested || a.At.UnixMilli() != last+2000 ||
			!strings.Contains(a.Text, "by ann. It waits until the callback of run 1 has a result.") {
			t.Errorf("at %q, a trigger that waits: %+v", at, a)
		}
	}
	f.scheduled("held", daily, func(r *schemas.Record) { r.Schedule.Exclude = []string{"gone"} })
	var held schemas.WhyReply
	if code, text := f.answer("schedule.why", []byte(`{"id":"held","source":"/test"}`), &held); code != "" || len(held.Answers) != 1 {
		t.Fatal(code, text, held)
	}
	if a := held.Answers[0]; a.Fate != schemas.FateWaiting || a.Reason != schemas.ReasonCalendar || !strings.Contains(a.Text, "there is no calendar gone: make it with ") {
		t.Errorf("a schedule whose calendar was deleted: %+v", a)
	}
	if a := reply.Answers; len(a) != 2 || a[0].Fate != schemas.FateSkipped || a[0].At.UnixMilli() != last || a[1].At.UnixMilli() != next || a[1].Fate != schemas.FatePlanned {
		t.Errorf("got %+v, want the skip at %d and the plan for %d", a, last, next)
	}
}
