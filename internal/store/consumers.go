package store

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/belfryio/belfry/schemas"
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

// ServiceConsumer is the durable consumer of a feed, shared by all nodes. One that does
// not exist is made, and starts behind floor. maxAckPending bounds the events that the
// service holds at once.
func (s *Store) ServiceConsumer(ctx context.Context, f Feed, floor uint64, maxAckPending int, ackWait time.Duration) (jetstream.Consumer, error) {
	stream, subject := serviceStream(f.Service, f.Kind)
	want := jetstream.ConsumerConfig{
		Durable: serviceConsumerPrefix + f.Service, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
	}
	op := "consumer " + want.Durable + " of " + stream
	bound, release, err := s.bind(ctx, op)
	if err != nil {
		return nil, err
	}
	defer release()
	c, err := again(bound, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		c, err := s.makeServiceConsumer(ctx, stream, f, floor, want)
		if !errors.Is(err, jetstream.ErrConsumerExists) {
			return c, err
		}
		// Another node was faster, or a node has other settings.
		if c, err = s.js.Consumer(ctx, stream, want.Durable); err != nil {
			return nil, err
		}
		have := c.CachedInfo().Config
		if have.AckWait == want.AckWait && have.MaxAckPending == want.MaxAckPending {
			return c, nil
		}
		have.AckWait, have.MaxAckPending = want.AckWait, want.MaxAckPending
		return s.js.UpdateConsumer(ctx, stream, have)
	})
	return c, ctxError(bound, op, err)
}

// makeServiceConsumer makes the consumer of a feed that was at rest, or finds one of the
// same configuration. Error: jetstream.ErrConsumerExists if there is one of another.
func (s *Store) makeServiceConsumer(ctx context.Context, stream string, f Feed, floor uint64, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if f.Kind == KindFired && floor > 0 { // a work queue starts where it is
		info, err := s.streamState(ctx, stream)
		if err != nil {
			return nil, err
		}
		// A floor that the stream has not reached is of another stream of this name.
		if floor <= info.State.LastSeq {
			want.DeliverPolicy, want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, floor+1
		}
	}
	return s.js.CreateConsumer(ctx, stream, want)
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
