package store_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
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
	c := store.PendingCount{Shard: 2, Selection: "s", Count: quota.Count{Epoch: 3, Seq: 17, Services: map[string]quota.Amount{"orders": {Timers: 5}, "acme=mail": {Timers: 3, Schedules: 1, Bytes: 900}}, Rest: map[string]quota.Amount{}}}
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
	// Of more services than a key has room for, the sums of the tenants stay complete.
	many := store.PendingCount{Shard: 3, Selection: "s", Count: quota.Count{Services: map[string]quota.Amount{"orders": {Timers: 1}}}}
	for i := range 5000 {
		many.Services[fmt.Sprintf("acme=s%d", i)] = quota.Amount{Timers: 2, Schedules: 1, Bytes: 10}
	}
	for i := range 20 { // of fewer timers than those, but of another tenant
		many.Services[fmt.Sprintf("small=s%d", i)] = quota.Amount{Timers: 1}
	}
	if _, err := put(many); err != nil {
		t.Fatal(err)
	}
	got, err = s.PendingCount(t.Context(), 3)
	l := quota.NewLedger(4)
	l.Update(3, got.Count)
	if used, _ := l.Used("acme="); err != nil || len(got.Services) != 4096 || used != (quota.Amount{Timers: 10_000, Schedules: 5000, Bytes: 50_000}) {
		t.Errorf("%d services, %+v, %v", len(got.Services), used, err)
	}
	if used, services := l.Used("small="); used.Timers != 20 || services != 20 {
		t.Errorf("a small tenant: %+v and %d services, want all 20", used, services)
	}
	if err := bucket(t, s, schemas.BucketFlows).Purge(t.Context(), "pending.3"); err != nil {
		t.Fatal(err)
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
	waittest.Until(t, "the node to read the presences", func() bool { return s.CanLimitAdds() == nil && s.CanLimitPending() != nil })
	rate := flow.Limit{Rate: flow.Rate{Count: 100, Per: 1e9}, Burst: 10}
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:orders", Limit: rate}, 0); err != nil {
		t.Errorf("a limit of adds: %v", err)
	}
	rate.Pending = 5
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:mail", Limit: rate}, 0); !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("a limit of pending timers: %v", err)
	}
}

// TestQuotaLevels: no limit of schedules, services or bytes is stored while a node is alive that does not know
// them; limits of pending timers are. Such a node is named once such a limit exists.
func TestQuotaLevels(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	clocks := bucket(t, s, schemas.BucketClock)
	quotas := map[string]flow.Limit{"schedules": {Schedules: 5}, "services": {Services: 5}, "bytes": {Bytes: 5}}
	waittest.Until(t, "limits of schedules can be stored", func() bool { return s.CanLimitQuotas() == nil })
	for name, l := range quotas {
		if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:" + name + "=", Limit: l}, 0); err != nil {
			t.Errorf("a limit of %s: %v", name, err)
		}
	}
	if _, err := clocks.Put(t.Context(), "node.older", []byte(`{"v":1,"scheduler":"active","reads":11}`)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the node to read the presences", func() bool { return s.CanLimitPending() == nil && s.CanLimitQuotas() != nil })
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:mail", Limit: flow.Limit{Pending: 5}}, 0); err != nil {
		t.Errorf("a limit of pending timers: %v", err)
	}
	for name, l := range quotas {
		if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "adds:of" + name + "=", Limit: l}, 0); !errors.Is(err, schemas.ErrUnavailable) {
			t.Errorf("a limit of %s: %v", name, err)
		}
	}
	set, err := s.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	older := []store.Member{{Node: "older", Presence: store.Presence{Scheduler: "active", Reads: 11}}}
	if names := set.AddsIgnoredBy(older); !slices.Equal(names, []string{"older"}) {
		t.Errorf("%v ignore the limits, want the older node", names)
	}
}
