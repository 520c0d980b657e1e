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

// Overtaken describes a durable consumer of TIMERS_FIRED or TIMERS_TENANT_FIRED that reads more slowly than the
// stream drops events: it has missed events, or is about to.
type Overtaken struct {
	Consumer string `json:"consumer"`
	Stream   string `json:"stream"`
	Subject  string `json:"subject"`
	// Belfry is true for Belfry's own consumer, by which it makes the callbacks of a service.
	Belfry bool `json:"belfry,omitempty"`
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
	if o.Belfry {
		do := map[string]string{
			LimitService: "raise fired-max-per-service",
			LimitBytes:   "raise the bytes of " + schemas.StreamFired,
			LimitAge:     "raise fired-max-age",
		}[o.Why]
		return fmt.Sprintf("callbacks of %s are slower than its timers fire: at least %d events left %s by the limit %s before Belfry read them, and %d wait; Belfry fires them again after sweep-delay, so they are late: raise concurrency, or %s",
			o.Subject, o.Lost, schemas.StreamFired, o.Why, o.Pending, do)
	}
	do := map[string]string{
		LimitService: "run its reader, or raise fired-max-per-service",
		LimitBytes:   "run its reader, or raise the bytes of " + o.Stream,
		LimitAge:     "run its reader, or raise fired-max-age",
	}[o.Why]
	return fmt.Sprintf("consumer %s of %s is overtaken: it has missed at least %d events of %s, which the limit %s removed, and %d wait: %s; delete the consumer if nobody needs it",
		o.Consumer, o.Stream, o.Lost, o.Subject, o.Why, o.Pending, do)
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

// OvertakenConsumers finds the overtaken consumers on TIMERS_FIRED, and the consumers of tenants on
// TIMERS_TENANT_FIRED. A consumer is overtaken if it has read none of the events that its filter
// still matches, while a limit of the stream drops the oldest of them. For each stream it costs one
// request, one for each page of 256 consumers, and one for each consumer with unread events.
// Belfry's own consumers cost one only if a limit of the stream can have dropped events of theirs.
func (h Health) OvertakenConsumers(ctx context.Context) ([]Overtaken, error) {
	var out []Overtaken
	for _, name := range [...]string{schemas.StreamFired, schemas.StreamTenantFired} {
		some, err := h.overtakenOf(ctx, name)
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	return out, nil
}

// overtakenOf finds the overtaken consumers of a stream, if it exists.
func (h Health) overtakenOf(ctx context.Context, name string) ([]Overtaken, error) {
	stream, err := h.jet.Stream(ctx, name)
	if errors.Is(err, jet.ErrNoStream) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var waiting []*jet.ConsumerInfo
	err = h.jet.Consumers(ctx, name, func(info *jet.ConsumerInfo) {
		if info.Config.Durable != "" && info.NumPending > 0 && (!ownConsumer(info) || mayLose(&stream, info)) {
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

// ownConsumer reports whether Belfry reads a service's events by a consumer.
func ownConsumer(info *jet.ConsumerInfo) bool {
	return strings.HasPrefix(info.Name, serviceConsumerPrefix)
}

// mayLose reports whether a limit of the stream can have dropped unread events of a service.
// If one has, all stored events of the service are unread.
func mayLose(stream *jet.StreamInfo, info *jet.ConsumerInfo) bool {
	limit := stream.Config.MaxMsgsPerSubject
	unread := int64(info.NumPending) + int64(info.NumAckPending)
	return limit > 0 && unread >= limit || full(stream) || expires(stream, stream.State.FirstTime)
}

// full reports whether the stream drops its oldest events for lack of bytes.
func full(stream *jet.StreamInfo) bool {
	most := stream.Config.MaxBytes
	return most > 0 && float64(stream.State.Bytes) >= nearFull*float64(most)
}

// inFront reports whether an event is in the oldest hundredth of a stream. TIMERS_TENANT_FIRED may
// always be full. The oldest unread event of a reader that keeps up is then far from its front.
func inFront(stream *jet.StreamInfo, seq uint64) bool {
	return seq-min(seq, stream.State.FirstSeq) <= stream.State.Msgs/100
}

// expires reports whether the stream drops events that were stored at a time, because of their age.
func expires(stream *jet.StreamInfo, at time.Time) bool {
	age := stream.Config.MaxAge
	return age > 0 && stream.TimeStamp.Sub(at) >= time.Duration(nearExpiry*float64(age))
}

// overtaken looks at one filter subject of a consumer; nil if all is well.
func (h Health) overtaken(ctx context.Context, stream *jet.StreamInfo, info *jet.ConsumerInfo, filter string) (*Overtaken, error) {
	all := schemas.SubjectFiredPrefix + "*"
	if filter == "" || strings.HasSuffix(filter, ">") {
		filter = all
	}
	msgs, more, err := h.jet.Next(ctx, stream.Config.Name, filter, 0, 1)
	if err != nil || len(msgs) == 0 {
		return nil, err
	}
	first, read := msgs[0], info.Delivered.Stream
	if first.Sequence <= read+1 {
		return nil, nil // the next event to read is there, or was read
	}
	o := &Overtaken{Consumer: info.Name, Stream: stream.Config.Name, Subject: filter, Belfry: ownConsumer(info), Lost: 1, Pending: info.NumPending, Oldest: first.Time}
	if filter == all {
		o.Lost = first.Sequence - read - 1
	}
	limit := stream.Config.MaxMsgsPerSubject
	switch {
	case limit > 0 && filter != all && int64(more)+1 >= limit:
		o.Why = LimitService
	case full(stream) && (stream.Config.Name != schemas.StreamTenantFired || inFront(stream, first.Sequence)):
		o.Why = LimitBytes
	case filter == all, expires(stream, first.Time):
		o.Why = LimitAge
	default:
		return nil, nil // the sequences in between are events of other services
	}
	return o, nil
}
