package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestRollUpRemovesOne: while the delete of the revision that a claim replaced is in flight, the result does not
// roll up even if the shard is warm, and a result that must roll up waits for that delete: with both revisions
// there, the server would count what each consumer of the stream has pending.
func TestRollUpRemovesOne(t *testing.T) {
	t.Parallel()
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprintf("grouped=%t", grouped), func(t *testing.T) {
			t.Parallel()
			var options []natstest.Option
			if grouped {
				options = append(options, natstest.SyncAlways)
			}
			s := openOneShard(t, natstest.Run(t, options...).Connect(), Config{GroupCommit: grouped})
			now, err := s.nowMs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			free := holdDeletes(s)
			const n = 40
			timers := make([]oldTimer, n)
			for i := range timers {
				timers[i] = newOldTimer(t, s, fmt.Sprint(i), now)
				timers[i].claim(t, s)
			}
			s.revisionGC.writes[0].warm.Store(true)
			results := make(chan Result, n)
			for i := range timers {
				ttl := 24 * time.Hour
				if i%2 == 0 {
					ttl = time.Minute
				}
				timers[i].conclude(s, ttl, results)
			}
			for range n / 2 {
				if res := <-results; res.Err != nil {
					t.Fatal(res.Err)
				}
			}
			stream, err := s.JetStream().Stream(t.Context(), s.subjects[0].stream)
			if err != nil {
				t.Fatal(err)
			}
			for i := range timers {
				// Of a result that waits, the last revision is the claim's, which did not roll up either.
				if timers[i].rolledUp(t, s, stream) {
					t.Errorf("timer %d: its last write rolls up while the delete of another revision is in flight", i)
				}
			}
			free()
			for range n / 2 {
				if res := <-results; res.Err != nil {
					t.Fatal(res.Err)
				}
			}
			s.rem.drain()
			for i := range timers {
				if got, want := timers[i].rolledUp(t, s, stream), i%2 == 0; got != want {
					t.Errorf("timer %d: its result rolls up: %t; want %t", i, got, want)
				}
			}
			oneRevisionEach(t, stream, n)
			if left := len(s.rem.after); left != 0 {
				t.Errorf("the deletes of %d revisions count as in flight", left)
			}
		})
	}
}

// TestRollUpWaitsUntilClose: a write that waits for a delete is answered when the store closes.
func TestRollUpWaitsUntilClose(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	now, err := s.nowMs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	holdDeletes(s)
	timer := newOldTimer(t, s, "1", now)
	timer.claim(t, s)
	results := make(chan Result, 1)
	timer.conclude(s, time.Minute, results)
	s.Close()
	select {
	case <-results: // sent before the connection closed, or refused
	case <-time.After(time.Minute):
		t.Fatal("the write was not answered")
	}
}

// holdDeletes takes the places of all deletes, so that those of claims stay in the queue until free is called.
func holdDeletes(s *Store) (free func()) {
	for range removals {
		s.rem.inflight <- struct{}{}
	}
	return func() {
		for range removals {
			<-s.rem.inflight
		}
	}
}

// TestRollUpGoesOnWithoutServer: a write that waits for a delete is answered when the delete fails, and does not wait until
// the server is back.
func TestRollUpGoesOnWithoutServer(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := openNode(t, srv.InProcess(nats.ReconnectWait(time.Millisecond)), Config{Node: "n1"})
	now, err := s.nowMs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free := holdDeletes(s)
	timer := newOldTimer(t, s, "1", now)
	timer.claim(t, s)
	results := make(chan Result, 1)
	timer.conclude(s, time.Minute, results)
	srv.Stop()
	free()
	select {
	case res := <-results:
		if !errors.Is(res.Err, schemas.ErrUnavailable) {
			t.Errorf("the write ended with %v", res.Err)
		}
	case <-time.After(time.Minute):
		t.Error("the write waits until the server is back")
	}
	srv.Start()
	s.rem.drain()
}

// TestReserveWhileDown: a write that needs a permit fails while the connection is down, because no delete can return one.
func TestReserveWhileDown(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := openNode(t, srv.InProcess(nats.ReconnectWait(time.Millisecond)), Config{Node: "n1", Window: 4})
	ctx := t.Context()
	for range cap(s.rem.permits) {
		if err := s.rem.reserve(ctx, "fill"); err != nil {
			t.Fatal(err)
		}
	}
	srv.Stop()
	bounded, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	if err := s.rem.reserve(bounded, "one more"); !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("reserve returns %v", err)
	}
	srv.Start()
	waittest.Until(t, "the connection is up", func() bool { return !s.jet.Down() })
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.rem.reserve(cancelled, "cancelled"); !errors.Is(err, context.Canceled) {
		t.Errorf("reserve returns %v after its context has ended", err)
	}
	for range cap(s.rem.permits) {
		s.rem.release()
	}
}

// TestDeletesAreCheckedAfterReconnect: a server that has lost its power may have lost the revision that replaced one in the
// queue of deletes, or may have given the sequence of that to another message. Neither is deleted.
func TestDeletesAreCheckedAfterReconnect(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := openOneShard(t, srv.InProcess(nats.ReconnectWait(time.Millisecond)), Config{})
	ctx := t.Context()
	now, err := s.nowMs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	free := holdDeletes(s)
	lost, kept, other := newOldTimer(t, s, "lost", now), newOldTimer(t, s, "kept", now), newOldTimer(t, s, "other", now)
	pending := lost.rev
	lost.claim(t, s)
	kept.claim(t, s)
	if err := s.rem.reserve(ctx, "test"); err != nil {
		t.Fatal(err)
	}
	streamName := s.subjects[0].stream
	s.rem.put(superseded{revision: revision{streamName, other.rev}, subject: s.subjects[0].timer + "gone", by: other.rev + 1})
	stream, err := s.JetStream().Stream(ctx, streamName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(ctx, lost.rev); err != nil {
		t.Fatal(err)
	}
	srv.Restart()
	waittest.Until(t, "the store reconnects", func() bool { return s.jet.Reconnects() > 0 && !s.jet.Down() })
	free()
	s.rem.drain()
	oneRevisionEach(t, stream, 3)
	if m, err := s.jet.At(ctx, streamName, pending); err != nil {
		t.Errorf("the pending revision whose claim is lost: %v", err)
	} else if subject, _ := s.timerSubject(lost.id); m.Subject != subject {
		t.Errorf("sequence %d is of %s", pending, m.Subject)
	}
}

// oneRevisionEach checks that the first shard has n timers, and one revision of each.
func oneRevisionEach(t *testing.T, shard jetstream.Stream, n int) {
	t.Helper()
	info, err := shard.Info(t.Context(), jetstream.WithSubjectFilter("$KV.timers_0.timer.>"))
	if err != nil {
		t.Fatal(err)
	}
	if len(info.State.Subjects) != n {
		t.Errorf("%d timers are stored, not %d", len(info.State.Subjects), n)
	}
	for subject, revisions := range info.State.Subjects {
		if revisions != 1 {
			t.Errorf("%s has %d revisions", subject, revisions)
		}
	}
}

// oldWrite returns the write that creates a timer which was added an hour ago.
func oldWrite(id string, now int64) Write {
	return Write{ID: schemas.NewTimerID("/old", id), Record: &schemas.Record{
		Definition: schemas.Definition{AddedMs: now - time.Hour.Milliseconds(), Service: "old", Source: "/old", EventID: id, Type: "t"},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now},
	}}
}

// oldTimer is a timer that was added an hour ago, so that its claim is not cheap to roll up.
type oldTimer struct {
	id  schemas.TimerID
	rev uint64
	rec schemas.Record
}

func newOldTimer(t *testing.T, s *Store, id string, now int64) oldTimer {
	t.Helper()
	w := oldWrite(id, now)
	res := s.Create(t.Context(), []Write{w})[0]
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return oldTimer{id: w.ID, rev: res.Rev, rec: *w.Record}
}

func (o *oldTimer) claim(t *testing.T, s *Store) {
	t.Helper()
	o.rec.State, o.rec.Queued = schemas.StateDelivered, false
	rev, err := s.Update(t.Context(), Write{ID: o.id, Rev: o.rev, Record: &o.rec})
	if err != nil {
		t.Fatal(err)
	}
	o.rev = rev
}

func (o *oldTimer) conclude(s *Store, ttl time.Duration, results chan<- Result) {
	done := o.rec
	done.State = schemas.StateSuccess
	s.UpdateAsync(Write{ID: o.id, Rev: o.rev, Record: &done, TTL: ttl}, func(res Result) { results <- res })
}

// rolledUp reports whether the last write of the timer rolled up.
func (o *oldTimer) rolledUp(t *testing.T, s *Store, stream jetstream.Stream) bool {
	t.Helper()
	subject, _ := s.timerSubject(o.id)
	m, err := stream.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	return m.Header.Get(jetstream.MsgRollup) != ""
}
