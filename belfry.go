// Package belfry is the Go client of Belfry, durable timers on NATS JetStream:
// add a CloudEvent that says when, and it is fired on timers.fired.<service> and
// calls back.
//
//	c, err := belfry.Connect(ctx, "nats://127.0.0.1:4222")
//	...
//	e := event.New()
//	e.SetID("order-17")
//	e.SetSource("/shop")
//	e.SetType("order.timeout")
//	receipt, err := c.Add(ctx, e, belfry.After(15*time.Minute), belfry.Service("orders"))
//
// # What it guarantees
//
// Add returns nil only after the timer is stored durably. A call that returns an
// error of ErrUnavailable may have taken effect; adds are idempotent by source and
// id, so it is safe to repeat them. A Client is safe for concurrent use.
package belfry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	neturl "net/url"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/schemas"
)

// What the API speaks of, under the names that users import.
type (
	// TimerID names a timer; it is derived from its event's source and id.
	TimerID = schemas.TimerID
	// Timer is what is known of a timer. Its times are texts as they are on the wire,
	// and time.Time by its methods.
	Timer = schemas.TimerInfo
	// State is where a timer stands.
	State = schemas.State
	// Dead is a dead letter.
	Dead = schemas.DeadInfo
	// Rejection is an add to timers.add that Belfry rejected.
	Rejection = schemas.RejectedInfo
	// Error is an error with a stable code.
	Error = schemas.Error
)

// Errors to compare with errors.Is.
var (
	ErrInvalidEvent     = schemas.ErrInvalidEvent     // not a CloudEvent, or an event that breaks the spec
	ErrInvalidAttribute = schemas.ErrInvalidAttribute // a timer attribute is missing, malformed or out of range
	ErrConflict         = schemas.ErrConflict         // the id is taken by another timer
	ErrNotFound         = schemas.ErrNotFound         // no such timer, or its record has expired
	ErrAlreadyFired     = schemas.ErrAlreadyFired     // too late to cancel or move
	ErrAlreadyDone      = schemas.ErrAlreadyDone      // cancelled before
	ErrStoreFull        = schemas.ErrStoreFull        // Belfry's storage is at its limit
	ErrTooLarge         = schemas.ErrTooLarge         // the event is over the payload limit
	ErrUnavailable      = schemas.ErrUnavailable      // no answer; the call may have taken effect
)

// The states of a timer.
const (
	StatePending   = schemas.StatePending   // waits for its due time
	StateDelivered = schemas.StateDelivered // fired; its callback has not concluded
	StateRetrying  = schemas.StateRetrying  // its callback failed, and is tried again
	StateSuccess   = schemas.StateSuccess   // called back, or fired without a callback
	StateFail      = schemas.StateFail      // a dead letter
	StateCancelled = schemas.StateCancelled // never fires
)

// NewTimerID is the id of the timer whose event has that source and id: it names
// a timer for which nobody kept the Receipt.
func NewTimerID(source, id string) TimerID { return schemas.NewTimerID(source, id) }

// ParseTimerID reads what TimerID.String wrote.
func ParseTimerID(s string) (TimerID, error) { return schemas.ParseTimerID(s) }

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 5 * time.Second

// Client talks to Belfry over one NATS connection.
type Client struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	owns bool
	// noBatches says that the server refused an atomic batch for what it is.
	noBatches atomic.Bool
	gather    *gatherer
}

// Connect connects to NATS and returns a client that owns the connection. It
// reconnects for ever. The url may be a list with commas. The options are
// nats.go's, and go before the client's own; of ctx the deadline counts.
func Connect(ctx context.Context, url string, opts ...nats.Option) (*Client, error) {
	failed := func(err error) error {
		return schemas.Errorf(schemas.CodeUnavailable, "cannot connect to NATS at %s: %w", schemas.RedactURLs(url), err)
	}
	if ctx.Err() != nil {
		return nil, failed(context.Cause(ctx))
	}
	defaults := []nats.Option{nats.Name("belfry client"), nats.MaxReconnects(-1)}
	if d, ok := ctx.Deadline(); ok {
		defaults = append(defaults, nats.Timeout(max(time.Millisecond, time.Until(d))))
	}
	nc, err := nats.Connect(url, append(defaults, opts...)...)
	var malformed *neturl.Error
	switch {
	case errors.As(err, &malformed):
		return nil, failed(malformed.Err) // the whole error holds the URL, and its password
	case err != nil:
		return nil, failed(err)
	}
	c, err := New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	c.owns = true
	return c, nil
}

// New returns a client on a connection that stays the caller's.
func New(nc *nats.Conn) (*Client, error) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(asyncTimeout))
	if err != nil {
		return nil, fmt.Errorf("belfry: %w", err)
	}
	c := &Client{nc: nc, js: js}
	c.gather = newGatherer(c)
	return c, nil
}

// Conn is the client's connection.
func (c *Client) Conn() *nats.Conn { return c.nc }

// Close closes a connection that Connect made, and ends each Handle on it. Adds
// that are under way may be lost: Wait for them first.
func (c *Client) Close() {
	if c.owns {
		c.nc.Close()
	}
}

// Receipt answers an add.
type Receipt struct {
	Timer TimerID
	// Due is when it fires, with millisecond precision.
	Due time.Time
	// Duplicate says that the same timer had been added before.
	Duplicate bool
	State     State
	// Remark warns of something that Belfry accepted but that may be a mistake, such as
	// "due 3h ago: fires now"; empty for none.
	Remark string
}

// Add adds a timer and returns once it is stored. The options set the event's
// timer attributes; an event that carries them needs none. Errors: ErrInvalidEvent,
// ErrInvalidAttribute, ErrConflict, ErrStoreFull, ErrTooLarge, ErrUnavailable, and
// an *Error of the code unsupported.
func (c *Client) Add(ctx context.Context, e event.Event, opts ...AddOption) (Receipt, error) {
	hdr, data, err := encode(e, opts)
	if err != nil {
		return Receipt{}, err
	}
	var reply schemas.AddReply
	if err := c.request(ctx, "add", hdr, data, &reply); err != nil {
		return Receipt{}, err
	}
	return Receipt{Timer: reply.Timer, Due: reply.Due, Duplicate: reply.Duplicate, State: reply.State, Remark: reply.Remark}, nil
}

func encode(e event.Event, opts []AddOption) (nats.Header, []byte, error) {
	// An event's extensions are a map: the caller's must not change.
	e = e.Clone()
	for _, o := range opts {
		o(&e)
	}
	return schemas.EncodeEvent(e, schemas.ModeStructured)
}

// Get returns a timer. Errors: ErrNotFound, ErrUnavailable.
func (c *Client) Get(ctx context.Context, id TimerID) (Timer, error) {
	return c.timer(ctx, "get", ref(id))
}

// ControlOption is an option of calls that change a timer, such as [By].
type ControlOption func(*controlOptions)

type controlOptions struct{ by string }

// By sets the caller's name for the timer's history and the nodes' logs: at most 128
// bytes of printable text, such as "ann@example.com". Belfry does not verify it.
func By(name string) ControlOption { return func(o *controlOptions) { o.by = name } }

func control(opts []ControlOption) controlOptions {
	var o controlOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Cancel cancels a timer that waits. After it returned nil the timer does not
// fire. Errors: ErrAlreadyFired, ErrNotFound, ErrUnavailable.
func (c *Client) Cancel(ctx context.Context, id TimerID, opts ...ControlOption) (Timer, error) {
	return c.timer(ctx, "cancel", schemas.CancelRequest{TimerRef: ref(id), By: control(opts).by})
}

// Reschedule moves a pending timer. Errors: ErrAlreadyFired, ErrAlreadyDone,
// ErrNotFound, ErrUnavailable.
func (c *Client) Reschedule(ctx context.Context, id TimerID, when When, opts ...ControlOption) (Timer, error) {
	return c.timer(ctx, "reschedule", schemas.RescheduleRequest{TimerRef: ref(id), By: control(opts).by, At: when.at, After: when.after})
}

func ref(id TimerID) schemas.TimerRef { return schemas.TimerRef{Timer: id.String()} }

// When is a time, or a duration from now.
type When struct{ at, after string }

// AtTime is a due time; it is kept to the millisecond, rounded up.
func AtTime(t time.Time) When { return When{at: t.UTC().Format(time.RFC3339Nano)} }

// FromNow is a duration from when Belfry takes the call.
func FromNow(d time.Duration) When { return When{after: d.String()} }

// Query says which timers to list. An empty field matches all.
type Query struct {
	States  []State
	Service string
	Group   string
}

// listPage is how many timers are fetched at a time.
const listPage = 500

// List yields timers shard by shard, in the order of their last change. Timers
// that change meanwhile may be missed or come twice.
func (c *Client) List(ctx context.Context, q Query) iter.Seq2[Timer, error] {
	return func(yield func(Timer, error) bool) {
		req := schemas.ListRequest{States: q.States, Service: q.Service, Group: q.Group, Limit: listPage}
		for {
			var page schemas.ListReply
			if err := c.call(ctx, "list", req, &page); err != nil {
				yield(Timer{}, err)
				return
			}
			for _, t := range page.Timers {
				if !yield(t, nil) {
					return
				}
			}
			if req.Cursor = page.Cursor; req.Cursor == "" {
				return
			}
		}
	}
}

// DeadLetters yields dead letters in the order in which they died, of a service
// or, if it is empty, of all.
func (c *Client) DeadLetters(ctx context.Context, service string) iter.Seq2[Dead, error] {
	return func(yield func(Dead, error) bool) {
		req := schemas.DeadListRequest{Service: service, Limit: listPage}
		for {
			var page schemas.DeadListReply
			if err := c.call(ctx, "dead.list", req, &page); err != nil {
				yield(Dead{}, err)
				return
			}
			for _, d := range page.Dead {
				if !yield(d, nil) {
					return
				}
			}
			if req.Cursor = page.Cursor; req.Cursor == "" {
				return
			}
		}
	}
}

// Rejections yields the rejected adds, oldest first. Belfry keeps them for the setting
// rejected-max-age, 7 days by default. Errors: ErrUnavailable.
func (c *Client) Rejections(ctx context.Context) iter.Seq2[Rejection, error] {
	return func(yield func(Rejection, error) bool) {
		req := schemas.RejectedListRequest{Limit: listPage}
		for {
			var page schemas.RejectedListReply
			if err := c.call(ctx, "rejected.list", req, &page); err != nil {
				yield(Rejection{}, err)
				return
			}
			for _, r := range page.Rejected {
				if !yield(r, nil) {
					return
				}
			}
			if req.Cursor = page.Cursor; req.Cursor == "" {
				return
			}
		}
	}
}

// Replay calls a dead timer's callback again, with its attempts renewed.
// Errors: ErrNotFound if it has no dead letter, ErrUnavailable.
func (c *Client) Replay(ctx context.Context, id TimerID, opts ...ControlOption) error {
	return c.call(ctx, "dead.replay", schemas.ReplayRequest{TimerRef: ref(id), By: control(opts).by}, &schemas.ReplayReply{})
}

// ReplayService calls again for every dead letter of a service, and returns how
// many there were.
func (c *Client) ReplayService(ctx context.Context, service string, opts ...ControlOption) (int, error) {
	n := 0
	for {
		var reply schemas.ReplayReply
		if err := c.call(ctx, "dead.replay", schemas.ReplayRequest{By: control(opts).by, Service: service}, &reply); err != nil {
			return n, err
		}
		if n += reply.Replayed; !reply.More || reply.Replayed == 0 {
			return n, nil
		}
	}
}

// timer is a call that answers with a timer.
func (c *Client) timer(ctx context.Context, verb string, req any) (Timer, error) {
	var t Timer
	if err := c.call(ctx, verb, req, &t); err != nil {
		return Timer{}, err
	}
	return t, nil
}

// call sends a JSON request and reads the JSON answer.
func (c *Client) call(ctx context.Context, verb string, req, reply any) error {
	b, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("belfry: %w", err)
	}
	return c.request(ctx, verb, nil, b, reply)
}

func (c *Client) request(ctx context.Context, verb string, hdr nats.Header, data []byte, reply any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	m, err := c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: schemas.SubjectAPIPrefix + verb, Header: hdr, Data: data})
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return schemas.Errorf(schemas.CodeUnavailable, "nobody serves %s%s at %s: is a Belfry router running there? (%w)", schemas.SubjectAPIPrefix, verb, schemas.RedactURL(c.nc.ConnectedUrl()), err)
	case errors.Is(err, nats.ErrMaxPayload):
		return c.tooLarge(len(data), err)
	case err != nil:
		return schemas.Errorf(schemas.CodeUnavailable, "%s: no answer from Belfry (%w); it may have taken effect", verb, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return &schemas.Error{Code: schemas.Code(code), Msg: m.Header.Get(micro.ErrorHeader)}
	}
	if err := json.Unmarshal(m.Data, reply); err != nil {
		return fmt.Errorf("belfry: the answer to %s cannot be read: %w", verb, err)
	}
	return nil
}

func (c *Client) tooLarge(size int, err error) error {
	return schemas.Errorf(schemas.CodeTooLarge, "the event has %d bytes; the server takes %d: send a reference to what is large (%w)", size, c.nc.MaxPayload(), err)
}

// bounded gives a context without a deadline the default one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}
