package devclock

import (
	"context"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// firedStore is a store whose last fired event has a sequence.
type firedStore struct {
	Store
	last uint64
}

func (s *firedStore) End(context.Context, string) (last, messages uint64, err error) {
	return s.last, s.last, nil
}

type zeroSource struct{ Source }

func (zeroSource) EarliestNs() int64 { return 0 }

// TestFiredBetweenRequests: a move that takes several requests counts the events that fire between two of
// them, and the next move does not.
func TestFiredBetweenRequests(t *testing.T) {
	t.Parallel()
	s := &firedStore{last: 10}
	c := New()
	c.Follow(zeroSource{})
	c.Restore(store.MovedClock{Frozen: true})
	m := &Mover{clock: c, store: s, timers: newTimers(0), permit: make(chan struct{}, 1)}
	request := func(fire uint64, more bool, want int) {
		t.Helper()
		r, err := m.exclusive(t.Context(), func(context.Context) (schemas.ClockReply, error) {
			s.last += fire
			return schemas.ClockReply{More: more}, nil
		})
		if err != nil || r.Fired != want {
			t.Errorf("got %d events and %v, want %d", r.Fired, err, want)
		}
	}
	request(2, true, 2)
	s.last += 3
	request(1, false, 4)
	s.last += 5
	request(1, false, 1)
}
