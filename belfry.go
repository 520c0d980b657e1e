package belfry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	neturl "net/url"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/internal/client/publish"
	"github.com/belfryio/belfry/schemas"
)

// Types of the API, which other programs of Belfry share.
type (
	// TimerID identifies a timer. It is derived from its event's source and id.
	TimerID = schemas.TimerID
	// Timer describes a timer: its attributes, state, times and last outcome.
	Timer = schemas.TimerInfo
	// Outcome is the result of one attempt of a callback or handler.
	Outcome = schemas.OutcomeInfo
	// Operation is a control operation in a timer's history, such as a cancel.
	Operation = schemas.OperationInfo
	// State is the state of a timer.
	State = schemas.State
	// DeadLetter describes a timer whose callback or handler failed and will not be repeated.
	DeadLetter = schemas.DeadInfo
	// Rejection describes an add that Belfry rejected after it had been stored.
	Rejection = schemas.RejectedInfo
	// OrderedKey describes an ordering key that has events.
	OrderedKey = schemas.OrderKeyInfo
	// Error is an error with a stable code.
	Error = schemas.Error
)

// Errors to compare with errors.Is.
var (
	ErrInvalidEvent     = schemas.ErrInvalidEvent     // the message is not a valid CloudEvent
	ErrInvalidAttribute = schemas.ErrInvalidAttribute // a timer attribute is missing, malformed or out of range
	ErrTooLarge         = schemas.ErrTooLarge         // the event is larger than the payload limit
	ErrConflict         = schemas.ErrConflict         // another timer has this source and id
	ErrNotFound         = schemas.ErrNotFound         // no such timer, or its record has expired
	ErrAlreadyFired     = schemas.ErrAlreadyFired     // too late to cancel or reschedule
	ErrAlreadyDone      = schemas.ErrAlreadyDone      // cancelled, or finished, before
	ErrStoreFull        = schemas.ErrStoreFull        // Belfry's storage is at its limit
	ErrTooManyServices  = schemas.ErrTooManyServices  // the timer's service would exceed the setting max-services
	ErrLimited          = schemas.ErrLimited          // the adds a second of the service are used up: see Error.RetryAfter
	ErrBadRequest       = schemas.ErrBadRequest       // an argument or option is out of range
	ErrConfig           = schemas.ErrConfig           // an existing consumer has other settings; see Client.Handle
	// ErrUnavailable means that there was no answer; the call may have taken effect, unless the
	// text says that it was not sent. A call waits within its context for a lost connection, and
	// sends nothing before the connection is up.
	ErrUnavailable = schemas.ErrUnavailable
)

// The states of a timer.
const (
	StatePending   = schemas.StatePending   // waits for its due time
	StateDelivered = schemas.StateDelivered // fired; its callback has not finished
	StateRetrying  = schemas.StateRetrying  // its callback failed and will be called again
	StateSuccess   = schemas.StateSuccess   // its callback succeeded, or it fired and has no callback
	StateFail      = schemas.StateFail      // its callback failed and will not be repeated: there is a dead letter
	StateCancelled = schemas.StateCancelled // will never fire
	StatePaused    = schemas.StatePaused    // waits for a resume
	StateCompleted = schemas.StateCompleted // a schedule without a run left
)

// NewTimerID returns the id of the timer whose event has that source and id. Use it to get or
// cancel a timer without its Receipt.
func NewTimerID(source, id string) TimerID { return schemas.NewTimerID(source, id) }

// NewTenantTimerID is NewTimerID for a client whose account is a tenant of Belfry: its timers
// have ids of their own. An empty tenant is the default one.
func NewTenantTimerID(tenant, source, id string) TimerID {
	return schemas.NewTenantTimerID(tenant, source, id)
}

// ParseTimerID parses the text form of a timer id, as TimerID.String returns it.
func ParseTimerID(s string) (TimerID, error) { return schemas.ParseTimerID(s) }

// DefaultRequestTimeout bounds a call whose context has no deadline.
const DefaultRequestTimeout = 5 * time.Second

// Client adds, controls and handles timers over one NATS connection. Create it with
// [Connect] or [New].
type Client struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	owns bool // Close closes the connection
	pub  *publish.Publisher
}

// Connect connects to NATS and returns a client that owns the connection. The url may be a
// list separated by commas. A lost connection is reconnected without limit, also while the
// server refuses the login; change this and other settings with nats.go's options. The
// deadline of ctx bounds the connect. Errors: ErrUnavailable.
func Connect(ctx context.Context, url string, opts ...nats.Option) (*Client, error) {
	failed := func(err error) error {
		return schemas.Errorf(schemas.CodeUnavailable, "cannot connect to NATS at %s: %w", schemas.RedactURLs(url), err)
	}
	if ctx.Err() != nil {
		return nil, failed(context.Cause(ctx))
	}
	defaults := []nats.Option{nats.Name("belfry client"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()}
	if d, ok := ctx.Deadline(); ok {
		defaults = append(defaults, nats.Timeout(max(time.Millisecond, time.Until(d))))
	}
	nc, err := nats.Connect(url, append(defaults, opts...)...)
	var malformed *neturl.Error
	switch {
	case errors.As(err, &malformed):
		return nil, failed(malformed.Err) // the outer error has the URL with its password
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

// New returns a client on an existing connection, which the caller closes.
func New(nc *nats.Conn) (*Client, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("belfry: %w", err)
	}
	return &Client{nc: nc, js: js, pub: publish.New(nc, js)}, nil
}

// Conn returns the client's connection.
func (c *Client) Conn() *nats.Conn { return c.nc }

// Close closes the connection if Connect made it. Each Work and Handle on it then returns an
// error. Adds of AddAsync that were not acknowledged may be lost: Wait for them first.
func (c *Client) Close() {
	if c.owns {
		c.nc.Close()
	}
}

// call sends a JSON request to timers.api.<verb> and decodes the JSON answer.
func (c *Client) call(ctx context.Context, verb string, req, reply any) error {
	b, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("belfry: %w", err)
	}
	return c.request(ctx, verb, nil, b, reply)
}

func (c *Client) request(ctx context.Context, verb string, hdr nats.Header, data []byte, reply any) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultRequestTimeout)
		defer cancel()
	}
	if err := c.connected(ctx); err != nil {
		return schemas.Errorf(schemas.CodeUnavailable, "%s: not sent: no connection to NATS (%w)", verb, err)
	}
	m, err := c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: schemas.SubjectAPIPrefix + verb, Header: hdr, Data: data})
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return schemas.Errorf(schemas.CodeUnavailable, "nothing serves %s%s at %s: is a Belfry router running there? (%w)", schemas.SubjectAPIPrefix, verb, schemas.RedactURL(c.nc.ConnectedUrl()), err)
	case errors.Is(err, nats.ErrMaxPayload):
		return publish.TooLarge(c.nc, len(data), err)
	case err != nil:
		return schemas.Errorf(schemas.CodeUnavailable, "%s: no answer from Belfry (%w); it may have taken effect", verb, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		failure := &schemas.Error{Code: schemas.Code(code), Msg: m.Header.Get(micro.ErrorHeader)}
		var body schemas.ErrorReply
		if json.Unmarshal(m.Data, &body) == nil && body.RetryAfterMs > 0 {
			failure.RetryAfter = time.Duration(min(body.RetryAfterMs, schemas.MaxRetryAfterMs)) * time.Millisecond
		}
		return failure
	}
	if err := json.Unmarshal(m.Data, reply); err != nil {
		return fmt.Errorf("belfry: cannot decode the answer to %s: %w", verb, err)
	}
	return nil
}

// connected waits within ctx until a lost connection is up. Otherwise nats.go would buffer a request and send it at any
// time later, after the caller has given up.
func (c *Client) connected(ctx context.Context) error {
	lost := func() bool {
		status := c.nc.Status()
		return status == nats.RECONNECTING || status == nats.CONNECTING || status == nats.DISCONNECTED
	}
	if !lost() {
		return nil
	}
	changed := c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer c.nc.RemoveStatusListener(changed)
	for lost() {
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
