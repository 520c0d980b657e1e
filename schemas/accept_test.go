package schemas_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// TestAcceptedIsServed generates random adds with unusual parts. Every accepted add must
// survive storing, firing, parsing, encoding again, dead-lettering and replay unchanged.
func TestAcceptedIsServed(t *testing.T) {
	t.Parallel()
	texts := []any{"", " ", "a", " a", "a b", "é", "日本", "\ufffd", "\u2028", "%", "%41", "100%", `"a"`, `"`, `\`, "<&>", "a\tb", "\u0085", "\uffff", "\U0001F514", "null", strings.Repeat("x", 2048), strings.Repeat("x", 2049), nil, true, 5, -2147483648, 2147483648, 1.5}
	or := func(r *rand.Rand, good ...any) any {
		if r.IntN(3) > 0 {
			return good[r.IntN(len(good))]
		}
		return texts[r.IntN(len(texts))]
	}
	schema, fired := compiler(t, "add"), compiler(t, "fired")
	accepted := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := map[string]any{"specversion": "1.0", "id": or(r, "1", "a b", "é%41"), "source": or(r, "/s", "urn:x:y", "/a b", "//h/p?q#f", "%zz", "a%20b", "mailto:a@b"), "type": "t"}
		m[[]string{"timerafter", "timerat"}[r.IntN(2)]] = or(r, "1s", "PT1.5S", "2027-01-15T08:00:00Z", "2027-01-15t08:00:00.1234567z")
		for name, good := range map[string][]any{
			"subject": {"s"}, "time": {"2027-01-15T08:00:00+01:00", "0001-01-01T00:00:00Z", "2027-01-15T08:00:00,5Z"}, "datacontenttype": {"application/json", "text/plain; charset=utf-8", "text/plain", "json", "a/b;;"},
			"dataschema": {"http://x/y", "x", "urn:a:b", "http://x/a b"}, "mine": {"x"}, "traceparent": {"00-x"}, "timergroup": {"g"}, "timersvc": {"s-1"}, "timercallback": {"nats:a.b", "http://u:p@h:1/x?y=z", "http://é/", "HTTP://h"},
			"timermaxattempts": {3, "3", "+3", "1000"}, "timerbackoff": {"1s..10m", "PT1S", "1s..2s..3s"}, "timertimeout": {"30s", "PT0.5S"},
		} {
			if r.IntN(4) == 0 {
				m[name] = or(r, good...)
			}
		}
		switch r.IntN(6) {
		case 0:
			m["data"] = or(r, map[string]any{"a": "}"}, "text", []int{1})
		case 1:
			m["data_base64"] = or(r, "AAEC", "AAE", "A===")
		case 2:
			m["data"], m["data_base64"] = 1, nil
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		body, spec, err := parse(data)
		if err != nil {
			checkRefusal(t, err)
			continue
		}
		accepted++
		if err := valid(t, schema, data); err != nil {
			t.Fatalf("seed %d: ParseAdd accepted an event that the JSON Schema rejects: %v\n%s", seed, err, data)
		}
		checkAccepted(t, body, spec)
		_, out := body.Message(schemas.Fired{ScheduledMs: spec.DueMs, FiredMs: spec.DueMs, Run: 1, Attempt: 1})
		if err := valid(t, fired, out); err != nil {
			t.Fatalf("seed %d: the JSON Schema of fired events rejects the fired event: %v\n%s", seed, err, out)
		}
		if t.Failed() {
			t.Fatalf("seed %d failed", seed)
		}
		sameInBinaryMode(t, m, spec)
	}
	if accepted < 1000 {
		t.Errorf("ParseAdd accepted only %d of 20,000 adds, want at least 1,000: the test covers too few", accepted)
	}
	t.Logf("%d of 20,000 adds accepted", accepted)
}

// sameInBinaryMode encodes m in binary mode and checks that it is the same timer.
func sameInBinaryMode(t *testing.T, m map[string]any, want schemas.Spec) {
	t.Helper()
	hdr := nats.Header{}
	var data []byte
	for name, v := range m {
		switch {
		case name == "data_base64":
			if v != nil {
				var err error
				if data, err = base64.StdEncoding.DecodeString(v.(string)); err != nil {
					t.Fatal(err)
				}
			}
		case name == "data":
			var err error
			if data, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
			ct, _ := m["datacontenttype"].(string)
			if s, isText := v.(string); isText && !strings.Contains(ct, "application/json") && ct != "" {
				data = []byte(s)
			}
		case v != nil:
			hdr["ce-"+name] = []string{schemas.EncodeHeader(fmt.Sprint(v))}
		}
	}
	_, spec, err := schemas.ParseAdd(hdr, data, added, schemas.Limits{})
	if err != nil {
		t.Fatalf("ParseAdd rejected the event in binary mode, want the same timer: %v\n%v", err, m)
	}
	if spec != want {
		t.Fatalf("in binary mode: got timer %+v, want %+v\n%v", spec, want, m)
	}
}

// TestFullEvents checks that an event at each limit fits its record and its dead letter.
func TestFullEvents(t *testing.T) {
	t.Parallel()
	full := func(names, length int) map[string]any {
		m := map[string]any{}
		for i := range names {
			m[fmt.Sprint("x", i)] = strings.Repeat("é", length/2)
		}
		return m
	}
	const own = 5 // the members of doc
	body, spec, err := parse(doc(t, full(schemas.MaxAttributes-own, schemas.MaxAttributeLength)))
	if err != nil {
		t.Fatal(err)
	}
	checkAccepted(t, body, spec)
	if _, _, err := parse(doc(t, full(schemas.MaxAttributes-own+1, 2))); schemas.CodeOf(err) != schemas.CodeTooLarge {
		t.Errorf("an event with %d attributes: got error %v, want code too_large", schemas.MaxAttributes+1, err)
	}
	hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {strings.Repeat("i", 2048)}, "ce-source": {strings.Repeat("s", 2048)}, "ce-type": {strings.Repeat("t", 2048)}, "ce-timerafter": {"1s"}, "ce-timercallback": {"nats:" + strings.Repeat("c", 2043)}, "ce-timergroup": {strings.Repeat("g", 128)}}
	size := 0
	for name, v := range hdr {
		size += len(name) + len(v[0]) + 4
	}
	data := make([]byte, schemas.DefaultLimitPayload-size)
	body, spec, err = schemas.ParseAdd(hdr, data, added, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	checkAccepted(t, body, spec)
	const serverLimit = 1 << 20
	rec := schemas.Record{
		Definition: schemas.Definition{Service: spec.Service, Group: spec.Group, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Outcome: schemas.Outcome{Error: strings.Repeat("e", schemas.MaxOutcomeError), Response: make([]byte, schemas.MaxOutcomeResponse)}},
	}
	for range schemas.MaxHistory {
		rec.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: added, Caller: schemas.Caller{By: strings.Repeat("b", schemas.MaxBy), Account: strings.Repeat("a", 64), User: strings.Repeat("u", 64)}})
	}
	if n := len(rec.Append(nil)); n > serverLimit-1024 {
		t.Errorf("the record of the largest event has %d bytes, want at most %d", n, serverLimit-1024)
	}
	out, outData := body.DeadMessage(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 1}, "http", strings.Repeat("\u00fe", 4096))
	n := len(outData)
	for name, values := range out {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	if n > serverLimit-1024 {
		t.Errorf("the dead letter of the largest event has %d bytes, want at most %d", n, serverLimit-1024)
	}
	if _, _, err = schemas.ParseAdd(hdr, make([]byte, len(data)+1), added, schemas.Limits{}); schemas.CodeOf(err) != schemas.CodeTooLarge {
		t.Errorf("an event of one byte more than the limit: got error %v, want code too_large", err)
	}
}
