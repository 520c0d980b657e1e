package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

func TestPeek(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := openNode(t, nc, Config{Node: "n1"})
	peek := func(id schemas.TimerID) (Timer, error) {
		got := make(chan Peek, 1)
		s.PeekAsync(id, func(p Peek) { got <- p })
		return (<-got).Timer()
	}
	now := time.Now().UnixMilli()
	id := benchID(1)
	if _, err := peek(id); !errors.Is(err, schemas.ErrNotFound) {
		t.Errorf("before the timer exists: %v", err)
	}
	res := s.Create(t.Context(), []Write{{ID: id, Record: benchRecord(now+time.Hour.Milliseconds(), now)}})
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	want, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	got, err := peek(id)
	if err != nil || got.ID != id || got.Rev != want.Rev || string(got.Record.Append(nil)) != string(want.Record.Append(nil)) {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	// A KV client deletes the key.
	subject, _ := s.timerSubject(id)
	if _, err := s.JetStream().PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: nats.Header{"KV-Operation": {"DEL"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := peek(id); !errors.Is(err, schemas.ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
	nc.Close()
	if _, err := peek(id); !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("without a connection: %v", err)
	}
}

// TestAddForgotten: while TIMERS_ADD is empty, adds of a minute ago are known to be removed,
// also if the stream never had a message.
func TestAddForgotten(t *testing.T) {
	t.Parallel()
	s := openNode(t, natstest.Run(t).Connect(), Config{Node: "n1"})
	now := time.Now()
	past := now.Add(-time.Minute).UnixMilli()
	if s.AddForgotten(past) {
		t.Error("known before the first request")
	}
	none := func(string, map[string][]string, []byte) bool { t.Error("an add was found"); return false }
	if _, err := s.FindAdds(t.Context(), past, none); err != nil {
		t.Fatal(err)
	}
	if !s.AddForgotten(past) || s.AddForgotten(time.Now().UnixMilli()) {
		t.Errorf("a minute ago: %v, now: %v", s.AddForgotten(past), s.AddForgotten(time.Now().UnixMilli()))
	}
	if _, err := s.FindAdds(t.Context(), now.Add(time.Minute).UnixMilli(), none); err != nil {
		t.Fatal(err)
	}
}

func benchID(i int) schemas.TimerID { return schemas.NewTimerID("bench", fmt.Sprint(i)) }

func benchRecord(due, added int64) *schemas.Record {
	return &schemas.Record{
		Definition: schemas.Definition{AddedMs: added, Service: "bench", Source: "/bench", EventID: "1", Type: "t", Body: schemas.Body{Mode: schemas.ModeStructured, Data: make([]byte, 400)}},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: due, ScheduledMs: due},
	}
}
