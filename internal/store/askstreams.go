package store

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// What manages streams is asked again as reads are: a server that loses the lead
// of the cluster's metadata drops what it was about to propose, and answers
// nothing. All of it may be repeated: a stream that is there with just these
// settings is made.

func (s *Store) findStream(ctx context.Context, name string) (jetstream.Stream, error) {
	return again(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return s.js.Stream(ctx, name)
	})
}

func (s *Store) createStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	_, err := again(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return s.js.CreateStream(ctx, cfg)
	})
	return err
}

func (s *Store) updateStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	_, err := again(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return s.js.UpdateStream(ctx, cfg)
	})
	return err
}

// deleteStream deletes a stream; one that is not there is no error. That it is not
// there says nothing to a repetition: the leader says so as soon as a first request
// is on its way to the other servers, and that may come to nothing.
func (s *Store) deleteStream(ctx context.Context, name string) error {
	var tries atomic.Int32
	_, err := again(ctx, func(ctx context.Context, _ func()) (struct{}, error) {
		tries.Add(1)
		return struct{}{}, s.js.DeleteStream(ctx, name)
	})
	switch {
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return mapError("remove "+name, err)
	case tries.Load() > 1:
		return schemas.Errorf(schemas.CodeUnavailable, "remove %s: JetStream has not decided on it yet", name)
	}
	return nil
}
