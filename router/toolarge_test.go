package router_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestRejectionsOfAnySize: a rejected add is kept with all its bytes, however little room they
// leave for the reason.
func TestRejectionsOfAnySize(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	headers := func(bytes int) nats.Header {
		return nats.Header{"X-Mine": {strings.Repeat("h", bytes-len("NATS/1.0\r\nX-Mine: \r\n\r\n"))}}
	}
	adds := []*nats.Msg{
		{Header: headers(65_300), Data: add("headers", `"timerafter":"1s"`)},
		{Header: headers(65_535), Data: add("most-headers", `"timerafter":"1s"`)},
		{Header: nats.Header{}, Data: bytes.Repeat([]byte("x"), 1<<20)},
		{Header: headers(65_535), Data: bytes.Repeat([]byte("y"), 1<<20-65_535)},
	}
	for _, m := range adds {
		m.Subject = schemas.SubjectAdd
		if _, err := f.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	var page store.RejectedPage
	waittest.Until(f.t, "all are rejected", func() bool {
		var err error
		if page, err = f.store.RejectedList(t.Context(), store.RejectedQuery{}); err != nil {
			t.Fatal(err)
		}
		return len(page.Adds) == len(adds)
	})
	for _, m := range adds {
		found := false
		for _, got := range page.Adds {
			if bytes.Equal(got.Data, m.Data) && got.Get("X-Mine") == m.Header.Get("X-Mine") && got.Get(schemas.HeaderErrorCode) != "" && got.Get(schemas.HeaderError) != "" {
				found = true
			}
		}
		if !found {
			t.Errorf("the add of %d bytes of headers and %d of data was changed or lost", schemas.HeaderBytes(m.Header), len(m.Data))
		}
	}
	waittest.Until(f.t, "timers.add is empty", func() bool {
		info, err := f.js.Stream(t.Context(), schemas.StreamAdd)
		if err != nil {
			t.Fatal(err)
		}
		return info.CachedInfo().State.Msgs == 0
	})
}

// TestReplayUndeliverable: the replay of a dead letter whose event was never published
// publishes the event, or reports why it cannot.
func TestReplayUndeliverable(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	nowMs := time.Now().UnixMilli() - 1000
	// letter stores a dead letter and its record in a state.
	letter := func(id string, headerBytes int, state schemas.State) schemas.TimerID {
		body, spec, err := schemas.ParseAdd(nil, add(id, `"timerafter":"1s","timersvc":"mail"`), nowMs, schemas.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		body.Headers = []schemas.HeaderField{{Name: "X-Mine", Value: strings.Repeat("x", headerBytes)}}
		rec := schemas.Record{
			Definition: schemas.Definition{AddedMs: nowMs, Hash: spec.Hash, Service: spec.Service, Source: spec.Source, EventID: spec.EventID, Type: spec.Type},
			RunState:   schemas.RunState{State: state, Run: 1, MaxAttempt: 3, DueMs: spec.DueMs, ScheduledMs: spec.DueMs, FiredMs: nowMs},
		}
		if res := f.store.Create(t.Context(), []store.Write{final(store.Write{ID: spec.Timer, Record: &rec})}); res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
		m := store.Msg{Subject: schemas.SubjectDead("mail"), MsgID: spec.Timer.MsgID(1) + ".dead"}
		m.Header, m.Data = body.DeadMessage(schemas.Fired{ScheduledMs: spec.DueMs, FiredMs: nowMs, Run: 1}, schemas.ReasonUndeliverable, "too large")
		m.Header[schemas.HeaderClaim] = []string{schemas.Claim{Timer: spec.Timer, Run: 1, MaxAttempt: 3, AddedMs: nowMs, FiredMs: nowMs, Hash: spec.Hash}.String()}
		m.Header[schemas.HeaderErrorCode] = []string{schemas.ReasonUndeliverable}
		if _, err := f.store.PublishLetter(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		return spec.Timer
	}
	replay := func(id schemas.TimerID) string {
		return f.request("dead.replay", fmt.Appendf(nil, `{"timer":%q}`, id), &schemas.ReplayReply{})
	}
	letter("fits", 100, schemas.StateFail)
	if code := replay(schemas.NewTimerID("/test", "fits")); code != "" {
		t.Fatal(code)
	}
	// With attempt 0 the scheduler publishes it on timers.fired.
	if r := f.await("/test", "fits").Record; r.State != schemas.StateRetrying || !r.Queued || r.Attempt != 0 || r.FiredMs == nowMs || r.Body.Mode == schemas.ModeNone {
		t.Errorf("got %+v", r)
	}
	for state, want := range map[schemas.State]string{schemas.StateFail: "too_large", schemas.StateDelivered: "too_large"} {
		if code := replay(letter("large-"+state.String(), 66_000, state)); code != want {
			t.Errorf("%s: %q, want %q", state, code, want)
		}
	}
	for _, state := range []schemas.State{schemas.StateDelivered, schemas.StatePending, schemas.StateRetrying} {
		if code := replay(letter("early-"+state.String(), 100, state)); code != "unavailable" {
			t.Errorf("%s, before its failure is written: %q", state, code)
		}
	}
	if n := f.letters(); n != 5 {
		t.Errorf("%d letters are left; want the 5 that were not replayed", n)
	}
}
