package store_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestPendingCounts: the numbers of a shard are replaced by compare-and-set, and a damaged one counts as none.
func TestPendingCounts(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	if all, err := s.PendingCounts(t.Context()); err != nil || len(all) > 0 {
		t.Fatalf("%v, %v, want none", all, err)
	}
	put := func(c store.PendingCount) (uint64, error) { return s.PutPendingCount(t.Context(), c) }
	c := store.PendingCount{Shard: 2, Selection: "s", Count: quota.Count{Epoch: 3, Seq: 17, Services: map[string]int64{"orders": 5, "acme=mail": 1}}}
	rev, err := put(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(c); !errors.Is(err, store.ErrRevision) {
		t.Errorf("written over another value: %v", err)
	}
	got, err := s.PendingCount(t.Context(), 2)
	if err != nil || got.Rev != rev || got.Epoch != 3 || got.Seq != 17 || got.Selection != "s" || !maps.Equal(got.Services, c.Services) {
		t.Errorf("%+v, %v", got, err)
	}
	if all, err := s.PendingCounts(t.Context()); err != nil || len(all) != 1 || all[0].Shard != 2 || all[0].Seq != 17 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := bucket(t, s, schemas.BucketFlows).Put(t.Context(), "pending.2", []byte(`{"v":1,"seq":9}`)); err != nil {
		t.Fatal(err)
	}
	if all, err := s.PendingCounts(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("damaged: %+v, %v", all, err)
	}
	if got, err = s.PendingCount(t.Context(), 2); err != nil || got.Epoch != 0 || got.Rev == 0 {
		t.Errorf("damaged: %+v, %v", got, err)
	}
}

// TestPendingLimitLevels: no limit of pending timers is stored while a node is alive that does not know them;
// limits of adds a second are.
func TestPendingLimitLevels(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	if _, err := bucket(t, s, schemas.BucketClock).Put(t.Context(), "node.older", []byte(`{"v":1,"scheduler":"active","reads":9}`)); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the node to read the presences", func() bool { return s.CanLimitAdds() == nil && s.CanLimitPending() != nil })
	rate := flow.Limit{Rate: flow.Rate{Count: 100, Per: 1e9}, Burst: 10}
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:orders", Limit: rate}, 0); err != nil {
		t.Errorf("a limit of adds: %v", err)
	}
	rate.Pending = 5
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:mail", Limit: rate}, 0); !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("a limit of pending timers: %v", err)
	}
}
