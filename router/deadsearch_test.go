package router_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// searched is a store that keeps the searches for dead letters.
type searched struct {
	*store.Store
	mu      sync.Mutex
	queries []store.DeadQuery
}

func (s *searched) DeadList(ctx context.Context, q store.DeadQuery) (store.DeadPage, error) {
	s.mu.Lock()
	s.queries = append(s.queries, q)
	s.mu.Unlock()
	return s.Store.DeadList(ctx, q)
}

// take returns the searches since the last call.
func (s *searched) take() []store.DeadQuery {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queries
	s.queries = nil
	return q
}

// TestReplayReadsFewLetters: a replay by timer reads the dead letters of the time at which the timer failed, and
// all of them only if its letter has another time.
func TestReplayReadsFewLetters(t *testing.T) {
	t.Parallel()
	s := &searched{}
	f := newFixture(t, store.Config{})
	s.Store = f.store
	f.r = f.startWith(router.Options{Store: s, Time: f.clock, Log: zerolog.Nop()})
	near, far, gone := f.dead("near", 3, true), f.dead("far", 3, true), f.dead("gone", 3, false)
	tm, err := f.store.Get(t.Context(), far)
	if err != nil {
		t.Fatal(err)
	}
	tm.Record.DoneMs -= time.Hour.Milliseconds()
	if _, err := f.store.Update(t.Context(), final(store.Write{ID: far, Rev: tm.Rev, Record: &tm.Record})); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id       schemas.TimerID
		searches []bool // of the time alone?
	}{{near, []bool{true}}, {far, []bool{true, false}}, {gone, []bool{false}}} {
		s.take()
		var reply schemas.ReplayReply
		if code := f.request("dead.replay", []byte(`{"timer":"`+c.id.String()+`"}`), &reply); code != "" || reply.Replayed != 1 {
			t.Fatalf("%s: %q %+v", c.id, code, reply)
		}
		queries := s.take()
		if len(queries) != len(c.searches) {
			t.Fatalf("%s: searches %+v, want %v", c.id, queries, c.searches)
		}
		for i, q := range queries {
			if timed := !q.Since.IsZero() && !q.Until.IsZero(); timed != c.searches[i] {
				t.Errorf("%s: search %d is %+v", c.id, i, q)
			}
		}
	}
}
