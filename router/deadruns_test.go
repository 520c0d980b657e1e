package router_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestDeadLettersOfRuns: the dead letters of a schedule's runs are listed and replayed by the
// schedule, by <schedule id>.<run>, and by the id of the run's record. A replay keeps the
// run's identity, also if its record has expired.
func TestDeadLettersOfRuns(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	nowMs := time.Now().UnixMilli()
	def, spec, err := recurrence.ParseAdd(nil, add("s", `"timerevery":"1h","timersvc":"mail","timercallback":"nats:x","timermaxattempts":"3"`), nowMs, schemas.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	die := func(run uint32, withRecord bool) schemas.TimerID {
		t.Helper()
		id := schemas.RunTimer(spec.Timer, run)
		rec := def
		rec.Schedule, rec.Origin = nil, &schemas.Origin{Schedule: spec.Timer, Missed: 2, Trigger: schemas.TriggerManual, Waited: true}
		rec.State, rec.Queued, rec.Run, rec.Attempt, rec.ScheduledMs, rec.DueMs, rec.FiredMs = schemas.StateFail, false, run, 3, nowMs, nowMs, nowMs
		m := store.Msg{Subject: schemas.SubjectDead("mail"), MsgID: rec.RunID(id).RetryMsgID(3) + ".dead"}
		m.Header, m.Data = def.Body.DeadMessage(rec.Fired(3, false), "http", "no")
		m.Header[schemas.HeaderClaim] = []string{schemas.NewClaim(id, 7, &rec).String()}
		m.Header[schemas.HeaderErrorCode] = []string{"http"}
		rec.Body = schemas.Body{}
		if withRecord {
			if res := f.store.Create(t.Context(), []store.Write{final(store.Write{ID: id, Record: &rec})}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
		if _, _, err := f.store.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		return id
	}
	ids := []schemas.TimerID{die(3, true), die(4, true), die(31, false)}
	f.dead("other", 3, true)
	list := func(ref string) (runs []uint32) {
		t.Helper()
		var page schemas.DeadListReply
		if code := f.request("dead.list", []byte(ref), &page); code != "" {
			t.Fatalf("%s: %s", ref, code)
		}
		for _, d := range page.Dead {
			if d.Schedule != spec.Timer || d.Timer != schemas.RunTimer(spec.Timer, d.Run) {
				t.Errorf("listed %+v", d)
			}
			runs = append(runs, d.Run)
		}
		return runs
	}
	for ref, want := range map[string][]uint32{
		`{"timer":"` + spec.Timer.String() + `"}`:           {3, 4, 31},
		`{"id":"s","source":"/test"}`:                       {3, 4, 31},
		`{"timer":"` + spec.Timer.String() + `.3"}`:         {3},
		`{"timer":"` + spec.Timer.String() + `.1"}`:         nil,
		`{"timer":"` + ids[1].String() + `"}`:               {4},
		`{"timer":"` + ids[2].String() + `","limit":1}`:     {31},
		`{"timer":"` + spec.Timer.String() + `.31"}`:        {31},
		`{"timer":"` + schemas.TimerID{9}.String() + `.3"}`: nil,
	} {
		if got := list(ref); !slices.Equal(got, want) {
			t.Errorf("%s: runs %d, want %d", ref, got, want)
		}
	}
	for n, run := range []uint32{3, 31} {
		var reply schemas.ReplayReply
		id := schemas.RunTimer(spec.Timer, run)
		if code := f.request("dead.replay", fmt.Appendf(nil, `{"timer":"%s.%d"}`, spec.Timer, run), &reply); code != "" || reply.Replayed != 1 || !slices.Equal(reply.Timers, []schemas.TimerID{id}) {
			t.Fatalf("replay of run %d: %q %+v", run, code, reply)
		}
		tm, err := f.store.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		rec := tm.Record
		if o := rec.Origin; o == nil || *o != (schemas.Origin{Schedule: spec.Timer, Missed: 2, Trigger: schemas.TriggerManual, Waited: true}) {
			t.Errorf("run %d has the origin %+v", run, o)
		}
		if rec.State != schemas.StateRetrying || !rec.Queued || rec.RunID(id) != (schemas.RunID{Timer: spec.Timer, Run: run}) || rec.Callback != "nats:x" {
			t.Errorf("run %d was replayed as %+v", run, rec)
		}
		if left := list(`{"timer":"` + spec.Timer.String() + `"}`); len(left) != 2-n {
			t.Errorf("after the replay of run %d, runs %d are left", run, left)
		}
	}
}
