package scheduler

import (
	"errors"

	"github.com/belfryio/belfry/schemas"
)

// This file writes the final records of timers without a callback, after their events were
// published. They wait in the completion queue until no due timer waits for its claim, so
// that in a burst the events are published first. If the process dies, the sweeper finishes
// the records that were still queued.

// Bounds of the completion queue.
const (
	// maxCompleting bounds the final records in flight.
	maxCompleting = 512
	// maxCompletions is the length of the queue above which final records are written
	// although due timers wait. It also bounds the retry queue.
	maxCompletions = 16_384
	// A failed write is repeated after completionRetryDelayMs, at most maxCompletionRetries
	// times. Without retries, a short outage would leave the record to the sweeper, minutes
	// later.
	completionRetryDelayMs = 1000
	maxCompletionRetries   = 10
)

// onFinished processes the result of a final record's write. If the revision has changed,
// another writer came first, or the write was stored and its answer lost: nothing is left
// to do.
func (k *Core) onFinished(ev EvFinished) {
	k.completing--
	if ev.Err == nil || isRevision(ev.Err) || errors.Is(ev.Err, schemas.ErrNotFound) {
		return
	}
	a := ev.Finish
	if a.Fails == maxCompletionRetries || len(k.completionRetries) == maxCompletions {
		return
	}
	a.Fails++
	if len(k.completionRetries) == 0 {
		k.completionRetryMs = k.now + completionRetryDelayMs
	}
	k.completionRetries = append(k.completionRetries, a)
}

// complete writes final records from the completion queue.
func (k *Core) complete() {
	// The cluster's clock may have been set back.
	if k.now >= k.completionRetryMs || k.now < k.completionRetryMs-completionRetryDelayMs {
		k.completions, k.completionRetries = append(k.completions, k.completionRetries...), nil
	}
	for len(k.completions) > 0 && k.completing < maxCompleting {
		if k.ready.n > 0 && !k.draining && len(k.completions) < maxCompletions {
			return
		}
		a := k.completions[0]
		k.completions[0] = ActFinish{}
		if k.completions = k.completions[1:]; len(k.completions) == 0 {
			k.completions = nil
		}
		k.completing++
		k.do(a)
	}
}
