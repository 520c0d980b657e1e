package scheduler

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
)

// This file counts the pending timers of services with a limit of pending timers, and publishes the
// numbers for the routers; see package quota. Without such limits it costs one comparison of strings
// for each turn.

const (
	// countLimitedEvery is the minimum time between two publications of the numbers of a shard. It adds
	// to the time until a router learns of the adds of other routers.
	countLimitedEvery = time.Second
	// countLimitedRetry is the pause after a failed scan or publication.
	countLimitedRetry = 2 * time.Second
	// settleWithin bounds the wait of the numbers of a scan for the tail. The newest record of the scan
	// may have been removed meanwhile; the tail then never reaches it.
	settleWithin = 30 * time.Second
)

// LimitStore has the node's copy of the limits, and keeps the numbers of pending timers.
type LimitStore interface {
	FlowsNow() (set *store.FlowSet, fresh bool)
	EachPending(ctx context.Context, shard int, through uint64, fn func(quota.Timer)) (last uint64, err error)
	PendingCount(ctx context.Context, shard int) (store.PendingCount, error)
	PutPendingCount(ctx context.Context, c store.PendingCount) (uint64, error)
}

// limitedCount counts during one term. Only turns use it, except results.
//
//	the limits change ─▶ next: scan the shard, and note the tail ─▶ tally: note the tail, publish
//
// Until the scan for new limits ends, the numbers for the previous limits are published.
type limitedCount struct {
	// wanted identifies the services that the node's copy of the limits counts, counted the services
	// that tally counts.
	wanted, counted string
	// tally and next are nil without such limits.
	tally, next *quota.Tally
	// begun is true once the term has begun a scan. again is true if the next turn must begin a scan.
	begun, again bool
	// ended is true if the limits were deleted during the term.
	ended bool
	// dirty is true if the numbers have changed since the last publication, or must be renewed.
	dirty      bool
	publishing bool
	// unsettled is true until the tail has reached the end of the scan of tally, but at most until
	// settleBy on the monotonic clock.
	unsettled bool
	settleBy  time.Duration
	fullLog   throttle.Log  // about shards with more timers than are counted
	nextAt    time.Duration // earliest time of the next publication, on the monotonic clock
	// renewAt is the time, on the monotonic clock, from which unchanged numbers are published again, because
	// they expire.
	renewAt time.Duration

	results // of scans and publications
}

// note processes a record of the tail.
func (l *limitedCount) note(rec *store.Timer) {
	if l.tally == nil && l.next == nil || rec.Unread != store.Readable {
		return
	}
	timer, waits := rec.Use(), rec.Record.State.Waits()
	for _, t := range [...]*quota.Tally{l.tally, l.next} {
		if t != nil && t.Note(timer, waits) {
			l.dirty = true
		}
	}
}

// due returns how long until the next publication; false if there is none.
func (l *limitedCount) due(now time.Duration) (time.Duration, bool) {
	at := l.nextAt
	switch {
	case !l.publishes() && (l.tally == nil || l.publishing):
		return 0, false
	case !l.publishes():
		at = max(at, l.renewAt)
	case l.unsettled:
		at = max(at, l.settleBy)
	}
	return max(at-now, 0), true
}

// publishes reports whether there are numbers to publish.
func (l *limitedCount) publishes() bool {
	return l.dirty && !l.publishing && (l.tally != nil || l.ended)
}

// countLimited begins a scan when the limits have changed, and publishes the numbers.
func (t *Term) countLimited() {
	if t.cfg.Limits == nil {
		return
	}
	l := &t.limited
	if set, _ := t.cfg.Limits.FlowsNow(); set != nil && (l.again || set.PendingSelection() != l.wanted) {
		t.beginLimited(set)
	}
	if !l.begun {
		return
	}
	for _, result := range l.take() {
		result()
	}
	now := t.host.Monotonic()
	l.dirty = l.dirty || l.tally != nil && now >= l.renewAt
	if l.publishes() && now >= l.nextAt && l.settled(t.core.tailSeen, now) {
		t.publishLimited()
	}
}

// settled reports whether the numbers may be published: see quota.Tally.Settled.
func (l *limitedCount) settled(tail uint64, now time.Duration) bool {
	if l.unsettled && l.tally != nil && !l.tally.Settled(tail) && now < l.settleBy {
		return false
	}
	l.unsettled = false
	return true
}

// mayWarn reports whether to log that not all timers are counted.
func (l *limitedCount) mayWarn(monotonic time.Duration) bool {
	_, ok := l.fullLog.Allow(time.Unix(0, 0).Add(monotonic))
	return ok
}

// recount begins again, after a loss of messages.
func (l *limitedCount) recount() { l.again, l.tally, l.next = true, nil, nil }

// beginLimited starts to count for the limits of a copy.
func (t *Term) beginLimited(set *store.FlowSet) {
	l := &t.limited
	l.wanted, l.again = set.PendingSelection(), false
	if l.ended = l.wanted == "" && l.begun; l.wanted == "" {
		l.tally, l.next, l.counted, l.dirty = nil, nil, "", l.begun
		return
	}
	l.next = quota.NewTally(set.LimitsPending, t.core.tailSeen)
	delay := time.Duration(0)
	if !l.begun {
		delay = countAfter // due timers fire first
	}
	l.begun = true
	t.scanLimited(l.next, set, delay)
}

// scanLimited reads the shard for a tally.
func (t *Term) scanLimited(tally *quota.Tally, set *store.FlowSet, delay time.Duration) {
	t.host.Go(func(ctx context.Context) {
		if !t.host.Pause(ctx, delay) {
			return
		}
		var found []quota.Timer
		names := map[string]string{} // one copy of each name
		last, err := t.cfg.Limits.EachPending(ctx, t.cfg.Shard, tally.Through(), func(timer quota.Timer) {
			if !set.LimitsPending(timer.Service) || len(found) >= quota.MaxTallied {
				return
			}
			name, ok := names[timer.Service]
			if !ok {
				name = timer.Service
				names[name] = name
			}
			timer.Service = name
			found = append(found, timer)
		})
		t.failed("count_limited", err)
		if err != nil && !t.host.Pause(ctx, countLimitedRetry) {
			return
		}
		l := &t.limited
		l.put(func() {
			switch {
			case l.next != tally: // the limits have changed meanwhile
			case err != nil || !tally.Scanned(found, last):
				l.again, l.next = true, nil
			default:
				l.tally, l.counted, l.next, l.dirty = tally, l.wanted, nil, true
				l.unsettled, l.settleBy = true, t.host.Monotonic()+settleWithin
			}
		})
		t.host.Wake()
	})
}

// publishLimited writes the numbers of the shard.
func (t *Term) publishLimited() {
	l := &t.limited
	clock, _ := t.lease.Clock()
	c := store.PendingCount{Shard: t.cfg.Shard, Selection: l.counted}
	c.Epoch, c.Seq = clock.Epoch, t.core.tailSeen
	if l.tally != nil {
		c.Services = l.tally.Services()
		if l.tally.Full() && l.mayWarn(t.host.Monotonic()) {
			t.log.Warn().Int("counted", quota.MaxTallied).Msg("the shard has more pending timers of limited services than a node counts: further adds are not limited; use more shards")
		}
	}
	now := t.host.Monotonic()
	l.dirty, l.publishing, l.nextAt, l.renewAt = false, true, now+countLimitedEvery, now+store.PendingCountTTL/2
	t.host.Go(func(ctx context.Context) {
		err := t.storeLimited(ctx, c)
		t.failed("put_limited", err)
		l.put(func() {
			l.publishing = false
			if err != nil {
				l.dirty, l.nextAt = true, t.host.Monotonic()+countLimitedRetry
			}
		})
		t.host.Wake()
	})
}

// storeLimited writes the numbers, unless another node owns the shard meanwhile.
func (t *Term) storeLimited(ctx context.Context, c store.PendingCount) error {
	was, err := t.cfg.Limits.PendingCount(ctx, c.Shard)
	if err != nil || was.Rev == 0 && c.Selection == "" {
		return err
	}
	if was.Epoch > c.Epoch {
		// The stored numbers have a later epoch. They belong to a later term, or the store was restored
		// from a backup in which the clocks are older than the numbers.
		clock, _, err := t.cfg.Store.ReadClock(ctx, c.Shard)
		if err != nil || clock.Epoch != c.Epoch {
			return err
		}
	}
	c.Rev = was.Rev
	_, err = t.cfg.Limits.PutPendingCount(ctx, c)
	return err
}
