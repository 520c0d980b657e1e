package belfry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// Run is the argument of a [Handler]: one due occurrence of a timer. The embedded Firing
// has the timer's id and the due time. Its Key is the idempotency key, which is the same
// for each attempt.
type Run struct {
	Firing
	// Event is the added event with Belfry's attributes.
	Event *event.Event
	// Service is the timer's service.
	Service string
	// Attempt counts the attempts of this run from 1, including attempts that ended
	// with "not now".
	Attempt uint32

	result string
}

// SetResult sets a text that Belfry stores with the timer if the handler returns nil:
// its first 1,024 bytes become Timer.Outcome.Response. [Client.Handle] ignores it.
func (r *Run) SetResult(text string) { r.result = text }

// Handler handles the runs of a service's timers. It is called concurrently. Its result
// decides what Belfry does:
//
//   - nil: the run is a success.
//   - [RetryAfter], or an error that wraps [ErrRetryLater]: "not now", no failure.
//   - [Permanent]: a dead letter at once, with the error's text.
//   - any other error, or a panic: a failed attempt, and another one after a delay.
//
// Delivery is at least once: a handler that must not act twice deduplicates by run.Key().
type Handler func(ctx context.Context, run *Run) error

// HandleJSON returns a Handler that decodes the event's data from JSON as a T and calls
// handle. If the data is not the JSON of a T, the Handler returns a [Permanent] error,
// because another attempt would find the same data.
func HandleJSON[T any](f func(ctx context.Context, run *Run, payload T) error) Handler {
	return func(ctx context.Context, run *Run) error {
		var payload T
		if err := json.Unmarshal(run.Event.Data(), &payload); err != nil {
			return Permanent(fmt.Errorf("cannot decode the event's data as JSON of %s: %w", reflect.TypeFor[T](), err))
		}
		return f(ctx, run, payload)
	}
}

// ErrRetryLater is a Handler's "not now" without a time: the run comes again after a
// delay. It is not a failure, and OnError does not receive it. The errors of [RetryAfter]
// match it with errors.Is.
var ErrRetryLater = errors.New("belfry: retry later")

// RetryLaterError is the error of [RetryAfter]. It matches [ErrRetryLater].
type RetryLaterError struct {
	// After is the time to wait; 0 or less means as soon as the timer's backoff allows.
	After time.Duration
}

// Error implements error.
func (e *RetryLaterError) Error() string { return fmt.Sprintf("retry after %s", e.After) }

// Is makes errors.Is(err, ErrRetryLater) true.
func (e *RetryLaterError) Is(target error) bool { return target == ErrRetryLater }

// RetryAfter is a Handler's "not now": the run comes again after d.
//
// With Work, d is at least the first delay of the timer's backoff and at most 24 h. The
// attempt does not count, up to 100 times a run. With Handle, the event counts among the
// 1,000 that a consumer may hold unacknowledged, and the delivery counts for MaxDeliver.
func RetryAfter(d time.Duration) error { return &RetryLaterError{After: d} }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks an error of a Handler as final: the run becomes a dead letter
// with the error's text. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err: err}
}

// PanicError is reported to OnError when a Handler panics.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // of the handler's goroutine
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// HandleOption configures [Client.Handle].
type HandleOption interface{ handle(*handleConfig) }

// WorkOption configures [Client.Work].
type WorkOption interface{ work(*workConfig) }

// Option configures both Work and Handle.
type Option func(*common)

func (o Option) handle(c *handleConfig) { o(&c.common) }
func (o Option) work(c *workConfig)     { o(&c.common) }

// common is the configuration that Work and Handle share.
type common struct {
	concurrency int
	onError     func(*Run, error)
}

// Bounds of Concurrency.
const (
	DefaultConcurrency = 16
	MaxConcurrency     = 10_000
)

// Concurrency is how many handlers run at once, 1 to 10,000; default 16.
func Concurrency(n int) Option { return func(c *common) { c.concurrency = n } }

// OnError sets a function that receives each error of a handler except "not now",
// panics (PanicError), and answers that could not be sent. It also receives, with a nil
// run, messages that are not fired events and errors of the connection. It is called
// concurrently. Without it, errors are logged with slog.Default().
func OnError(f func(*Run, error)) Option { return func(c *common) { c.onError = f } }

// check returns an error for a missing handler or an option out of range.
func (c *common) check(service string, h Handler) error {
	switch {
	case h == nil:
		return badRequest("the handler is nil")
	case !schemas.ValidService(service):
		return badRequest("service %.80q must be "+names, service, schemas.MaxServiceLength)
	case c.concurrency < 1 || c.concurrency > MaxConcurrency:
		return badRequest("concurrency is %d; it must be 1 to %d", c.concurrency, MaxConcurrency)
	}
	return nil
}

const names = "1 to %d letters, digits, '-' or '_'"

func badRequest(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeBadRequest, format, args...)
}

// report passes an error to OnError, or logs it.
func (c *common) report(run *Run, service string, err error) {
	if c.onError != nil {
		c.onError(run, err)
		return
	}
	attrs := []any{"service", service, "error", err}
	if run != nil {
		attrs = append(attrs, "timer", run.Timer.String(), "run", run.Run, "attempt", run.Attempt, "id", run.Event.ID(), "source", run.Event.Source())
	}
	var p *PanicError
	if errors.As(err, &p) {
		attrs = append(attrs, "stack", string(p.Stack))
	}
	slog.Error("belfry: a run was not handled", attrs...)
}

// call calls the handler and returns its panic as an error.
func call(ctx context.Context, h Handler, run *Run) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return h(ctx, run)
}

// newRun decodes a fired message.
func newRun(hdr map[string][]string, data []byte) (*Run, error) {
	e, spec, fired, err := schemas.ParseFired(hdr, data)
	if err != nil {
		return nil, err
	}
	f := Firing{Timer: spec.Timer, Scheduled: time.UnixMilli(fired.ScheduledMs), Fired: time.UnixMilli(fired.FiredMs), Run: fired.Run}
	return &Run{Firing: f, Event: e, Service: spec.Service, Attempt: fired.Attempt}, nil
}
