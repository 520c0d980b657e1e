package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// firstBackoff is the delay after the first failed delivery; it doubles up to
	// maxBackoff.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = time.Minute
	// minMaxAckPending is the MaxAckPending of a new consumer. Events that wait for a retry
	// count, so it is far above the usual Concurrency.
	minMaxAckPending = 1000
)

// Codes of the dead letters of Consume.
const (
	deadPermanent  = "handler_permanent" // the handler gave up
	deadExhausted  = "handler_exhausted" // MaxDeliver
	deadUnreadable = "undecodable_event" // the message is not a fired event
)

// ConsumeConfig configures Consume.
type ConsumeConfig struct {
	Config
	// Account is the tenant's account whose fired events Consume reads, of all services, by the
	// consumer that Belfry has made for it; "" for the events of Service in TIMERS_FIRED. With
	// an account, Durable, AckWait and Reconfigure are not used, and an event that is given up
	// has no dead letter: the account cannot publish any.
	Account string
	// Durable is the name of the consumer.
	Durable string
	// AckWait is the consumer's. 0 takes that of an existing consumer, or DefaultAckWait.
	AckWait, DefaultAckWait time.Duration
	// MaxDeliver bounds the deliveries of one event; 0 for no bound.
	MaxDeliver uint64
	// Reconfigure changes an existing consumer whose settings differ.
	Reconfigure bool
}

// Consume handles the events of a durable consumer until ctx ends, and then waits for the
// running handlers. It creates the consumer if there is none. Errors are of
// schemas.CodeUnavailable, or of schemas.CodeConfig if the consumer has other settings.
func Consume(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, cfg ConsumeConfig) error {
	open := openConsumer
	if cfg.Account != "" {
		open = openTenantConsumer
	}
	cons, err := open(ctx, nc, js, &cfg)
	switch {
	case stopped(ctx):
		return nil // also if the end of ctx interrupted openConsumer
	case err != nil:
		return err
	}
	c := &consumer{
		js: js, cons: cons, cfg: cfg, ackWait: cons.CachedInfo().Config.AckWait,
		freed: make(chan int), ended: make(chan pullResult),
	}
	err = c.run(ctx)
	if nc.IsConnected() {
		// Send the last acknowledgements before the program may exit. If this fails, their
		// events are delivered again, which is allowed.
		_ = nc.FlushTimeout(drainWait)
	}
	return err
}

// stopped reports whether ctx has ended, which is how Consume is stopped and not an error.
func stopped(ctx context.Context) bool { return ctx.Err() != nil }

// openConsumer creates the consumer, or returns the existing one if its settings fit. It
// changes an existing consumer only with Reconfigure.
func openConsumer(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, cfg *ConsumeConfig) (jetstream.Consumer, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	failed := func(err error) error {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return schemas.Errorf(schemas.CodeUnavailable, "there is no stream %s at %s: is Belfry running there? (%w)", schemas.StreamFired, schemas.RedactURL(nc.ConnectedUrl()), err)
		}
		return schemas.Errorf(schemas.CodeUnavailable, "consumer %s on %s: %w", cfg.Durable, schemas.StreamFired, err)
	}
	want := jetstream.ConsumerConfig{
		Durable: cfg.Durable, FilterSubject: schemas.SubjectFired(cfg.Service), AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: cfg.AckWait, MaxDeliver: -1, MaxAckPending: max(minMaxAckPending, cfg.Concurrency),
	}
	if want.AckWait == 0 {
		want.AckWait = cfg.DefaultAckWait
	}
	cons, err := js.Consumer(ctx, schemas.StreamFired, cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		cons, err = js.CreateConsumer(ctx, schemas.StreamFired, want)
		if errors.Is(err, jetstream.ErrConsumerExists) { // another process was faster
			cons, err = js.Consumer(ctx, schemas.StreamFired, cfg.Durable)
		}
	}
	if err != nil {
		return nil, failed(err)
	}
	have := cons.CachedInfo().Config
	if err := checkConsumer(have, want, cfg); err != nil {
		return nil, err
	}
	if cfg.Reconfigure && (have.AckWait != want.AckWait || have.MaxDeliver != want.MaxDeliver || have.MaxAckPending < want.MaxAckPending) {
		have.AckWait, have.MaxDeliver, have.MaxAckPending = want.AckWait, want.MaxDeliver, max(have.MaxAckPending, want.MaxAckPending)
		if cons, err = js.UpdateConsumer(ctx, schemas.StreamFired, have); err != nil {
			return nil, failed(err)
		}
	}
	return cons, nil
}

// openTenantConsumer returns the consumer of a tenant's account.
func openTenantConsumer(ctx context.Context, nc *nats.Conn, _ jetstream.JetStream, cfg *ConsumeConfig) (jetstream.Consumer, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	js, err := jetstream.NewWithAPIPrefix(nc, schemas.JetStreamPrefix)
	if err != nil {
		return nil, schemas.Errorf(schemas.CodeUnavailable, "fired events of account %s: %w", cfg.Account, err)
	}
	cfg.Durable = cfg.Account
	cons, err := js.Consumer(ctx, schemas.StreamTenantFired, cfg.Account)
	if err != nil {
		return nil, schemas.Errorf(schemas.CodeUnavailable, "consumer %s on %s: does this account import its fired events, and has its tenant the setting export-fired? (%w)", cfg.Account, schemas.StreamTenantFired, err)
	}
	return cons, nil
}

// checkConsumer returns an error for an existing consumer that cannot be used.
func checkConsumer(have, want jetstream.ConsumerConfig, cfg *ConsumeConfig) error {
	bad := func(format string, args ...any) error {
		return schemas.Errorf(schemas.CodeConfig, "consumer "+cfg.Durable+" "+format, args...)
	}
	switch {
	case have.FilterSubject != want.FilterSubject:
		return bad("exists and does not read %s: choose another name (WithDurable)", want.FilterSubject)
	case have.AckPolicy != want.AckPolicy || have.DeliverSubject != "":
		return bad("exists and is not a pull consumer with explicit acknowledgement: choose another name (WithDurable)")
	case cfg.Reconfigure:
	case cfg.AckWait != 0 && have.AckWait != cfg.AckWait:
		return bad("exists with an ack wait of %v, not %v: choose another name (WithDurable), use the same ack wait, or change the consumer (WithReconfigure)", have.AckWait, cfg.AckWait)
	case have.MaxDeliver > 0:
		return bad("exists with a limit of %d deliveries, after which JetStream silently drops an event: change the consumer (WithReconfigure), and use WithMaxDeliver to get dead letters instead", have.MaxDeliver)
	}
	return nil
}

// handle runs the handler and settles the message according to the outcome.
func (c *consumer) handle(ctx context.Context, m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		// The message is not from the consumer. Do not acknowledge it: that would publish
		// to a subject that the sender chose.
		c.cfg.Report(nil, fmt.Errorf("ignored a message on %s that is not from the consumer: %w", m.Subject(), err))
		return
	}
	run, err := decode(m.Headers(), m.Data())
	if err != nil {
		c.giveUp(ctx, nil, m, deadUnreadable, notFired("message", m.Subject(), err))
		return
	}
	n, limit := meta.NumDelivered, c.cfg.MaxDeliver
	run.Fired.Attempt = uint32(min(n, 1<<32-1))
	if limit > 0 && n > limit {
		// The last delivery was not acknowledged: its process died, or could not publish
		// the dead letter.
		c.giveUp(ctx, run, m, deadExhausted, fmt.Errorf("delivered %d times, and the last outcome is unknown", limit))
		return
	}
	var o Outcome
	whileAlive(m, c.ackWait, func() { o = c.cfg.Call(context.WithoutCancel(ctx), run) })
	switch {
	case o.Verdict == Done:
		c.settled(run, m.Ack())
	case o.Verdict == Permanent:
		c.giveUp(ctx, run, m, deadPermanent, o.Err)
	case limit > 0 && n >= limit:
		c.giveUp(ctx, run, m, deadExhausted, fmt.Errorf("delivery %d of %d: %w", n, limit, o.Err))
	case o.Verdict == Later && o.After >= 0:
		c.settled(run, m.NakWithDelay(o.After))
	case o.Verdict == Later:
		c.settled(run, m.NakWithDelay(backoff(n)))
	default:
		c.cfg.Report(run, o.Err)
		c.settled(run, m.NakWithDelay(backoff(n)))
	}
}

// giveUp publishes a dead letter, except for a tenant's account, and terminates the delivery. If the publish fails, the
// event is delivered again, so it is never lost silently.
func (c *consumer) giveUp(ctx context.Context, run *Run, m jetstream.Msg, code string, reason error) {
	if c.cfg.Account != "" {
		c.cfg.Report(run, fmt.Errorf("gave up, without a dead letter: %w", reason))
		c.settled(run, m.TermWithReason(code))
		return
	}
	dead := deadLetter(run, m, c.cfg.Durable, code, reason)
	var err error
	whileAlive(m, c.ackWait, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		_, err = c.js.PublishMsg(ctx, dead)
	})
	if err != nil {
		c.cfg.Report(run, fmt.Errorf("gave up (%w), but the dead letter was not stored, so the event will be delivered again: may this user publish to %s? (%w)", reason, dead.Subject, err))
		c.settled(run, m.NakWithDelay(max(backoff(deliveries(m)), time.Second)))
		return
	}
	c.cfg.Report(run, fmt.Errorf("gave up, dead letter on %s: %w", dead.Subject, reason))
	c.settled(run, m.TermWithReason("dead letter: "+code))
}

// settled reports an acknowledgement that did not reach the server.
func (c *consumer) settled(run *Run, err error) {
	if err != nil {
		c.cfg.Report(run, fmt.Errorf("the event was not acknowledged and will be delivered again: %w", err))
	}
}

// whileAlive extends the message's ack wait while f runs.
func whileAlive(m jetstream.Msg, ackWait time.Duration, f func()) {
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
	f()
}

// deliveries returns the number of deliveries of the message, including this one.
func deliveries(m jetstream.Msg) uint64 {
	meta, err := m.Metadata()
	if err != nil {
		return 1
	}
	return meta.NumDelivered
}

// backoff returns the delay after delivery n.
func backoff(n uint64) time.Duration {
	return min(maxBackoff, firstBackoff<<min(max(n, 1)-1, 12))
}
