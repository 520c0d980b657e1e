package scheduler

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// openStore has the events and the newest revisions of open records.
type openStore struct {
	SweepStore
	backlog     store.FiredBacklog
	fired, late map[string]struct{} // message ids in the backlog, and in TIMERS_RETRY
	newest      map[schemas.TimerID]store.Timer
	indexed     []schemas.TimerID
	woken       []store.Feed
}

func (s *openStore) WakeService(_ context.Context, f store.Feed) error {
	s.woken = append(s.woken, f)
	return nil
}

func (s *openStore) PutIndex(_ context.Context, id schemas.TimerID, _ int64) error {
	s.indexed = append(s.indexed, id)
	return nil
}

func (s *openStore) FiredBacklog(context.Context, string) (store.FiredBacklog, error) {
	return s.backlog, nil
}

func (s *openStore) FindInBacklog(context.Context, string, store.FiredBacklog, time.Time, map[string]struct{}) (map[string]struct{}, error) {
	return s.fired, nil
}

func (s *openStore) FiredSince(context.Context, []string, time.Time, map[string]struct{}) (map[string]struct{}, error) {
	return s.late, nil
}

func (s *openStore) Get(_ context.Context, id schemas.TimerID) (store.Timer, error) {
	if t, ok := s.newest[id]; ok {
		return t, nil
	}
	return store.Timer{}, schemas.ErrNotFound
}

// TestSweepOpen: which open records the sweeper fires again. All of them are audited again later.
func TestSweepOpen(t *testing.T) {
	t.Parallel()
	const watermarkMs, delay = 1_800_000_000_000, time.Minute
	oldestMs := watermarkMs - 5*delay.Milliseconds()
	oldestRetryMs := oldestMs - delay.Milliseconds()
	type where int
	const (
		nowhere where = iota
		inBacklog
		inRetry
	)
	cases := []struct {
		name      string
		claimedMs int64
		attempts  uint32
		event     where
		newest    uint64 // the record's newest revision, 0 if it is gone; the sweeper has read revision 1
		again     bool
	}{
		{"its event is gone or acknowledged", oldestMs - 1, 0, nowhere, 1, true},
		{"its event waits", oldestMs - 1, 0, inBacklog, 1, false},
		{"its event is younger than another that waits", oldestMs + 1, 0, nowhere, 1, false},
		{"it was claimed less than the delay ago", watermarkMs - delay.Milliseconds() + 1, 0, nowhere, 1, false},
		{"its result was written after it was read", oldestMs - 1, 0, nowhere, 2, false},
		{"it was removed after it was read", oldestMs - 1, 0, nowhere, 0, false},
		{"its retry waits", oldestRetryMs, 1, inRetry, 1, false},
		{"its event waits for its second attempt", oldestRetryMs, 1, inBacklog, 1, false},
		{"its retry is acknowledged", oldestRetryMs, 1, nowhere, 1, true},
		{"its retry is younger than another that waits", oldestRetryMs + 1, 1, nowhere, 1, false},
	}
	for _, none := range []bool{false, true} { // no event of the service waits
		st := &openStore{
			backlog: store.FiredBacklog{Floor: 7, Oldest: time.UnixMilli(oldestMs), OldestRetry: time.UnixMilli(oldestRetryMs)},
			fired:   map[string]struct{}{}, late: map[string]struct{}{}, newest: map[schemas.TimerID]store.Timer{},
		}
		if none {
			st.backlog.Oldest = time.Time{}
		}
		var found []schemas.TimerID
		s := Sweeper{Store: st, Geometry: coreConfig.Geometry, Delay: delay, Found: func(ev EvSwept) {
			if !ev.Redispatch {
				t.Errorf("%s is missed", ev.Timer.ID)
			}
			found = append(found, ev.Timer.ID)
		}}
		var open []store.Timer
		for i, c := range cases {
			tm := store.Timer{ID: schemas.TimerID{byte(i + 1)}, Rev: 1}
			tm.Record.Service, tm.Record.State, tm.Record.Run = "svc", schemas.StateDelivered, 1
			tm.Record.FiredMs, tm.Record.Attempt = c.claimedMs, c.attempts
			switch c.event {
			case inBacklog:
				st.fired[tm.Record.RunID(tm.ID).String()] = struct{}{}
			case inRetry:
				st.late[tm.Record.RunID(tm.ID).RetryMsgIDAfter(c.attempts+1, 0)] = struct{}{}
			}
			if newest := tm; c.newest > 0 {
				newest.Rev = c.newest
				st.newest[tm.ID] = newest
			}
			open = append(open, tm)
		}
		if err := s.auditOpen(t.Context(), open, watermarkMs); err != nil {
			t.Fatal(err)
		}
		for i, c := range cases {
			younger := c.claimedMs > oldestMs && watermarkMs-c.claimedMs >= delay.Milliseconds()
			if got, want := slices.Contains(found, open[i].ID), c.again || none && younger; got != want {
				t.Errorf("%s (no event waits: %v): fired again %v, want %v", c.name, none, got, want)
			}
		}
		if len(st.indexed) != len(cases) || len(st.woken) != 1 {
			t.Errorf("%d records are audited again, of %d; %d feeds are woken, want 1", len(st.indexed), len(cases), len(st.woken))
		}
	}
}
