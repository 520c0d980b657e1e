package router

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// History is the search index of a node; visibility.Answers is one. Its answers may be out of date.
type History interface {
	// Find returns a record, without its event. Errors: schemas.ErrNotFound, schemas.ErrUnavailable.
	Find(ctx context.Context, id schemas.TimerID) (t store.Timer, asOf time.Time, err error)
	// SearchFor and CountsFor answer for the timers of a tenant, nil for all. service is the
	// tenant's own name of the service that the request names. Errors: schemas.CodeBadRequest,
	// schemas.ErrUnavailable.
	SearchFor(ctx context.Context, q schemas.SearchRequest, service string, tenant *string) (schemas.SearchReply, error)
	CountsFor(ctx context.Context, q schemas.CountsRequest, service string, tenant *string) (schemas.CountsReply, error)
}

// errNoHistory answers a search on a node without an index.
var errNoHistory = schemas.Errorf(schemas.CodeUnavailable, "this node has no search index: it runs without role visibility; ask another node")

// HasHistory reports whether the node has a search index.
func (s *Service) HasHistory() bool { return s.o.History != nil }

// Search returns a page of timers, also of timers whose records have expired. Errors: bad_request,
// invalid_timer_id, unavailable.
func (s *Service) Search(ctx context.Context, q schemas.SearchRequest) (schemas.SearchReply, error) {
	return asked(ctx, s, q.Service, func(ctx context.Context, service string, tenant *string) (schemas.SearchReply, error) {
		return s.o.History.SearchFor(ctx, q, service, tenant)
	})
}

// Counts returns numbers of timers. Errors: bad_request, unavailable.
func (s *Service) Counts(ctx context.Context, q schemas.CountsRequest) (schemas.CountsReply, error) {
	return asked(ctx, s, q.Service, func(ctx context.Context, service string, tenant *string) (schemas.CountsReply, error) {
		return s.o.History.CountsFor(ctx, q, service, tenant)
	})
}

// asked calls f with the service and the tenant by which the index selects the timers in the scope.
func asked[T any](ctx context.Context, s *Service, service string, f func(ctx context.Context, service string, tenant *string) (T, error)) (T, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (none T, err error) {
		if s.o.History == nil {
			return none, errNoHistory
		}
		name, tenant, err := s.scope.selects(service)
		if err != nil {
			return none, err
		}
		if name != "" {
			of, own := schemas.SplitService(name)
			name, tenant = own, &of
		}
		return f(ctx, name, tenant)
	})
}

// expired looks in the index for a timer that has no record. It returns err, the error of the search
// for the record, if the index does not have it either.
func (s *Service) expired(ctx context.Context, ref schemas.TimerRef, err error) (store.Timer, time.Time, error) {
	if s.o.History == nil || schemas.CodeOf(err) != schemas.CodeNotFound {
		return store.Timer{}, time.Time{}, err
	}
	id, rerr := ref.Resolve(s.scope.Tenant)
	if rerr != nil {
		return store.Timer{}, time.Time{}, rerr
	}
	t, asOf, herr := s.o.History.Find(ctx, id)
	switch {
	case herr == nil && s.scope.Sees(t.Record.Service) && t.Record.State.Final():
		return t, asOf, nil
	case herr != nil && !errors.Is(herr, schemas.ErrNotFound):
		s.o.Log.Debug().Err(herr).Msg("the search for a timer without a record failed in the search index")
	}
	return store.Timer{}, time.Time{}, err
}
