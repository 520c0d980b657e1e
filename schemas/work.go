package schemas

import "time"

// This file is the protocol between functions and the workers of a service (the Go
// client's Work): functions requests SubjectWork, one worker of QueueWorkers sends
// any number of WorkWorking and one other reply.

// QueueWorkers is the queue group in which workers subscribe to SubjectWork.
const QueueWorkers = "belfry-workers"

// Headers of the protocol.
const (
	// HeaderWork is on each reply of a worker: one of the Work words. A reply without
	// it is judged as that of any NATS callback.
	HeaderWork = "Belfry-Work"
	// HeaderWorkSilence is on the request: the longest time in milliseconds between two
	// replies. Functions counts a worker that is silent for longer as dead.
	HeaderWorkSilence = "Belfry-Work-Silence-Ms"
	// HeaderRetryAfterMs is on WorkLater: when to call again, in milliseconds; absent
	// for the timer's own backoff.
	HeaderRetryAfterMs = "Belfry-Retry-After-Ms"
)

// What a worker replies in HeaderWork. The data is the result's or the error's text.
const (
	WorkWorking   = "working"   // no answer yet: the handler runs
	WorkDone      = "done"      // success
	WorkFailed    = "failed"    // the handler returned an error or panicked
	WorkPermanent = "permanent" // the handler gave up
	WorkLater     = "later"     // the handler said "not now"
	WorkBusy      = "busy"      // not begun: all places are taken
	WorkStopping  = "stopping"  // not begun, or not finished: the worker stops
)

const (
	// MinWorkSilence bounds HeaderWorkSilence from below, whatever timertimeout is: a
	// worker that is busy for a second is not dead.
	MinWorkSilence = 2 * time.Second
	// MaxWork bounds one attempt of a worker, from the request to the answer. It must
	// stay below the age at which TIMERS_FIRED drops an event (24 h by default), or the
	// event is fired again while its handler runs.
	MaxWork = 12 * time.Hour
)

// SubjectWork is where the workers of svc are requested.
func SubjectWork(svc string) string { return WorkSubjectPrefix + svc }

// WorkCallback is the timercallback of a timer that the workers of svc serve.
func WorkCallback(svc string) string { return NATSScheme + SubjectWork(svc) }
