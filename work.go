package belfry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/client/worker"
	"github.com/belfryio/belfry/schemas"
)

// Work runs h for the timers of a service that were added with [ToWorker], until ctx ends. It
// is the recommended way to handle timers in Go. Any number of processes may call Work for a
// service: Belfry requests one of them for each run, and records the outcome, which
// [Client.Get] returns.
//
// The timer's attributes are the retry policy (WithMaxAttempts, WithBackoff). A handler may
// run for longer than the attempt timeout, up to [WithHandlerTimeout]: Work sends progress
// messages in the meantime. If none arrives for the attempt timeout (at least 2 s), as after a crash,
// Belfry counts a failed attempt and requests another worker.
//
// While no worker runs, or all are busy, timers wait and use no attempts. Belfry tries again
// after growing pauses of up to 5 minutes; after 7 days these tries count as attempts. A
// worker that runs [WithConcurrency] handlers holds further requests for half a second, then
// answers "busy".
//
// A handler's context has the values of ctx. It ends after WithHandlerTimeout, after
// WithStopGrace, and when the connection was lost for so long that Belfry requested another
// worker.
//
// When ctx ends, Work takes no more requests, waits up to [WithStopGrace] for running handlers
// and returns nil. It hands back unfinished runs: another worker gets them at once, and no
// attempt is used.
//
// Work returns ErrBadRequest for options out of range, and ErrUnavailable if it cannot
// subscribe, if the connection is closed, or if handlers ignore the end of their context at
// the stop. While the connection is lost it waits. Its NATS user must be allowed to subscribe
// to timers.work.<service> and to reply (allow_responses, with as many replies as progress
// messages).
func (c *Client) Work(ctx context.Context, service string, h Handler, opts ...WorkOption) error {
	cfg := workConfig{handlerConfig: handlerConfig{concurrency: DefaultConcurrency}, timeout: DefaultHandlerTimeout, grace: DefaultStopGrace}
	for _, o := range opts {
		o.applyWork(&cfg)
	}
	if err := cfg.check(service, h); err != nil || ctx.Err() != nil {
		return err
	}
	return worker.Serve(ctx, c.nc, worker.ServeConfig{Config: cfg.worker(service, h), Timeout: cfg.timeout, StopGrace: cfg.grace})
}

// Handle runs h for the fired events of a service, until ctx ends. Prefer [Client.Work], where
// Belfry records the outcome, unless several programs each need every event. With Handle, the
// state success of a timer means only that Belfry published the event. TIMERS_FIRED drops an
// event after the setting fired-max-age, 24 h by default, handled or not.
//
// Handle reads timers.fired.<service> through a durable consumer of its own (WithDurable). A
// new consumer starts with the oldest event in TIMERS_FIRED. It remains when Handle returns,
// and collects the events that fire meanwhile.
//
// Delivery is at least once, in no order. A failed event is delivered again after 100 ms,
// doubled up to a minute. When a handler returns [Permanent], or after [WithMaxDeliver]
// deliveries, Handle publishes a dead letter to timers.dead.<service>; [Client.DeadLetters]
// lists it with the consumer's name. It cannot be replayed, because it has no callback. If
// the NATS user is not allowed to publish there, Handle reports an error and the event is
// delivered again.
//
// When ctx ends, Handle hands back events whose handler has not started, waits for running
// handlers and returns nil. The handlers' contexts have the values of ctx and do not end.
//
// Handle returns ErrBadRequest for options out of range, ErrConfig if an existing consumer of
// that name has another ack wait, reads another service or has a limit of deliveries
// ([WithReconfigure] changes the first and the last), and ErrUnavailable if it cannot start,
// if its consumer is deleted, or if the connection is closed. While the connection is lost it
// waits.
func (c *Client) Handle(ctx context.Context, service string, h Handler, opts ...HandleOption) error {
	cfg := handleConfig{handlerConfig: handlerConfig{concurrency: DefaultConcurrency}, durable: service}
	for _, o := range opts {
		o.applyHandle(&cfg)
	}
	if err := cfg.check(service, h); err != nil || ctx.Err() != nil {
		return err
	}
	return worker.Consume(ctx, c.nc, c.js, worker.ConsumeConfig{
		Config: cfg.worker(service, h), Durable: cfg.durable, AckWait: cfg.ackWait, DefaultAckWait: DefaultAckWait,
		MaxDeliver: uint64(cfg.maxDeliver), Reconfigure: cfg.reconfigure,
	})
}

// HandleTenant runs h for the fired events of a tenant's account, of all its services, until ctx
// ends. The account imports its fired events from Belfry's (see docs/tenants.md); account is its
// name, in operator mode its public key. Prefer [Client.Work], where Belfry records the outcome
// and keeps dead letters.
//
// HandleTenant reads the consumer that Belfry has made for the account: all processes share it. It
// delivers the events that fire while no process runs, for the setting fired-max-age, 24 h by
// default. Delivery is at least once, in no order. A failed event is delivered again after 100 ms,
// doubled up to a minute. An event for which a handler returns [Permanent], or that has been
// delivered [WithMaxDeliver] times, ends without a dead letter: only the error handler gets it.
//
// The options WithDurable, WithAckWait and WithReconfigure are not allowed. The end of ctx, and
// errors, are as with [Client.Handle]; ErrUnavailable also says that the account does not import
// its consumer.
func (c *Client) HandleTenant(ctx context.Context, account string, h Handler, opts ...HandleOption) error {
	cfg := handleConfig{handlerConfig: handlerConfig{concurrency: DefaultConcurrency}}
	for _, o := range opts {
		o.applyHandle(&cfg)
	}
	if err := cfg.checkTenant(account, h); err != nil || ctx.Err() != nil {
		return err
	}
	return worker.Consume(ctx, c.nc, c.js, worker.ConsumeConfig{Config: cfg.worker("", h), Account: account, MaxDeliver: uint64(cfg.maxDeliver)})
}

// WorkOption is an option of [Client.Work].
type WorkOption interface{ applyWork(c *workConfig) }

// HandleOption is an option of [Client.Handle].
type HandleOption interface{ applyHandle(c *handleConfig) }

// HandlerOption is an option of both Work and Handle.
type HandlerOption interface {
	WorkOption
	HandleOption
}

type (
	handlerOption func(c *handlerConfig)
	workOption    func(c *workConfig)
	handleOption  func(c *handleConfig)
)

func (o handlerOption) applyWork(c *workConfig)     { o(&c.handlerConfig) }
func (o handlerOption) applyHandle(c *handleConfig) { o(&c.handlerConfig) }
func (o workOption) applyWork(c *workConfig)        { o(c) }
func (o handleOption) applyHandle(c *handleConfig)  { o(c) }

// Defaults and bounds of the options.
const (
	DefaultConcurrency = 16
	MaxConcurrency     = 10_000

	DefaultHandlerTimeout = 15 * time.Minute
	MinHandlerTimeout     = 10 * time.Millisecond
	// MaxHandlerTimeout leaves time for the answer within schemas.MaxWork.
	MaxHandlerTimeout = schemas.MaxWork - time.Minute
	DefaultStopGrace  = 30 * time.Second

	DefaultAckWait = 30 * time.Second
	MinAckWait     = 100 * time.Millisecond
)

// WithConcurrency sets how many handlers run at once, 1 to 10,000; default 16.
func WithConcurrency(n int) HandlerOption {
	return handlerOption(func(c *handlerConfig) { c.concurrency = n })
}

// WithErrorHandler sets a function that gets the errors of handlers except "not now",
// including [*PanicError]. It also gets, with a run or nil, answers that could not be sent,
// messages that are not fired events, and errors of the connection. It is called
// concurrently. By default errors are logged with slog.Default().
func WithErrorHandler(f func(run *Run, err error)) HandlerOption {
	return handlerOption(func(c *handlerConfig) { c.onError = f })
}

// WithHandlerTimeout bounds one call of a handler, 10 ms to 11 h 59 min; default 15 min. The
// handler's context ends then. If the handler does not return within another second, its
// attempt fails; it still counts for WithConcurrency until it returns.
func WithHandlerTimeout(d time.Duration) WorkOption {
	return workOption(func(c *workConfig) { c.timeout = d })
}

// WithStopGrace bounds how long running handlers may continue after the end of Work's
// context: 0 or more; default 30 s. Then the handlers' contexts end, and Work hands back their
// runs.
func WithStopGrace(d time.Duration) WorkOption {
	return workOption(func(c *workConfig) { c.grace = d })
}

// WithDurable sets the name of the consumer on TIMERS_FIRED: 1 to 64 letters, digits, '-' or
// '_'; default the service's name. Processes with the same name share the events; each name
// gets all events. Names that begin with "belfry_" are reserved.
func WithDurable(name string) HandleOption {
	return handleOption(func(c *handleConfig) { c.durable = name })
}

// WithAckWait sets after which time the events of a process that died are delivered to
// another: 100 ms or more, default 30 s. Handle extends it while a handler runs.
func WithAckWait(d time.Duration) HandleOption {
	return handleOption(func(c *handleConfig) {
		if c.ackWait = d; d == 0 {
			c.ackWait = -1 // 0 means not set
		}
	})
}

// WithMaxDeliver sets the number of deliveries of one event before the dead letter, 1 or more;
// default unbounded. Deliveries that ended with RetryAfter, or that a stopped Handle handed
// back, count. Handle counts them itself, because JetStream silently drops an event after a
// consumer's own MaxDeliver.
func WithMaxDeliver(n int) HandleOption {
	return handleOption(func(c *handleConfig) {
		if c.maxDeliver = n; n == 0 {
			c.maxDeliver = -1 // 0 means not set
		}
	})
}

// WithReconfigure changes an existing consumer to the ack wait of WithAckWait, or to the
// default, and to unbounded deliveries. Without it Handle returns ErrConfig if they differ.
func WithReconfigure() HandleOption {
	return handleOption(func(c *handleConfig) { c.reconfigure = true })
}

// handlerConfig is the configuration that Work and Handle share.
type handlerConfig struct {
	concurrency int
	onError     func(*Run, error)
}

type workConfig struct {
	handlerConfig
	timeout, grace time.Duration
}

type handleConfig struct {
	handlerConfig
	durable     string
	ackWait     time.Duration // 0: not set
	maxDeliver  int           // 0: not set
	reconfigure bool
}

// reservedDurables is the prefix of the names of Belfry's own consumers.
const reservedDurables = "belfry_"

func (c *handlerConfig) check(service string, h Handler) error {
	switch {
	case h == nil:
		return badRequest("the handler is nil")
	case !schemas.ValidService(service):
		return badRequest("service %.80q must be 1 to %d letters, digits, '-' or '_'", service, schemas.MaxServiceLength)
	case c.concurrency < 1 || c.concurrency > MaxConcurrency:
		return badRequest("WithConcurrency is %d; it must be 1 to %d", c.concurrency, MaxConcurrency)
	}
	return nil
}

func (c *workConfig) check(service string, h Handler) error {
	switch {
	case c.timeout < MinHandlerTimeout || c.timeout > MaxHandlerTimeout:
		return badRequest("WithHandlerTimeout is %s; it must be %s to %s", c.timeout, MinHandlerTimeout, MaxHandlerTimeout)
	case c.grace < 0:
		return badRequest("WithStopGrace is %s; it must be 0 or more", c.grace)
	}
	return c.handlerConfig.check(service, h)
}

func (c *handleConfig) check(service string, h Handler) error {
	switch {
	case !schemas.ValidService(c.durable):
		return badRequest("WithDurable %.80q must be 1 to %d letters, digits, '-' or '_'", c.durable, schemas.MaxServiceLength)
	case strings.HasPrefix(c.durable, reservedDurables):
		return badRequest("WithDurable %s: names that begin with %s are reserved for Belfry's own consumers; choose another", c.durable, reservedDurables)
	case c.ackWait != 0 && c.ackWait < MinAckWait:
		return badRequest("WithAckWait must be %s or more", MinAckWait)
	case c.maxDeliver < 0:
		return badRequest("WithMaxDeliver must be 1 or more")
	}
	return c.handlerConfig.check(service, h)
}

func (c *handleConfig) checkTenant(account string, h Handler) error {
	switch {
	case !schemas.ValidAccount(account):
		return badRequest("account %.80q must be 1 to %d letters, digits, '-' or '_'", account, schemas.MaxAccountLength)
	case c.durable != "" || c.ackWait != 0 || c.reconfigure:
		return badRequest("HandleTenant reads the consumer that Belfry has made: WithDurable, WithAckWait and WithReconfigure are not allowed")
	case c.maxDeliver < 0:
		return badRequest("WithMaxDeliver must be 1 or more")
	}
	return c.handlerConfig.check(schemas.DefaultService, h)
}

func badRequest(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeBadRequest, format, args...)
}

// worker returns the configuration for the package worker.
func (c *handlerConfig) worker(service string, h Handler) worker.Config {
	return worker.Config{
		Service: service, Concurrency: c.concurrency,
		Call:   func(ctx context.Context, r *worker.Run) worker.Outcome { return callHandler(ctx, h, r) },
		Report: func(r *worker.Run, err error) { c.report(newRun(r), service, err) },
	}
}

// report passes an error to the error handler, or logs it.
func (c *handlerConfig) report(run *Run, service string, err error) {
	if c.onError != nil {
		c.onError(run, err)
		return
	}
	if run != nil {
		service = run.Service // HandleTenant handles several
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
