// Package worker runs the handlers of the Go client. It has two ways to get runs:
//
//   - [Serve] answers the requests that Belfry sends to the workers of a service on
//     timers.work.<service>. Belfry keeps the run, counts its attempts and records the
//     outcome. schemas/work.go defines the protocol.
//   - [Consume] pulls fired events from a durable consumer on TIMERS_FIRED. It acknowledges
//     each event according to the outcome, and publishes a dead letter for an event that it
//     gives up.
//
// Both run a bounded number of handlers at once, and stop when their context ends.
package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Config is what Serve and Consume have in common. All fields are required.
type Config struct {
	Service string
	// Concurrency is the maximum number of handlers that run at once.
	Concurrency int
	// Call runs the handler. It returns the handler's panic as an Outcome.
	Call func(context.Context, *Run) Outcome
	// Report receives every error that Belfry does not get, or gets as a failure. The run is
	// nil if the error does not belong to one. It is called concurrently.
	Report func(*Run, error)
}

// Run is one due occurrence of a timer, decoded from its message.
type Run struct {
	Event   *event.Event
	Timer   schemas.TimerID
	Service string
	// Fired has the times and the number of the attempt.
	Fired schemas.Fired
}

// key returns the run's idempotency key.
func (r *Run) key() string { return r.Timer.MsgID(r.Fired.Run) }

func decode(hdr map[string][]string, data []byte) (*Run, error) {
	e, spec, fired, err := schemas.ParseFired(hdr, data)
	if err != nil {
		return nil, err
	}
	return &Run{Event: e, Timer: timerOf(hdr, spec.Timer), Service: spec.Service, Fired: fired}, nil
}

// timerOf returns the timer id in the message id of a fired event or of a request to a worker. The
// id that follows from source and id of the event, def, is not that of a tenant's timer.
func timerOf(hdr map[string][]string, def schemas.TimerID) schemas.TimerID {
	if v := hdr[nats.MsgIdHdr]; len(v) == 1 {
		if id, err := schemas.ParseRunID(v[0]); err == nil {
			return id.Timer
		}
	}
	return def
}

// Outcome is the result of one call of a handler.
type Outcome struct {
	Verdict Verdict
	// Result is the handler's text for Done.
	Result string
	// After is the time until the next call for Later. Negative: the backoff decides.
	After time.Duration
	// Err is the handler's error, nil for Done.
	Err error
}

// Verdict is the kind of an Outcome.
type Verdict int

// The verdicts.
const (
	Done      Verdict = iota // success
	Failed                   // call again after the backoff; counts as an attempt
	Later                    // call again later; no failure
	Permanent                // never call again
)

const (
	// requestTimeout bounds a request to JetStream if the context has no deadline.
	requestTimeout = 5 * time.Second
	// drainWait bounds how long a stop waits for messages that the server has already sent.
	drainWait = 2 * time.Second
)

// bounded gives a context without a deadline the default one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, requestTimeout)
}

// notFired returns the error for a message that cannot be decoded as a run.
func notFired(what, subject string, err error) error {
	return fmt.Errorf("a %s on %s is not a fired event: %w", what, subject, err)
}
