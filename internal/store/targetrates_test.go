package store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestTargetRates: the rate that a target allows lowers the limit of its flow key on every node once
// it is stored, a higher one of another target does not raise it, and its end restores the limit.
func TestTargetRates(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	a, b := limits(t, server.Connect(), "a"), open(t, server.Connect(), func(c *store.Config) { c.Node = "b" })
	ctx := t.Context()
	put := func(s *store.Store, url string, n int, until int64) {
		t.Helper()
		if err := s.PutTargetRate(ctx, store.TargetRate{Key: "k", PerMinute: n, URL: url, AtMs: 5, UntilMs: until}); err != nil {
			t.Fatal(err)
		}
	}
	find := func(s *store.Store) store.FlowLimit {
		t.Helper()
		var set *store.FlowSet
		waittest.Until(t, "the copy is fresh", func() (fresh bool) { set, fresh = s.FlowsNow(); return fresh })
		l, ok := set.Find("k")
		if ok == set.Empty() {
			t.Fatalf("a limit exists: %v, and the copy is empty: %v", ok, set.Empty())
		}
		return l
	}
	per := func(n int) flow.Limit { return flow.Limit{}.AtMost(n) }
	put(a, "https://x/1", 120, 1000)
	first := find(b)
	if first.Limit != per(120) || first.Pattern != "k" || first.Rev == 0 || first.Target == nil || first.Target.URL != "https://x/1" {
		t.Fatalf("without a limit: got %+v", first)
	}
	put(b, "https://x/1", 120, 2000)
	if got := find(b); got.Rev != first.Rev || got.Target.UntilMs != 2000 {
		t.Fatalf("a later end: got %+v, want generation %d", got, first.Rev)
	}
	put(b, "https://x/2", 300, 3000)
	if got := find(b); got.Limit != per(120) {
		t.Fatalf("a higher rate of another target: got %+v", got.Limit)
	}
	put(b, "https://x/1", 100, 1500)
	lower := find(a)
	if lower.Limit != per(100) || lower.Rev <= first.Rev {
		t.Fatalf("a lower rate: got %+v", lower)
	}
	put(a, "https://x/1", 300, 2000)
	if got := find(b); got.Limit != per(300) || got.Rev <= lower.Rev {
		t.Fatalf("a higher rate of the same target: got %+v", got)
	}

	rev, err := a.PutLimit(ctx, store.FlowLimit{Pattern: "*", Limit: flow.Limit{Rate: flow.Rate{Count: 100, Per: time.Minute}, Burst: 1, Parallel: 3}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := find(b); got.Limit.Rate.Count != 100 || got.Rev != rev || got.Target != nil {
		t.Fatalf("a lower limit: got %+v, want the limit with revision %d", got, rev)
	}
	put(a, "https://x/1", 50, 2000)
	if got := find(b); got.Limit != (flow.Limit{Rate: flow.Rate{Count: 50, Per: time.Minute}, Burst: 1, Parallel: 3}) || got.Rev <= rev || got.Pattern != "*" {
		t.Fatalf("a higher limit: got %+v", got)
	}

	set, err := b.RefreshFlows(ctx)
	if err != nil {
		t.Fatal(err)
	}
	nodes := []store.Member{
		{Node: "new", Presence: store.Presence{Reads: store.NewestLevel}}, {Node: "old", Presence: store.Presence{Reads: store.LevelAdds}},
		{Node: "router", Presence: store.Presence{Reads: store.LevelAdds, Roles: []string{"router"}}},
	}
	if got := set.TargetsIgnoredBy(nodes); len(got) != 1 || got[0] != "old" {
		t.Errorf("the rate is ignored by %v, want the old node that makes callbacks", got)
	}
	end := set.Targets()
	if len(end) != 1 {
		t.Fatalf("got %+v, want one rate", end)
	}
	stale := end[0]
	stale.Rev--
	if err := b.EndTargetRate(ctx, stale); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("the end of a rate that was changed: got %v, want ErrRevision", err)
	}
	if err := b.EndTargetRate(ctx, end[0]); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the limit applies again", func() bool { l := find(a); return l.Rev == rev && l.Limit.Rate.Count == 100 })
	if set, _ := a.FlowsNow(); len(set.TargetsIgnoredBy(nodes)) != 0 {
		t.Error("a node ignores rates although there is none")
	}
	put(b, "https://x/1", 50, 2000)
	if got := find(a); got.Limit.Rate.Count != 50 {
		t.Fatalf("a rate after the end: got %+v", got)
	}
}

// TestTargetRatesTogether: of the rates that several nodes store at the same time for one flow key
// the lowest is in force.
func TestTargetRatesTogether(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	a, b := limits(t, server.Connect(), "a"), open(t, server.Connect(), func(c *store.Config) { c.Node = "b" })
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			s := a
			if i%2 == 1 {
				s = b
			}
			if err := s.PutTargetRate(t.Context(), store.TargetRate{Key: "k", PerMinute: 100 + i, URL: string(rune('a' + i)), UntilMs: 1000}); err != nil {
				t.Error(err)
			}
			set, _ := s.FlowsNow()
			if l, ok := set.Find("k"); !ok || l.Limit.Rate.Count > 100+i {
				t.Errorf("after a rate of %d: got %+v", 100+i, l.Limit)
			}
		})
	}
	all.Wait()
	set, err := b.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := set.Target("k"); !ok || r.PerMinute != 100 {
		t.Errorf("got %+v, want the lowest rate", r)
	}
}
