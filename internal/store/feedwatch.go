package store

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// WatchServices sends every feed that is awake, and then every change, until ctx ends;
// then the channel is closed. A change may come twice.
func (s *Store) WatchServices(ctx context.Context) (<-chan ServiceChange, error) {
	// A node that starts is to wait for a slow store here as it does in Open.
	err := waitUntilReady(ctx, func(ctx context.Context) error {
		_, err := s.JetStream().KeyValue(ctx, schemas.BucketServices)
		return s.jet.Error("watch services", err)
	})
	if err != nil {
		return nil, err
	}
	ch := make(chan ServiceChange)
	go func() {
		defer close(ch)
		s.watchKeys(ctx, func() {}, func(c ServiceChange) {
			select {
			case ch <- c:
			case <-ctx.Done():
			}
		})
	}()
	return ch, nil
}

// watchKeys calls change for each change of a feed's key until ctx ends. begun is
// called whenever the watch has begun, or begun again.
func (s *Store) watchKeys(ctx context.Context, begun func(), change func(ServiceChange), opts ...jetstream.WatchOpt) {
	for ctx.Err() == nil {
		s.watchKeysOnce(ctx, begun, change, opts)
		timer := time.NewTimer(jet.FollowRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (s *Store) watchKeysOnce(ctx context.Context, begun func(), change func(ServiceChange), opts []jetstream.WatchOpt) {
	// A watch notices only after seconds that its server has restarted. It ends with
	// the connection, and begins again as soon as that is back.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	forget, ok := s.jet.OnBreak(cancel)
	if !ok {
		return
	}
	defer forget()
	w, err := s.watchBucket(ctx, opts)
	if err != nil {
		if !errors.Is(err, context.Canceled) && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("services cannot be watched; trying again")
		}
		return
	}
	defer func() { _ = w.Stop() }() // fails only with the connection
	begun()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Updates():
			if !ok {
				return
			}
			if e == nil {
				continue // the end of what was there
			}
			if f, ok := feedOf(e.Key()); ok {
				change(ServiceChange{Feed: f, Awake: e.Operation() == jetstream.KeyValuePut, Rev: e.Revision(), Floor: floorOf(e.Value())})
			}
		}
	}
}

func (s *Store) watchBucket(ctx context.Context, opts []jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	kv, err := s.JetStream().KeyValue(ctx, schemas.BucketServices)
	if err != nil {
		return nil, err
	}
	return kv.WatchAll(ctx, opts...)
}
