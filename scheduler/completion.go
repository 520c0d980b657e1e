package scheduler

import (
	"errors"

	"github.com/belfryio/belfry/schemas"
)

// This file writes the final records of timers without a callback, after their events were
// published. They wait in the completion queue until no due timer of the shard waits for its claim,
// so that in a burst the events are published first. For a limited time they also wait for the due
// timers of the node's other shards (Backlog). If the process dies, the sweeper finishes the records
// that were still queued.

// Bounds of the completion queue.
const (
	// maxCompleting bounds the final records in flight.
	maxCompleting = 512
	// maxCompletions is the length of the queue above which final records are written
	// although due timers wait. It also bounds the retry queue.
	// A burst of 100,000 timers over four shards stays below it, so its final records do not compete
	// with its events. A queued record takes about 0.6 kB.
	maxCompletions = 32_768
	// completionPatienceMs is the age up to which a final record waits for other shards. A burst of
	// 100,000 timers takes half of it on two processors.
	completionPatienceMs = 10_000
	// completionPollMs is the time after which a core that waits for other shards looks again.
	completionPollMs = 20
	// A failed write is repeated after completionRetryDelayMs, at most maxCompletionRetries
	// times. Without retries, a short outage would leave the record to the sweeper, minutes
	// later.
	completionRetryDelayMs = 1000
	maxCompletionRetries   = 10
)

// completions are the final records of a term that are to be written. The zero value is ready.
type completions struct {
	queue   []ActFinish
	writing int         // final records in flight
	held    bool        // the first record of the queue waits for other shards
	failed  []ActFinish // to be queued again at retryMs
	retryMs int64       // Unix milliseconds
}

// idle reports whether no final record is queued or in flight. Failed writes that wait for their retry
// do not count.
func (c *completions) idle() bool { return c.writing == 0 && len(c.queue) == 0 }

// onFinished processes the result of a final record's write. If the revision has changed,
// another writer came first, or the write was stored and its answer lost: nothing is left
// to do.
func (c *completions) onFinished(nowMs int64, ev EvFinished) {
	c.writing--
	if ev.Err == nil || isRevision(ev.Err) || errors.Is(ev.Err, schemas.ErrNotFound) {
		return
	}
	a := ev.Finish
	if a.Fails == maxCompletionRetries || len(c.failed) == maxCompletions {
		return
	}
	a.Fails++
	if len(c.failed) == 0 {
		c.retryMs = nowMs + completionRetryDelayMs
	}
	c.failed = append(c.failed, a)
}

// retry queues the failed writes again when their pause is over. The cluster's clock may have
// been set back.
func (c *completions) retry(nowMs int64) {
	if nowMs >= c.retryMs || nowMs < c.retryMs-completionRetryDelayMs {
		c.queue, c.failed = append(c.queue, c.failed...), nil
	}
}

// next removes the first record of the queue for its write; false if it must wait. due is true while due
// timers of the shard wait for their claims, others while those of another shard do.
func (c *completions) next(nowMs int64, due, others bool) (a ActFinish, ok bool) {
	c.held = false
	if len(c.queue) == 0 || c.writing >= maxCompleting {
		return a, false
	}
	if len(c.queue) < maxCompletions {
		if due {
			return a, false
		}
		// The age is negative if the cluster's clock was set back.
		if age := nowMs - c.queue[0].Record.DoneMs; others && age >= 0 && age < completionPatienceMs {
			c.held = true
			return a, false
		}
	}
	a = c.queue[0]
	c.queue[0] = ActFinish{}
	if c.queue = c.queue[1:]; len(c.queue) == 0 {
		c.queue = nil
	}
	c.writing++
	return a, true
}

// complete writes final records from the completion queue.
func (k *Core) complete() {
	k.completions.retry(k.now)
	due := (k.ready.n > 0 || k.due.left) && !k.draining
	k.backlog.set(due && !k.paused)
	others := k.backlog.of.any() && !k.draining
	for {
		a, ok := k.completions.next(k.now, due, others)
		if !ok {
			return
		}
		k.do(a)
	}
}
