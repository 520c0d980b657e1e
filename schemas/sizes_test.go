package schemas_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// storeHeaders returns the largest headers that package store adds to a message: message
// ID, expected revision, TTL, roll-up, and those of an atomic batch, whose ID has at most
// 64 bytes.
func storeHeaders() nats.Header {
	return nats.Header{
		"Nats-Msg-Id":                         {(schemas.TimerID{}).String() + strings.Repeat(".4294967295", 4) + ".dead"},
		"Nats-Expected-Last-Subject-Sequence": {"18446744073709551615"},
		"Nats-TTL":                            {"9223372036s"},
		"Nats-Rollup":                         {"sub"},
		"Nats-Batch-Id":                       {strings.Repeat("b", 64)},
		"Nats-Batch-Sequence":                 {"1000"},
		"Nats-Batch-Commit":                   {"1"},
	}
}

// largestClaim returns a header Belfry-Claim with the largest value in every field.
func largestClaim() string {
	return schemas.Claim{
		Timer: schemas.NewTimerID("/s", "1"), Revision: math.MaxUint64, Run: math.MaxUint32, Attempt: math.MaxUint32, MaxAttempt: math.MaxUint32,
		AddedMs: math.MaxInt64, FiredMs: math.MaxInt64, Epoch: math.MaxUint64, Hash: [16]byte(bytes.Repeat([]byte{255}, 16)),
		Schedule: schemas.NewTimerID("/s", "1"), Waited: true,
	}.String()
}

// worstTexts are the texts that grow most when they are encoded as a header or as JSON.
var worstTexts = [...]string{strings.Repeat("é", 4096), strings.Repeat("<", 8192), strings.Repeat("\u2028", 4096), strings.Repeat("\x00", 8192), strings.Repeat("\xff", 8192), strings.Repeat("\U0001F514", 4096)}

// checkFits stores, fires, retries, rejects, dead-letters and requests an accepted add,
// with the largest values that Belfry adds, for a server with the given largest message.
func checkFits(t *testing.T, body schemas.Body, spec schemas.Spec, maxMessage int) {
	t.Helper()
	fits := func(what string, hdr nats.Header, data []byte) {
		t.Helper()
		for name, v := range storeHeaders() {
			hdr[name] = v
		}
		if n := schemas.HeaderBytes(hdr); n > schemas.MaxHeaderBytes {
			t.Fatalf("%s has %d bytes of headers, want at most %d", what, n, schemas.MaxHeaderBytes)
		} else if n+len(data) > maxMessage {
			t.Fatalf("%s has %d bytes, want at most %d", what, n+len(data), maxMessage)
		}
	}
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: math.MinInt64, Hash: spec.Hash, Service: spec.Service, Group: spec.Group, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body, Retry: &schemas.RetryPolicy{MaxAttempts: math.MaxUint32, BackoffFirst: math.MaxInt64, BackoffTo: math.MaxInt64, Timeout: math.MaxInt64}},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Queued: true, Run: math.MaxUint32, Attempt: math.MaxUint32, MaxAttempt: math.MaxUint32, Replayed: math.MaxUint32, Unattempted: math.MaxUint32, UnattemptedInRow: math.MaxUint32, DueMs: math.MinInt64, ScheduledMs: math.MinInt64, FiredMs: math.MinInt64, FirstFiredMs: math.MinInt64, DoneMs: math.MinInt64, NextMs: math.MinInt64, Epoch: math.MaxUint64, Outcome: schemas.Outcome{Code: math.MinInt32, Error: strings.Repeat("e", schemas.MaxOutcomeError), Response: make([]byte, schemas.MaxOutcomeResponse)}},
		Moves:      math.MaxUint32, LatestDueMs: math.MinInt64,
	}
	for range schemas.MaxHistory {
		rec.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: math.MinInt64, Caller: schemas.Caller{By: strings.Repeat("b", 1000), Account: strings.Repeat("a", 1000), User: strings.Repeat("u", 1000)}})
	}
	largest := rec.Outcome
	rec.Attempt -= schemas.MaxKeptAttempts
	for range schemas.MaxKeptAttempts {
		rec.AddAttempt(math.MinInt64, math.MaxInt64, largest)
	}
	rec.SetOutcome(largest) // the newest attempt and the record have the outcome
	fits("the record", nats.Header{}, rec.Append(nil))
	if spec.Recurrence != nil {
		run := rec
		run.Origin = &schemas.Origin{Schedule: schemas.NewTimerID("/s", "1"), Missed: math.MaxUint32, Trigger: schemas.TriggerBackfill, Waited: true}
		fits("the record of a run", nats.Header{}, run.Append(nil))
		schedule := rec
		schedule.Attempts, schedule.Outcome = nil, schemas.Outcome{}
		schedule.Schedule = largestSchedule()
		schedule.Schedule.Recurrence = *spec.Recurrence
		fits("the record of the schedule", nats.Header{}, schedule.Append(nil))
	}
	fired := schemas.Fired{ScheduledMs: math.MaxInt64 / 1_000_000, FiredMs: math.MaxInt64 / 1_000_000, Run: math.MaxInt32, Attempt: math.MaxInt32, Missed: math.MaxInt32, Trigger: schemas.TriggerBackfill} // the largest integers of CloudEvents
	hdr, data := body.Message(fired)
	hdr[schemas.HeaderClaim] = []string{largestClaim()}
	hdr[schemas.HeaderRetry] = []string{rec.Retry.RetryHeader()}
	fits("the fired event", hdr, data)
	// The callback is in the event, or sealed in a header.
	sealed := func() {
		if spec.Callback != "" {
			hdr[schemas.HeaderCallback] = []string{"1." + strings.Repeat("x", (len(spec.Callback)+28)*4/3+1)}
		}
	}
	fired.NoCallback = true
	hdr, data = body.Message(fired)
	hdr[schemas.HeaderClaim] = []string{largestClaim()}
	hdr[schemas.HeaderRetry] = []string{rec.Retry.RetryHeader()}
	sealed()
	fits("the fired event with a sealed callback", hdr, data)
	for _, fired.NoCallback = range []bool{true, false} {
		for _, text := range worstTexts {
			hdr, data = body.DeadMessage(fired, strings.Repeat("c", 1000), text)
			hdr[schemas.HeaderClaim] = []string{largestClaim()}
			hdr[schemas.HeaderRetry] = []string{rec.Retry.RetryHeader()}
			hdr[schemas.HeaderErrorCode] = []string{strings.Repeat("c", 64)}
			hdr[schemas.HeaderError] = []string{strings.Repeat("e", schemas.MaxOutcomeError)}
			if fired.NoCallback {
				sealed()
			}
			fits(fmt.Sprintf("the dead letter, sealed callback: %t", fired.NoCallback), hdr, data)
		}
	}
	// The replay of a dead letter stores the body of the add.
	if back, err := schemas.StripFired(hdr, data); err != nil || back.Size() > body.Size() {
		t.Fatalf("a replay stores %d bytes (%v), want at most the %d bytes of the add", back.Size(), err, body.Size())
	}
	if !strings.HasPrefix(spec.Callback, schemas.NATSScheme) {
		return
	}
	fired.ScheduledMs, fired.FiredMs = added, added // sdk-go reads years up to 9999
	hdr, data = body.Message(fired)
	e, _, _, err := schemas.ParseFired(hdr, data)
	if err != nil {
		t.Fatal(err)
	}
	req, reqData, err := schemas.EncodeEvent(*e, schemas.ModeBinary)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"traceparent", "tracestate", "baggage"} {
		if v, ok := e.Extensions()[name].(string); ok {
			req[name] = []string{v}
		}
		if v := hdr.Get(name); v != "" {
			req[name] = []string{v}
		}
	}
	req["Idempotency-Key"] = []string{spec.Timer.MsgID(math.MaxUint32)}
	fits("the request", req, reqData)
}

// randomSizes returns a random event in either mode, with awkward texts and a size near a
// limit.
func randomSizes(r *rand.Rand) (nats.Header, []byte) {
	texts := [...]string{"x", "é", "<", "%", "\u2028", "\U0001F514", " ", `\`}
	text := func(bytes int) string {
		s := texts[r.IntN(len(texts))]
		return "a" + strings.Repeat(s, max(0, bytes-2)/len(s)) + "z"
	}
	size := func() int { return []int{1, 50, 500, 2000, 2048}[r.IntN(5)] }
	attrs := map[string]string{"specversion": "1.0", "id": "i" + text(size()), "source": "/" + strings.Repeat("s", size()-1), "type": text(size())}
	switch r.IntN(3) {
	case 0:
		attrs["timercron"], attrs["timertz"] = strings.Repeat(" ", 246)+"0 9 1 * *", strings.Repeat("z", 256)
	case 1:
		attrs["timerevery"], attrs["timerdst"], attrs["timerdays"] = strings.Repeat("0", 200)+"1h", strings.Repeat("d", 256), strings.Repeat("d", 256)
	default:
		attrs["timerafter"] = "1s"
	}
	if r.IntN(2) == 0 {
		attrs["timercallback"] = "nats:" + strings.Repeat("c", max(1, size()-5))
	}
	if r.IntN(2) == 0 {
		attrs["timergroup"] = strings.Repeat("g", 128)
	}
	attrs["timersvc"] = strings.Repeat("s", 1+r.IntN(64))
	for i := range r.IntN(64 - len(attrs)) {
		attrs[fmt.Sprint("x", i)] = text(size())
	}
	if r.IntN(4) == 0 {
		attrs["tracestate"], attrs["baggage"] = text(size()), text(size())
	}
	hdr := nats.Header{}
	for i := range r.IntN(3) {
		hdr[fmt.Sprint("X-Mine-", i)] = []string{strings.Repeat("v", []int{1, 1000, 20_000, 30_000}[r.IntN(4)])}
	}
	if r.IntN(4) == 0 {
		hdr["traceparent"] = []string{strings.Repeat("t", size()*10)}
	}
	data := []byte(`"` + strings.Repeat([]string{"x", "é", "<"}[r.IntN(3)], []int{0, 1000, 100_000, 200_000, 245_000}[r.IntN(5)]) + `"`)
	if r.IntN(2) == 0 {
		doc := map[string]any{"data": json.RawMessage(data)}
		for name, v := range attrs {
			doc[name] = v
		}
		b, err := json.Marshal(doc)
		if err != nil {
			panic(err) // texts always encode
		}
		return hdr, b
	}
	raw := r.IntN(2) == 0 // sdk-go does not encode values
	for name, v := range attrs {
		if !raw {
			v = schemas.EncodeHeader(v)
		}
		hdr["ce-"+name] = []string{v}
	}
	return hdr, data
}

// TestWhatIsAcceptedFits: every add that ParseAdd accepts can be stored, fired, retried,
// called back and dead-lettered, with the largest value in every field.
func TestWhatIsAcceptedFits(t *testing.T) {
	t.Parallel()
	const maxMessage = 256 << 10
	accepted, schedules, refused := 0, 0, 0
	seeds := testsize.Choose(t, "seeds", 600, 3000, 3000)
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		hdr, data := randomSizes(r)
		body, spec, err := schemas.ParseAdd(hdr, data, added, schemas.Limits{MaxMessage: maxMessage})
		if err != nil {
			checkRefusal(t, err)
			if schemas.CodeOf(err) == schemas.CodeTooLarge {
				refused++
			}
			continue
		}
		accepted++
		if spec.Recurrence != nil {
			schedules++
		}
		checkFits(t, body, spec, maxMessage)
		if t.Failed() {
			t.Fatalf("seed %d failed", seed)
		}
	}
	if accepted < seeds/10 || schedules < seeds/30 || refused < seeds/10 {
		t.Errorf("%d events accepted, %d of them schedules, and %d rejected for their size, want at least %d, %d and %d: the test does not reach the limits", accepted, schedules, refused, seeds/10, seeds/30, seeds/10)
	}
	t.Logf("%d accepted, %d of them schedules, %d refused for their size", accepted, schedules, refused)
}

// TestHeaderLimit: an event whose fired event or dead letter would exceed JetStream's
// limit of headers is refused, in either mode, with an error that has the limit and the
// size. An event at the limit is accepted and fits.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	binary := func(attrs, length int) nats.Header {
		hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-timerafter": {"1s"}}
		for i := range attrs {
			hdr[fmt.Sprintf("ce-x%02d", i)] = []string{strings.Repeat("x", length)}
		}
		return hdr
	}
	plain := func(bytes int) nats.Header {
		const name = "X-Mine"
		return nats.Header{name: {strings.Repeat("x", bytes-len("NATS/1.0\r\n"+name+": \r\n\r\n"))}}
	}
	structured := doc(t, nil)
	for _, c := range []struct {
		name   string
		hdr    nats.Header
		data   []byte
		refuse string // "" if it is accepted
	}{
		{"58 attributes of 2,000 bytes in binary mode", binary(58, 2000), nil, "116"},
		{"headers of 65,300 bytes", plain(65_300), structured, "65300"},
		{"headers of 65,535 bytes", plain(65_535), structured, "65535"},
		{"headers one byte over the limit", plain(schemas.MaxEventHeaderBytes + 1), structured, "59392"},
		{"headers at the limit", plain(schemas.MaxEventHeaderBytes), structured, ""},
		{"29 attributes of 2,000 bytes in binary mode", binary(29, 2000), nil, ""},
		{"58 attributes of 2,000 bytes in structured mode", nil, doc(t, many(58, 2000)), ""},
		{"58 attributes of 2,000 bytes in structured mode, called back over NATS", nil, doc(t, with(many(58, 2000), "timercallback", "nats:a.b")), "callback over NATS"},
		{"11 attributes of 2,000 bytes that are encoded in three times as many, called back over NATS", nil, doc(t, with(many(11, 2000), "timercallback", "nats:a.b")), ""},
	} {
		body, spec, err := schemas.ParseAdd(c.hdr, c.data, added, schemas.Limits{})
		if c.refuse != "" {
			if schemas.CodeOf(err) != schemas.CodeTooLarge || !strings.Contains(err.Error(), c.refuse) || !strings.Contains(err.Error(), "59391") {
				t.Errorf("%s: got error %v, want %s and the limit in it", c.name, err, c.refuse)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: got error %v, want the event accepted", c.name, err)
			continue
		}
		checkFits(t, body, spec, schemas.DefaultLimitMessage)
	}
}

func many(n, length int) map[string]any {
	m := map[string]any{}
	for i := range n {
		m[fmt.Sprint("x", i)] = strings.Repeat("x", length)
	}
	return m
}

func with(m map[string]any, name string, v any) map[string]any {
	m[name] = v
	return m
}

// TestHeaderNames: an add with a header that nats.go does not send is refused.
func TestHeaderNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"X-Mine": true, "a.b_c!~": true, "a/b": false, "a[1]": false, "é": false, "a(b)": false, "x@y": false} {
		_, _, err := schemas.ParseAdd(nats.Header{name: {"v"}}, doc(t, nil), added, schemas.Limits{})
		// nats.go does not report that, but the size shows it.
		sent := (&nats.Msg{Subject: "s", Header: nats.Header{name: {"v"}}}).Size() > len("s")
		if (err == nil) != ok || sent != ok {
			t.Errorf("header %q: got error %v, sent by nats.go %v, want both accepted and sent: %v", name, err, sent, ok)
		}
		if err != nil && schemas.CodeOf(err) != schemas.CodeInvalidEvent {
			t.Errorf("header %q: got error %v, want code invalid_event", name, err)
		}
	}
}

// TestMessageLimit: a server with a largest message below 1 MiB lowers the limit of an
// event.
func TestMessageLimit(t *testing.T) {
	t.Parallel()
	const maxMessage = 128 << 10
	lim := schemas.Limits{MaxMessage: maxMessage, MaxPayload: schemas.DefaultLimitPayload}
	event := func(bytes int) []byte {
		empty := len(doc(t, map[string]any{"data": ""}))
		return doc(t, map[string]any{"data": strings.Repeat("x", bytes-empty)})
	}
	const most = maxMessage - schemas.PayloadReserve
	body, spec, err := schemas.ParseAdd(nil, event(most), added, lim)
	if err != nil {
		t.Fatal(err)
	}
	checkFits(t, body, spec, maxMessage)
	if _, _, err := schemas.ParseAdd(nil, event(most+1), added, lim); schemas.CodeOf(err) != schemas.CodeTooLarge || !strings.Contains(err.Error(), "114688") {
		t.Errorf("an event of one byte more than the limit: got error %v, want the limit in it", err)
	}
}
