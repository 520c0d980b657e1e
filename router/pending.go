package router

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file applies the limits of pending timers (flow.Limit.Counts). The owners of the shards count
// and publish, see package quota; a router adds the adds that it has admitted since. So an admission
// costs no request. A router learns of the adds of other routers after at most countLimitedEvery of
// the scheduler plus ledgerPoll.

const (
	// ledgerPoll is the interval at which a router reads the numbers while there are such limits.
	ledgerPoll = 500 * time.Millisecond
	// pendingWait is the Retry-After of an add over a limit of pending timers, a fixed time because
	// cancels cannot be predicted. An add of the stream waits once for that long; then it is rejected.
	pendingWait = 5 * time.Second
)

// follow renews the numbers of pending timers until ctx ends.
func (l *limiter) follow(ctx context.Context) {
	for pause.For(ctx, ledgerPoll) {
		set, _ := l.e.o.Store.FlowsNow()
		if set == nil || set.PendingSelection() == "" {
			l.forgetCounts()
			continue
		}
		if err := l.readCounts(ctx); err != nil {
			l.complain(schemas.AddsFlowPrefix+"*", err)
		}
	}
}

// counted reads the numbers of pending timers, unless they were read before. Without them a node that
// has just started would treat all timers that are pending already as absent.
func (l *limiter) counted(ctx context.Context) error {
	if l.counts.Load() {
		return nil
	}
	return l.readCounts(ctx)
}

func (l *limiter) readCounts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, OperationTimeout)
	defer cancel()
	counts, err := l.e.o.Store.PendingCounts(ctx)
	if err != nil {
		return err
	}
	for _, c := range counts {
		l.ledger.Update(c.Shard, c.Count)
	}
	l.counts.Store(true)
	return nil
}

func (l *limiter) forgetCounts() {
	if l.counts.Swap(false) {
		l.ledger.Forget()
	}
}

// reserve returns the adds of a service that its limits of pending timers permit, with a reservation in
// the ledger, and the adds that repeat a stored timer, which need none. It settles the others.
func (l *limiter) reserve(svc string, limits []store.AddLimit, batch []*Add) []*Add {
	var most []quota.Max
	for i := range limits {
		if limit := &limits[i]; limit.Err == nil && limit.Limit.Counts() {
			most = append(most, quotaOf(limit))
		}
	}
	if len(most) == 0 || len(batch) == 0 {
		return batch
	}
	if err := l.counted(l.e.run); err != nil {
		l.complain(schemas.AddsFlowPrefix+svc, err)
		l.delay(batch, schemas.Errorf(schemas.CodeUnavailable, "the number of pending timers of %s cannot be read, and has a limit; nothing was stored: try again (%w)", svc, err))
		return nil
	}
	amounts := make([]quota.Amount, len(batch))
	for i, a := range batch {
		amounts[i] = a.amount()
	}
	var permitted, over []*Add
	var reasons []*schemas.Error
	for i, full := range l.ledger.Reserve(svc, most, amounts) {
		if full.Name == "" {
			batch[i].reserved = amounts[i]
			permitted = append(permitted, batch[i])
		} else {
			over, reasons = append(over, batch[i]), append(reasons, tooMany(full))
		}
	}
	if len(over) == 0 {
		return permitted
	}
	found := make([]error, len(over))
	ctx, cancel := context.WithTimeout(l.e.run, OperationTimeout)
	defer cancel()
	each(indexes(len(over)), func(i int) { _, found[i] = l.e.o.Store.Get(ctx, over[i].Spec.Timer) })
	var rejects []refusal
	for i, a := range over {
		switch err := found[i]; {
		case err == nil, errors.Is(err, schemas.ErrDamaged):
			permitted = append(permitted, a) // a repeated add, which makes no timer
		case !errors.Is(err, schemas.ErrNotFound):
			l.sink.Delay(a, err)
		case a.Seq != 0 && !a.Returned && reasons[i].Code == schemas.CodeLimited && l.holdUntil(pendingWait):
			l.sink.Delay(a, reasons[i])
		default:
			rejects = append(rejects, refusal{a, reasons[i]})
		}
	}
	each(rejects, func(f refusal) { l.sink.Reject(f.a, f.reason) })
	inTurn(permitted)
	return permitted
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// quotaOf returns the quota of a limit of adds.
func quotaOf(limit *store.AddLimit) quota.Max {
	l := &limit.Limit
	return quota.Max{
		Name: limit.Key[len(schemas.AddsFlowPrefix):], Services: int64(l.Services),
		Amount: quota.Amount{Timers: int64(l.Pending), Schedules: int64(l.Schedules), Bytes: l.Bytes},
	}
}

// amount returns the use of a quota by the timer of an add.
func (a *Add) amount() quota.Amount {
	return quota.OneTimer(a.Record.Schedule != nil, int64(a.Record.Body.Size()))
}

// tooMany is the refusal of an add over a limit.
func tooMany(full quota.Full) *schemas.Error {
	key := schemas.AddsFlowPrefix + full.Name
	if full.Quantity == quota.Bytes && full.Asks > full.Limit {
		return schemas.Errorf(schemas.CodeTooLarge, "the event has %d bytes, and %s is limited to %d %s: make the event smaller, or ask the operator to raise the limit", full.Asks, key, full.Limit, full.Quantity)
	}
	err := schemas.Errorf(schemas.CodeLimited, "%s has %d %s, and %s is limited to %d: try again in %s, when some have fired; cancel some, or ask the operator to raise the limit",
		full.Name, full.Has, full.Quantity, key, full.Limit, pendingWait)
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

// settle ends the reservations of settled adds. A stored add counts until the owner of its shard counts
// it.
func (l *limiter) settle(svc string, adds []*Add) {
	for _, a := range adds {
		switch {
		case a.reserved == (quota.Amount{}):
		case a.rev != 0:
			l.ledger.Stored(svc, a.reserved, l.e.writer.Geometry.Shard(a.Spec.Timer), a.rev)
		default:
			l.ledger.Release(svc, a.reserved)
		}
		a.reserved = quota.Amount{}
	}
}

// pendingKeys adds the pending timers of the keys of a limit to keys, the keys in use. uncounted is the
// number of shards whose owners have not yet counted for the limits in set.
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
		for tenant := range c.Rest {
			names[tenant] = struct{}{}
		}
	}
	for i := range keys {
		name := keys[i].Key[len(schemas.AddsFlowPrefix):]
		fillUsed(&keys[i], sums, name)
		delete(names, name)
	}
	for name := range names {
		if key := schemas.AddsFlowPrefix + name; ours(key) {
			info := schemas.FlowKeyInfo{Key: key}
			fillUsed(&info, sums, name)
			keys = append(keys, info)
		}
	}
	return keys, uncounted, nil
}

// fillUsed sets the use of a limit by a service or tenant.
func fillUsed(info *schemas.FlowKeyInfo, sums *quota.Ledger, name string) {
	used, services := sums.Used(name)
	info.Pending, info.Schedules, info.Bytes, info.Services = used.Timers, used.Schedules, used.Bytes, services
}
