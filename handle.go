package belfry

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Handler is called with each event that fires for a service. nil acknowledges
// it; RetryAfter asks for it again later; Permanent gives it up; any other error
// has it delivered again after a delay that grows from 100 ms to a minute.
//
// Its context has the values of Handle's and does not end with it: a handler that
// runs is let finish. One that must not take for ever sets a deadline of its own.
type Handler func(ctx context.Context, e *event.Event) error

// ErrRetryLater is a Handler's "not now", without saying when: the event is
// delivered again after a delay that grows. Like RetryAfter, whose errors match
// it with errors.Is, it is an answer and no failure, and not told to OnError.
var ErrRetryLater = errors.New("belfry: retry later")

// RetryLaterError is what RetryAfter returns. It matches ErrRetryLater.
type RetryLaterError struct {
	// After is how long to wait; 0 or less is at once.
	After time.Duration
}

// Error implements error.
func (e *RetryLaterError) Error() string { return fmt.Sprintf("retry after %s", e.After) }

// Is makes errors.Is(err, ErrRetryLater) true.
func (e *RetryLaterError) Is(target error) bool { return target == ErrRetryLater }

// RetryAfter is a Handler's "not now": the event is delivered again after d. An
// event that waits so counts among the 1,000 that a consumer may hold
// unacknowledged: for hours of waiting, add another timer.
func RetryAfter(d time.Duration) error { return &RetryLaterError{After: d} }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks an error of a Handler as final: the event is not delivered
// again to this consumer. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err: err}
}

// PanicError is told to OnError when a Handler panics.
type PanicError struct {
	Value any    // what was panicked with
	Stack []byte // of the handler's goroutine
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// HandleOption configures Handle.
type HandleOption func(*handleConfig)

type handleConfig struct {
	durable     string
	concurrency int
	ackWait     time.Duration // 0: not given
	maxDeliver  int           // 0: not given
	reconfigure bool
	onError     func(*event.Event, error)
}

// Defaults and bounds of Handle.
const (
	DefaultHandleConcurrency = 16
	MaxHandleConcurrency     = 10_000
	DefaultHandleAckWait     = 30 * time.Second
	MinHandleAckWait         = 100 * time.Millisecond

	handleBackoffMax    = time.Minute
	handleMaxAckPending = 1000
	// ownConsumers begins the names of Belfry's own consumers, which call back.
	ownConsumers = "belfry_"
)

// Durable names the consumer on TIMERS_FIRED: 1 to 64 letters, digits, '-' or
// '_'. Processes of one name share the events, each name gets all. The default is
// the service's name. Names that begin with "belfry_" are Belfry's own.
func Durable(name string) HandleOption { return func(c *handleConfig) { c.durable = name } }

// Concurrency is how many events are handled at once, 1 to 10,000; default 16. No
// more are fetched.
func Concurrency(n int) HandleOption { return func(c *handleConfig) { c.concurrency = n } }

// AckWait is after how long an event is delivered to another process when the one
// that handles it has died: 100 ms or more, default 30 s. While a handler runs it
// is extended.
func AckWait(d time.Duration) HandleOption {
	return func(c *handleConfig) {
		if c.ackWait = d; d == 0 {
			c.ackWait = -1 // given, and refused
		}
	}
}

// MaxDeliver bounds the deliveries of one event, 1 or more, those that RetryAfter
// asked for and those that a stopped Handle gave back included; default unbounded.
func MaxDeliver(n int) HandleOption {
	return func(c *handleConfig) {
		if c.maxDeliver = n; n == 0 {
			c.maxDeliver = -1 // given, and refused
		}
	}
}

// Reconfigure changes a consumer that exists to the AckWait and MaxDeliver given,
// or else to their defaults. Without it Handle refuses to contradict it.
func Reconfigure() HandleOption { return func(c *handleConfig) { c.reconfigure = true } }

// OnError is told of each error that a handler returns, of panics (PanicError),
// of events that could not be acknowledged, and with a nil event of messages that
// are no events and of trouble with the connection. It is called concurrently.
// Without it errors are silent, and a handler's panic ends the program.
func OnError(f func(*event.Event, error)) HandleOption {
	return func(c *handleConfig) { c.onError = f }
}

// Handle consumes the events that fire for a service, through a durable consumer
// of its own on timers.fired.<service>, until ctx ends; then it gives back what it
// has not begun, waits for the handlers that run and returns nil. It returns an
// error when it cannot begin, when its consumer is deleted and when the connection
// is closed; a connection that is lost is waited for.
//
// The event carries timerscheduled, timerfired, timerrun and timerattempt as
// extensions. Delivery is at least once, in no order. A new consumer starts with
// the events that TIMERS_FIRED still has (24 h by default); it stays when Handle
// returns, and collects what fires meanwhile.
//
// A consumer of that name that exists is used with its settings: an AckWait or
// MaxDeliver that contradicts them is an error of the code config, unless
// Reconfigure is given, and so is a consumer of another service.
func (c *Client) Handle(ctx context.Context, service string, h Handler, opts ...HandleOption) error {
	cfg := handleConfig{durable: service, concurrency: DefaultHandleConcurrency}
	for _, o := range opts {
		o(&cfg)
	}
	if err := cfg.check(service, h); err != nil {
		return err
	}
	if over(ctx) {
		return nil
	}
	cons, err := c.handleConsumer(ctx, service, cfg)
	if over(ctx) {
		return nil
	}
	if err != nil {
		return err
	}
	w := &worker{
		cons: cons, cfg: cfg, handler: h, ackWait: cons.CachedInfo().Config.AckWait,
		freed: make(chan int), ended: make(chan pullResult),
	}
	err = w.run(ctx)
	if c.nc.IsConnected() {
		// The last acknowledgements leave before the program may. If they do not, their
		// events are delivered again, which is allowed.
		_ = c.nc.FlushTimeout(drainWait)
	}
	return err
}

// over tells whether ctx has ended, which is how a Handle is stopped and no error.
func over(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

func (c *handleConfig) check(service string, h Handler) error {
	bad := func(format string, args ...any) error {
		return schemas.Errorf(schemas.CodeBadRequest, format, args...)
	}
	const names = "1 to %d letters, digits, '-' or '_'"
	switch {
	case h == nil:
		return bad("the handler is nil")
	case !schemas.ValidService(service):
		return bad("service %.80q must be "+names, service, schemas.MaxServiceLength)
	case !schemas.ValidService(c.durable):
		return bad("durable %.80q must be "+names, c.durable, schemas.MaxServiceLength)
	case strings.HasPrefix(c.durable, ownConsumers):
		return bad("consumers whose names begin with %s are Belfry's own, and %s is one: give Durable another name", ownConsumers, c.durable)
	case c.concurrency < 1 || c.concurrency > MaxHandleConcurrency:
		return bad("concurrency is %d; it must be 1 to %d", c.concurrency, MaxHandleConcurrency)
	case c.ackWait != 0 && c.ackWait < MinHandleAckWait:
		return bad("the ack wait must be %s or more", MinHandleAckWait)
	case c.maxDeliver < 0:
		return bad("the most deliveries must be 1 or more")
	}
	return nil
}

// handleConsumer makes the consumer, or takes the one that exists if it does what
// is asked. Somebody else's is never changed unasked.
func (c *Client) handleConsumer(ctx context.Context, service string, cfg handleConfig) (jetstream.Consumer, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	failed := func(err error) error {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return schemas.Errorf(schemas.CodeUnavailable, "there is no stream %s at %s: is Belfry running there? (%w)", schemas.StreamFired, schemas.RedactURL(c.nc.ConnectedUrl()), err)
		}
		return schemas.Errorf(schemas.CodeUnavailable, "consumer %s on %s: %w", cfg.durable, schemas.StreamFired, err)
	}
	want := jetstream.ConsumerConfig{
		Durable: cfg.durable, FilterSubject: schemas.SubjectFired(service), AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: cfg.ackWait, MaxDeliver: cfg.maxDeliver, MaxAckPending: max(handleMaxAckPending, cfg.concurrency),
	}
	if want.AckWait == 0 {
		want.AckWait = DefaultHandleAckWait
	}
	if want.MaxDeliver == 0 {
		want.MaxDeliver = -1
	}
	// Of two that start at once one makes it, and the other finds it.
	cons, err := c.js.Consumer(ctx, schemas.StreamFired, cfg.durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		cons, err = c.js.CreateConsumer(ctx, schemas.StreamFired, want)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			cons, err = c.js.Consumer(ctx, schemas.StreamFired, cfg.durable)
		}
	}
	if err != nil {
		return nil, failed(err)
	}
	have := cons.CachedInfo().Config
	differs := func(what string, has, asked any) error {
		return schemas.Errorf(schemas.CodeConfig, "consumer %s exists with %s %v, and %v is asked for: give Durable another name, or the same settings, or Reconfigure", cfg.durable, what, has, asked)
	}
	switch {
	case have.FilterSubject != want.FilterSubject:
		return nil, schemas.Errorf(schemas.CodeConfig, "consumer %s exists, and is not one of %s: give Durable another name", cfg.durable, want.FilterSubject)
	case have.AckPolicy != want.AckPolicy || have.DeliverSubject != "":
		return nil, schemas.Errorf(schemas.CodeConfig, "consumer %s exists and is no pull consumer with explicit acknowledgement: give Durable another name", cfg.durable)
	case cfg.reconfigure && (have.AckWait != want.AckWait || have.MaxDeliver != want.MaxDeliver || have.MaxAckPending < want.MaxAckPending):
		have.AckWait, have.MaxDeliver, have.MaxAckPending = want.AckWait, want.MaxDeliver, max(have.MaxAckPending, want.MaxAckPending)
		if cons, err = c.js.UpdateConsumer(ctx, schemas.StreamFired, have); err != nil {
			return nil, failed(err)
		}
	case cfg.reconfigure:
	case cfg.ackWait != 0 && have.AckWait != cfg.ackWait:
		return nil, differs("ack wait", have.AckWait, cfg.ackWait)
	case cfg.maxDeliver != 0 && have.MaxDeliver != cfg.maxDeliver:
		return nil, differs("most deliveries", have.MaxDeliver, cfg.maxDeliver)
	}
	return cons, nil
}

// handleOne runs the handler and settles the message as it says.
func (w *worker) handleOne(ctx context.Context, m jetstream.Msg) {
	if _, err := m.Metadata(); err != nil {
		// Not of the consumer. To settle it would be a publish to a subject of the
		// sender's choice.
		w.tell(nil, fmt.Errorf("a message on %s is not of the consumer: %w", m.Subject(), err))
		return
	}
	e, _, _, err := schemas.ParseFired(m.Headers(), m.Data())
	if err != nil {
		w.tell(nil, fmt.Errorf("a message on %s is no fired event: %w", m.Subject(), err))
		w.settled(nil, m.TermWithReason("not a fired event"))
		return
	}
	err = whileAlive(m, w.ackWait, func() error { return w.call(context.WithoutCancel(ctx), e) })
	var later *RetryLaterError
	var permanent *permanentError
	switch {
	case err == nil:
		w.settled(e, m.Ack())
	case errors.As(err, &later):
		w.settled(e, m.NakWithDelay(max(0, later.After)))
	case errors.Is(err, ErrRetryLater):
		w.settled(e, m.NakWithDelay(backoff(m)))
	case errors.As(err, &permanent):
		w.tell(e, err)
		w.settled(e, m.TermWithReason("handler: permanent error"))
	default:
		w.tell(e, err)
		w.settled(e, m.NakWithDelay(backoff(m)))
	}
}

// call is the handler; its panic is an error where there is somebody to tell.
func (w *worker) call(ctx context.Context, e *event.Event) (err error) {
	if w.cfg.onError != nil {
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
	}
	return w.handler(ctx, e)
}

// settled reports that the server was not told what became of an event.
func (w *worker) settled(e *event.Event, err error) {
	if err != nil {
		w.tell(e, fmt.Errorf("not acknowledged, it will be delivered again: %w", err))
	}
}

func (w *worker) tell(e *event.Event, err error) {
	if w.cfg.onError != nil {
		w.cfg.onError(e, err)
	}
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
