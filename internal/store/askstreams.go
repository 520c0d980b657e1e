package store

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// What manages streams is asked again as reads are: a server that loses the lead
// of the cluster's metadata drops what it was about to propose, and answers
// nothing. All of it may be repeated. A stream that is there with just these
// settings is made, and one that is gone is deleted.

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

func (s *Store) deleteStream(ctx context.Context, name string) error {
	_, err := again(ctx, func(ctx context.Context, _ func()) (struct{}, error) {
		return struct{}{}, s.js.DeleteStream(ctx, name)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return mapError("remove "+name, err)
}
