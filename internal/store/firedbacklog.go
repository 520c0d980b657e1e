package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// FiredBacklog has the events of a service that functions have not acknowledged: a part of TIMERS_FIRED, and
// those of TIMERS_RETRY, which acknowledged events leave.
type FiredBacklog struct {
	// Floor is a sequence: functions have acknowledged every event of the service up to it. 0 if
	// functions have acknowledged none, as far as is known.
	Floor uint64
	// Oldest is the time at which the oldest event of the service after Floor was stored, by the
	// leader's clock; zero if there is none.
	Oldest time.Time
	// OldestRetry is the time at which the oldest event of the service in TIMERS_RETRY was stored, by the
	// leader's clock; zero if there is none. It is read after the floor, and a retry is published before the event
	// that it follows is acknowledged.
	OldestRetry time.Time
}

// FiredBacklog returns the backlog of a service. An event after the floor may be acknowledged, too. Errors:
// schemas.ErrUnavailable.
func (e *Events) FiredBacklog(ctx context.Context, svc string) (FiredBacklog, error) {
	floor, err := e.floor(ctx, Feed{Service: svc})
	if err != nil {
		return FiredBacklog{}, err
	}
	b := FiredBacklog{Floor: floor}
	if b.Oldest, err = e.oldest(ctx, schemas.StreamFired, schemas.SubjectFired(svc), floor); err != nil {
		return b, err
	}
	b.OldestRetry, err = e.oldest(ctx, schemas.StreamRetry, schemas.SubjectRetry(svc), 0)
	return b, err
}

// oldest returns the time of the oldest event of a subject after a sequence; zero if there is none.
func (e *Events) oldest(ctx context.Context, stream, subject string, after uint64) (time.Time, error) {
	msgs, _, err := e.jet.Next(ctx, stream, subject, after, 1)
	if err != nil || len(msgs) == 0 {
		return time.Time{}, err
	}
	return msgs[0].Time, nil
}

// floor returns the floor of a feed: that of its consumer or, without a consumer, that of its key, after which
// the next consumer starts. As for the next consumer, a floor beyond the end of the stream comes from an earlier
// stream of the name.
func (e *Events) floor(ctx context.Context, f Feed) (uint64, error) {
	a, err := (&FeedConsumers{jet: e.jet}).ServiceActivity(ctx, f)
	if err != nil || !a.Absent {
		return a.Floor, err
	}
	st, err := e.feeds.keys.ServiceState(ctx, f)
	if err != nil || st.Floor == 0 {
		return 0, err
	}
	newest, err := e.FiredNewest(ctx)
	if err != nil || st.Floor > newest {
		return 0, err
	}
	return st.Floor, nil
}

// FindInBacklog returns the message ids among ids that TIMERS_FIRED has in the backlog of a service. It reads the
// events after the floor or, without a floor, those since a time, until it has found all ids. Errors:
// schemas.ErrUnavailable.
func (e *Events) FindInBacklog(ctx context.Context, svc string, b FiredBacklog, since time.Time, ids map[string]struct{}) (map[string]struct{}, error) {
	events := jet.Range{Filters: []string{schemas.SubjectFired(svc)}, HeadersOnly: true, AfterSeq: b.Floor}
	if b.Floor == 0 {
		events.Since = since
	}
	found := map[string]struct{}{}
	return found, e.find(ctx, schemas.StreamFired, events, ids, found)
}
