package router_test

import (
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// forgotten is an Adds that has forgotten all adds.
type forgotten struct{ router.Adds }

func (forgotten) AddForgotten(int64) bool { return true }

// TestCancelStaleAtRevision: the fast path cancels a timer only at the revision that the caller
// demands, and leaves every other timer to the slow path, which answers conflict.
func TestCancelStaleAtRevision(t *testing.T) {
	t.Parallel()
	for demanded, want := range map[uint64]bool{0: true, 7: true, 6: false, 8: false} {
		ops := router.Operations{Adds: forgotten{}, NowMs: func() int64 { return 1 }, Revision: demanded}
		timer := store.Timer{ID: schemas.NewTimerID("/s", "1"), Rev: 7}
		timer.Record.State, timer.Record.Service, timer.Record.DueMs = schemas.StatePending, "x", 10
		if _, ok := ops.CancelStale(&timer, schemas.Caller{}); ok != want {
			t.Errorf("revision %d demanded of a timer at 7: fast path %v, want %v", demanded, ok, want)
		}
	}
}
