package store

import (
	"context"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// WakeService wakes a feed: functions make its consumer. A feed that is known to be
// awake costs nothing.
func (s *Store) WakeService(ctx context.Context, f Feed) error {
	if err := checkService(f.Service); err != nil {
		return err
	}
	return s.waker.Wake(ctx, f)
}

// publishFor publishes an event that a service must be called back for.
func (s *Store) publishFor(m Msg, done func(seq uint64, duplicate bool, err error)) {
	s.waker.Publish(s.background.ctx, feedFor(&m), s.background.spawn, s.WakeService, func(done func(uint64, bool, error)) { s.publishNow(m, done) }, done)
}

// feedFor is the feed that a message of a service is for.
func feedFor(m *Msg) Feed {
	f := Feed{Service: m.Service}
	if strings.HasPrefix(m.Subject, schemas.SubjectRetryPrefix) {
		f.Kind = KindRetry
	}
	return f
}

// followServices keeps what this process knows of feeds up to date, until ctx ends.
func (s *Store) followServices(ctx context.Context) {
	s.watchKeys(ctx, func() {
		for f, need := range s.waker.Missed() {
			s.background.spawn(func() { s.wakeAgain(ctx, f, need) })
		}
	}, func(ch ServiceChange) {
		if !ch.Awake {
			s.sawRest(ctx, ch)
		}
	}, true)
}

// sawRest takes note that a feed rests, and wakes it if this process has published an
// event behind the floor.
func (s *Store) sawRest(ctx context.Context, ch ServiceChange) {
	if need := s.waker.Rested(ch); need > 0 {
		s.background.spawn(func() { s.wakeAgain(ctx, ch.Feed, need) })
	}
}

// wakeAgain wakes a feed for an event that was published, until the store answers or ctx
// ends.
func (s *Store) wakeAgain(ctx context.Context, f Feed, need uint64) {
	for ctx.Err() == nil && s.waker.WakeFor(ctx, f, need) != nil {
		pause.For(ctx, jet.FollowRetry)
	}
}
