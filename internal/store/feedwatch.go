package store

import (
	"context"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
)

// WatchServices sends the state of every feed that has a key or a marker, and then every
// change. It closes the channel when ctx ends. A change may be sent twice. Errors:
// schemas.ErrUnavailable.
func (k *ServiceKeys) WatchServices(ctx context.Context) (<-chan ServiceChange, error) {
	// A starting node waits here until the store answers, as in Open.
	err := waitUntilReady(ctx, k.log, DefaultReadyWithin, func(ctx context.Context) error {
		_, err := k.jet.Stream(ctx, servicesStream)
		return err
	})
	if err != nil {
		return nil, err
	}
	ch := make(chan ServiceChange)
	go func() {
		defer close(ch)
		k.watch(ctx, func() {}, func(c ServiceChange) {
			select {
			case ch <- c:
			case <-ctx.Done():
			}
		}, false)
	}()
	return ch, nil
}

// watch calls change for each change of a feed's key until ctx ends. Unless updatesOnly is
// set, it begins with the existing keys. It calls begun whenever the watch begins, also
// after an interruption.
func (k *ServiceKeys) watch(ctx context.Context, begun func(), change func(ServiceChange), updatesOnly bool) {
	for ctx.Err() == nil {
		err := k.jet.Watch(ctx, servicesStream, servicesPrefix+">", updatesOnly, begun, func(m *jet.Msg) {
			if f, ok := feedOf(strings.TrimPrefix(m.Subject, servicesPrefix)); ok {
				change(ServiceChange{Feed: f, Awake: !jet.HasOperation(m), Rev: m.Sequence, Floor: floorOf(m.Data), Since: m.Time})
			}
		})
		if ctx.Err() == nil && k.jet.Conn().IsConnected() {
			k.log.Warn().Err(err).Msg("watching services interrupted; resuming")
		}
		pause.For(ctx, jet.FollowRetry)
	}
}
