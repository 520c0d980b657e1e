package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestOrderOfEnded: an event is cancelled between the write that makes it wait and the question
// that confirms it. The question is answered, and the others of the key are not affected.
func TestOrderOfEnded(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		orderOfEnded(t, open(t, natstest.Run(t).Connect()))
	})
	t.Run("replicas", func(t *testing.T) { // the record is read a second time
		t.Parallel()
		orderOfEnded(t, open(t, natstest.Cluster3(t).Connect(), func(c *store.Config) { c.Replicas = 3 }))
	})
}

func orderOfEnded(t *testing.T, s *store.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	k := store.OrderKey{Service: "s", Key: "k"}
	ask := func(kind order.Kind, id string) order.Answer {
		t.Helper()
		e := order.Event{DueMs: 1, AddedMs: 1, ID: schemas.NewTimerID("/test", id)}
		got, err := s.DecideOrder(ctx, k, "n", func() int64 { return time.Now().UnixMilli() }, []order.Ask{{Kind: kind, Event: e}})
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	ask(order.Join, "head")
	ask(order.Confirm, "ended") // it has no record
	if st, _, err := s.OrderState(ctx, k); err != nil || st.Head.ID != schemas.NewTimerID("/test", "head") || !ask(order.Keep, "head").Go {
		t.Errorf("got %+v, %v; want the head with its lease", st, err)
	}
}
