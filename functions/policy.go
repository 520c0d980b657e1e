package functions

import (
	"cmp"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file has the decisions of the package. They are pure: no I/O, no clock. The simulation
// (internal/sim) runs them too.

// Admission is the decision about an event after its record was read: make the attempt,
// redeliver the event later, or acknowledge it.
type Admission struct {
	// Run is true if the attempt must be made.
	Run bool
	// Wait is the delay of the redelivery if Run is false. 0 means that nothing is left to do
	// for the event: acknowledge it.
	Wait time.Duration
}

// MustRead reports whether the record must be read before an attempt, because the claim
// on the event may differ from it: the event was delivered before, was stored long after
// the claim (it was published again after an outage), or carries the header that says
// that the record holds more than the claim.
func MustRead(c schemas.Claim, header map[string][]string, deliveries uint64, stored time.Time) bool {
	return len(header[schemas.HeaderExtended]) > 0 || deliveries > 1 || stored.Sub(time.UnixMilli(c.FiredMs)) > maxClaimAge
}

// Admit decides about an event whose record was read. t is nil if the record is gone.
//
// If the attempts of a delivered record differ from the claim's, the scheduler has claimed
// the record again for a retry. The event of that later claim, on timers.retry, then makes
// the attempt, and this event is acknowledged. Different deferrals, of a record that waited
// in the wheel for its slot, have the same effect.
func Admit(c schemas.Claim, t *store.Timer, nowMs int64) Admission {
	if t == nil {
		return Admission{}
	}
	r := &t.Record
	switch {
	case r.Run != c.Run, r.Hash != c.Hash, r.State.Final():
		return Admission{}
	case r.State == schemas.StateDelivered:
		return Admission{Run: r.Attempt == c.Attempt && r.Deferrals() == c.Deferred}
	case r.State != schemas.StateRetrying, r.Queued:
		return Admission{}
	case r.NextMs > nowMs:
		return Admission{Wait: time.Duration(r.NextMs-nowMs) * time.Millisecond}
	}
	return Admission{Run: true}
}

// ResolveConflict decides what follows when another writer changed the record before the
// result of an attempt was written. t is the changed record, nil if it is gone. ResolveConflict
// returns the timer to write the result to, or nil and the decision about the event.
func ResolveConflict(c schemas.Claim, attempt uint32, success bool, t *store.Timer, nowMs int64) (*store.Timer, Admission) {
	if t == nil || t.Record.Run != c.Run || t.Record.Hash != c.Hash || t.Record.State.Final() {
		return nil, Admission{}
	}
	r := &t.Record
	open := r.State == schemas.StateDelivered || r.State == schemas.StateRetrying
	switch {
	case !open:
		return nil, Admission{}
	case success, r.Attempt+1 == attempt && r.Deferrals() == c.Deferred:
		return t, Admission{}
	case r.State == schemas.StateRetrying && !r.Queued:
		// The result of this attempt is recorded: by this process, whose answer was lost, or
		// by another process with the same event. The event waits for the next attempt.
		return nil, Admission{Wait: max(time.Duration(r.NextMs-nowMs)*time.Millisecond, time.Millisecond)}
	}
	return nil, Admission{}
}

// Policy plans what follows an attempt.
type Policy struct {
	// ShortDelay is the longest delay for which a retry waits in its consumer; a longer
	// retry waits in the wheel.
	ShortDelay time.Duration
	// MaxNotNow is the number of "not now" answers of a run, or since its last replay, that are not counted
	// as attempts; 0 or less for none. A request that no worker took does not count as one.
	MaxNotNow int
}

// Step is the next step after an attempt.
type Step uint8

// The steps.
const (
	StepSuccess    Step = iota // success: acknowledge the event
	StepShortRetry             // retrying: the event waits in its consumer
	StepLongRetry              // retrying: the timer waits in the wheel
	StepDead                   // fail: publish a dead letter before the record is written
)

// Plan is the decision about a timer after an attempt.
type Plan struct {
	Step Step
	// Delay is the delay of a retry.
	Delay time.Duration
	// Record is the record to write.
	Record schemas.Record
}

// RedeliverAfter returns the delay after which the event must be redelivered, or 0 if it is
// acknowledged.
func (p *Plan) RedeliverAfter() time.Duration {
	if p.Step == StepShortRetry {
		return max(p.Delay, time.Millisecond)
	}
	return 0
}

const (
	// maxWorkerWait bounds the time that a timer waits for a worker without using attempts. It
	// counts from the due time, or from the add if that is later. After that time, also for a
	// replay, each request counts as an attempt.
	maxWorkerWait = 7 * 24 * time.Hour
	// maxWorkerPause bounds the pause between two requests for a worker.
	maxWorkerPause = 5 * time.Minute
	// jitter is the maximum random addition to a delay, as a fraction of the delay.
	jitter = 0.2
)

// Next decides what to do after an attempt with outcome out. rec is the record before the
// attempt, spec has the retry settings of the event, random is in [0,1).
func (p Policy) Next(rec schemas.Record, out callback.Outcome, spec schemas.Spec, nowMs int64, random float64) Plan {
	rec.Queued = false
	rec.Called()
	pauses := rec.UnattemptedInRow
	rec.UnattemptedInRow = 0
	rec.AddAttempt(cmp.Or(out.AtMs, nowMs), out.Took, schemas.Outcome{Code: out.Code, Error: out.Err, Response: out.Response})
	if out.Success {
		return final(rec, StepSuccess, schemas.StateSuccess, nowMs)
	}
	if rec.MaxAttempt == 0 {
		rec.MaxAttempt = max(spec.MaxAttempts, 1)
	}
	uncounted := rec.GivenBack(&spec.RetryPolicy)
	n, to := rec.Attempt-min(uncounted, rec.Attempt-1), spec.BackoffTo
	switch {
	case out.Unattempted && nowMs-max(rec.ScheduledMs, rec.AddedMs) < maxWorkerWait.Milliseconds():
		// The pause doubles as after failures, so that a service without workers costs little.
		// The cap bounds the delay until a worker that starts late gets the timers.
		rec.Unattempted, rec.UnattemptedInRow = rec.Unattempted+1, pauses+1
		n, to = pauses+1, min(max(to, spec.BackoffFirst), max(maxWorkerPause, spec.BackoffFirst))
		rec.MaxAttempt++
	case out.NotNow && !out.Unattempted && int64(rec.NotNow(&spec.RetryPolicy)) < int64(p.MaxNotNow):
		n = 1
		rec.MaxAttempt++
	}
	if !out.Retryable || rec.Attempt >= rec.MaxAttempt {
		return final(rec, StepDead, schemas.StateFail, nowMs)
	}
	delay := max(schemas.RetryDelay(spec.BackoffFirst, to, n), min(out.RetryAfter, callback.MaxRetryAfter))
	delay = min(delay+time.Duration(random*jitter*float64(delay)), max(delay, callback.MaxRetryAfter))
	delay = delay.Round(time.Millisecond)
	rec.State = schemas.StateRetrying
	rec.NextMs = nowMs + delay.Milliseconds()
	if delay <= p.ShortDelay {
		return Plan{Step: StepShortRetry, Delay: delay, Record: rec}
	}
	rec.Queued, rec.DueMs = true, rec.NextMs
	return Plan{Step: StepLongRetry, Delay: delay, Record: rec}
}

// Defer plans the wait of an event whose call is not permitted before slotMs. rec is the record. key
// and generation belong to the limit that reserved the slot; generation is 0 if no slot is reserved.
// crowded is true if too many events of the service wait in their consumer. Defer counts no attempt.
func (p Policy) Defer(rec schemas.Record, key string, generation uint64, slotMs, nowMs int64, crowded bool) Plan {
	delay := max(time.Duration(slotMs-nowMs)*time.Millisecond, time.Millisecond)
	if delay <= p.ShortDelay && !crowded {
		rec.Defer(key, generation, slotMs, false)
		return Plan{Step: StepShortRetry, Delay: delay, Record: rec}
	}
	rec.Defer(key, generation, slotMs, true)
	return Plan{Step: StepLongRetry, Delay: delay, Record: rec}
}

// final returns the plan that ends a timer. The final record does not hold the event.
func final(rec schemas.Record, s Step, state schemas.State, nowMs int64) Plan {
	rec.State, rec.DoneMs, rec.NextMs = state, nowMs, 0
	rec.Body, rec.Deferral = schemas.Body{}, nil
	return Plan{Step: s, Record: rec}
}
