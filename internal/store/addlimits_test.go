package store_test

import (
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
)

// TestAddLimits: which limits apply to the adds of a service and of a tenant, and that they and those of
// callbacks do not meet.
func TestAddLimits(t *testing.T) {
	t.Parallel()
	set := &store.FlowSet{}
	for _, pattern := range []string{"*", "adds:*", "adds:orders", "adds:acme=", "adds:globex=o*", "adds:*="} {
		set = set.With(store.FlowLimit{Pattern: pattern, Limit: flow.Limit{Rate: flow.Rate{Count: 100, Per: 1e9}, Burst: 10}})
	}
	for service, want := range map[string][]string{
		"orders":        {"adds:orders adds:orders"},
		"mail":          {"adds:mail adds:*"},
		"acme=orders":   {"adds:acme=orders adds:*", "adds:acme= adds:acme="},
		"globex=orders": {"adds:globex=orders adds:globex=o*", "adds:globex= adds:*="},
	} {
		for range 2 { // the second time from memory
			var got []string
			for _, l := range set.AddLimits(service) {
				got = append(got, l.Key+" "+l.Pattern)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the limits of %s are %q, want %q", service, got, want)
			}
		}
	}
	if l, ok := set.Find("adds:orders"); !ok || l.Pattern != "*" {
		t.Errorf("callbacks with the flow key adds:orders have the limit of %q, want that of *", l.Pattern)
	}
	if set.Empty() || (&store.FlowSet{}).With(store.FlowLimit{Pattern: "adds:*"}).LimitsAdds() == false {
		t.Error("the limits are not found")
	}
	if !(&store.FlowSet{}).With(store.FlowLimit{Pattern: "adds:*"}).Empty() {
		t.Error("a limit of adds is one of callbacks")
	}
	old := []store.Member{{Node: "old", Presence: store.Presence{Reads: store.LevelOrder}}, {Node: "calls", Presence: store.Presence{Reads: store.LevelOrder, Roles: []string{"functions"}}}, {Node: "new", Presence: store.Presence{Reads: store.NewestLevel}}}
	if got := set.AddsIgnoredBy(old); !slices.Equal(got, []string{"old"}) {
		t.Errorf("the limits of adds are ignored by %q", got)
	}
	set = set.With(store.FlowLimit{Pattern: "adds:bills", Limit: flow.Limit{Pending: 5}})
	old = append(old, store.Member{Node: "counts", Presence: store.Presence{Reads: store.LevelAdds, Roles: []string{"scheduler"}}})
	if got := set.AddsIgnoredBy(old); !slices.Equal(got, []string{"counts", "old"}) {
		t.Errorf("a limit of pending timers is ignored by %q", got)
	}
}

// TestPendingSelection: the selection tells which services' pending timers are limited, not how many may be
// pending; a limit without a number stands before a pattern that has one.
func TestPendingSelection(t *testing.T) {
	t.Parallel()
	limit := func(s *store.FlowSet, pattern string, pending int) *store.FlowSet {
		return s.With(store.FlowLimit{Pattern: pattern, Limit: flow.Limit{Rate: flow.Rate{Count: 100, Per: 1e9}, Burst: 10, Pending: pending}})
	}
	rates := limit(&store.FlowSet{}, "adds:orders", 0)
	if s := rates.PendingSelection(); s != "" || rates.LimitsPending("orders") {
		t.Errorf("limits of rates alone have the selection %q", s)
	}
	set := limit(limit(rates, "adds:*", 10), "adds:acme=", 10)
	for service, want := range map[string]bool{"orders": false, "mail": true, "acme=orders": true, "globex=orders": true} {
		if got := set.LimitsPending(service); got != want {
			t.Errorf("the pending timers of %s are limited: %t, want %t", service, got, want)
		}
	}
	if set.PendingSelection() != limit(set, "adds:*", 500).PendingSelection() {
		t.Error("another number is another selection")
	}
	if set.PendingSelection() == limit(set, "adds:orders", 3).PendingSelection() {
		t.Error("a further service is the same selection")
	}
}

// TestTurnsIgnored: nodes that make callbacks and may not know turns are named if a limit has Parallel.
func TestTurnsIgnored(t *testing.T) {
	t.Parallel()
	nodes := []store.Member{
		{Node: "old", Presence: store.Presence{Reads: store.LevelOrder}},
		{Node: "router", Presence: store.Presence{Reads: store.LevelOrder, Roles: []string{"router"}}},
		{Node: "next", Presence: store.Presence{Reads: store.LevelAdds}},
	}
	rate := flow.Limit{Rate: flow.Rate{Count: 100, Per: 1e9}}
	set := (&store.FlowSet{}).With(store.FlowLimit{Pattern: "api.example.com", Limit: rate})
	if got := set.TurnsIgnoredBy(nodes); len(got) > 0 {
		t.Errorf("a rate alone: turns are ignored by %q", got)
	}
	set = set.With(store.FlowLimit{Pattern: "customer:*", Limit: flow.Limit{Parallel: 2}})
	if got := set.TurnsIgnoredBy(nodes); !slices.Equal(got, []string{"old"}) {
		t.Errorf("turns are ignored by %q, want the old node that makes callbacks", got)
	}
}
