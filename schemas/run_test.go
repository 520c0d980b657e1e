package schemas_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestClaimOfRun: the claim of a run names its schedule, and the claim of a one-shot timer
// is written as it was before there were schedules.
func TestClaimOfRun(t *testing.T) {
	t.Parallel()
	id, other := schemas.NewTimerID("/s", "1"), schemas.NewTimerID("/s", "2")
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: added, Hash: [16]byte{1, 2, 3}, Service: "default", Source: "/s", EventID: "1", Type: "t"},
		RunState:   schemas.RunState{State: schemas.StateDelivered, Run: 3, Attempt: 1, MaxAttempt: 5, DueMs: added, ScheduledMs: added, FiredMs: added + 2, Epoch: 4},
	}
	one := schemas.NewClaim(id, 7, &rec)
	if want := id.String() + " 7 3 1 5 1800000000000 1800000000002 4 01020300000000000000000000000000"; one.String() != want {
		t.Errorf("the claim of a one-shot timer is\n%s, want\n%s", one, want)
	}
	if one.RunID() != (schemas.RunID{Timer: id, Run: 3}) || one.RunID() != rec.RunID(id) {
		t.Errorf("the run of a one-shot timer is %s, in its record %s", one.RunID(), rec.RunID(id))
	}
	for _, waited := range []bool{false, true} {
		rec.Origin = &schemas.Origin{Schedule: other, Missed: 9, Trigger: schemas.TriggerBackfill, Waited: waited}
		c := schemas.NewClaim(schemas.RunTimer(other, 3), 7, &rec)
		back, err := schemas.ParseClaim(c.String())
		if err != nil || back != c {
			t.Fatalf("%q became %+v (%v)", c.String(), back, err)
		}
		if want := (schemas.RunID{Timer: other, Run: 3}); back.RunID() != want || rec.RunID(back.Timer) != want {
			t.Errorf("the run is %s, in its record %s; want %s", back.RunID(), rec.RunID(back.Timer), want)
		}
		spec := schemas.Spec{Service: "default", Source: "/s", EventID: "1", Type: "t"}
		if got := back.Record(&spec, rec.Fired(1, false)); !reflect.DeepEqual(got, rec) {
			t.Errorf("the claim rebuilds %+v, want %+v", got, rec)
		}
	}
	if rec.Extended() {
		t.Error("the record holds more than its claim")
	}
	if rec.DueMs += 1500; !rec.Extended() { // jitter
		t.Error("the claim has the nominal time, not the due time, and functions does not read the record")
	}
	rec.DueMs = rec.ScheduledMs
	for _, bad := range []string{
		one.String() + " x", one.String() + " " + schemas.TimerID{}.String(), one.String() + " " + other.String() + " maybe",
		one.String() + " " + other.String() + " waited more", strings.TrimSuffix(one.String(), " 01020300000000000000000000000000"),
	} {
		if c, err := schemas.ParseClaim(bad); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%q became %+v (%v)", bad, c, err)
		}
	}
}

// TestMessageOfRun: a run's event has timermissed and timertrigger in either content mode,
// and an event without both is written as it was before there were schedules.
func TestMessageOfRun(t *testing.T) {
	t.Parallel()
	structured, _, err := parse([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","timerafter":"1s"}`))
	if err != nil {
		t.Fatal(err)
	}
	hdr := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-timerafter": {"1s"}}
	binary, _, err := schemas.ParseAdd(hdr, nil, added, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	plain := schemas.Fired{ScheduledMs: added, FiredMs: added + 2, Run: 1, Attempt: 1}
	_, data := structured.Message(plain)
	if want := `{"specversion":"1.0","id":"1","source":"/s","type":"t","timerafter":"1s","timerscheduled":"2027-01-15T08:00:00.000Z","timerfired":"2027-01-15T08:00:00.002Z","timerrun":1,"timerattempt":1}`; string(data) != want {
		t.Errorf("a one-shot timer fires\n%s, want\n%s", data, want)
	}
	if sent, _ := binary.Message(plain); len(sent) != len(hdr)+4 {
		t.Errorf("a one-shot timer fires with the headers %v", sent)
	}
	schema := compiler(t, "fired")
	for _, body := range []schemas.Body{structured, binary} {
		for _, want := range []schemas.Fired{
			plain,
			{ScheduledMs: added, FiredMs: added + 2, Run: 7, Attempt: 1, Missed: math.MaxInt32},
			{ScheduledMs: added, FiredMs: added + 2, Run: 7, Attempt: 1, Trigger: schemas.TriggerManual},
			{ScheduledMs: added, FiredMs: added + 2, Run: 7, Attempt: 1, Missed: 3, Trigger: schemas.TriggerBackfill},
		} {
			hdr, data := body.DeadMessage(want, "http", "500")
			_, _, got, err := schemas.ParseFired(hdr, data)
			if err != nil || got != want {
				t.Fatalf("%+v is read as %+v (%v) from\n%v\n%s", want, got, err, hdr, data)
			}
			checkStripped(t, hdr, data, body)
			e, err := schemas.Body{Mode: body.Mode, Headers: flat(hdr), Data: data}.Event()
			if err != nil {
				t.Fatal(err)
			}
			whole, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if body.Mode == schemas.ModeStructured {
				if err := valid(t, schema, whole); err != nil {
					t.Errorf("%+v: %v\n%s", want, err, whole)
				}
			}
		}
	}
	for _, name := range []string{schemas.AttrMissed, schemas.AttrTrigger} {
		if _, _, err := parse(doc(t, map[string]any{name: "1"})); schemas.CodeOf(err) != schemas.CodeInvalidAttribute || !strings.Contains(err.Error(), "set by Belfry") {
			t.Errorf("an add with %s: %v", name, err)
		}
		_, data := structured.Message(plain)
		bad := strings.TrimSuffix(string(data), "}") + `,"` + name + `":"x"}`
		if _, _, _, err := schemas.ParseFired(nil, []byte(bad)); schemas.CodeOf(err) != schemas.CodeInvalidAttribute || !strings.Contains(err.Error(), name) {
			t.Errorf("a fired event with a bad %s: %v", name, err)
		}
	}
}

func flat(hdr map[string][]string) (all []schemas.HeaderField) {
	for name, values := range hdr {
		for _, v := range values {
			all = append(all, schemas.HeaderField{Name: name, Value: v})
		}
	}
	return all
}

// TestOverdueMessage: an overdue event has the user's attributes and data, never the callback,
// and no number of a run that did not fire. It follows its JSON Schema.
func TestOverdueMessage(t *testing.T) {
	t.Parallel()
	structured, _, err := parse(doc(t, map[string]any{"timercallback": "https://user:secret@example.com/"}))
	if err != nil {
		t.Fatal(err)
	}
	hdr := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-timerafter": {"1s"}, "ce-timercallback": {"https://user:secret@example.com/"}}
	binary, _, err := schemas.ParseAdd(hdr, nil, added, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	schema := compiler(t, "overdue")
	for _, body := range []schemas.Body{structured, binary} {
		for _, f := range []schemas.Fired{
			{ScheduledMs: added, FiredMs: added + 70, Run: 7, OverdueMs: added + 60},
			{ScheduledMs: added, FiredMs: added + 70, Missed: 3, OverdueMs: added + 60},
		} {
			hdr, data := body.OverdueMessage(f, "overlap", "no run fired")
			e, err := schemas.Body{Mode: body.Mode, Headers: flat(hdr), Data: data}.Event()
			if err != nil {
				t.Fatal(err)
			}
			x := e.Extensions()
			if x["timeroverdue"] != schemas.FormatTime(f.OverdueMs) || x["timererrorcode"] != "overlap" || x["timercallback"] != nil || x["timerattempt"] != nil || (x["timerrun"] != nil) != (f.Run != 0) || e.ID() != "1" {
				t.Errorf("%+v: the event has %v", f, x)
			}
			whole, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if body.Mode == schemas.ModeStructured {
				if err := valid(t, schema, whole); err != nil {
					t.Errorf("%+v: %v\n%s", f, err, whole)
				}
			}
		}
	}
	if _, _, err := parse(doc(t, map[string]any{"timeroverdue": "2027-01-15T08:00:00Z"})); schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
		t.Errorf("an add with timeroverdue: %v", err)
	}
}

// TestClaimDeadline: a claim keeps the deadline of a run.
func TestClaimDeadline(t *testing.T) {
	t.Parallel()
	for _, o := range []schemas.Origin{
		{Schedule: schemas.NewTimerID("/s", "1"), DeadlineMs: added},
		{Schedule: schemas.NewTimerID("/s", "1"), DeadlineMs: added, Waited: true},
	} {
		rec := schemas.Record{RunState: schemas.RunState{Run: 3, FiredMs: added}, Origin: &o}
		want := schemas.NewClaim(schemas.RunTimer(o.Schedule, 3), 9, &rec)
		got, err := schemas.ParseClaim(want.String())
		if err != nil || got != want {
			t.Errorf("%q: %+v %v", want.String(), got, err)
		}
		if back := got.Record(&schemas.Spec{}, schemas.Fired{}); *back.Origin != o {
			t.Errorf("the record has %+v, want %+v", back.Origin, o)
		}
	}
	good := schemas.NewClaim(schemas.NewTimerID("/s", "2"), 9, &schemas.Record{Origin: &schemas.Origin{Schedule: schemas.NewTimerID("/s", "1")}}).String()
	for _, bad := range []string{" deadline=", " deadline=0", " deadline=-1", " deadline=x", " late=1", " deadline=1 waited", " waited waited"} {
		if _, err := schemas.ParseClaim(good + bad); err == nil {
			t.Errorf("claim with %q is accepted", bad)
		}
	}
}
