package schemas_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// failures adds n failed attempts to a record.
func failures(r *schemas.Record, n int) {
	for range n {
		r.AddAttempt(added+int64(r.Attempt), time.Duration(r.Attempt)*time.Millisecond, schemas.Outcome{Code: 503, Error: fmt.Sprint("failure ", r.Attempt+1), Response: []byte("no")})
	}
}

// TestAttempts: a record keeps the last ten attempts in order. The newest has its whole
// outcome, the others the start of it.
func TestAttempts(t *testing.T) {
	t.Parallel()
	r := schemas.Record{RunState: schemas.RunState{State: schemas.StateRetrying}}
	failures(&r, 3)
	other := r
	failures(&r, 12)
	failures(&other, 1)
	if len(other.Attempts) != 4 || !strings.HasSuffix(other.Attempts[2].Outcome.Error, "failure 3") {
		t.Errorf("a change of a record also changed its copy: got attempts %+v, want 4", other.Attempts)
	}
	long := schemas.Outcome{Code: 500, Error: strings.Repeat("é", schemas.MaxOutcomeError/2), Response: []byte(strings.Repeat("é", schemas.MaxOutcomeResponse/2))}
	r.AddAttempt(added, time.Second, long)
	back, err := schemas.DecodeRecord(r.Append(nil))
	if err != nil || !reflect.DeepEqual(back, r) {
		t.Fatalf("after encoding and decoding: got %+v (%v), want %+v", back, err, r)
	}
	info := schemas.FromRecord(schemas.TimerID{}, &back, 1)
	if len(info.LastAttempts) != schemas.MaxKeptAttempts || info.Attempts != 16 {
		t.Fatalf("got %d kept attempts of %d, want %d of 16", len(info.LastAttempts), info.Attempts, schemas.MaxKeptAttempts)
	}
	for i, a := range info.LastAttempts[:9] {
		n := uint32(7 + i)
		want := schemas.AttemptInfo{Attempt: n, At: schemas.TimeOf(added + int64(n) - 1), TookMs: n - 1, Status: 503, Error: fmt.Sprint("failure ", n), Response: "no"}
		if a != want {
			t.Errorf("got attempt %+v, want %+v", a, want)
		}
	}
	if last := info.LastAttempts[9]; last.Error != long.Error || last.Response != string(long.Response) || last.TookMs != 1000 || last.Status != 500 {
		t.Errorf("got newest attempt %+v, want its whole outcome", last)
	}
	// The next attempt, or a failure that is not an attempt, cuts the outcome.
	next, undeliverable := back, back
	failures(&next, 1)
	undeliverable.SetOutcome(schemas.Outcome{Error: "undeliverable"})
	for name, a := range map[string]schemas.Attempt{"next attempt": next.Attempts[8], "other failure": undeliverable.Attempts[9]} {
		if a.Number != 16 || a.Outcome.Code != 500 || len(a.Outcome.Error) > schemas.MaxAttemptError || !strings.HasPrefix(a.Outcome.Error, "éé") || len(a.Outcome.Response) != schemas.MaxAttemptResponse {
			t.Errorf("after %s: got attempt %+v, want number 16 with its outcome cut to the limits", name, a)
		}
	}
	infos := schemas.FromRecord(schemas.TimerID{}, &undeliverable, 1)
	if got := infos.LastAttempts[9]; infos.Outcome.Error != "undeliverable" || !strings.HasPrefix(got.Error, "éé") {
		t.Errorf("got error %q of the attempt and %q of the timer, want the attempt's own and undeliverable", got.Error, infos.Outcome.Error)
	}
}

// TestOlderNodeKeepsAttempts: a node that reads format 2 but not these extensions writes
// them back unchanged, also when it records an attempt of its own. Only that attempt is
// missing.
func TestOlderNodeKeepsAttempts(t *testing.T) {
	t.Parallel()
	r := schemas.Record{
		Definition: schemas.Definition{Retry: &schemas.RetryPolicy{MaxAttempts: 3, BackoffFirst: time.Second, BackoffTo: time.Minute, Timeout: time.Second}},
		RunState:   schemas.RunState{State: schemas.StateRetrying},
	}
	failures(&r, 2)
	older := r
	older.Retry, older.Attempts = nil, nil
	older.Ext = []schemas.Extension{{Type: 4, Value: r.RetryValue()}, {Type: 6, Value: r.AttemptsValue()}}
	if older.Ext[0].Critical() || older.Ext[1].Critical() || !bytes.Equal(older.Append(nil), r.Append(nil)) {
		t.Fatal("an older node writes different bytes for a record that it did not change")
	}
	older.Attempt++
	older.Outcome = schemas.Outcome{Error: "failure 3"}
	back, err := schemas.DecodeRecord(older.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if *back.Retry != *r.Retry {
		t.Errorf("got policy %+v, want %+v", back.Retry, r.Retry)
	}
	failures(&back, 1)
	var got []string
	for _, a := range schemas.FromRecord(schemas.TimerID{}, &back, 1).LastAttempts {
		got = append(got, fmt.Sprint(a.Attempt, " ", a.Error))
	}
	if want := []string{"1 failure 1", "2 ", "4 failure 4"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got attempts %q, want %q", got, want)
	}
}

// TestAttemptsCostNothing: a timer without a callback has no extension. The default policy
// takes two bytes, a first attempt that succeeds less than twenty.
func TestAttemptsCostNothing(t *testing.T) {
	t.Parallel()
	_, spec, err := parse(doc(t, map[string]any{"timercallback": "https://x.example"}))
	if err != nil {
		t.Fatal(err)
	}
	r := schemas.Record{RunState: schemas.RunState{State: schemas.StatePending, Run: 1}}
	empty := len(r.Append(nil))
	r.Retry = &spec.RetryPolicy
	if n := len(r.Append(nil)) - empty; n != 2 || r.Extended() || spec.RetryHeader() != "" {
		t.Errorf("the default policy: got %d bytes, extended %v, header %q, want 2 bytes, false and no header", n, r.Extended(), spec.RetryHeader())
	}
	r.AddAttempt(added, 90*time.Second, schemas.Outcome{Code: 200})
	if n := len(r.Append(nil)) - empty; n > 20 {
		t.Errorf("the default policy and one attempt take %d bytes, want at most 20", n)
	}
}

// TestRetryPolicyOfMessage: HeaderRetry has precedence over the attributes of the event.
// Without the header, the attributes apply.
func TestRetryPolicyOfMessage(t *testing.T) {
	t.Parallel()
	data := doc(t, map[string]any{"timercallback": "https://x.example", "timermaxattempts": "7", "timerbackoff": "1s..2s", "timertimeout": "3s"})
	body, spec, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	asked := schemas.RetryPolicy{MaxAttempts: 7, BackoffFirst: time.Second, BackoffTo: 2 * time.Second, Timeout: 3 * time.Second}
	other := schemas.RetryPolicy{MaxAttempts: 1<<32 - 1, BackoffFirst: 1, BackoffTo: 1<<63 - 1, Timeout: 0}
	if spec.RetryPolicy != asked {
		t.Fatalf("got policy %+v, want %+v", spec.RetryPolicy, asked)
	}
	for _, c := range []struct {
		header string
		want   schemas.RetryPolicy
		fails  bool
	}{
		{"", asked, false}, {asked.RetryHeader(), asked, false}, {other.RetryHeader(), other, false}, {other.RetryHeader() + " later fields", other, false},
		{"1 2 3", asked, true}, {"x", asked, true}, {"4294967296 1 1 1", asked, true}, {"1 -1 1 1", asked, true},
	} {
		hdr, data := body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 1})
		if c.header != "" {
			hdr[schemas.HeaderRetry] = []string{c.header}
		}
		_, got, _, err := schemas.ParseFired(hdr, data)
		if (err != nil) != c.fails || err == nil && got.RetryPolicy != c.want {
			t.Errorf("header %q: got policy %+v, error %v, want policy %+v, an error: %v", c.header, got.RetryPolicy, err, c.want, c.fails)
		}
	}
	if _, _, _, err := schemas.ParseFired(nats.Header{schemas.HeaderRetry: {"x"}}, data); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("a malformed header: got error %v, want code bad_request", err)
	}
}

// TestPolicyIsThatOfTheAdd: the time of the last attempt follows from the policy that was
// accepted, even if the event has no attributes for it.
func TestPolicyIsThatOfTheAdd(t *testing.T) {
	t.Parallel()
	body, spec, err := schemas.ParseAdd(nil, doc(t, map[string]any{"timercallback": "https://x.example"}), added, schemas.Limits{MaxAttempts: 4, MaxBackoff: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	rec := schemas.Record{
		Definition: schemas.Definition{Callback: spec.Callback, Retry: &spec.RetryPolicy, Body: body},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Attempt: 1, MaxAttempt: spec.MaxAttempts, NextMs: added},
	}
	// Attempt 2 is next; then the delays are 2 s, not 4 s.
	if got := schemas.FromRecord(spec.Timer, &rec, 1); !got.Until.Equal(schemas.TimeOf(added + 4000)) {
		t.Errorf("got until %s, want %s", got.Until, schemas.TimeOf(added+4000))
	}
}
