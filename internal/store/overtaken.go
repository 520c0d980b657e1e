package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Overtaken describes a durable consumer of TIMERS_FIRED that reads more slowly than the
// stream drops events: it has missed events, or is about to.
type Overtaken struct {
	Consumer string `json:"consumer"`
	Subject  string `json:"subject"`
	// Lost is a lower bound of the events that the stream dropped before the consumer read
	// them. It is exact for a consumer of all services, and 1 for a consumer of a single
	// service, because the sequences of its events are not consecutive.
	Lost uint64 `json:"lost_at_least"`
	// Pending is the number of unread events in the stream; Oldest is when the oldest was
	// stored.
	Pending uint64    `json:"pending"`
	Oldest  time.Time `json:"oldest"`
	// Why names the limit that drops events: LimitService, LimitBytes or LimitAge.
	Why string `json:"why"`
}

// Problem describes for an operator the problem and its remedies in one sentence.
func (o Overtaken) Problem() string {
	do := map[string]string{
		LimitService: "run its reader, or raise fired-max-per-service",
		LimitBytes:   "run its reader, or raise the bytes of " + schemas.StreamFired,
		LimitAge:     "run its reader, or raise fired-max-age",
	}[o.Why]
	return fmt.Sprintf("consumer %s of %s is overtaken: it has missed at least %d events of %s, which the limit %s removed, and %d wait: %s; delete the consumer if nobody needs it",
		o.Consumer, schemas.StreamFired, o.Lost, o.Subject, o.Why, o.Pending, do)
}

// The limits of TIMERS_FIRED.
const (
	LimitService = "fired-max-per-service"
	LimitBytes   = "bytes"
	LimitAge     = "fired-max-age"
)

// A stream drops its oldest events when it is full, or when they have reached the maximum age.
const (
	// nearFull is the used part of the stream's bytes at which it counts as full.
	nearFull = 0.99
	// nearExpiry is the part of the maximum age at which an event counts as expiring.
	nearExpiry = 0.95
)

// OvertakenConsumers finds the overtaken consumers on TIMERS_FIRED, except Belfry's own. A
// consumer is overtaken if it has read none of the events that its filter still matches,
// while a limit of the stream drops the oldest of them. It costs one request for each page
// of 256 consumers, and one for each consumer of other programs with unread events.
func (h Health) OvertakenConsumers(ctx context.Context) ([]Overtaken, error) {
	stream, err := h.jet.Stream(ctx, schemas.StreamFired)
	if errors.Is(err, jet.ErrNoStream) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var waiting []*jet.ConsumerInfo
	err = h.jet.Consumers(ctx, schemas.StreamFired, func(info *jet.ConsumerInfo) {
		if info.Config.Durable != "" && info.NumPending > 0 && !strings.HasPrefix(info.Name, serviceConsumerPrefix) {
			waiting = append(waiting, info)
		}
	})
	if err != nil {
		return nil, err
	}
	var out []Overtaken
	for _, info := range waiting {
		filters := info.Config.FilterSubjects
		if len(filters) == 0 {
			filters = []string{info.Config.FilterSubject}
		}
		for _, filter := range filters {
			o, err := h.overtaken(ctx, &stream, info, filter)
			if err != nil {
				return nil, err
			}
			if o != nil {
				out = append(out, *o)
			}
		}
	}
	return out, nil
}

// overtaken looks at one filter subject of a consumer; nil if all is well.
func (h Health) overtaken(ctx context.Context, stream *jet.StreamInfo, info *jet.ConsumerInfo, filter string) (*Overtaken, error) {
	all := schemas.SubjectFiredPrefix + "*"
	if filter == "" || strings.HasSuffix(filter, ">") {
		filter = all
	}
	msgs, more, err := h.jet.Next(ctx, schemas.StreamFired, filter, 0, 1)
	if err != nil || len(msgs) == 0 {
		return nil, err
	}
	first, read := msgs[0], info.Delivered.Stream
	if first.Sequence <= read+1 {
		return nil, nil // the next event to read is there, or was read
	}
	o := &Overtaken{Consumer: info.Name, Subject: filter, Lost: 1, Pending: info.NumPending, Oldest: first.Time}
	if filter == all {
		o.Lost = first.Sequence - read - 1
	}
	limit, age := stream.Config.MaxMsgsPerSubject, stream.Config.MaxAge
	switch {
	case limit > 0 && filter != all && int64(more)+1 >= limit:
		o.Why = LimitService
	case stream.Config.MaxBytes > 0 && float64(stream.State.Bytes) >= nearFull*float64(stream.Config.MaxBytes):
		o.Why = LimitBytes
	case filter == all, age > 0 && stream.TimeStamp.Sub(first.Time) >= time.Duration(nearExpiry*float64(age)):
		o.Why = LimitAge
	default:
		return nil, nil // the sequences in between are events of other services
	}
	return o, nil
}
