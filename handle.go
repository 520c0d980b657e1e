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
// After the last delivery the event becomes a dead letter. Handle counts the deliveries
// itself, because JetStream silently drops an event after a consumer's own MaxDeliver.
func MaxDeliver(n int) HandleOption {
	return handleOption(func(c *handleConfig) {
		if c.maxDeliver = n; n == 0 {
			c.maxDeliver = -1 // given, and refused
		}
	})
}

// Reconfigure changes an existing consumer to the given AckWait, or its default, and to
// unbounded deliveries. Without it Handle returns an error if they differ.
func Reconfigure() HandleOption {
	return handleOption(func(c *handleConfig) { c.reconfigure = true })
}

// Handle consumes the fired events of a service. Prefer [Client.Work], where Belfry
// records the handler's outcome, unless several consumers each need every event: with
// Handle, the state success in [Client.Get] means only that Belfry published the event,
// and TIMERS_FIRED drops an event after fired-max-age (24 h by default), handled or not.
//
// Handle reads timers.fired.<service> through its own durable consumer until ctx ends.
// Then it gives back events that no handler has started, waits for running handlers and
// returns nil. It returns an error if it cannot start, if its consumer is deleted, and if
// the connection is closed. It waits for a lost connection. The handlers' contexts have
// the values of ctx and do not end.
//
// Delivery is at least once, in no order. A failed event is delivered again after
// 100 ms, doubled up to a minute. When a handler returns [Permanent], or after
// [MaxDeliver] deliveries, Handle publishes a dead letter to timers.dead.<service> and
// then terminates the delivery. belfry dead ls lists it with the consumer's name. A
// replay refuses it, because it has no callback. Without permission to publish there,
// Handle reports the error and the event comes again.
//
// A new consumer starts with the oldest event in TIMERS_FIRED. It stays when Handle
// returns, and collects the events that fire meanwhile. Handle uses an existing consumer
// of that name with its settings. It returns an error with the code config if the
// consumer has another AckWait, another service, or bounded deliveries, after which
// JetStream silently drops events; [Reconfigure] corrects the first and the last.
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
		return badRequest("consumers whose names begin with %s are Belfry's own, and %s is one: choose another name with Durable", ownConsumers, c.durable)
	case c.ackWait != 0 && c.ackWait < MinHandleAckWait:
		return badRequest("AckWait must be %s or more", MinHandleAckWait)
	case c.maxDeliver < 0:
		return badRequest("MaxDeliver must be 1 or more")
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
		return nil, schemas.Errorf(schemas.CodeConfig, "JetStream silently drops events of consumer %s after %d deliveries: use Reconfigure, and MaxDeliver to get dead letters instead", cfg.durable, have.MaxDeliver)
	}
	return cons, nil
}

// Codes of the dead letters of Handle.
const (
	deadPermanent  = "handler_permanent" // the handler gave up
	deadExhausted  = "handler_exhausted" // MaxDeliver
	deadUnreadable = "undecodable_event" // the message is not a fired event
)

// handleOne runs the handler and settles the message as it says.
func (w *worker) handleOne(ctx context.Context, m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		// The message is not from the consumer. Do not acknowledge it: that would publish
		// to a subject that the sender chose.
		w.report(nil, fmt.Errorf("ignored a message on %s that is not from the consumer: %w", m.Subject(), err))
		return
	}
	run, err := newRun(m.Headers(), m.Data())
	if err != nil {
		w.giveUp(ctx, nil, m, deadUnreadable, fmt.Errorf("a message on %s is not a fired event: %w", m.Subject(), err))
		return
	}
	n := meta.NumDelivered
	run.Attempt = uint32(min(n, 1<<32-1))
	limit := uint64(w.cfg.maxDeliver)
	if limit > 0 && n > limit {
		// The last delivery was not acknowledged: its process died, or could not publish
		// the dead letter.
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

// giveUp publishes a dead letter and terminates the delivery. If the publish fails, the
// event is delivered again, so it is never lost silently.
func (w *worker) giveUp(ctx context.Context, run *Run, m jetstream.Msg, code string, reason error) {
	dead := deadLetter(run, m, w.cfg.durable, code, reason)
	err := whileAlive(m, w.ackWait, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultTimeout)
		defer cancel()
		_, err := w.js.PublishMsg(ctx, dead)
		return err
	})
	if err != nil {
		w.report(run, fmt.Errorf("gave up (%w), but the dead letter was not stored, so the event will be delivered again: may this user publish to %s? (%w)", reason, dead.Subject, err))
		w.settled(run, m.NakWithDelay(max(handleBackoff(delivered(m)), time.Second)))
		return
	}
	w.report(run, fmt.Errorf("gave up, dead letter on %s: %w", dead.Subject, reason))
	w.settled(run, m.TermWithReason("dead letter: "+code))
}

// settled reports that an acknowledgement did not reach the server.
func (w *worker) settled(run *Run, err error) {
	if err != nil {
		w.report(run, fmt.Errorf("the event was not acknowledged and will be delivered again: %w", err))
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

// delivered returns the number of deliveries of the message, including this one.
func delivered(m jetstream.Msg) uint64 {
	meta, err := m.Metadata()
	if err != nil {
		return 1
	}
	return meta.NumDelivered
}

// handleBackoff returns the delay after delivery n.
func handleBackoff(n uint64) time.Duration {
	return min(handleBackoffMax, 100*time.Millisecond<<min(max(n, 1)-1, 12))
}
