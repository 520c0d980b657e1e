package router

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file applies the limits of pending timers (flow.Limit.Pending). The owners of the shards count and
// publish, see package quota; a router adds the adds that it has admitted since. So
// an admission costs no request, and the adds of other routers are missing for as long as
// a number is on its way: countLimitedEvery of the scheduler and ledgerPoll.

const (
	// ledgerPoll is the interval at which a router reads the numbers while there are such limits.
	ledgerPoll = 500 * time.Millisecond
	// pendingWait is the time after which an add over a limit of pending timers may come back: nobody knows
	// when a timer is cancelled. An add of the stream waits once for that long; then it is rejected.
	pendingWait = 5 * time.Second
)

// follow renews the numbers of pending timers until ctx ends.
func (l *limiter) follow(ctx context.Context) {
	follows := false
	for pause.For(ctx, ledgerPoll) {
		set, _ := l.e.o.Store.FlowsNow()
		if set == nil || set.PendingSelection() == "" {
			if follows {
				l.ledger.Forget()
			}
			follows = false
			continue
		}
		follows = true
		read, cancel := context.WithTimeout(ctx, OperationTimeout)
		counts, err := l.e.o.Store.PendingCounts(read)
		cancel()
		if err != nil {
			l.complain(schemas.AddsFlowPrefix+"*", err)
			continue
		}
		for _, c := range counts {
			l.ledger.Update(c.Shard, c.Count)
		}
	}
}

// reserve returns the adds of a service that its limits of pending timers permit, with a place in the ledger,
// and the adds that repeat a stored timer, which need none. It settles the others.
func (l *limiter) reserve(svc string, limits []store.AddLimit, batch []*Add) []*Add {
	var most []quota.Max
	for _, limit := range limits {
		if limit.Err == nil && limit.Limit.Pending > 0 {
			most = append(most, quota.Max{Name: limit.Key[len(schemas.AddsFlowPrefix):], N: int64(limit.Limit.Pending)})
		}
	}
	if len(most) == 0 || len(batch) == 0 {
		return batch
	}
	n, full, pending := l.ledger.Reserve(svc, most, len(batch))
	permitted := slices.Clone(batch[:n])
	for _, a := range permitted {
		a.reserved = true
	}
	over := batch[n:]
	if len(over) == 0 {
		return permitted
	}
	found := make([]error, len(over))
	ctx, cancel := context.WithTimeout(l.e.run, OperationTimeout)
	defer cancel()
	each(indexes(len(over)), func(i int) { _, found[i] = l.e.o.Store.Get(ctx, over[i].Spec.Timer) })
	reason := tooMany(full, pending)
	var rejects []refusal
	for i, a := range over {
		switch err := found[i]; {
		case err == nil, errors.Is(err, schemas.ErrDamaged):
			permitted = append(permitted, a) // a repeated add, which makes no timer
		case !errors.Is(err, schemas.ErrNotFound):
			l.sink.Delay(a, err)
		case a.Seq != 0 && !a.Returned && l.holdUntil(pendingWait):
			l.sink.Delay(a, reason)
		default:
			rejects = append(rejects, refusal{a, reason})
		}
	}
	each(rejects, func(f refusal) { l.sink.Reject(f.a, f.reason) })
	returnedFirst(permitted)
	return permitted
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// tooMany is the refusal of an add over a limit of pending timers.
func tooMany(limit quota.Max, pending int64) *schemas.Error {
	err := schemas.Errorf(schemas.CodeLimited, "%s has %d pending timers, and %s%s is limited to %d: try again in %s, when some have fired; cancel some, or ask the operator to raise the limit",
		limit.Name, pending, schemas.AddsFlowPrefix, limit.Name, limit.N, pendingWait)
	err.RetryAfter = pendingWait
	return err
}

// holdUntil reports whether an add of the stream may wait, and counts it.
func (l *limiter) holdUntil(wait time.Duration) bool {
	nowNs := l.e.o.Time.LatestNs()
	if l.room(nowNs) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(l.held, nowNs+int64(wait))
	return true
}

// settle ends the places of adds that are settled: a stored one counts until the owner of its shard
// counts it.
func (l *limiter) settle(svc string, adds []*Add) {
	none := 0
	for _, a := range adds {
		switch {
		case !a.reserved:
		case a.rev != 0:
			l.ledger.Stored(svc, l.e.writer.Geometry.Shard(a.Spec.Timer), a.rev)
		default:
			none++
		}
		a.reserved = false
	}
	l.ledger.Release(svc, none)
}

// pendingKeys adds the numbers of pending timers of the keys of a limit to those in use. uncounted is the
// number of shards whose owners have not counted for the limits of a copy yet.
func (s *Service) pendingKeys(ctx context.Context, set *store.FlowSet, keys []schemas.FlowKeyInfo, ours func(key string) bool) (all []schemas.FlowKeyInfo, uncounted int, err error) {
	counts, err := s.o.Store.PendingCounts(ctx)
	if err != nil {
		return nil, 0, err
	}
	uncounted = s.o.Store.Geometry().Shards
	sums := quota.NewLedger(uncounted)
	names := map[string]struct{}{}
	for _, c := range counts {
		if c.Selection == set.PendingSelection() {
			uncounted--
		}
		sums.Update(c.Shard, c.Count)
		for service := range c.Services {
			names[service] = struct{}{}
			if tenant := schemas.TenantOf(service); tenant != "" {
				names[tenant+schemas.TenantEnd] = struct{}{}
			}
		}
	}
	for i := range keys {
		name := keys[i].Key[len(schemas.AddsFlowPrefix):]
		keys[i].Pending = sums.Pending(name)
		delete(names, name)
	}
	for name := range names {
		if key := schemas.AddsFlowPrefix + name; ours(key) {
			keys = append(keys, schemas.FlowKeyInfo{Key: key, Pending: sums.Pending(name)})
		}
	}
	return keys, uncounted, nil
}
