package belfry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

type handleOption func(*handleConfig)

func (o handleOption) handle(c *handleConfig) { o(c) }

type handleConfig struct {
	common
	durable     string
	ackWait     time.Duration // 0: not given
	maxDeliver  int           // 0: not given
	reconfigure bool
}

// Defaults and bounds of Handle.
const (
	DefaultHandleAckWait = 30 * time.Second
	MinHandleAckWait     = 100 * time.Millisecond

	handleBackoffMax    = time.Minute
	handleMaxAckPending = 1000
	// ownConsumers begins the names of Belfry's own consumers, which call back.
	ownConsumers = "belfry_"
)

// Durable names the consumer on TIMERS_FIRED: 1 to 64 letters, digits, '-' or
// '_'. Processes of one name share the events, each name gets all. The default is
// the service's name. Names that begin with "belfry_" are Belfry's own.
func Durable(name string) HandleOption {
	return handleOption(func(c *handleConfig) { c.durable = name })
}

// AckWait is after how long an event is delivered to another process when the one
// that handles it has died: 100 ms or more, default 30 s. While a handler runs it
// is extended.
func AckWait(d time.Duration) HandleOption {
	return handleOption(func(c *handleConfig) {
		if c.ackWait = d; d == 0 {
			c.ackWait = -1 // given, and refused
		}
	})
}

// MaxDeliver bounds the deliveries of one event, 1 or more, those that RetryAfter
// asked for and those that a stopped Handle gave back included; default unbounded.
// After the last one the event becomes a dead letter. Handle counts itself: with the
// consumer's own bound JetStream would drop the event without a trace.
func MaxDeliver(n int) HandleOption {
	return handleOption(func(c *handleConfig) {
		if c.maxDeliver = n; n == 0 {
			c.maxDeliver = -1 // given, and refused
		}
	})
}

// Reconfigure changes a consumer that exists to the AckWait given, or its default,
// and to unbounded deliveries. Without it Handle refuses to contradict it.
func Reconfigure() HandleOption {
	return handleOption(func(c *handleConfig) { c.reconfigure = true })
}

// Handle consumes the events that fire for a service: a state of success in [Client.Get]
// means that the event was published, not that this handler succeeded, and an event
// that is not handled within fired-max-age (24 h by default) is gone. Use
// [Client.Work], where Belfry knows the outcome, unless several consumers each need
// every event.
//
// Handle reads timers.fired.<service> through a durable consumer of its own until ctx
// ends; then it gives back what it has not begun, waits for the handlers that run
// and returns nil. It returns an error when it cannot begin, when its consumer is
// deleted and when the connection is closed; a connection that is lost is waited
// for. Its handlers' contexts have the values of ctx and do not end.
//
// Delivery is at least once, in no order. A failed event is delivered again after
// 100 ms, doubled up to a minute. What Handle gives up, by [Permanent] or after
// [MaxDeliver], it publishes to timers.dead.<service> before it terminates the
// delivery: belfry dead ls lists it, with the consumer's name. It cannot be
// replayed, because there is no callback to make; a replay says so. Without the
// permission to publish there, nothing is given up: the error is reported, and the
// event comes again.
//
// A new consumer starts with the events that TIMERS_FIRED still has. It stays when
// Handle returns, and collects what fires meanwhile. A consumer of that name that
// exists is used with its settings: an AckWait that contradicts them, a bound of
// deliveries (after which JetStream drops events without a trace) and another
// service are errors of the code config, unless [Reconfigure] is given and can help.
func (c *Client) Handle(ctx context.Context, service string, h Handler, opts ...HandleOption) error {
	cfg := handleConfig{common: common{concurrency: DefaultConcurrency}, durable: service}
	for _, o := range opts {
		o.handle(&cfg)
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
		js: c.js, cons: cons, service: service, cfg: cfg, handler: h, ackWait: cons.CachedInfo().Config.AckWait,
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
	switch {
	case !schemas.ValidService(c.durable):
		return badRequest("durable %.80q must be "+names, c.durable, schemas.MaxServiceLength)
	case strings.HasPrefix(c.durable, ownConsumers):
		return badRequest("consumers whose names begin with %s are Belfry's own, and %s is one: give Durable another name", ownConsumers, c.durable)
	case c.ackWait != 0 && c.ackWait < MinHandleAckWait:
		return badRequest("the ack wait must be %s or more", MinHandleAckWait)
	case c.maxDeliver < 0:
		return badRequest("the most deliveries must be 1 or more")
	}
	return c.common.check(service, h)
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
		AckWait: cfg.ackWait, MaxDeliver: -1, MaxAckPending: max(handleMaxAckPending, cfg.concurrency),
	}
	if want.AckWait == 0 {
		want.AckWait = DefaultHandleAckWait
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
	case have.MaxDeliver > 0:
		return nil, schemas.Errorf(schemas.CodeConfig, "JetStream drops events of consumer %s without a trace after %d deliveries: give Reconfigure, and MaxDeliver to have dead letters instead", cfg.durable, have.MaxDeliver)
	}
	return cons, nil
}

// Codes of the dead letters of Handle.
const (
	deadPermanent  = "handler_permanent" // the handler gave up
	deadExhausted  = "handler_exhausted" // MaxDeliver
	deadUnreadable = "undecodable_event" // a message that is no fired event
)

// handleOne runs the handler and settles the message as it says.
func (w *worker) handleOne(ctx context.Context, m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		// Not of the consumer. To settle it would be a publish to a subject of the
		// sender's choice.
		w.report(nil, fmt.Errorf("a message on %s is not of the consumer: %w", m.Subject(), err))
		return
	}
	run, err := newRun(m.Headers(), m.Data())
	if err != nil {
		w.giveUp(ctx, nil, m, deadUnreadable, fmt.Errorf("a message on %s is no fired event: %w", m.Subject(), err))
		return
	}
	n := meta.NumDelivered
	run.Attempt = uint32(min(n, 1<<32-1))
	limit := uint64(w.cfg.maxDeliver)
	if limit > 0 && n > limit {
		// The last delivery was not settled: its process died, or the dead letter could
		// not be published.
		w.giveUp(ctx, run, m, deadExhausted, fmt.Errorf("delivered %d times, and the last outcome is unknown", limit))
		return
	}
	err = whileAlive(m, w.ackWait, func() error { return call(context.WithoutCancel(ctx), w.handler, run) })
	var later *RetryLaterError
	var permanent *permanentError
	switch {
	case err == nil:
		w.settled(run, m.Ack())
	case errors.As(err, &permanent):
		w.giveUp(ctx, run, m, deadPermanent, err)
	case limit > 0 && n >= limit:
		w.giveUp(ctx, run, m, deadExhausted, fmt.Errorf("delivery %d of %d: %w", n, limit, err))
	case errors.As(err, &later):
		w.settled(run, m.NakWithDelay(max(0, later.After)))
	case errors.Is(err, ErrRetryLater):
		w.settled(run, m.NakWithDelay(handleBackoff(n)))
	default:
		w.report(run, err)
		w.settled(run, m.NakWithDelay(handleBackoff(n)))
	}
}

// giveUp publishes a dead letter and terminates the delivery. If the first fails,
// the event is delivered again: it is not dropped without a trace.
func (w *worker) giveUp(ctx context.Context, run *Run, m jetstream.Msg, code string, reason error) {
	dead := deadLetter(run, m, w.cfg.durable, code, reason)
	err := whileAlive(m, w.ackWait, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultTimeout)
		defer cancel()
		_, err := w.js.PublishMsg(ctx, dead)
		return err
	})
	if err != nil {
		w.report(run, fmt.Errorf("given up (%w), but the dead letter was not stored, so it will be delivered again: may this user publish to %s? (%w)", reason, dead.Subject, err))
		w.settled(run, m.NakWithDelay(max(handleBackoff(delivered(m)), time.Second)))
		return
	}
	w.report(run, fmt.Errorf("given up, dead letter on %s: %w", dead.Subject, reason))
	w.settled(run, m.TermWithReason("dead letter: "+code))
}

// settled reports that the server did not learn what became of an event.
func (w *worker) settled(run *Run, err error) {
	if err != nil {
		w.report(run, fmt.Errorf("not acknowledged, it will be delivered again: %w", err))
	}
}

func (w *worker) report(run *Run, err error) { w.cfg.report(run, w.service, err) }

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

// delivered is how often the message was delivered, this time included.
func delivered(m jetstream.Msg) uint64 {
	meta, err := m.Metadata()
	if err != nil {
		return 1
	}
	return meta.NumDelivered
}

// handleBackoff is the delay after delivery n.
func handleBackoff(n uint64) time.Duration {
	return min(handleBackoffMax, 100*time.Millisecond<<min(max(n, 1)-1, 12))
}
