package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// ServiceActivity is what a feed's consumer does.
type ServiceActivity struct {
	// Idle is how long ago it was last used, by the server's clock.
	Idle time.Duration
	// Busy says that events wait or are worked on, or that there is no consumer yet.
	Busy bool
	// Absent says that there is no consumer yet.
	Absent bool
	// Floor is the sequence up to which all events of the service are concluded.
	Floor uint64
}

// ServiceActivity asks the leader of a feed's consumer.
func (s *Store) ServiceActivity(ctx context.Context, f Feed) (ServiceActivity, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.ConsumerInfo
	}
	stream, _ := serviceStream(f.Service, f.Kind)
	op := "look up the consumer of " + f.Service + " on " + stream
	if err := s.request(ctx, op, "$JS.API.CONSUMER.INFO."+stream+"."+serviceConsumerPrefix+f.Service, nil, &r); err != nil {
		return ServiceActivity{}, err
	}
	if r.Error != nil && r.Error.ErrorCode == codeConsumerNotFound {
		return ServiceActivity{Busy: true, Absent: true}, nil // about to be made
	}
	if r.Error != nil {
		return ServiceActivity{}, apiError(op, r.Error)
	}
	last := r.Created
	for _, t := range []*time.Time{r.Delivered.Last, r.AckFloor.Last} {
		if t != nil && t.After(last) {
			last = *t
		}
	}
	return ServiceActivity{Idle: r.TimeStamp.Sub(last), Busy: r.NumPending > 0 || r.NumAckPending > 0, Floor: r.AckFloor.Stream}, nil
}

// ServiceBacklog reports whether a resting feed's stream has an event behind its floor.
func (s *Store) ServiceBacklog(ctx context.Context, f Feed, floor uint64) (bool, error) {
	stream, subject := serviceStream(f.Service, f.Kind)
	m, err := s.getLast(ctx, stream, subject)
	if errors.Is(err, schemas.ErrNotFound) {
		return false, nil
	}
	// What is in the work queue is not concluded.
	return err == nil && (f.Kind == KindRetry || m.Sequence > floor), err
}

// RetryBacklog lists the services that have retries in TIMERS_RETRY.
func (s *Store) RetryBacklog(ctx context.Context) ([]string, error) {
	info, err := s.streamState(ctx, schemas.StreamRetry)
	if err != nil || info.State.Msgs == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	stream, err := s.findStream(ctx, schemas.StreamRetry)
	if err != nil {
		return nil, mapError("look up stream "+schemas.StreamRetry, err)
	}
	all, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, mapError("list the services with retries", err)
	}
	var out []string
	for subject := range all.State.Subjects {
		if svc := schemas.ServiceOfSubject(subject); schemas.ValidService(svc) {
			out = append(out, svc)
		}
	}
	return out, nil
}

// ServedFeeds lists the feeds that have consumers.
func (s *Store) ServedFeeds(ctx context.Context) ([]Feed, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var out []Feed
	for name, kind := range map[string]Kind{schemas.StreamFired: KindFired, schemas.StreamRetry: KindRetry} {
		stream, err := s.findStream(ctx, name)
		if err != nil {
			return nil, mapError("look up stream "+name, err)
		}
		list := stream.ConsumerNames(ctx)
		for consumer := range list.Name() {
			if svc, ours := strings.CutPrefix(consumer, serviceConsumerPrefix); ours && schemas.ValidService(svc) {
				out = append(out, Feed{svc, kind})
			}
		}
		if err := list.Err(); err != nil {
			return nil, mapError("list consumers of "+name, err)
		}
	}
	return out, nil
}

// DropService deletes the consumer of a feed. One that is gone is no error.
func (s *Store) DropService(ctx context.Context, f Feed) error {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	stream, _ := serviceStream(f.Service, f.Kind)
	op := "delete the consumer of " + f.Service + " on " + stream
	if err := s.change(ctx, op, "$JS.API.CONSUMER.DELETE."+stream+"."+serviceConsumerPrefix+f.Service, nil, &r); err != nil {
		return err
	}
	if r.Error != nil && r.Error.ErrorCode != codeConsumerNotFound {
		return apiError(op, r.Error)
	}
	return nil
}

// ServiceConsumer is the durable consumer of a feed, shared by all nodes. One that does
// not exist is made, and starts behind floor. maxAckPending bounds the events that the
// service holds at once.
func (s *Store) ServiceConsumer(ctx context.Context, f Feed, floor uint64, maxAckPending int, ackWait time.Duration) (jetstream.Consumer, error) {
	stream, subject := serviceStream(f.Service, f.Kind)
	want := jetstream.ConsumerConfig{
		Durable: serviceConsumerPrefix + f.Service, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
	}
	op := "consumer " + want.Durable + " of " + stream
	bound, release, err := s.bind(ctx, op)
	if err != nil {
		return nil, err
	}
	defer release()
	c, err := again(bound, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		c, err := s.makeServiceConsumer(ctx, stream, f, floor, want)
		if !errors.Is(err, jetstream.ErrConsumerExists) {
			return c, err
		}
		// Another node was faster, or a node has other settings.
		if c, err = s.js.Consumer(ctx, stream, want.Durable); err != nil {
			return nil, err
		}
		have := c.CachedInfo().Config
		if have.AckWait == want.AckWait && have.MaxAckPending == want.MaxAckPending {
			return c, nil
		}
		have.AckWait, have.MaxAckPending = want.AckWait, want.MaxAckPending
		return s.js.UpdateConsumer(ctx, stream, have)
	})
	return c, ctxError(bound, op, err)
}

// makeServiceConsumer makes the consumer of a feed that was at rest, or finds one of the
// same configuration. Error: jetstream.ErrConsumerExists if there is one of another.
func (s *Store) makeServiceConsumer(ctx context.Context, stream string, f Feed, floor uint64, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if f.Kind == KindFired && floor > 0 { // a work queue starts where it is
		info, err := s.streamState(ctx, stream)
		if err != nil {
			return nil, err
		}
		// A floor that the stream has not reached is of another stream of this name.
		if floor <= info.State.LastSeq {
			want.DeliverPolicy, want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, floor+1
		}
	}
	return s.js.CreateConsumer(ctx, stream, want)
}

func serviceStream(svc string, kind Kind) (stream, subject string) {
	if kind == KindRetry {
		return schemas.StreamRetry, schemas.SubjectRetry(svc)
	}
	return schemas.StreamFired, schemas.SubjectFired(svc)
}
