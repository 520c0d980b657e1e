package scheduler

import "github.com/belfryio/belfry/schemas"

// This file looks up in the stream which events of claims were published before: those of a previous owner, and those whose
// publish may be older than the stream's dedup window.

// dedupChecks are the claims whose events may have been published before, in the order in which
// they are looked up in the stream.
type dedupChecks struct {
	queue    []*entry
	checking bool  // an ActDedupCheck is in flight
	n        int   // entries of queue that it covers
	afterMs  int64 // see dedupCheckAfterMs
}

// dedupCheckSome requests a dedup check for a batch of claims.
func (k *Core) dedupCheckSome() {
	if k.dedup.checking || len(k.dedup.queue) == 0 {
		return
	}
	a := ActDedupCheck{IDs: map[string]struct{}{}, SinceMs: k.now}
	subjects := map[string]struct{}{}
	fails := 0
	k.dedup.n = min(len(k.dedup.queue), dedupBatch)
	for _, e := range k.dedup.queue[:k.dedup.n] {
		if e.phase != phaseDedupCheck {
			continue
		}
		subject, id := target(e)
		a.IDs[id] = struct{}{}
		if _, ok := subjects[subject]; !ok {
			subjects[subject] = struct{}{}
			a.Subjects = append(a.Subjects, subject)
		}
		slack := int64(dedupSlackMs)
		if k.claimedLongAgo(e) {
			slack = oldDedupSlackMs
		}
		a.SinceMs = min(a.SinceMs, publishedSinceMs(e)-slack)
		fails = max(fails, int(e.fails))
	}
	if len(a.IDs) == 0 {
		k.dedup.queue = k.dedup.queue[k.dedup.n:]
		return
	}
	a.Delay = k.backoff(fails)
	k.dedup.checking = true
	k.do(a)
}

func (k *Core) onDedupChecked(ev EvDedupChecked) {
	k.dedup.checking = false
	batch := k.dedup.queue[:k.dedup.n]
	if ev.Err != nil {
		for _, e := range batch {
			e.countFailure()
		}
		return
	}
	k.dedup.queue = k.dedup.queue[len(batch):]
	for _, e := range batch {
		if e.phase != phaseDedupCheck {
			continue
		}
		e.fails = 0
		_, found := ev.Found[msgIDOf(target(e))]
		switch {
		case found && e.refused() != "":
			k.fail(e)
		case found:
			k.finish(e)
		default:
			k.publish(e)
		}
	}
}

// msgIDOf returns the second result of target.
func msgIDOf(_, msgID string) string { return msgID }

// publishChecked publishes an event or dead letter that may have been published before. If
// the stream's dedup window may have passed since then, a dedup check comes first.
func (k *Core) publishChecked(e *entry) {
	if k.claimedLongAgo(e) {
		e.phase = phaseDedupCheck
		k.dedup.queue = append(k.dedup.queue, e)
		return
	}
	k.publish(e)
}

// claimedLongAgo reports whether the stream's dedup window may no longer contain the entry's
// message id.
func (k *Core) claimedLongAgo(e *entry) bool { return k.now-publishedSinceMs(e) > k.dedup.afterMs }

// publishedSinceMs returns the earliest time, in Unix milliseconds, at which the entry's
// event or dead letter may have been published: its claim or, if JetStream rejects the
// claim, its due time.
func publishedSinceMs(e *entry) int64 {
	if e.rec.State == schemas.StateDelivered {
		return e.rec.FiredMs
	}
	return max(e.rec.DueMs, e.rec.AddedMs)
}
