package schemas_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// checkAccepted checks the guarantees for an accepted add.
func checkAccepted(t *testing.T, body schemas.Body, spec schemas.Spec) {
	t.Helper()
	rec := schemas.Record{
		Definition: schemas.Definition{Hash: spec.Hash, Service: spec.Service, Source: spec.Source, EventID: spec.EventID, Body: body},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: spec.DueMs},
	}
	back, err := schemas.DecodeRecord(rec.Append(nil))
	if err != nil {
		t.Fatalf("the record of an accepted add cannot be decoded: %v", err)
	}
	hdr, data := back.Body.Message(schemas.Fired{ScheduledMs: spec.DueMs, FiredMs: spec.DueMs, Run: 1, Attempt: 1})
	for name, values := range hdr {
		for _, v := range values {
			if strings.ContainsAny(name+v, "\r\n") {
				t.Fatalf("header %q: %q contains a line break, want none", name, v)
			}
		}
	}
	e, fspec, f, err := schemas.ParseFired(hdr, data)
	if err != nil {
		t.Fatalf("the fired event cannot be parsed: %v\n%s", err, data)
	}
	if e.ID() != spec.EventID || e.Source() != spec.Source || fspec.Hash != spec.Hash || fspec.Timer != spec.Timer || fspec.Service != spec.Service || f.Run != 1 {
		t.Fatalf("the fired event belongs to timer %+v, want %+v", fspec, spec)
	}
	if body.Mode == schemas.ModeBinary && !bytes.Equal(data, body.Data) {
		t.Fatalf("binary mode: the fired event has data %q, want %q", data, body.Data)
	}
	checkStripped(t, hdr, data, body)
	if _, has := e.Extensions()[schemas.AttrCallback]; has || fspec.Callback != spec.Callback {
		t.Fatalf("got callback %q, want %q, and not as an extension of the event: %v", fspec.Callback, spec.Callback, has)
	}
	without, withoutData := back.Body.Message(schemas.Fired{ScheduledMs: spec.DueMs, FiredMs: spec.DueMs, Run: 1, Attempt: 1, NoCallback: true})
	we, wspec, _, err := schemas.ParseFired(without, withoutData)
	if err != nil || wspec.Callback != "" || !maps.Equal(we.Extensions(), e.Extensions()) || we.ID() != e.ID() || we.Type() != e.Type() || !bytes.Equal(we.Data(), e.Data()) || wspec.MaxAttempts != spec.MaxAttempts {
		t.Fatalf("without its callback: got (%v)\n%v\n%s\nwant the same event otherwise:\n%v\n%s", err, without, withoutData, hdr, data)
	}
	if kept, err := back.Body.Event(); err != nil || kept.ID() != spec.EventID {
		t.Fatalf("the event of the decoded record: %v, want the id %q", err, spec.EventID)
	}
	// Callbacks and users of sdk-go encode the event again, in either mode.
	for _, mode := range []schemas.Mode{schemas.ModeBinary, schemas.ModeStructured} {
		hdr, data, err := schemas.EncodeEvent(*e, mode)
		if err != nil {
			t.Fatalf("the fired event cannot be encoded: %v", err)
		}
		anew, aspec, _, err := schemas.ParseFired(hdr, data)
		if err != nil {
			t.Fatalf("the fired event cannot be parsed after it was encoded again: %v\n%v %s", err, hdr, data)
		}
		if anew.ID() != e.ID() || anew.Source() != e.Source() || aspec.Timer != spec.Timer || aspec.Callback != "" || aspec.Service != spec.Service {
			t.Fatalf("the fired event, encoded again, belongs to timer %+v, want %+v", aspec, spec)
		}
	}
	hdr, data = back.Body.DeadMessage(schemas.Fired{ScheduledMs: spec.DueMs, FiredMs: spec.DueMs, Run: 1, Attempt: 1<<31 - 1}, "http", spec.EventID+"\r\n\x00\xff,\"timerscheduled\":\"")
	_, dspec, f, err := schemas.ParseFired(hdr, data)
	if err != nil || dspec.Hash != spec.Hash || f.Attempt != 1<<31-1 {
		t.Fatalf("dead letter: got timer %+v, fired %+v (%v), want the hash of the add and attempt %d", dspec, f, err, 1<<31-1)
	}
	checkStripped(t, hdr, data, body)
	if !schemas.ValidService(spec.Service) {
		t.Fatalf("ParseAdd accepted service %q, want a valid name", spec.Service)
	}
}

// checkRefusal checks the guarantees for an error: a code, and a text that fits a header.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	if schemas.CodeOf(err) == "" || !utf8.ValidString(err.Error()) || strings.ContainsFunc(err.Error(), unicode.IsControl) || len(err.Error()) > 1024 {
		t.Fatalf("got error %q, want a code and at most 1,024 bytes of printable text", err.Error())
	}
}

// checkStripped checks that StripFired returns the body of the add.
func checkStripped(t *testing.T, hdr nats.Header, data []byte, body schemas.Body) {
	t.Helper()
	stripped, err := schemas.StripFired(hdr, data)
	if err != nil || !bytes.Equal(stripped.Data, body.Data) || !slices.Equal(stripped.Headers, body.Headers) {
		t.Fatalf("StripFired: got headers %q, data %q (%v), want %q, %q", stripped.Headers, stripped.Data, err, body.Headers, body.Data)
	}
}

func FuzzParseStructured(f *testing.F) {
	f.Add(doc(f, nil))
	f.Add(doc(f, map[string]any{"data": map[string]any{"a": "}"}, "timercallback": "nats:a.b", "timergroup": "g", "mine": true}))
	f.Add([]byte(`{"specversion":"1.0","id":"\u0000","source":"/","type":"t","timerat":"2027-01-01T00:00:00Z","data_base64":"AA=="}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"%","type":"t","timerafter":"P1W"} `))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/","type":"t","timercron":"30 2 * * *","timertz":"Europe/Berlin","timerlimit":3,"timerstart":"2027-01-01T00:00:00Z","timermisfire":"all","timeroverlap":null}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/","type":"t","timerevery":"P1D","timerend":"2028-01-01T00:00:00Z","timerjitter":"1m","timergrace":"PT1S","timerdst":"auto","timerdays":"or"}`))
	schema := compiler(f, "add")
	f.Fuzz(func(t *testing.T, data []byte) {
		body, spec, err := schemas.ParseAdd(nil, data, added, schemas.Limits{})
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if err := valid(t, schema, body.Data); err != nil {
			t.Fatalf("ParseAdd accepted an event that the JSON Schema rejects: %v\n%s", err, body.Data)
		}
		checkAccepted(t, body, spec)
		checkFits(t, body, spec, schemas.DefaultLimitMessage)
	})
}

func FuzzParseBinary(f *testing.F) {
	f.Add("1", "/s", "t", "1s", "svc", "mine", "x%20y", []byte("data"))
	f.Add("\r\n", "%", "é", "PT1S", "a.b", "Nats-Msg-Id", "\x00", []byte{})
	f.Fuzz(func(t *testing.T, id, source, typ, after, svc, name, value string, data []byte) {
		hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {source}, "ce-type": {typ}, "ce-timerafter": {after}, "ce-timersvc": {svc}, "ce-" + name: {value}, name: {value}}
		body, spec, err := schemas.ParseAdd(hdr, data, added, schemas.Limits{})
		if err != nil {
			checkRefusal(t, err)
			return
		}
		checkAccepted(t, body, spec)
		checkFits(t, body, spec, schemas.DefaultLimitMessage)
	})
}

func FuzzDecodeRecord(f *testing.F) {
	r := schemas.Record{
		Definition: schemas.Definition{Service: "s", Body: schemas.Body{Mode: schemas.ModeBinary, Headers: []schemas.HeaderField{{Name: "a", Value: "b"}}, Data: []byte("d")}},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Queued: true, Run: 2, Attempt: 3, DueMs: added, Outcome: schemas.Outcome{Code: 500, Error: "x", Response: []byte("y")}},
	}
	f.Add(r.AppendFormat(nil, schemas.RecordFormat1))
	r.Note(schemas.Operation{Kind: schemas.OperationCancel, AtMs: added, Caller: schemas.Caller{By: "ann"}})
	r.Ext = []schemas.Extension{{Type: 2, Value: []byte("no history")}, {Type: 1000}}
	f.Add(r.Append(nil))
	r.Ext = []schemas.Extension{{Type: 4, Value: []byte("no policy")}, {Type: 6, Value: []byte("no attempts")}}
	f.Add(r.Append(nil))
	r.Ext, r.Retry = nil, &schemas.RetryPolicy{MaxAttempts: 3, BackoffFirst: 1, BackoffTo: 2, Timeout: 3}
	r.AddAttempt(added, time.Second, schemas.Outcome{Error: "e"})
	r.AddAttempt(added, time.Second, schemas.Outcome{Code: 200, Response: []byte("y")})
	f.Add(r.Append(nil))
	r.Schedule = largestSchedule()
	f.Add(r.Append(nil))
	r.Schedule, r.Origin = nil, &schemas.Origin{Schedule: schemas.NewTimerID("/s", "1"), Missed: 3, Trigger: schemas.TriggerManual, Waited: true}
	f.Add(r.Append(nil))
	r.Origin, r.Ext = nil, []schemas.Extension{{Type: schemas.ExtSchedule, Value: []byte("no schedule")}, {Type: schemas.ExtOrigin}}
	f.Add(r.Append(nil))
	f.Add([]byte{1, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := schemas.DecodeRecord(b)
		if err != nil && len(b) > 4 && b[0] == byte(schemas.RecordFormat2) {
			rec, err = schemas.DecodeRecord(seal(bytes.Clone(b))) // past the checksum
		}
		if err != nil {
			return
		}
		again, err := schemas.DecodeRecord(rec.Append(nil))
		if err != nil {
			t.Fatalf("the record cannot be decoded after it was encoded again: %v", err)
		}
		if !bytes.Equal(rec.Append(nil), again.Append(nil)) {
			t.Fatalf("encoded again: got another record %+v, want %+v", again, rec)
		}
	})
}

func FuzzParseClaim(f *testing.F) {
	f.Add(schemas.Claim{Timer: schemas.NewTimerID("/s", "1"), Revision: 7, Run: 1, AddedMs: added, FiredMs: added}.String())
	f.Add(schemas.Claim{Timer: schemas.NewTimerID("/s", "1"), Run: 2, Schedule: schemas.NewTimerID("/s", "2"), Waited: true}.String())
	f.Add("x 1 2 3")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := schemas.ParseClaim(s)
		if err != nil {
			return
		}
		if back, err := schemas.ParseClaim(c.String()); err != nil || back != c {
			t.Fatalf("ParseClaim of %q: got %+v (%v), want %+v", c.String(), back, err, c)
		}
	})
}

func FuzzParseTimerID(f *testing.F) {
	f.Add(schemas.NewTimerID("/s", "1").String())
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := schemas.ParseTimerID(s); err == nil && id.String() != s {
			t.Fatalf("ParseTimerID accepted %q, want only the text %s of that id", s, id)
		}
	})
}

func BenchmarkParseAdd(b *testing.B) {
	data := doc(b, map[string]any{"data": strings.Repeat("x", 250), "timersvc": "orders", "timercallback": "https://example.com/x"})
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := schemas.ParseAdd(nil, data, added, schemas.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMessage(b *testing.B) {
	body, _, err := schemas.ParseAdd(nil, doc(b, map[string]any{"data": strings.Repeat("x", 250)}), added, schemas.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 1})
	}
}

func BenchmarkRecord1(b *testing.B) { benchmarkRecord(b, schemas.RecordFormat1) }
func BenchmarkRecord2(b *testing.B) { benchmarkRecord(b, schemas.RecordFormat2) }

func benchmarkRecord(b *testing.B, format schemas.RecordFormat) {
	body, _, err := schemas.ParseAdd(nil, doc(b, map[string]any{"data": strings.Repeat("x", 250)}), added, schemas.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	r := schemas.Record{
		Definition: schemas.Definition{Service: "svc", Source: "/s", EventID: "1", Type: "t", Body: body},
		RunState:   schemas.RunState{State: schemas.StatePending, Run: 1, DueMs: added},
	}
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = r.AppendFormat(buf[:0], format)
		if _, err := schemas.DecodeRecord(buf); err != nil {
			b.Fatal(err)
		}
	}
}
