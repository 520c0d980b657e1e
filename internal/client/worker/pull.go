package worker

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// pullHeartbeat is the interval of the server's heartbeats during a pull. After two
	// missing heartbeats the consumer pulls again.
	pullHeartbeat = 5 * time.Second
	// pullPause is the wait after a failed pull, so that a pull that fails at once is not
	// repeated at once.
	pullPause = time.Second
)

// consumer is one call of Consume. It pulls as many events as it has free permits, never
// more: an event that waited here for a permit would exceed its ack wait, or be withheld
// from another process that has a free one.
type consumer struct {
	js      jetstream.JetStream
	cons    jetstream.Consumer
	cfg     ConsumeConfig
	ackWait time.Duration

	freed chan int        // permits that handlers release
	ended chan pullResult // pulls that ended
}

// pullResult is the end of a pull: the permits that it did not use, and its error.
type pullResult struct {
	left int
	err  error
}

// run counts the free permits. Every other goroutine is a pull or a handler. It returns when
// there are none left.
func (c *consumer) run(ctx context.Context) error {
	pulling, stop := context.WithCancel(ctx)
	defer stop()
	free, pulls := c.cfg.Concurrency, 0
	var fatal error
	var pause <-chan time.Time
	for {
		// A pull takes all free permits. A second pull is worth its cost when at least half
		// of the permits have become free; if there are many events, the first ends at once.
		if pulling.Err() == nil && pause == nil && free > 0 && (pulls == 0 || 2*free >= c.cfg.Concurrency) {
			n := free
			free, pulls = 0, pulls+1
			go func() { c.ended <- c.pull(pulling, n) }()
		}
		if pulling.Err() != nil && pulls == 0 && free == c.cfg.Concurrency {
			return fatal
		}
		done := pulling.Done()
		if pulling.Err() != nil {
			done = nil
		}
		select {
		case n := <-c.freed:
			free += n
		case r := <-c.ended:
			free, pulls = free+r.left, pulls-1
			switch {
			case r.err == nil || pulling.Err() != nil:
			case isFatal(r.err):
				fatal = schemas.Errorf(schemas.CodeUnavailable, "consumer %s: %w", c.cfg.Durable, r.err)
				stop()
			default:
				c.cfg.Report(nil, r.err)
				pause = time.After(pullPause)
			}
		case <-pause:
			pause = nil
		case <-done:
		}
	}
}

// isFatal reports whether pulling again cannot succeed after err.
func isFatal(err error) bool {
	return errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionClosed)
}

// pull requests n events and starts their handlers. After the end of ctx it hands back the
// events that still arrive.
func (c *consumer) pull(ctx context.Context, n int) pullResult {
	it, err := c.cons.Messages(jetstream.PullMaxMessages(n), jetstream.StopAfter(n), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return pullResult{left: n, err: err}
	}
	defer it.Stop()
	// Drain at the end of ctx. An event that is dropped instead would be withheld from other
	// processes for its ack wait.
	drained, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	unhook := context.AfterFunc(ctx, func() {
		it.Drain()
		time.AfterFunc(drainWait, giveUp)
	})
	defer unhook()
	left := n
	for left > 0 {
		m, err := it.Next(jetstream.NextContext(drained))
		switch {
		case err == nil && ctx.Err() != nil:
			// If this fails the event is delivered again after its ack wait.
			_ = m.Nak()
		case err == nil:
			left--
			go func() {
				defer func() { c.freed <- 1 }()
				c.handle(ctx, m)
			}()
		case ctx.Err() != nil:
			return pullResult{left: left}
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			// The connection is lost, or the consumer was deleted.
			if err := c.checkExists(ctx); err != nil {
				return pullResult{left: left, err: err}
			}
		default:
			return pullResult{left: left, err: err}
		}
	}
	return pullResult{}
}

// checkExists returns ErrConsumerNotFound if the server answers that the consumer does not
// exist.
func (c *consumer) checkExists(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := c.cons.Info(ctx); errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	return nil
}
