package store

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Names and bounds of the durable consumers.
const (
	RouterConsumer = "router"
	// RouterAckWait is the time after which the server redelivers an add that no router
	// has acknowledged.
	RouterAckWait = 3 * time.Second
	// RouterMaxAckPending bounds the unacknowledged adds of all routers together.
	// recencyFilter relies on it: while nodes of an older version run, it must not exceed
	// theirs.
	RouterMaxAckPending = 20_000
	// serviceConsumerPrefix begins the names of the consumers of functions.
	serviceConsumerPrefix = "belfry_"
)

// Kind tells the two streams apart that functions consume.
type Kind int

// The kinds.
const (
	KindFired Kind = iota // timers.fired.<svc>
	KindRetry             // timers.retry.<svc>
)

func (s *Store) consumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	op := "consumer " + cfg.Durable + " of " + stream
	bound, release, err := s.bind(ctx, op)
	if err != nil {
		return nil, err
	}
	defer release()
	c, err := again(bound, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		return s.js.CreateOrUpdateConsumer(ctx, stream, cfg)
	})
	return c, ctxError(bound, op, err)
}

// ephemeral makes a consumer that is of use to one reader only. Its name is chosen
// here, so that a repetition finds what an unanswered request has made.
func (s *Store) ephemeral(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	cfg.Name = nuid.Next()
	return again(ctx, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		return s.js.CreateConsumer(ctx, stream, cfg)
	})
}
