package store

import (
	"context"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
)

// WatchServices sends every feed that is awake, and then every change, until ctx ends;
// then the channel is closed. A change may come twice.
func (s *Store) WatchServices(ctx context.Context) (<-chan ServiceChange, error) {
	// A node that starts is to wait for a slow store here as it does in Open.
	err := waitUntilReady(ctx, func(ctx context.Context) error {
		_, err := s.jet.Stream(ctx, servicesStream)
		return err
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
		}, false)
	}()
	return ch, nil
}

// watchKeys calls change for each change of a feed's key until ctx ends; unless
// updatesOnly, it begins with the keys that exist. begun is called whenever the watch has
// begun, also after it was lost.
func (s *Store) watchKeys(ctx context.Context, begun func(), change func(ServiceChange), updatesOnly bool) {
	for ctx.Err() == nil {
		err := s.jet.Watch(ctx, servicesStream, servicesPrefix+">", updatesOnly, begun, func(m *jet.Msg) {
			if f, ok := feedOf(strings.TrimPrefix(m.Subject, servicesPrefix)); ok {
				change(ServiceChange{Feed: f, Awake: !jet.HasOperation(m), Rev: m.Sequence, Floor: floorOf(m.Data)})
			}
		})
		if ctx.Err() == nil && s.Conn().IsConnected() {
			s.log.Warn().Err(err).Msg("watching services interrupted; resuming")
		}
		pause.For(ctx, jet.FollowRetry)
	}
}
