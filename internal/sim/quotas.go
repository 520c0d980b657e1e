package sim

import (
	"maps"
	"math/rand/v2"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file limits the pending timers of services, if Config.Quotas is set: the owners count them
// and publish the numbers (scheduler's limited.go). The routers of the simulation do not read the
// numbers; package quota has a simulation of that.

const (
	// quotaChanges bounds the time between two changes of the limits.
	quotaChanges = 15 * time.Second
	// quotaLearned bounds the time until a node knows a change.
	quotaLearned = time.Second
	// quotaBegins is the time after the last fault, take-over or change of the limits by which an owner has
	// counted its shard: it begins after a pause, and repeats failed calls after one. quotaLag is the time
	// by which it has published a later change of a timer.
	quotaBegins, quotaLag = 20 * time.Second, 3 * time.Second
)

// quotas are the limits of a world.
type quotas struct {
	// now is the newest copy of the limits.
	now *store.FlowSet
	// changed has the true time of the last change of the pending timers of each shard, begun that of its
	// owner or the limits.
	changed, begun []int64
}

// quotaSet returns limits of the pending timers of services that match the patterns.
func quotaSet(patterns ...string) *store.FlowSet {
	set := &store.FlowSet{}
	for _, p := range patterns {
		set = set.With(store.FlowLimit{Pattern: schemas.AddsFlowPrefix + p, Limit: flow.Limit{Pending: 1}})
	}
	return set
}

// newQuotas begins with one limit. Its changes draw from a sequence of their own.
func newQuotas(w *world) *quotas {
	q := &quotas{now: quotaSet(services[0]), changed: make([]int64, w.p.geo.Shards), begun: make([]int64, w.p.geo.Shards)}
	sets := []*store.FlowSet{quotaSet(), quotaSet(services[0]), quotaSet(services[0], services[1]), quotaSet("*")}
	draw := dice{rand.New(rand.NewPCG(w.cfg.Seed, 0x71756f746173))}
	for at := time.Duration(0); at < w.p.active; at += time.Second + time.Duration(draw.Int64N(int64(quotaChanges))) {
		w.after(at, func() { w.limit(sets[draw.IntN(len(sets))]) })
	}
	w.after(w.p.active, func() { w.limit(sets[1+draw.IntN(len(sets)-1)]) })
	return q
}

// limit replaces the limits. Each node learns it soon.
func (w *world) limit(set *store.FlowSet) {
	w.quotas.now = set
	for shard := range w.quotas.begun {
		w.quotas.begun[shard] = w.now + int64(quotaLearned)
	}
	for _, n := range w.nodes {
		w.after(w.between(0, quotaLearned), func() { n.quotas = w.quotas.now })
	}
}

// termLimits is a node's client and copy of the limits, as a term sees them.
type termLimits struct {
	*fake.Client
	n *node
}

// FlowsNow implements scheduler.LimitStore.
func (l termLimits) FlowsNow() (*store.FlowSet, bool) { return l.n.quotas, true }

// used notes a change of the pending timers of a shard.
func (c *checker) used(shard int, was, now store.Timer) {
	waited, waits := was.Record.State.Waits(), now.Record.State.Waits()
	if q := c.w.quotas; q != nil && (waited != waits || waits && was.Use() != now.Use()) {
		q.changed[shard] = c.w.now
	}
}

// taken notes a take-over of a shard.
func (c *checker) taken(shard int) {
	if q := c.w.quotas; q != nil {
		q.begun[shard] = max(q.begun[shard], c.w.now)
	}
}

// quotas checks, at the end, the numbers that the owner of a shard has published for the limits.
func (c *checker) quotas(shard int) {
	w := c.w
	clock := w.server.LastClock(shard)
	q := w.quotas
	if clock.Owner == "" || w.now < max(q.begun[shard], w.healed)+int64(quotaBegins) || w.now < q.changed[shard]+int64(quotaLag) {
		return
	}
	want := map[string]quota.Amount{}
	for _, l := range w.counted(shard) {
		t, err := w.server.Record(l.id)
		if err != nil {
			continue
		}
		if t.Rev > clock.Seen {
			return // the tail has not read everything yet
		}
		if use := t.Use(); t.Record.State.Waits() && w.quotas.now.LimitsPending(use.Service) {
			want[use.Service] = want[use.Service].Plus(quota.OneTimer(use.Schedule, use.Bytes))
		}
	}
	got := w.server.PendingCount(shard)
	w.stats.CountedQuotas++
	if selection := w.quotas.now.PendingSelection(); got.Selection != selection {
		c.fail(PropQuota, "shard %d: its owner publishes for the limits %q, and %q are in force", shard, got.Selection, selection)
	}
	if !maps.Equal(got.Services, want) {
		c.fail(PropQuota, "shard %d: its owner publishes %v, and there are %v", shard, got.Services, want)
	}
}
