// Package publish stores adds in the stream TIMERS_ADD for the Go client.
//
// [Publisher.Add] publishes one add without waiting for the server and returns its
// [Result]. [Publisher.AddAll] stores many and returns when all are stored. Both use atomic
// batches of JetStream where they measure that single publishes are slow (see adaptive.go).
// If the server refuses a batch, its messages are published one by one, so that each has an
// answer of its own. The messages are structured events and need no headers.
//
// A failed call may have stored its add. That is safe, because Belfry recognises a repeated
// add by its source and id.
package publish

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// stallWait bounds how long Add waits for room among the adds without an answer:
	// maxInFlight single publishes, or maxQueued queued ones.
	stallWait = 5 * time.Second
	// AckTimeout is how long a published add waits for its answer. After it, the add
	// fails with ErrUnavailable.
	AckTimeout = 30 * time.Second
)

// Publisher stores adds over one connection. Its methods may be called concurrently.
type Publisher struct {
	nc *nats.Conn
	js jetstream.JetStream
	// noBatches is set when the stream turns out not to support atomic batches.
	noBatches atomic.Bool
	window    window
	adaptive  adaptive
}

// New returns a Publisher on a connection that stays the caller's.
func New(nc *nats.Conn, js jetstream.JetStream) *Publisher {
	return &Publisher{nc: nc, js: js, window: window{nc: nc}, adaptive: newAdaptive()}
}

// Result is the outcome of an add, now or later. Its Wait may be called any number of
// times, by any number of goroutines.
type Result struct {
	// waiting is closed when there is an outcome. The first Wait without an outcome makes it.
	waiting atomic.Pointer[chan struct{}]
	done    atomic.Bool
	err     error // set before done
}

// resolve sets the outcome. It is called once.
func (r *Result) resolve(err error) {
	r.err = err
	r.done.Store(true)
	if c := r.waiting.Load(); c != nil {
		close(*c)
	}
}

// Wait returns nil once the add is stored in TIMERS_ADD. Errors: ErrStoreFull, ErrTooLarge
// and ErrUnavailable. When ctx ends, Wait returns ErrUnavailable and the add continues.
func (r *Result) Wait(ctx context.Context) error {
	if r.done.Load() {
		return r.err
	}
	c := r.waiting.Load()
	if c == nil {
		made := make(chan struct{})
		if r.waiting.CompareAndSwap(nil, &made) {
			c = &made
		} else {
			c = r.waiting.Load()
		}
	}
	if r.done.Load() { // before resolve could see the channel
		return r.err
	}
	select {
	case <-*c:
		return r.err
	case <-ctx.Done():
		return unfinished(ctx)
	}
}

func unfinished(ctx context.Context) error {
	return schemas.Errorf(schemas.CodeUnavailable, "add not acknowledged yet (%w); it may be stored", context.Cause(ctx))
}

// JetStream's codes for a stream that is full, which nats.go does not name.
const (
	codeStorageExceeded jetstream.ErrorCode = 10047
	codeStoreFailed     jetstream.ErrorCode = 10077
)

// publishError maps the error of a publish to the client's errors.
func publishError(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return schemas.Errorf(schemas.CodeUnavailable, "no stream takes %s: is Belfry running there? (%w)", schemas.SubjectAdd, err)
	case !errors.As(err, &api):
	case api.ErrorCode == codeStorageExceeded, api.ErrorCode == codeStoreFailed:
		return schemas.Errorf(schemas.CodeStoreFull, "Belfry's storage is full, the add was not stored: %w", err)
	case api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return schemas.Errorf(schemas.CodeTooLarge, "the event is larger than the limit of %s: %w", schemas.StreamAdd, err)
	}
	return schemas.Errorf(schemas.CodeUnavailable, "add not acknowledged (%w); it may have been stored", err)
}

// checkSize returns an error for a message over the server's max_payload, before the
// message is published. It does nothing before the first connection.
func (p *Publisher) checkSize(data []byte) error {
	if limit := p.nc.MaxPayload(); limit > 0 && int64(len(data)) > limit {
		return TooLarge(p.nc, len(data), nats.ErrMaxPayload)
	}
	return nil
}

// TooLarge returns the error for an event of size bytes, over the server's max_payload.
func TooLarge(nc *nats.Conn, size int, err error) error {
	return schemas.Errorf(schemas.CodeTooLarge, "the event has %d bytes; the server's limit is %d: put large data elsewhere and send a reference (%w)", size, nc.MaxPayload(), err)
}

// publish publishes one add by itself. An error is also the outcome of r, because a measurement may wait for r.
func (p *Publisher) publish(data []byte, r *Result) error {
	err := p.window.publish(data, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		err = TooLarge(p.nc, len(data), err)
	default:
		err = schemas.Errorf(schemas.CodeUnavailable, "add not published: %w", err)
	}
	r.resolve(err)
	return err
}
