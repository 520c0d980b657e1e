package schemas_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "10s": 10 * time.Second, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond, "1.5h": 90 * time.Minute, ".5s": 500 * time.Millisecond, "+1s": time.Second, "-1s": -time.Second,
		"1ns": 1, "1us": time.Microsecond, "1µs": time.Microsecond, "2562047h47m16.854775807s": 1<<63 - 1,
		"PT10S": 10 * time.Second, "P1D": day, "P1DT2H": 26 * time.Hour, "P2W": 14 * day, "P1W2DT3H4M5S": 9*day + 3*time.Hour + 4*time.Minute + 5*time.Second,
		"PT0S": 0, "P0D": 0, "PT0.2S": 200 * time.Millisecond, "PT1.5H": 90 * time.Minute, "P0.5D": 12 * time.Hour, "PT1H0.000000001S": time.Hour + 1, "PT36H": 36 * time.Hour, "-PT10S": -10 * time.Second,
		"PT2562047H47M16.854775807S": 1<<63 - 1, "P106751D": 106751 * day,
	} {
		if got, err := schemas.ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q): got %s (%v), want %s", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"": "not a duration", "soon": "not a duration", "1d": "not a duration", "1h 30m": "not a duration", "10S": "not a duration", "pt10s": "not a duration", "∞": "not a duration", "1e3s": "not a duration", "NaN": "not a duration",
		"10": "without a unit", "-1.5": "without a unit", strings.Repeat("1", 65) + "s": "longer than 64",
		"9999999999h": "out of range", "-9999999999999999999s": "out of range", "2562047h47m16.854775808s": "out of range",
		"P": "has no value", "PT": "has no value", "P1DT": "has no value", "-P": "has no value",
		"P1Y": "no fixed length", "P1M": "no fixed length", "P1Y2M3D": "no fixed length", "P1MT1M": "no fixed length",
		"PT1.5H1S": "last number", "P0.5DT1H": "last number", "P1.5W1D": "last number",
		"P9999999999D": "out of range", "P106752D": "out of range", "PT2562047H47M16.854775808S": "out of range", "P99999999999999999999W": "out of range", "P106751DT99H": "out of range",
		"P1": "ISO 8601", "PT1": "ISO 8601", "P1H": "ISO 8601", "PT1D": "ISO 8601", "PT1M1H": "ISO 8601", "PT1S1S": "ISO 8601", "P1D1W": "ISO 8601", "PTT1S": "ISO 8601", "PT1ST1S": "ISO 8601", "PS": "ISO 8601", "PT.S": "ISO 8601", "PT1..5S": "ISO 8601",
		"PT-10S": "ISO 8601", "--PT1S": "not a duration", "P 1D": "ISO 8601", "PT1,5S": "ISO 8601", "P1Dé": "ISO 8601", "Pé": "ISO 8601",
	} {
		if got, err := schemas.ParseDuration(text); schemas.CodeOf(err) != schemas.CodeInvalidAttribute || !strings.Contains(err.Error(), says) {
			t.Errorf("ParseDuration(%q): got %s (%v), want an error that contains %q", text, got, err, says)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"1h30m", "P1W2DT3H4.5M", "-PT1S", "9999999999h", "P"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := schemas.ParseDuration(s)
		if err != nil {
			if schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
				t.Fatal(err)
			}
			return
		}
		if strings.HasPrefix(s, "-") && d > 0 || !strings.HasPrefix(s, "-") && d < 0 {
			t.Fatalf("ParseDuration(%q): got %s, which has the wrong sign", s, d)
		}
		if back, err := schemas.ParseDuration(d.String()); err != nil || back != d {
			t.Fatalf("ParseDuration(%q): got %s, which is parsed as %s (%v)", s, d, back, err)
		}
	})
}

// TestAllocations bounds the allocations of the hot paths: an event is decoded three
// times in a timer's life.
func TestAllocations(t *testing.T) {
	data := doc(t, map[string]any{"data": strings.Repeat("x", 250), "timersvc": "orders", "timercallback": "https://example.com/x", "timerbackoff": "1s..10m", "timertimeout": "PT5S"})
	retry := &schemas.RetryPolicy{MaxAttempts: 36, BackoffFirst: time.Second, BackoffTo: 10 * time.Minute, Timeout: 5 * time.Second}
	hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/shop"}, "ce-type": {"t"}, "ce-timerafter": {"10s"}, "ce-timersvc": {"orders"}, "content-type": {"application/json"}}
	fired := schemas.Fired{ScheduledMs: added, FiredMs: added + 3, Run: 1, Attempt: 1}
	body, spec, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	binary, _, err := schemas.ParseAdd(hdr, []byte(`{"a":1}`), added, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	rec := schemas.Record{
		Definition: schemas.Definition{Service: spec.Service, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Callback: spec.Callback, Body: body},
		RunState:   schemas.RunState{State: schemas.StatePending},
	}
	room := rec.Append(nil)
	called := rec
	called.Retry, called.Body = &schemas.RetryPolicy{MaxAttempts: 3, BackoffFirst: time.Second, BackoffTo: time.Minute, Timeout: time.Second}, schemas.Body{}
	called.AddAttempt(added, time.Second, schemas.Outcome{Code: 200})
	calledRoom := called.Append(nil)
	binRec := rec
	binRec.Body = binary
	binRoom := binRec.Append(nil)
	sHdr, sData := body.Message(fired)
	bHdr, bData := binary.Message(fired)
	sHdr[schemas.HeaderRetry] = []string{retry.RetryHeader()} // the header that a scheduler sends
	claim := schemas.Claim{Timer: spec.Timer, Revision: 7, Run: 1, AddedMs: added, FiredMs: added}.String()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		most float64
		do   func()
	}{
		{"ParseAdd, structured", 11, func() { _, _, err := parse(data); check(err) }},
		{"ParseAdd, binary", 3, func() { _, _, err := schemas.ParseAdd(hdr, bData, added, schemas.Limits{}); check(err) }},
		{"ParseFired, structured", 29, func() { _, _, _, err := schemas.ParseFired(sHdr, sData); check(err) }},
		{"ParseFired, binary", 15, func() { _, _, _, err := schemas.ParseFired(bHdr, bData); check(err) }},
		{"Message, structured", 5, func() { body.Message(fired) }},
		{"Message, binary", 9, func() { binary.Message(fired) }},
		{"Record.Append", 0, func() { room = rec.Append(room[:0]) }},
		{"DecodeRecord, structured", 1, func() { _, err := schemas.DecodeRecord(room); check(err) }},
		{"DecodeRecord, binary", 4, func() { _, err := schemas.DecodeRecord(binRoom); check(err) }},
		{"Record.Append, policy and attempt", 0, func() { calledRoom = called.Append(calledRoom[:0]) }},
		{"DecodeRecord, policy and attempt", 3, func() { _, err := schemas.DecodeRecord(calledRoom); check(err) }},
		{"NewTimerID", 0, func() { schemas.NewTimerID(spec.Source, spec.EventID) }},
		{"MsgID", 1, func() { spec.Timer.MsgID(1) }},
		{"RedactURL", 1, func() { schemas.RedactURL("https://shop.example/hooks/expire") }},
		{"ParseClaim", 3, func() { _, err := schemas.ParseClaim(claim); check(err) }},
	} {
		if got := testing.AllocsPerRun(200, c.do); got > c.most {
			t.Errorf("%s: got %.0f allocations, want at most %.0f", c.name, got, c.most)
		} else {
			t.Logf("%s: %.0f of %.0f", c.name, got, c.most)
		}
	}
}
