package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// FeedConsumers are the consumers of feeds on TIMERS_FIRED and TIMERS_RETRY, which all
// nodes share. Its methods only act on the streams; whether a feed has a consumer is
// decided by its key in bucket services (ServiceKeys). Errors: schemas.ErrUnavailable. Safe
// for concurrent use.
type FeedConsumers struct {
	jet *jet.Client
}

// ServiceActivity is the activity of a feed's consumer.
type ServiceActivity struct {
	// Idle is the time since the consumer was last used, by the server's clock.
	Idle time.Duration
	// Busy is true if events wait or have no result yet, or if there is no consumer yet.
	Busy bool
	// Absent is true if there is no consumer yet.
	Absent bool
	// Floor is the sequence up to which all events of the service have a result.
	Floor uint64
}

// ServiceActivity reads the activity from the leader of a feed's consumer.
func (c *FeedConsumers) ServiceActivity(ctx context.Context, f Feed) (ServiceActivity, error) {
	stream, _ := serviceStream(f.Service, f.Kind)
	r, err := c.jet.Consumer(ctx, "look up the consumer of "+f.Service+" on "+stream, stream, serviceConsumerPrefix+f.Service)
	if errors.Is(err, jet.ErrNoConsumer) {
		return ServiceActivity{Busy: true, Absent: true}, nil // about to be created
	}
	if err != nil {
		return ServiceActivity{}, err
	}
	last := r.Created
	for _, t := range []*time.Time{r.Delivered.Last, r.AckFloor.Last} {
		if t != nil && t.After(last) {
			last = *t
		}
	}
	return ServiceActivity{Idle: r.TimeStamp.Sub(last), Busy: r.NumPending > 0 || r.NumAckPending > 0, Floor: r.AckFloor.Stream}, nil
}

// ServiceBacklog reports whether a resting feed's stream has an event after its floor.
func (c *FeedConsumers) ServiceBacklog(ctx context.Context, f Feed, floor uint64) (bool, error) {
	stream, subject := serviceStream(f.Service, f.Kind)
	m, err := c.jet.Last(ctx, stream, subject)
	if errors.Is(err, schemas.ErrNotFound) {
		return false, nil
	}
	// Every event in the work queue has no result yet.
	return err == nil && (f.Kind == KindRetry || m.Sequence > floor), err
}

// RetryBacklog lists the services that have retries in TIMERS_RETRY.
func (c *FeedConsumers) RetryBacklog(ctx context.Context) ([]string, error) {
	info, err := c.jet.Stream(ctx, schemas.StreamRetry)
	if err != nil || info.State.Msgs == 0 {
		return nil, err
	}
	all, err := c.jet.Subjects(ctx, schemas.StreamRetry)
	if err != nil {
		return nil, err
	}
	var out []string
	for subject := range all.State.Subjects {
		if svc := schemas.ServiceOfSubject(subject); schemas.ValidServiceName(svc) {
			out = append(out, svc)
		}
	}
	return out, nil
}

// ServedFeeds lists the feeds that have consumers.
func (c *FeedConsumers) ServedFeeds(ctx context.Context) ([]Feed, error) {
	var out []Feed
	for name, kind := range map[string]Kind{schemas.StreamFired: KindFired, schemas.StreamRetry: KindRetry} {
		err := c.jet.ConsumerNames(ctx, name, func(consumer string) {
			if svc, ours := strings.CutPrefix(consumer, serviceConsumerPrefix); ours && schemas.ValidServiceName(svc) {
				out = append(out, Feed{svc, kind})
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DropService deletes the consumer of a feed. A missing consumer is no error.
func (c *FeedConsumers) DropService(ctx context.Context, f Feed) error {
	stream, _ := serviceStream(f.Service, f.Kind)
	err := c.jet.DeleteConsumer(ctx, "delete the consumer of "+f.Service+" on "+stream, stream, serviceConsumerPrefix+f.Service)
	if errors.Is(err, jet.ErrNoConsumer) {
		return nil
	}
	return err
}

func serviceStream(svc string, kind Kind) (stream, subject string) {
	if kind == KindRetry {
		return schemas.StreamRetry, schemas.SubjectRetry(svc)
	}
	return schemas.StreamFired, schemas.SubjectFired(svc)
}
