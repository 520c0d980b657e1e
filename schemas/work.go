package schemas

import "time"

// This file defines the protocol between functions and the workers of a service (the Go
// client's Work). Functions sends a request to SubjectWork. One worker of QueueWorkers
// sends any number of WorkWorking replies and then one other reply.

// QueueWorkers is the queue group in which workers subscribe to SubjectWork.
const QueueWorkers = "belfry-workers"

// Headers of the protocol.
const (
	// HeaderWork is on each reply of a worker: one of the Work values below. Functions
	// handles a reply without it like the reply to any NATS callback.
	HeaderWork = "Belfry-Work"
	// HeaderWorkSilence is on the request: the longest allowed time between two replies, in
	// milliseconds. Functions considers a worker dead if it is silent for longer.
	HeaderWorkSilence = "Belfry-Work-Silence-Ms"
	// HeaderRetryAfterMs is on WorkLater: the time until the next attempt, in
	// milliseconds. Without it the timer's backoff applies.
	HeaderRetryAfterMs = "Belfry-Retry-After-Ms"
)

// Values of HeaderWork. The data is the text of the result or of the error.
const (
	WorkWorking   = "working"   // no answer yet: the handler runs
	WorkDone      = "done"      // success
	WorkFailed    = "failed"    // the handler returned an error or panicked
	WorkPermanent = "permanent" // the handler gave up
	WorkLater     = "later"     // the handler said "not now"
	WorkBusy      = "busy"      // not started: the worker runs as many handlers as it may
	WorkStopping  = "stopping"  // not started, or not finished: the worker stops
)

const (
	// MinWorkSilence is the minimum of HeaderWorkSilence, also with a shorter timertimeout:
	// a worker that pauses for a second is not dead.
	MinWorkSilence = 2 * time.Second
	// MaxWork bounds one attempt of a worker, from the request to the answer. It must
	// stay below the age at which TIMERS_FIRED drops an event (24 h by default).
	// Otherwise the sweeper fires the event again while its handler runs.
	MaxWork = 12 * time.Hour
)

// SubjectWork returns the subject of requests to the workers of svc.
func SubjectWork(svc string) string { return WorkSubjectPrefix + svc }

// WorkCallback returns the timercallback of a timer that the workers of svc serve.
func WorkCallback(svc string) string { return NATSScheme + SubjectWork(svc) }
