package schemas_test

import (
	"encoding/json"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

func TestJSONSchemas(t *testing.T) {
	t.Parallel()
	add, fired, timer := compiler(t, "add"), compiler(t, "fired"), compiler(t, "timer")
	type m = map[string]any
	for _, change := range []m{{"-timerafter": 0}, {"timerat": "2030-01-01T00:00:00Z"}, {"timersvc": "a.b"}, {"timercron": "* * * * *"}, {"Mine": "x"}, {"mine": 1.5}, {"-id": 0}, {"data": 1, "data_base64": "AA=="}} {
		if valid(t, add, doc(t, change)) == nil {
			t.Errorf("%v is valid", change)
		}
	}
	data := doc(t, m{"data": m{"a": 1}, "mine": true, "timercallback": "https://example.com"})
	if err := valid(t, add, data); err != nil {
		t.Error(err)
	}
	body, _, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	_, out := body.DeadMessage(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 1}, "exhausted", "x")
	if err := valid(t, fired, out); err != nil {
		t.Error(err)
	}
	if valid(t, fired, data) == nil {
		t.Error("an add is valid as a fired event")
	}
	rec := schemas.Record{State: schemas.StateFail, DueMs: added, ScheduledMs: added, AddedMs: added, FiredMs: added, Service: "s", Run: 1, Outcome: schemas.Outcome{Code: 500, Response: []byte("no")}}
	b, err := json.Marshal(schemas.FromRecord(schemas.NewTimerID("/s", "1"), &rec, 9))
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(t, timer, b); err != nil {
		t.Error(err)
	}
}

func TestStates(t *testing.T) {
	t.Parallel()
	for s := schemas.StatePending; s <= schemas.StatePaused; s++ {
		back, err := schemas.ParseState(s.String())
		if err != nil || back != s {
			t.Errorf("%s: %v", s, err)
		}
		if s.Final() && s != schemas.StateFail {
			for n := schemas.StatePending; n <= schemas.StatePaused; n++ {
				if s.CanBecome(n) {
					t.Errorf("final %s becomes %s", s, n)
				}
			}
		}
	}
	if schemas.StateDelivered.CanBecome(schemas.StateCancelled) {
		t.Error("what was fired can be cancelled")
	}
}

func TestUnknownRecordVersion(t *testing.T) {
	t.Parallel()
	r := schemas.Record{State: schemas.StatePending}
	b := r.Append(nil)
	b[0] = 2
	if _, err := schemas.DecodeRecord(b); schemas.CodeOf(err) != schemas.CodeUnknownFormat {
		t.Errorf("%v", err)
	}
}
