package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

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

// Bounds of deleteStream.
const (
	deleteTries = 5
	deletePause = time.Second
)

// deleteStream deletes a stream; one that is not there is no error. That it is not
// there says little to a repetition: the leader says so as soon as a first request
// is on its way to the other servers, and that may come to nothing. So it is asked
// anew when that must have been decided.
func (s *Store) deleteStream(ctx context.Context, name string) error {
	for range deleteTries {
		var asked atomic.Int32
		_, err := again(ctx, func(ctx context.Context, _ func()) (struct{}, error) {
			asked.Add(1)
			return struct{}{}, s.js.DeleteStream(ctx, name)
		})
		switch {
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return mapError("remove "+name, err)
		case asked.Load() == 1:
			return nil
		}
		select {
		case <-ctx.Done():
			return mapError("remove "+name, ctx.Err())
		case <-time.After(deletePause):
		}
	}
	return schemas.Errorf(schemas.CodeUnavailable, "remove %s: JetStream does not say in time whether it is gone", name)
}
