package belfry

import (
	"context"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// AddOption sets a timer attribute of the event that is added.
type AddOption func(*event.Event)

// At makes the timer due at a time, kept to the millisecond.
func At(t time.Time) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrAt, t.UTC().Format(time.RFC3339Nano)) }
}

// After makes the timer due after a duration, counted from when Belfry takes it.
func After(d time.Duration) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrAfter, d.String()) }
}

// Service names the service: the event fires on timers.fired.<service>.
func Service(name string) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrService, name) }
}

// Callback is an https:// or http:// URL, or nats:<subject>.
func Callback(uri string) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrCallback, uri) }
}

// Group labels the timer, to list by.
func Group(label string) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrGroup, label) }
}

// MaxAttempts bounds the callback's attempts.
func MaxAttempts(n int) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrMaxAttempts, strconv.Itoa(n)) }
}

// Backoff sets the delay after the first failure, which doubles up to a cap.
func Backoff(first, limit time.Duration) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrBackoff, first.String()+".."+limit.String()) }
}

// Timeout bounds one attempt of the callback.
func Timeout(d time.Duration) AddOption {
	return func(e *event.Event) { e.SetExtension(schemas.AttrTimeout, d.String()) }
}

// Pending is an add under way.
type Pending struct{ f jetstream.PubAckFuture }

// Wait returns nil once the add is stored durably in TIMERS_ADD. Whether it is
// valid is found out after that: what is not goes to timers.rejected.
func (p Pending) Wait(ctx context.Context) error {
	select {
	case <-p.f.Ok():
		return nil
	case err := <-p.f.Err():
		return schemas.Errorf(schemas.CodeUnavailable, "add not acknowledged (%w); it may have been stored", err)
	case <-ctx.Done():
		return schemas.Errorf(schemas.CodeUnavailable, "add not acknowledged yet (%w); it may be stored", context.Cause(ctx))
	}
}

// asyncStall is how long AddAsync waits for room in the window of adds that are
// under way (nats.go's default of 4,000).
const asyncStall = 5 * time.Second

// AddAsync publishes the timer to timers.add and returns; it blocks only while
// too many adds are under way. It is the fast way to add many.
func (c *Client) AddAsync(e event.Event, opts ...AddOption) (Pending, error) {
	hdr, data, err := encode(e, opts)
	if err != nil {
		return Pending{}, err
	}
	f, err := c.js.PublishMsgAsync(&nats.Msg{Subject: schemas.SubjectAdd, Header: hdr, Data: data}, jetstream.WithStallWait(asyncStall))
	if err != nil {
		return Pending{}, schemas.Errorf(schemas.CodeUnavailable, "add not published: %w", err)
	}
	return Pending{f: f}, nil
}

// AddBatch adds many timers and returns once all are stored durably in
// TIMERS_ADD. On an error some may have been stored: to add all again is safe.
func (c *Client) AddBatch(ctx context.Context, events []event.Event, opts ...AddOption) error {
	pending := make([]Pending, 0, len(events))
	for _, e := range events {
		p, err := c.AddAsync(e, opts...)
		if err != nil {
			return err
		}
		pending = append(pending, p)
	}
	for _, p := range pending {
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
