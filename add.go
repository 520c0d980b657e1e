package belfry

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// AddOption sets a timer attribute of the event that is added.
type AddOption func(*event.Event)

// At makes the timer due at a time, kept to the millisecond, rounded up. Of At and
// After the last counts, also over what the event says.
func At(t time.Time) AddOption {
	return func(e *event.Event) {
		e.SetExtension(schemas.AttrAt, t.UTC().Format(time.RFC3339Nano))
		e.SetExtension(schemas.AttrAfter, nil)
	}
}

// After makes the timer due after a duration, 0 or more, counted from when Belfry
// takes it. Of At and After the last counts, also over what the event says.
func After(d time.Duration) AddOption {
	return func(e *event.Event) {
		e.SetExtension(schemas.AttrAfter, d.String())
		e.SetExtension(schemas.AttrAt, nil)
	}
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

// Pending is an add under way. Its Wait may be called any number of times, by any
// number of goroutines.
type Pending struct{ s *pendingState }

type pendingState struct {
	// went, if not nil, is closed when ok and errs are set.
	went chan struct{}
	ok   <-chan *jetstream.PubAck
	errs <-chan error

	once sync.Once
	done chan struct{}
	err  error // set before done is closed
}

func (s *pendingState) settle(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.done)
	})
}

// Wait returns nil once the add is stored durably in TIMERS_ADD. The server may still
// reject it for reasons that the client cannot check: the settings max-ahead,
// callback-subjects and callback-hosts, and another timer under the same source and id.
// Belfry then publishes the add to timers.rejected. Errors: ErrStoreFull, ErrTooLarge,
// and ErrUnavailable, after which the add may have been stored. When ctx ends, Wait
// returns ErrUnavailable and the add continues.
func (p Pending) Wait(ctx context.Context) error {
	if p.s == nil {
		return schemas.Errorf(schemas.CodeBadRequest, "this Pending is of no add")
	}
	select {
	case <-p.s.done:
		return p.s.err
	default:
	}
	if p.s.went != nil {
		select {
		case <-p.s.done:
			return p.s.err
		case <-p.s.went:
		case <-ctx.Done():
			return notYet(ctx)
		}
	}
	select {
	case <-p.s.done: // another Wait was told
	case <-p.s.ok:
		p.s.settle(nil)
	case err := <-p.s.errs:
		p.s.settle(addError(err))
	case <-ctx.Done():
		return notYet(ctx)
	}
	<-p.s.done
	return p.s.err
}

func notYet(ctx context.Context) error {
	return schemas.Errorf(schemas.CodeUnavailable, "add not acknowledged yet (%w); it may be stored", context.Cause(ctx))
}

// JetStream's codes for a stream that takes no more, which nats.go does not name.
const (
	jsStorageExceeded jetstream.ErrorCode = 10047
	jsStoreFailed     jetstream.ErrorCode = 10077
)

// addError says what a refused or unanswered publish means.
func addError(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return schemas.Errorf(schemas.CodeUnavailable, "nobody takes %s: is Belfry running there? (%w)", schemas.SubjectAdd, err)
	case !errors.As(err, &api):
	case api.ErrorCode == jsStorageExceeded, api.ErrorCode == jsStoreFailed:
		return schemas.Errorf(schemas.CodeStoreFull, "Belfry's storage is full, the add was not taken: %w", err)
	case api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return schemas.Errorf(schemas.CodeTooLarge, "the event is larger than %s takes: %w", schemas.StreamAdd, err)
	}
	return schemas.Errorf(schemas.CodeUnavailable, "add not acknowledged (%w); it may have been stored", err)
}

const (
	// asyncStall is how long AddAsync waits for room in the window of adds that are
	// under way (nats.go's default of 4,000).
	asyncStall = 5 * time.Second
	// asyncTimeout is after how long an add that was not acknowledged is given up.
	asyncTimeout = 30 * time.Second
)

// AddAsync validates the timer, publishes it to timers.add and returns. It blocks only
// while 4,000 adds are under way, for at most 5 s. Use it to add many timers: where the
// server syncs every write, the client buffers up to 3,000 adds while others are
// written, and stores 500 at a time. Each add has its own answer.
//
// The client validates with the server's parser. For an event that can never be a timer
// it publishes nothing and returns the error of Add at once: ErrInvalidEvent,
// ErrInvalidAttribute, ErrTooLarge, or an *Error with the code unsupported. Any other
// error is ErrUnavailable. For rejections by the server see [Pending.Wait].
func (c *Client) AddAsync(e event.Event, opts ...AddOption) (Pending, error) {
	hdr, data, err := validated(e, opts)
	if err != nil {
		return Pending{}, err
	}
	return c.gather.add(&nats.Msg{Subject: schemas.SubjectAdd, Header: hdr, Data: data})
}

// maxAheadUnknown replaces the server's setting max-ahead, which the client does not
// know. It is the longest time.Duration, 292 years.
const maxAheadUnknown = 200 * 365 * 24 * time.Hour

// validated encodes an event and returns the error with which the server would reject
// it. It takes about 4 µs.
func validated(e event.Event, opts []AddOption) (nats.Header, []byte, error) {
	hdr, data, err := encode(e, opts)
	if err != nil {
		return nil, nil, err
	}
	if _, _, err := schemas.ParseAdd(hdr, data, time.Now().UnixMilli(), schemas.Limits{MaxHorizon: maxAheadUnknown}); err != nil {
		return nil, nil, err
	}
	return hdr, data, nil
}

func (c *Client) publish(m *nats.Msg) (Pending, error) {
	f, err := c.js.PublishMsgAsync(m, jetstream.WithStallWait(asyncStall))
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return Pending{}, c.tooLarge(len(m.Data), err)
	case err != nil:
		return Pending{}, schemas.Errorf(schemas.CodeUnavailable, "add not published: %w", err)
	}
	// Asked for once: nats.go has one place in each.
	return Pending{s: &pendingState{ok: f.Ok(), errs: f.Err(), done: make(chan struct{})}}, nil
}
