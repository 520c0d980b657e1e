package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// ServiceQuery selects services. An empty field matches all.
type ServiceQuery struct {
	// Tenant is as in ListQuery.
	Tenant *string
	// After is the name after which the page begins, "" for the first page.
	After string
	// Limit bounds the services of the page: 1 to MaxListLimit, or 0 for DefaultListLimit.
	Limit int
}

// ServiceTotals are the messages of a service in the streams.
type ServiceTotals struct {
	Service string
	// Callbacks is true for a service that counts as one of MaxServices.
	Callbacks bool
	// Fired is the number of events in TIMERS_FIRED, with or without a result. Waiting events have
	// not been called, or wait for a retry; InFlight ones are being called.
	Fired, Waiting, InFlight uint64
	// Dead is the number of dead letters.
	Dead uint64
}

// ServicePage is one page; Cursor, the After of the next page, is empty at the end.
type ServicePage struct {
	Services []ServiceTotals
	Cursor   string
}

// ServiceList returns a page of the services that have callbacks, or messages in a stream, by name.
// It asks the server about three streams and all consumers of services, whatever the page. Errors:
// bad_request, schemas.ErrUnavailable.
func (s *Services) ServiceList(ctx context.Context, q ServiceQuery) (ServicePage, error) {
	limit := q.Limit
	if limit == 0 {
		limit = DefaultListLimit
	}
	if limit < 1 || limit > MaxListLimit {
		return ServicePage{}, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, MaxListLimit)
	}
	l := serviceList{jet: s.keys.jet, q: &q, all: map[string]*ServiceTotals{}}
	if err := l.read(ctx); err != nil {
		return ServicePage{}, err
	}
	var page ServicePage
	for _, name := range slices.Sorted(maps.Keys(l.all)) {
		if len(page.Services) == limit {
			page.Cursor = page.Services[limit-1].Service
			break
		}
		page.Services = append(page.Services, *l.all[name])
	}
	return page, nil
}

// serviceList gathers the totals of services.
type serviceList struct {
	jet *jet.Client
	q   *ServiceQuery
	all map[string]*ServiceTotals
}

func (l *serviceList) read(ctx context.Context) error {
	for _, part := range []struct {
		stream, prefix string
		count          func(t *ServiceTotals, n uint64)
	}{
		{servicesStream, servicesPrefix, func(t *ServiceTotals, _ uint64) { t.Callbacks = true }},
		{schemas.StreamFired, schemas.SubjectFiredPrefix, func(t *ServiceTotals, n uint64) { t.Fired = n }},
		{schemas.StreamDead, schemas.SubjectDeadPrefix, func(t *ServiceTotals, n uint64) { t.Dead = n }},
	} {
		info, err := l.jet.Subjects(ctx, part.stream)
		if err != nil && !errors.Is(err, jet.ErrNoStream) {
			return err
		}
		for subject, n := range info.State.Subjects {
			if name, ok := strings.CutPrefix(subject, part.prefix); ok {
				l.with(strings.TrimSuffix(name, retryKey), func(t *ServiceTotals) { part.count(t, n) })
			}
		}
	}
	for _, stream := range []string{schemas.StreamFired, schemas.StreamRetry} {
		err := l.jet.Consumers(ctx, stream, func(info *jet.ConsumerInfo) {
			if name, ours := strings.CutPrefix(info.Name, serviceConsumerPrefix); ours {
				l.with(name, func(t *ServiceTotals) {
					t.Waiting += info.NumPending
					t.InFlight += uint64(info.NumAckPending)
				})
			}
		})
		if err != nil && !errors.Is(err, jet.ErrNoStream) {
			return err
		}
	}
	return nil
}

// with calls f with the totals of a service, if the query selects it.
func (l *serviceList) with(name string, f func(*ServiceTotals)) {
	if !schemas.ValidServiceName(name) || name <= l.q.After || l.q.Tenant != nil && *l.q.Tenant != schemas.TenantOf(name) {
		return
	}
	t := l.all[name]
	if t == nil {
		t = &ServiceTotals{Service: name}
		l.all[name] = t
	}
	f(t)
}
