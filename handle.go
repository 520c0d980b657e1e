package belfry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Handler is called with each event that fires for a service. nil acknowledges
// it; RetryAfter asks for it again later; Permanent gives it up; any other error
// has it delivered again after a growing delay.
type Handler func(ctx context.Context, e *event.Event) error

type retryError struct{ after time.Duration }

func (e *retryError) Error() string { return fmt.Sprintf("retry after %s", e.after) }

// RetryAfter is a Handler's "not now": the event is delivered again after d.
func RetryAfter(d time.Duration) error { return &retryError{after: d} }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks an error of a Handler as final: the event is not delivered
// again.
func Permanent(err error) error { return &permanentError{err: err} }

// HandleOption configures Handle.
type HandleOption func(*handleConfig)

type handleConfig struct {
	durable     string
	concurrency int
	ackWait     time.Duration
	maxDeliver  int
	onError     func(*event.Event, error)
}

// Defaults of Handle.
const (
	DefaultHandleConcurrency = 16
	DefaultHandleAckWait     = 30 * time.Second
	handleBackoffMax         = time.Minute
)

// Durable names the consumer on TIMERS_FIRED; processes of one name share the
// events. The default is the service's name.
func Durable(name string) HandleOption { return func(c *handleConfig) { c.durable = name } }

// Concurrency is how many events are handled at once; default 16.
func Concurrency(n int) HandleOption { return func(c *handleConfig) { c.concurrency = n } }

// AckWait is after how long an event whose handler has died is delivered to
// another; default 30 s. While a handler runs it is extended.
func AckWait(d time.Duration) HandleOption { return func(c *handleConfig) { c.ackWait = d } }

// MaxDeliver bounds the deliveries of one event; default unbounded.
func MaxDeliver(n int) HandleOption { return func(c *handleConfig) { c.maxDeliver = n } }

// OnError is told of each error that a handler returns, and of messages that are
// no events (with a nil event).
func OnError(f func(*event.Event, error)) HandleOption {
	return func(c *handleConfig) { c.onError = f }
}

// Handle consumes the events that fire for a service, through a durable consumer
// of its own on timers.fired.<service>, until ctx ends; then it waits for the
// handlers that run and returns nil. The event carries timerscheduled, timerfired
// and timerrun as extensions. Delivery is at least once.
func (c *Client) Handle(ctx context.Context, service string, h Handler, opts ...HandleOption) error {
	cfg := handleConfig{durable: service, concurrency: DefaultHandleConcurrency, ackWait: DefaultHandleAckWait, maxDeliver: -1, onError: func(*event.Event, error) {}}
	for _, o := range opts {
		o(&cfg)
	}
	if !schemas.ValidService(service) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", service, schemas.MaxServiceLength)
	}
	if cfg.concurrency < 1 {
		return schemas.Errorf(schemas.CodeBadRequest, "concurrency is %d; it must be 1 or more", cfg.concurrency)
	}
	cons, err := c.js.CreateOrUpdateConsumer(ctx, schemas.StreamFired, jetstream.ConsumerConfig{
		Durable: cfg.durable, FilterSubject: schemas.SubjectFired(service), AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: cfg.ackWait, MaxDeliver: cfg.maxDeliver, MaxAckPending: max(1000, 4*cfg.concurrency),
	})
	if err != nil {
		return schemas.Errorf(schemas.CodeUnavailable, "consumer %s on %s: %w", cfg.durable, schemas.StreamFired, err)
	}
	it, err := cons.Messages(jetstream.PullMaxMessages(2 * cfg.concurrency))
	if err != nil {
		return schemas.Errorf(schemas.CodeUnavailable, "consume %s: %w", schemas.StreamFired, err)
	}
	unhook := context.AfterFunc(ctx, it.Stop)
	defer unhook()
	defer it.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, cfg.concurrency)
	for {
		m, err := it.Next()
		switch {
		case errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return nil
		case errors.Is(err, jetstream.ErrConsumerDeleted):
			return schemas.Errorf(schemas.CodeUnavailable, "consumer %s was deleted", cfg.durable)
		case err != nil:
			cfg.onError(nil, err)
			continue
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := handleOne(ctx, cfg, h, m); err != nil {
				cfg.onError(nil, err)
			}
		})
	}
}

// handleOne runs the handler and settles the message as it says.
func handleOne(ctx context.Context, cfg handleConfig, h Handler, m jetstream.Msg) error {
	e, _, _, err := schemas.ParseFired(m.Headers(), m.Data())
	if err != nil {
		return errors.Join(fmt.Errorf("a message on %s is no fired event: %w", m.Subject(), err), m.TermWithReason("not a fired event"))
	}
	err = whileAlive(m, cfg.ackWait, func() error { return h(context.WithoutCancel(ctx), e) })
	var retry *retryError
	var permanent *permanentError
	switch {
	case err == nil:
		return m.Ack()
	case errors.As(err, &retry):
		return m.NakWithDelay(retry.after)
	case errors.As(err, &permanent):
		cfg.onError(e, err)
		return m.TermWithReason("handler: permanent error")
	}
	cfg.onError(e, err)
	return m.NakWithDelay(backoff(m))
}

// whileAlive extends the message's ack wait while f runs.
func whileAlive(m jetstream.Msg, ackWait time.Duration, f func() error) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(max(ackWait/3, 10*time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				// If this fails the event is delivered again, which is allowed.
				_ = m.InProgress()
			}
		}
	})
	defer wg.Wait()
	defer close(done)
	return f()
}

func backoff(m jetstream.Msg) time.Duration {
	meta, err := m.Metadata()
	if err != nil {
		return time.Second
	}
	return min(handleBackoffMax, 100*time.Millisecond<<min(meta.NumDelivered-1, 12))
}
