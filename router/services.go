package router

import (
	"context"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// ServiceLister is the part of the store that lists services; *store.Store has it.
type ServiceLister interface {
	ServiceList(ctx context.Context, q store.ServiceQuery) (store.ServicePage, error)
}

// ServiceList returns a page of the services that have callbacks, or messages in a stream, by name.
// Errors: bad_request, unavailable.
func (s *Service) ServiceList(ctx context.Context, q schemas.ServiceListRequest) (schemas.ServiceListReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.ServiceListReply, error) {
		page, err := s.o.Store.ServiceList(ctx, store.ServiceQuery{Tenant: s.scope.tenant(), After: q.Cursor, Limit: q.Limit})
		if err != nil {
			return schemas.ServiceListReply{}, err
		}
		reply := schemas.ServiceListReply{Services: make([]schemas.ServiceInfo, 0, len(page.Services)), Cursor: page.Cursor}
		for _, t := range page.Services {
			info := schemas.ServiceInfo{Callbacks: t.Callbacks, Fired: t.Fired, Waiting: t.Waiting, InFlight: t.InFlight, Dead: t.Dead}
			info.Tenant, info.Service = schemas.SplitService(t.Service)
			reply.Services = append(reply.Services, info)
		}
		return reply, nil
	})
}
