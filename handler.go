package belfry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/internal/client/worker"
	"github.com/belfryio/belfry/schemas"
)

// Run is the argument of a [Handler]: one due occurrence of a timer. The embedded Firing has
// the timer's id and times.
type Run struct {
	Firing
	// Event is the event that was added, with Belfry's attributes.
	Event *event.Event
	// Service is the timer's service.
	Service string
	// Attempt is the number of this call, from 1. Calls that ended with RetryAfter count.
	Attempt uint32

	result string
}

// SetResult sets a text that Belfry stores with the timer if the handler returns nil: its
// first 1,024 bytes become Timer.Outcome.Response. [Client.Handle] ignores it.
func (r *Run) SetResult(text string) { r.result = text }

// Handler handles the runs of a service's timers. It is called concurrently. Its result
// decides what Belfry does:
//
//   - nil: the run succeeded.
//   - [RetryAfter], or an error that wraps [ErrRetryLater]: "not now", no failure.
//   - [Permanent]: the run becomes a dead letter, with the error's text.
//   - any other error, or a panic: the attempt failed, and another one follows.
//
// Delivery is at least once: a handler that must not act twice deduplicates by run.Key().
type Handler func(ctx context.Context, run *Run) error

// HandleJSON returns a Handler that decodes the event's data from JSON as a T and calls f. If
// the data is not the JSON of a T, the Handler returns a [Permanent] error, because another
// attempt would get the same data.
func HandleJSON[T any](f func(ctx context.Context, run *Run, payload T) error) Handler {
	return func(ctx context.Context, run *Run) error {
		var payload T
		if err := json.Unmarshal(run.Event.Data(), &payload); err != nil {
			return Permanent(fmt.Errorf("cannot decode the event's data as JSON of %s: %w", reflect.TypeFor[T](), err))
		}
		return f(ctx, run, payload)
	}
}

// ErrRetryLater is a Handler's "not now" without a time: the handler is called again after
// the backoff. It is not a failure, and the error handler does not get it. The errors of
// [RetryAfter] match it with errors.Is.
var ErrRetryLater = errors.New("belfry: retry later")

// RetryLaterError is the error of [RetryAfter]. It matches [ErrRetryLater].
type RetryLaterError struct {
	// After is the time until the next call. 0 or less means as soon as possible.
	After time.Duration
}

// Error implements error.
func (e *RetryLaterError) Error() string { return fmt.Sprintf("retry after %s", e.After) }

// Is makes errors.Is(err, ErrRetryLater) true.
func (e *RetryLaterError) Is(target error) bool { return target == ErrRetryLater }

// RetryAfter returns a Handler's "not now": the handler is called again after d.
//
// With Work, d is at least the first delay of the timer's backoff and at most 24 h. The
// attempt does not count, up to 100 times a run. With Handle, the event counts among the
// 1,000 that a consumer may hold unacknowledged, and the delivery counts for WithMaxDeliver.
func RetryAfter(d time.Duration) error { return &RetryLaterError{After: d} }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks a Handler's error as final: the run becomes a dead letter with the error's
// text. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err: err}
}

// PanicError is the error of a Handler that panicked. The error handler gets it.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // the stack of the handler's goroutine
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// newRun returns the public form of a run, nil for nil.
func newRun(r *worker.Run) *Run {
	if r == nil {
		return nil
	}
	f := Firing{Timer: r.Timer, Scheduled: schemas.TimeOf(r.Fired.ScheduledMs), Fired: schemas.TimeOf(r.Fired.FiredMs), Run: r.Fired.Run, Missed: r.Fired.Missed, Trigger: r.Fired.Trigger}
	return &Run{Firing: f, Event: r.Event, Service: r.Service, Attempt: r.Fired.Attempt}
}

// callHandler calls the handler and converts its error.
func callHandler(ctx context.Context, h Handler, r *worker.Run) worker.Outcome {
	run := newRun(r)
	err := recovered(ctx, h, run)
	var later *RetryLaterError
	var permanent *permanentError
	switch {
	case err == nil:
		return worker.Outcome{Verdict: worker.Done, Result: run.result}
	case errors.As(err, &permanent):
		return worker.Outcome{Verdict: worker.Permanent, Err: err}
	case errors.As(err, &later):
		return worker.Outcome{Verdict: worker.Later, After: max(later.After, 0), Err: err}
	case errors.Is(err, ErrRetryLater):
		return worker.Outcome{Verdict: worker.Later, After: -1, Err: err}
	}
	return worker.Outcome{Verdict: worker.Failed, Err: err}
}

// recovered calls the handler and returns its panic as an error.
func recovered(ctx context.Context, h Handler, run *Run) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return h(ctx, run)
}
