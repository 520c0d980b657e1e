package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// CountFired returns the number of events of a service in TIMERS_FIRED.
func (s *Store) CountFired(ctx context.Context, svc string) (uint64, error) {
	stream, err := s.JetStream().Stream(ctx, schemas.StreamFired)
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(schemas.SubjectFired(svc)))
	if err != nil {
		return 0, err
	}
	return info.State.Subjects[schemas.SubjectFired(svc)], nil
}

// FiredFill returns the used part of the bytes of TIMERS_FIRED.
func (s *Store) FiredFill(ctx context.Context, t *testing.T) float64 {
	t.Helper()
	info, err := s.jet.Stream(ctx, schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	return float64(info.State.Bytes) / float64(info.Config.MaxBytes)
}

// TrimExample trims services with the given numbers of events of 10 bytes, stored in turn. It
// returns the bytes that each service has left.
func TrimExample(share, excess uint64, events map[string]int) map[string]uint64 {
	u := newFiredUsage(share)
	names := slices.Sorted(maps.Keys(events))
	for n, seq := 0, uint64(0); ; n++ {
		more := false
		for _, svc := range names {
			if n < events[svc] {
				more = true
				seq++
				u.add(svc, seq, 10)
			}
		}
		if !more {
			break
		}
	}
	left := map[string]uint64{}
	level := u.level(excess, share)
	for svc, usage := range u.services {
		if usage.bytes > level {
			usage.drop(usage.cut(level))
		}
		left[svc] = usage.bytes
	}
	return left
}

// UsageOfMany sums the events of one large service and of the given number of services with
// one event each. It returns the services that have a sum.
func UsageOfMany(share uint64, services int) []string {
	u := newFiredUsage(share)
	for n := range services {
		u.add(fmt.Sprint("s", n), uint64(2*n), 10)
		u.add("large", uint64(2*n+1), 10)
	}
	return slices.Collect(maps.Keys(u.services))
}
