// Package publish stores adds in the stream TIMERS_ADD for the Go client.
//
// [Publisher.Add] publishes one add without waiting for the server and returns its
// [Result]. [Publisher.AddAll] stores many and returns when all are stored. Both use atomic
// batches of JetStream where these are faster: AddAll always, Add when it measures that
// single publishes are slow (see adaptive.go). If the server refuses a batch, its messages
// are published one by one, so that each has an answer of its own.
//
// A failed call may have stored its add. That is safe, because Belfry recognises a repeated
// add by its source and id.
package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// stallWait bounds how long Add waits for room among the adds without an answer:
	// 4,000 single publishes (nats.go's default), or maxQueued queued ones.
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
	adaptive  adaptive
}

// New returns a Publisher on a connection that stays the caller's. js must have
// AckTimeout as its WithPublishAsyncTimeout.
func New(nc *nats.Conn, js jetstream.JetStream) *Publisher {
	return &Publisher{nc: nc, js: js, adaptive: newAdaptive()}
}

// Result is the outcome of an add, now or later. Its Wait may be called any number of
// times, by any number of goroutines.
type Result struct {
	// published is nil, or closed when ok and errs are set.
	published chan struct{}
	ok        <-chan *jetstream.PubAck
	errs      <-chan error

	once sync.Once
	done chan struct{}
	err  error // set before done is closed
}

func (r *Result) resolve(err error) {
	r.once.Do(func() {
		r.err = err
		close(r.done)
	})
}

// Wait returns nil once the add is stored in TIMERS_ADD. Errors: ErrStoreFull, ErrTooLarge
// and ErrUnavailable. When ctx ends, Wait returns ErrUnavailable and the add continues.
func (r *Result) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	default:
	}
	if r.published != nil {
		select {
		case <-r.done:
			return r.err
		case <-r.published:
		case <-ctx.Done():
			return unfinished(ctx)
		}
	}
	select {
	case <-r.done: // a concurrent Wait received the answer
	case <-r.ok:
		r.resolve(nil)
	case err := <-r.errs:
		r.resolve(publishError(err))
	case <-ctx.Done():
		return unfinished(ctx)
	}
	<-r.done
	return r.err
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
func (p *Publisher) checkSize(m *nats.Msg) error {
	if limit := p.nc.MaxPayload(); limit > 0 && int64(len(m.Data)) > limit {
		return TooLarge(p.nc, len(m.Data), nats.ErrMaxPayload)
	}
	return nil
}

// TooLarge returns the error for an event of size bytes, over the server's max_payload.
func TooLarge(nc *nats.Conn, size int, err error) error {
	return schemas.Errorf(schemas.CodeTooLarge, "the event has %d bytes; the server's limit is %d: put large data elsewhere and send a reference (%w)", size, nc.MaxPayload(), err)
}

// publish publishes one add by itself.
func (p *Publisher) publish(m *nats.Msg) (*Result, error) {
	f, err := p.js.PublishMsgAsync(m, jetstream.WithStallWait(stallWait))
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return nil, TooLarge(p.nc, len(m.Data), err)
	case err != nil:
		return nil, schemas.Errorf(schemas.CodeUnavailable, "add not published: %w", err)
	}
	// Each call of Ok and Err replaces the future's channel, so call them once.
	return &Result{ok: f.Ok(), errs: f.Err(), done: make(chan struct{})}, nil
}
