package store

import (
	"context"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// FeedActivator changes the state of feeds: it wakes them for publishers and puts them to
// rest for functions. A feed with an event that this process has published does not stay at
// rest: FeedActivator watches the keys of all feeds, and wakes such a feed, with retries until
// the store confirms it. If the process ends before that, other parts find the event; see
// the protocol in feed.go. Safe for concurrent use.
type FeedActivator struct {
	keys       *ServiceKeys
	waker      *Waker
	background *jet.Background
	grace      time.Duration
	// formatLevel returns the FormatLevel that all live nodes read.
	formatLevel func() FormatLevel
}

func newFeedActivator(keys *ServiceKeys, grace time.Duration, b *jet.Background, formatLevel func() FormatLevel) *FeedActivator {
	return &FeedActivator{keys: keys, waker: NewWaker(keys, grace, time.Now), background: b, grace: grace, formatLevel: formatLevel}
}

// WakeService wakes a feed: functions then create its consumer. It sends no request for a
// feed that this process has seen awake less than half of ServiceGrace ago. Errors:
// schemas.CodeBadRequest, ErrRevision, schemas.ErrUnavailable.
func (a *FeedActivator) WakeService(ctx context.Context, f Feed) error {
	if err := checkService(f.Service); err != nil {
		return err
	}
	return a.waker.Wake(ctx, f)
}

// publishFor wakes a feed and publishes an event of it with send; see Waker.Publish.
func (a *FeedActivator) publishFor(f Feed, send func(done func(uint64, bool, error)), done func(seq uint64, duplicate bool, err error)) {
	a.waker.Publish(a.background.Context(), f, a.background.Spawn, a.WakeService, send, done)
}

// feedFor returns the feed of a service that receives messages of a subject.
func feedFor(svc, subject string) Feed {
	f := Feed{Service: svc}
	if strings.HasPrefix(subject, schemas.SubjectRetryPrefix) {
		f.Kind = KindRetry
	}
	return f
}

// MayRest reports whether feeds may be put to rest now. They may not while a node below
// LevelRestingServices is alive, because that node would not wake them.
func (a *FeedActivator) MayRest() bool { return a.formatLevel() >= LevelRestingServices }

// ServiceGrace returns Config.ServiceGrace: for this long after a feed was put to rest, a
// publisher that had seen it awake may still store an event.
func (a *FeedActivator) ServiceGrace() time.Duration { return a.grace }

// RestService puts a feed to rest if its key still has revision rev; floor is from
// ServiceActivity. It leaves the consumer to DropService. Errors: ErrRevision,
// schemas.ErrUnavailable.
func (a *FeedActivator) RestService(ctx context.Context, f Feed, rev, floor uint64) error {
	rest, err := a.keys.putRest(ctx, f, floor, rev)
	if err != nil {
		return err
	}
	a.sawRest(a.background.Context(), ServiceChange{Feed: f, Rev: rest, Floor: floor})
	return nil
}

// follow keeps the Waker up to date with the keys until ctx ends.
func (a *FeedActivator) follow(ctx context.Context) {
	a.keys.watch(ctx, func() {
		for f, need := range a.waker.Missed() {
			a.background.Spawn(func() { a.wakeAgain(ctx, f, need) })
		}
	}, func(ch ServiceChange) {
		if !ch.Awake {
			a.sawRest(ctx, ch)
		}
	}, true)
}

// sawRest wakes a feed that came to rest if this process has published an event after its
// floor.
func (a *FeedActivator) sawRest(ctx context.Context, ch ServiceChange) {
	if need := a.waker.Rested(ch); need > 0 {
		a.background.Spawn(func() { a.wakeAgain(ctx, ch.Feed, need) })
	}
}

// wakeAgain wakes a feed for the published event of sequence need, until that succeeds or
// ctx ends.
func (a *FeedActivator) wakeAgain(ctx context.Context, f Feed, need uint64) {
	for ctx.Err() == nil && a.waker.WakeFor(ctx, f, need) != nil {
		pause.For(ctx, jet.FollowRetry)
	}
}
