package scheduler

import (
	"errors"

	"github.com/belfryio/belfry/schemas"
)

// This file writes the final records of timers without a callback, after their events were
// published. They wait in the completion queue until no due timer of the shard waits for its claim,
// so that in a burst the events are published first. For a limited time they also wait for the due
// timers of the node's other shards (Backlog), and while the claims of the shard are stored slowly (claimTime). If
// the process dies, the sweeper finishes the records that were still queued. If another writer has changed the
// record, the core reads it again. It writes the final record if the record still has the same claim.

// Bounds of the completion queue.
const (
	// maxCompleting bounds the final records in flight. maxCompletingBeside bounds them while timers of the shard fire:
	// their claims are stored in the same stream, behind final records that were sent earlier.
	maxCompleting       = 512
	maxCompletingBeside = 32
	// maxCompletions is the length of the queue above which final records are written
	// although due timers wait. It also bounds the retry queue.
	// A burst of 100,000 timers over four shards stays below it, so its final records do not compete
	// with its events. A queued record takes about 0.6 kB.
	maxCompletions = 32_768
	// completionPatienceMs is the age up to which a final record waits for other shards. A burst of
	// 100,000 timers takes half of it on two processors. The age is at most half of CoreConfig.SweepMs, so
	// the sweeper does not finish records that still wait.
	completionPatienceMs = 10_000
	// slowPatienceMs is the age up to which a final record waits while claims are stored slowly, and up to which
	// maxCompletingBeside applies. Most garbage collections are shorter. If the store is always slow, final records
	// are this much later: a shard that is handed over then has as many more to write, and if the process dies, the
	// sweeper finishes them. The age is that of the first record in the queue. A record whose write is repeated is
	// queued again behind younger ones, so each attempt may wait as long.
	slowPatienceMs = 500
	// completionPollMs is the time after which a core whose first final record is held looks again.
	completionPollMs = 20
	// A failed write is repeated after completionRetryDelayMs, at most maxCompletionRetries
	// times. Without retries, a short outage would leave the record to the sweeper, minutes
	// later.
	completionRetryDelayMs = 1000
	maxCompletionRetries   = 10
)

// completions are the final records of a term that are to be written.
type completions struct {
	patienceMs int64 // completionPatienceMs, or half of the sweeper's delay
	slowMs     int64 // slowPatienceMs, or patienceMs if that is less
	queue      []ActFinish
	writing    int                           // writes and rereads in flight
	rereading  map[schemas.TimerID]ActFinish // writes that met another revision
	held       bool                          // the first record of the queue waits for other shards, or for claims and events in flight
	failed     []ActFinish                   // to be queued again at retryMs
	retryMs    int64                         // Unix milliseconds
}

func newCompletions(sweepMs int64) completions {
	patience := min(completionPatienceMs, sweepMs/2)
	return completions{patienceMs: patience, slowMs: min(slowPatienceMs, patience), rereading: map[schemas.TimerID]ActFinish{}}
}

// idle reports whether no final record is queued, and no write or reread is in flight. Failed writes that
// wait for their retry do not count.
func (c *completions) idle() bool { return c.writing == 0 && len(c.queue) == 0 }

// onFinished processes the result of a final record's write. If the revision has changed, it returns true:
// the record must be read again.
func (c *completions) onFinished(nowMs int64, ev EvFinished) (reread bool) {
	switch {
	case isRevision(ev.Err) && ev.Finish.Fails < maxCompletionRetries:
		if _, twice := c.rereading[ev.Finish.ID]; !twice {
			c.rereading[ev.Finish.ID] = ev.Finish
			return true
		}
		// Two final records of this timer were queued: while the first waited, a repeated add wrote the claim
		// again, or the sweeper found it. Write this one later.
		c.fail(nowMs, ev.Finish)
	case ev.Err != nil && !isRevision(ev.Err) && !errors.Is(ev.Err, schemas.ErrNotFound):
		c.fail(nowMs, ev.Finish)
	}
	c.writing--
	return false
}

// fail plans another attempt, unless there were too many.
func (c *completions) fail(nowMs int64, a ActFinish) {
	if a.Fails == maxCompletionRetries || len(c.failed) == maxCompletions {
		return
	}
	a.Fails++
	if len(c.failed) == 0 {
		c.retryMs = nowMs + completionRetryDelayMs
	}
	c.failed = append(c.failed, a)
}

// onReread processes the record that was read because the write of a met another revision. Usually that
// write was stored and its answer lost, or an operation changed the record: nothing is left to do. A
// repeated add, however, stores the claim again unchanged, and the final record is still missing.
func (c *completions) onReread(nowMs int64, a ActFinish, ev EvReread) {
	c.writing--
	r := &ev.Timer.Record
	switch {
	case errors.Is(ev.Err, schemas.ErrNewer), errors.Is(ev.Err, schemas.ErrDamaged):
	case ev.Err != nil || ev.Timer.Rev <= a.Rev: // a former leader may answer with an older revision, or have none
		c.fail(nowMs, a)
	case r.State == schemas.StateDelivered && sameClaim(r, a.Record):
		rec := *r
		rec.State, rec.DoneMs, rec.Body = a.Record.State, a.Record.DoneMs, a.Record.Body
		c.queue = append(c.queue, ActFinish{ID: a.ID, Rev: ev.Timer.Rev, Record: &rec, Fails: a.Fails + 1})
	}
}

// sameClaim reports whether two revisions of a record have the same last claim.
func sameClaim(a, b *schemas.Record) bool {
	if a.AddedMs != b.AddedMs || a.Run != b.Run || a.FiredMs != b.FiredMs || a.Epoch != b.Epoch || (a.Schedule == nil) != (b.Schedule == nil) {
		return false
	}
	return a.Schedule == nil || a.Schedule.Last == b.Schedule.Last && a.Schedule.Alarm == b.Schedule.Alarm
}

// retry queues the failed writes again when their pause is over. The cluster's clock may have
// been set back.
func (c *completions) retry(nowMs int64) {
	if nowMs >= c.retryMs || nowMs < c.retryMs-completionRetryDelayMs {
		c.queue, c.failed = append(c.queue, c.failed...), nil
	}
}

// firing is the work of due timers, for which final records wait.
type firing struct {
	due    bool // due timers of the shard wait for their claims
	others bool // those of another shard do
	writes bool // claims, events or other steps of due timers are in flight
	slow   bool // and claims are stored slowly
}

// next removes the first record of the queue for its write; false if it must wait.
func (c *completions) next(nowMs int64, f firing) (a ActFinish, ok bool) {
	c.held = false
	if len(c.queue) == 0 || c.writing >= maxCompleting {
		return a, false
	}
	if len(c.queue) < maxCompletions {
		// The age is negative if the cluster's clock was set back.
		age := nowMs - c.queue[0].Record.DoneMs
		young := age >= 0 && age < c.slowMs
		switch {
		case f.due:
			return a, false
		case f.others && age >= 0 && age < c.patienceMs, young && (f.slow || f.writes && c.writing >= maxCompletingBeside):
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

// onFinished processes the result of a final record's write.
func (k *Core) onFinished(ev EvFinished) {
	if k.completions.onFinished(k.now, ev) {
		k.do(ActReread{ID: ev.Finish.ID})
	}
}

// complete writes final records from the completion queue.
func (k *Core) complete() {
	k.completions.retry(k.now)
	due := (k.ready.n > 0 || k.due.left) && !k.draining
	k.backlog.note(k.now, due && !k.paused)
	f := firing{due: due, others: k.backlog.of.Shards() > 0 && !k.draining, writes: k.inflight > 0 && !k.draining}
	f.slow = f.writes && k.claims.slow(k.now)
	for {
		a, ok := k.completions.next(k.now, f)
		if !ok {
			return
		}
		k.do(a)
	}
}

// claimTime is the time that claims take at present: that of the last claim of a timer that was stored, from the decision to
// claim until the result.
type claimTime struct {
	tookMs int64
	atMs   int64 // of the result, Unix milliseconds
}

const (
	// slowClaimMs is the time from which a claim counts as stored slowly. On a machine with CPU time to spare it takes
	// about 1 ms. It takes longer while something else uses the CPUs, usually a garbage collection, if many claims are in
	// flight, and if the store is slow. Final records then wait, because claims are more urgent.
	slowClaimMs = 4
	// claimTimeMs is how long the time of a claim counts.
	claimTimeMs = 1000
)

func (t claimTime) slow(nowMs int64) bool {
	ago := nowMs - t.atMs // below 0 after the clock was set back
	return t.tookMs >= slowClaimMs && 0 <= ago && ago < claimTimeMs
}
