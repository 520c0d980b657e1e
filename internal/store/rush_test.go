package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestRush: when many old timers are claimed within one window, the shard becomes warm, so
// later claims roll up. In the end no superseded revision is left.
func TestRush(t *testing.T) {
	t.Parallel()
	s := openOneShard(t, natstest.Run(t).InProcess(), Config{})
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
			writes[i] = oldWrite(fmt.Sprint(added), now)
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
	oneRevisionEach(t, stream, added)
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
