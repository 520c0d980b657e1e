package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestTouch: a cancel of a timer that was added long before is followed by a touch, and touches do not
// pile up.
func TestTouch(t *testing.T) {
	t.Parallel()
	s := openOneShard(t, natstest.Run(t).InProcess(), Config{})
	now, err := s.nowMs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.JetStream().Stream(t.Context(), s.subjects[0].stream)
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for i := range history + 4 {
		o := newOldTimer(t, s, fmt.Sprint(i), now)
		o.rec.State, o.rec.DoneMs = schemas.StateCancelled, now
		rev, err := s.Update(t.Context(), Write{ID: o.id, Rev: o.rev, Record: &o.rec, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "a touch after the cancel", func() bool {
			m, err := stream.GetLastMsgForSubject(t.Context(), s.subjects[0].touch)
			if err != nil || m.Sequence < max(rev, last+1) {
				return false
			}
			last = m.Sequence
			return len(m.Data) == 0
		})
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(s.subjects[0].touch))
	if err != nil {
		t.Fatal(err)
	}
	if n := info.State.Subjects[s.subjects[0].touch]; n != history {
		t.Errorf("%d touches are stored, want %d", n, history)
	}
	oneRevisionEach(t, stream, history+4)
}

// TestMayTouch: writes of young timers, results, runs of schedules, and writes that are committed in batches are not
// followed by touches.
func TestMayTouch(t *testing.T) {
	t.Parallel()
	for _, grouped := range []bool{false, true} {
		options := []natstest.Option{}
		if grouped {
			options = append(options, natstest.SyncAlways)
		}
		s := openOneShard(t, natstest.Run(t, options...).InProcess(), Config{GroupCommit: grouped})
		now, err := s.nowMs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			age      time.Duration
			state    schemas.State
			schedule bool
			want     bool
		}{
			{0, schemas.StateCancelled, false, false},
			{touchAge - 2*time.Second, schemas.StateCancelled, false, false},
			{touchAge + time.Second, schemas.StateCancelled, false, true},
			{time.Hour, schemas.StatePaused, false, true},
			{time.Hour, schemas.StatePending, false, true},
			{time.Hour, schemas.StatePending, true, false},
			{time.Hour, schemas.StateSuccess, false, false},
		} {
			w := oldWrite("x", now)
			w.Record.AddedMs, w.Record.State = now-c.age.Milliseconds(), c.state
			if c.schedule {
				w.Record.Schedule = &schemas.Schedule{}
			}
			if got, want := s.mayTouch(&w), c.want && !grouped; got != want {
				t.Errorf("grouped %t, %+v: got %t, want %t", grouped, c, got, want)
			}
		}
	}
}
