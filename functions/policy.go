package functions

import (
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file decides; it does no I/O and reads no clock.

// admission is what becomes of a delivery once the record was read.
type admission struct {
	run  bool          // make the attempt
	wait time.Duration // if not run: 0 means ack, more means come back then
}

// admit decides about a redelivered message. t is nil if the record is gone.
//
// A delivered record whose attempts differ from the claim's was claimed again
// for a retry since: a message on timers.retry is responsible for it now.
func admit(c schemas.Claim, t *store.Timer, nowMs int64) admission {
	if t == nil {
		return admission{}
	}
	r := &t.Record
	switch {
	case r.Run != c.Run, r.Hash != c.Hash, r.State.Final():
		return admission{}
	case r.State == schemas.StateDelivered:
		return admission{run: r.Attempt == c.Attempt}
	case r.State != schemas.StateRetrying, r.Queued:
		return admission{}
	case r.NextMs > nowMs:
		return admission{wait: time.Duration(r.NextMs-nowMs) * time.Millisecond}
	}
	return admission{run: true}
}

// step is what follows an attempt.
type step uint8

const (
	stepSuccess step = iota
	stepShort        // retrying, waits in the consumer
	stepLong         // retrying, waits in the wheel
	stepDead
)

// policy holds what planning needs of the options.
type policy struct {
	short     time.Duration
	maxNotNow int
}

// plan is the record after an attempt, and what to do with the message.
type plan struct {
	step   step
	delay  time.Duration
	record schemas.Record
}

// next plans what follows the attempt that came to out. rec is the record
// before it, spec what the event asks for, and random is in [0,1).
func (p policy) next(rec schemas.Record, out callback.Outcome, spec schemas.Spec, nowMs int64, random float64) plan {
	rec.Attempt++
	rec.Queued = false
	rec.Outcome = schemas.Outcome{Code: out.Code, Error: out.Err, Response: out.Response}
	if out.Success {
		return final(rec, stepSuccess, schemas.StateSuccess, nowMs)
	}
	if rec.MaxAttempt == 0 {
		rec.MaxAttempt = max(spec.MaxAttempts, 1)
	}
	back := rec.GivenBack(spec)
	n, to := rec.Attempt-min(back, rec.Attempt-1), spec.BackoffTo
	switch {
	case out.Unattempted && nowMs-max(rec.ScheduledMs, rec.AddedMs) < maxWorkerWait.Milliseconds():
		// Doubled like after failures, so that a service without workers costs little;
		// capped, so that workers that start late find their timers soon.
		n, to = back+1, min(max(to, spec.BackoffFirst), max(workerPauseMax, spec.BackoffFirst))
		rec.MaxAttempt++
	case out.NotNow && p.maxNotNow > 0 && int64(back) < int64(p.maxNotNow):
		n = 1
		rec.MaxAttempt++
	}
	if !out.Retryable || rec.Attempt >= rec.MaxAttempt {
		return final(rec, stepDead, schemas.StateFail, nowMs)
	}
	delay := max(schemas.RetryDelay(spec.BackoffFirst, to, n), min(out.RetryAfter, callback.MaxRetryAfter))
	delay += time.Duration(random * jitter * float64(delay))
	delay = delay.Round(time.Millisecond)
	rec.State = schemas.StateRetrying
	rec.NextMs = nowMs + delay.Milliseconds()
	if delay <= p.short {
		return plan{step: stepShort, delay: delay, record: rec}
	}
	rec.Queued, rec.DueMs = true, rec.NextMs
	return plan{step: stepLong, delay: delay, record: rec}
}

const (
	// maxWorkerWait is how long after it was due (or added, if that is later) a timer
	// waits for a worker without using up attempts. After that, and where a replay
	// comes later, each try is an attempt.
	maxWorkerWait = 7 * 24 * time.Hour
	// workerPauseMax caps the pause between two tries to find a worker.
	workerPauseMax = 5 * time.Minute
)

// final drops the event from the record.
func final(rec schemas.Record, s step, state schemas.State, nowMs int64) plan {
	rec.State, rec.DoneMs, rec.NextMs = state, nowMs, 0
	rec.Body = schemas.Body{}
	return plan{step: s, record: rec}
}

// jitter is how much of a delay is added to it at most.
const jitter = 0.2

// rebase decides what follows when the record turned out to have changed before
// the outcome of attempt could be written. It returns the record to write upon,
// or nil and what becomes of the message.
func rebase(c schemas.Claim, attempt uint32, success bool, t *store.Timer, nowMs int64) (*store.Timer, admission) {
	if t == nil || t.Record.Run != c.Run || t.Record.Hash != c.Hash || t.Record.State.Final() {
		return nil, admission{}
	}
	r := &t.Record
	open := r.State == schemas.StateDelivered || r.State == schemas.StateRetrying
	switch {
	case !open:
		return nil, admission{}
	case success, r.Attempt+1 == attempt:
		return t, admission{}
	case r.State == schemas.StateRetrying && !r.Queued:
		// This attempt is written down (by us, the answer lost, or by another
		// process that held the same message): the message waits for the next.
		return nil, admission{wait: max(time.Duration(r.NextMs-nowMs)*time.Millisecond, time.Millisecond)}
	}
	return nil, admission{}
}

// fromClaim rebuilds the record, all but its body, from what rides on the
// message, so that a success at the first attempt needs no read.
func fromClaim(c schemas.Claim, spec schemas.Spec, fired schemas.Fired) schemas.Record {
	return schemas.Record{
		State: schemas.StateDelivered, Run: c.Run, Attempt: c.Attempt, MaxAttempt: c.MaxAttempt,
		DueMs: fired.ScheduledMs, ScheduledMs: fired.ScheduledMs, AddedMs: c.AddedMs, FiredMs: c.FiredMs,
		Epoch: c.Epoch, Hash: c.Hash, Service: spec.Service, Group: spec.Group, Callback: spec.Callback,
		Source: spec.Source, EventID: spec.EventID, Type: spec.Type,
	}
}
