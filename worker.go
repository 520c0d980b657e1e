package belfry

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// pullHeartbeat is how often the server says that it still serves a pull; after
	// two that are missing it is asked anew.
	pullHeartbeat = 5 * time.Second
	// drainWait bounds how long a stopped Handle waits for what the server had sent
	// before it knew.
	drainWait = 2 * time.Second
	// pullPause keeps a pull that fails at once from being repeated at once.
	pullPause = time.Second
)

// worker is one Handle. It asks the server for as many events as it has free
// places, never more: an event that waited here for a place would run into its ack
// wait, or be held from another process that is free.
type worker struct {
	js      jetstream.JetStream
	cons    jetstream.Consumer
	service string
	cfg     handleConfig
	handler Handler
	ackWait time.Duration

	freed chan int        // places that handlers leave
	ended chan pullResult // pulls that ended
}

// pullResult is how a pull ended: with places left over, and why.
type pullResult struct {
	left int
	err  error
}

// run keeps the count of places. All other goroutines are pulls and handlers; it
// returns when there are none.
func (w *worker) run(ctx context.Context) error {
	pulling, stop := context.WithCancel(ctx)
	defer stop()
	free, pulls := w.cfg.concurrency, 0
	var fatal error
	var pause <-chan time.Time
	for {
		// A pull is for all free places. A second is worth its cost when many have
		// become free; if events abound, the first ends at once.
		if pulling.Err() == nil && pause == nil && free > 0 && (pulls == 0 || 2*free >= w.cfg.concurrency) {
			n := free
			free, pulls = 0, pulls+1
			go func() { w.ended <- w.pull(pulling, n) }()
		}
		if pulling.Err() != nil && pulls == 0 && free == w.cfg.concurrency {
			return fatal
		}
		done := pulling.Done()
		if pulling.Err() != nil {
			done = nil
		}
		select {
		case n := <-w.freed:
			free += n
		case r := <-w.ended:
			free, pulls = free+r.left, pulls-1
			switch {
			case r.err == nil || pulling.Err() != nil:
			case lost(r.err):
				fatal = schemas.Errorf(schemas.CodeUnavailable, "consumer %s of %s: %w", w.cfg.durable, schemas.StreamFired, r.err)
				stop()
			default:
				w.report(nil, r.err)
				pause = time.After(pullPause)
			}
		case <-pause:
			pause = nil
		case <-done:
		}
	}
}

// lost tells of errors that asking again does not mend.
func lost(err error) bool {
	return errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionClosed)
}

// pull asks for n events and starts their handlers as they come. When ctx ends it
// gives back what comes still.
func (w *worker) pull(ctx context.Context, n int) pullResult {
	it, err := w.cons.Messages(jetstream.PullMaxMessages(n), jetstream.StopAfter(n), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return pullResult{left: n, err: err}
	}
	defer it.Stop()
	// The end of ctx drains, so that nothing which is on its way is dropped and
	// held back for its ack wait.
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
				defer func() { w.freed <- 1 }()
				w.handleOne(ctx, m)
			}()
		case ctx.Err() != nil:
			return pullResult{left: left}
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			// The connection is away, or the consumer is.
			if err := w.alive(ctx); err != nil {
				return pullResult{left: left, err: err}
			}
		default:
			return pullResult{left: left, err: err}
		}
	}
	return pullResult{}
}

// alive returns ErrConsumerNotFound if the server says that there is no consumer.
func (w *worker) alive(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := w.cons.Info(ctx); errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	return nil
}
