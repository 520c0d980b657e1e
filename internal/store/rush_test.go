package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestRush: when many old timers are claimed within one window, the shard becomes warm, so
// later claims roll up. In the end no superseded revision is left.
func TestRush(t *testing.T) {
	t.Parallel()
	geo := schemas.DefaultGeometry()
	geo.Shards = 1
	s, err := Open(t.Context(), natstest.Run(t).InProcess(), Config{Node: "n1", Geometry: geo}, zerolog.New(zerolog.NewTestWriter(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	now, err := s.nowMs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	added := 0
	claim := func(n int) {
		t.Helper()
		writes := make([]Write, n)
		for i := range writes {
			added++
			writes[i] = Write{ID: schemas.NewTimerID("/rush", fmt.Sprint(added)), Record: &schemas.Record{
				Definition: schemas.Definition{AddedMs: now - time.Hour.Milliseconds(), Service: "rush", Source: "/rush", EventID: fmt.Sprint(added), Type: "t"},
				RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now},
			}}
		}
		done := make(chan Result, n)
		for i, res := range s.Create(t.Context(), writes) {
			if res.Err != nil {
				t.Fatal(res.Err)
			}
			r := *writes[i].Record
			r.State, r.Queued = schemas.StateDelivered, false
			s.UpdateAsync(Write{ID: writes[i].ID, Rev: res.Rev, Record: &r}, func(res Result) { done <- res })
		}
		for range n {
			if res := <-done; res.Err != nil {
				t.Fatal(res.Err)
			}
		}
	}
	claim(rushWrites - 1)
	if s.revisionGC.writes[0].warm.Load() {
		t.Error("the shard is warm before a rush has begun")
	}
	// If a window ends here, the rush only begins later.
	for deadline := time.Now().Add(time.Minute); !s.revisionGC.writes[0].warm.Load(); {
		if time.Now().After(deadline) {
			t.Fatal("the shard did not become warm")
		}
		claim(100)
	}
	claim(100)
	stream, err := s.JetStream().Stream(t.Context(), s.subjects[0].stream)
	if err != nil {
		t.Fatal(err)
	}
	s.rem.drain()
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.timers_0.timer.>"))
	if err != nil {
		t.Fatal(err)
	}
	if len(info.State.Subjects) != added {
		t.Fatalf("%d timers are stored, not %d", len(info.State.Subjects), added)
	}
	for subject, n := range info.State.Subjects {
		if n != 1 {
			t.Errorf("%s has %d revisions", subject, n)
		}
	}
	last, err := stream.GetLastMsgForSubject(t.Context(), "$KV.timers_0.timer.>")
	if err != nil {
		t.Fatal(err)
	}
	if s.revisionGC.writes[0].warm.Load() && last.Header.Get(jetstream.MsgRollup) == "" {
		t.Error("the last write of the rush does not roll up")
	}
}

// TestIsRush: the larger the shard, the more old timers make a rush, and none do in a very large one.
func TestIsRush(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		writes int64
		blocks uint64
		want   bool
	}{
		{rushWrites - 1, 0, false},
		{rushWrites, 0, true},
		{rushWrites, 16, true},
		{rushWrites, 17, false},
		{2000, 40, false},
		{2400, 40, true},
		{rushPerBlock * rushBlocks, rushBlocks, true},
		{1 << 40, rushBlocks + 1, false},
		{1 << 40, unknownBlocks, false},
	} {
		if got := isRush(c.writes, c.blocks); got != c.want {
			t.Errorf("%d writes in a shard of %d blocks: %t", c.writes, c.blocks, got)
		}
	}
}
