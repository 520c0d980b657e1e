package schemas_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

func TestJSONSchemas(t *testing.T) {
	t.Parallel()
	add, fired, timer := compiler(t, "add"), compiler(t, "fired"), compiler(t, "timer")
	type m = map[string]any
	// The JSON Schema and the parser must agree on each of these.
	long := strings.Repeat("x", 2049)
	every := func(more m) m {
		more["-timerafter"], more["timerevery"] = 0, "1h"
		return more
	}
	for _, c := range []struct {
		change m
		fine   bool
	}{
		{m{}, true},
		{m{"-id": 0}, false}, {m{"id": ""}, false}, {m{"id": " x"}, false}, {m{"id": nil}, false}, {m{"id": 5}, false}, {m{"id": "a\tb"}, false}, {m{"id": long}, false}, {m{"id": "é \u4e00"}, true},
		{m{"-source": 0}, false}, {m{"type": nil}, false}, {m{"specversion": "0.3"}, false}, {m{"specversion": 1}, false},
		{m{"subject": nil}, true}, {m{"subject": ""}, false}, {m{"subject": "  "}, false}, {m{"subject": true}, false}, {m{"time": nil}, true}, {m{"dataschema": "urn:x:y"}, true}, {m{"datacontenttype": "text/plain"}, true},
		{m{"-timerafter": 0}, false}, {m{"timerafter": nil}, false}, {m{"timerafter": 10}, false}, {m{"timerafter": "10"}, false}, {m{"timerafter": "soon"}, false}, {m{"timerafter": "pt10s"}, false}, {m{"timerafter": "0"}, true},
		{m{"timerafter": "P1DT2H"}, true}, {m{"timerafter": "P1Y"}, false}, {m{"timerafter": "1µs"}, true},
		{m{"timerat": "2030-01-01T00:00:00Z"}, false}, {m{"timerat": nil}, true}, {m{"timerafter": nil, "timerat": "2030-01-01t00:00:00.5+01:00"}, true},
		{m{"-timerafter": 0, "timerat": "2030-01-01"}, false}, {m{"-timerafter": 0, "timerat": "2030-01-01T0:00:00Z"}, false}, {m{"-timerafter": 0, "timerat": "2030-01-01T00:00:00,5Z"}, false}, {m{"-timerafter": 0, "timerat": nil}, false},
		{m{"timersvc": "a.b"}, false}, {m{"timersvc": ""}, false}, {m{"timersvc": nil}, true}, {m{"timersvc": 5}, false}, {m{"timersvc": "A-b_9"}, true},
		{m{"timercallback": "ftp://x"}, false}, {m{"timercallback": "HTTPS://x"}, true}, {m{"timercallback": "nats:a.b"}, true}, {m{"timercallback": "nats:"}, false}, {m{"timercallback": nil}, true},
		{m{"timermaxattempts": 0}, false}, {m{"timermaxattempts": "0"}, false}, {m{"timermaxattempts": "007"}, true}, {m{"timermaxattempts": "+1"}, false}, {m{"timermaxattempts": true}, false}, {m{"timermaxattempts": nil}, true}, {m{"timermaxattempts": 1000}, true},
		{m{"timergroup": ""}, false}, {m{"timergroup": "g"}, true}, {m{"timergroup": 1}, false}, {m{"timerflow": "customer:42@eu/a-b_c.d"}, true}, {m{"timerflow": nil}, true}, {m{"timerflow": ""}, false}, {m{"timerflow": "a*"}, false}, {m{"timerflow": "a b"}, false}, {m{"timerflow": strings.Repeat("x", 129)}, false}, {m{"timerflow": 5}, false},
		{m{"timerkey": "customer:42", "timercallback": "nats:x"}, true}, {m{"timerkey": "customer:42"}, false}, {m{"timerkey": nil}, true}, {m{"timerkey": "a b", "timercallback": "nats:x"}, false}, {m{"timerkey": 5, "timercallback": "nats:x"}, false},
		{m{"timerbackoff": ""}, false}, {m{"timertimeout": 30}, false},
		{m{"timercron": "* * * * *"}, false}, {m{"timerevery": "1h"}, false}, {m{"timertz": "UTC"}, false}, {m{"timerlimit": 1}, false}, {m{"timeroverlap": "skip"}, false}, {m{"timercron": nil, "timertz": nil, "timerlimit": nil, "timermisfire": nil}, true},
		{m{"-timerafter": 0, "timercron": "0 9 * * *"}, true}, {m{"timerafter": nil, "timerevery": "P1D"}, true}, {m{"-timerafter": 0, "timercron": "0 9 * * *", "timerevery": "1h"}, false}, {m{"-timerafter": 0, "timerat": "2030-01-01T00:00:00Z", "timerevery": "1h"}, false},
		{m{"-timerafter": 0, "timercron": ""}, false}, {m{"-timerafter": 0, "timercron": " "}, false}, {m{"-timerafter": 0, "timercron": 5}, false}, {m{"-timerafter": 0, "timercron": nil}, false}, {m{"-timerafter": 0, "timercron": strings.Repeat("*", 257)}, false},
		{every(m{"timertz": "Europe/Berlin", "timerstart": "2030-01-01T00:00:00Z", "timerend": "2031-01-01t00:00:00.5+01:00", "timerlimit": 3, "timerjitter": "PT30S", "timerdst": "auto", "timermisfire": "all", "timergrace": "10m", "timeroverlap": "replace"}), true},
		{every(m{"timertz": ""}), false}, {every(m{"timertz": 1}), false}, {every(m{"timerstart": "2030-01-01"}), false}, {every(m{"timerend": ""}), false}, {every(m{"timerlimit": 0}), false}, {every(m{"timerlimit": "007"}), true}, {every(m{"timerlimit": "+1"}), false}, {every(m{"timerlimit": true}), false},
		{every(m{"timerjitter": 5}), false}, {every(m{"timerjitter": ""}), false}, {every(m{"timermisfire": "none"}), false}, {every(m{"timermisfire": "One"}), false}, {every(m{"timeroverlap": ""}), false}, {every(m{"timeroverlap": nil}), true}, {every(m{"timerdays": "and"}), true},
		{every(m{"timerexclude": "x"}), true}, {every(m{"timerexclude": "de-holidays, firm"}), true}, {every(m{"timerexclude": "a b"}), false}, {every(m{"timerexclude": "x", "timerexcludeshift": "next"}), true}, {m{"timerexclude": "x"}, false}, {every(m{"timerexpect": "1h"}), false},
		{m{"timerfired": "x"}, false}, {m{"timerx": "x"}, false}, {m{"timer": "x"}, false}, {m{"atimer": "x"}, true},
		{m{"Mine": "x"}, false}, {m{"my-ext": "x"}, false}, {m{"": "x"}, false}, {m{strings.Repeat("x", 65): "x"}, false},
		{m{"mine": 1.5}, false}, {m{"mine": 2147483648}, false}, {m{"mine": -2147483648}, true}, {m{"mine": m{}}, false}, {m{"mine": []int{}}, false}, {m{"mine": nil}, true}, {m{"mine": long}, false}, {m{"mine": "\uffff"}, false}, {m{"mine": ""}, true},
		{m{"data": 1, "data_base64": "AA=="}, false}, {m{"data": 1, "data_base64": nil}, true}, {m{"data_base64": 1}, false}, {m{"data": nil}, true}, {m{"data": m{"Any": []any{1.5, nil}}}, true},
	} {
		data := doc(t, c.change)
		if err := valid(t, add, data); (err == nil) != c.fine {
			t.Errorf("%v: the JSON Schema returned %v, want it valid: %v", c.change, err, c.fine)
		}
		if _, _, err := parse(data); (err == nil) != c.fine {
			t.Errorf("%v: ParseAdd returned %v, want it accepted: %v", c.change, err, c.fine)
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
		t.Error("the JSON Schema of fired events accepts an add, want an error")
	}
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: added, Service: "s"},
		RunState:   schemas.RunState{State: schemas.StateFail, DueMs: added, ScheduledMs: added, FiredMs: added, Run: 1, Outcome: schemas.Outcome{Code: 500, Response: []byte("no")}},
	}
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
			t.Errorf("ParseState(%q): got %s (%v), want %s", s.String(), back, err, s)
		}
		if s.Final() && s != schemas.StateFail {
			for n := schemas.StatePending; n <= schemas.StatePaused; n++ {
				if s.CanBecome(n) {
					t.Errorf("%s can become %s, want no transition from a final state", s, n)
				}
			}
		}
	}
	if schemas.StateDelivered.CanBecome(schemas.StateCancelled) {
		t.Error("delivered can become cancelled, want no such transition")
	}
}
