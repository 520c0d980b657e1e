package store

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/belfryio/belfry/schemas"
)

// Names and bounds of the durable consumers.
const (
	RouterConsumer = "router"
	// RouterAckWait is after how long an add that no router acknowledged is
	// delivered to another.
	RouterAckWait = 3 * time.Second
	// RouterMaxAckPending bounds the adds that routers hold unacknowledged. What a
	// router knows to be new rests on it (router/fresh.go): while nodes of an older
	// version run beside, it must not be more than theirs.
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

// ServiceConsumer is the durable consumer of functions for one service, shared
// by all nodes. maxAckPending bounds what the service holds at once.
func (s *Store) ServiceConsumer(ctx context.Context, svc string, kind Kind, maxAckPending int, ackWait time.Duration) (jetstream.Consumer, error) {
	stream, subject := serviceStream(svc, kind)
	return s.consumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: serviceConsumerPrefix + svc, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
	})
}

func serviceStream(svc string, kind Kind) (stream, subject string) {
	if kind == KindRetry {
		return schemas.StreamRetry, schemas.SubjectRetry(svc)
	}
	return schemas.StreamFired, schemas.SubjectFired(svc)
}

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
