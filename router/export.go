package router

import (
	"cmp"
	"context"
	"slices"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// exportStates are the states of timers whose records have their events; an export without states
// selects exportDefault.
var (
	exportDefault = []schemas.State{schemas.StatePending, schemas.StatePaused}
	exportStates  = append(slices.Clone(exportDefault), schemas.StateRetrying, schemas.StateDelivered)
)

// Export returns the events of a page of timers, so that they can be published again. The pages
// together have every timer that the request selects during the whole export. Errors: bad_request;
// invalid_timer_id and not_found for a request that names a timer; unavailable, after which the same
// request continues.
func (s *Service) Export(ctx context.Context, q schemas.ExportRequest) (schemas.ExportReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.ExportReply, error) {
		reply := schemas.ExportReply{Timers: []schemas.ExportInfo{}}
		if q.TimerRef != (schemas.TimerRef{}) {
			t, err := s.ops.Get(ctx, q.TimerRef)
			if err != nil {
				return reply, err
			}
			s.export(&reply, &t)
			return reply, nil
		}
		list, err := s.exportQuery(&q)
		if err != nil {
			return reply, err
		}
		page, err := s.o.Store.List(ctx, list)
		if err != nil {
			return reply, err
		}
		for i := range page.Timers {
			if page.Timers[i].Record.Origin != nil {
				reply.Runs++
				continue
			}
			s.export(&reply, &page.Timers[i])
		}
		reply.Cursor, reply.Unread = page.Cursor, page.Unread
		return reply, nil
	})
}

// exportQuery returns the list of the timers that a request selects. They belong to one tenant, because
// an event does not name its tenant.
func (s *Service) exportQuery(q *schemas.ExportRequest) (store.ListQuery, error) {
	tenant := cmp.Or(q.Tenant, s.scope.Tenant)
	list := store.ListQuery{States: q.States, Tenant: &tenant, Group: q.Group, Schedule: q.Schedule, Cursor: q.Cursor, Limit: q.Limit}
	switch {
	case q.Tenant != "" && !schemas.ValidTenant(q.Tenant):
		return list, schemas.Errorf(schemas.CodeBadRequest, "tenant %.80q must be 1 to %d lower-case letters, digits or '-'", q.Tenant, schemas.MaxTenantLength)
	case tenant != s.scope.Tenant && !s.scope.All:
		return list, schemas.Errorf(schemas.CodeBadRequest, "only Belfry's own account exports the timers of another tenant")
	case q.Service != "" && !schemas.ValidService(q.Service):
		return list, schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", q.Service, schemas.MaxServiceLength)
	case q.Service != "":
		list.Service = schemas.TenantService(tenant, q.Service)
	}
	for _, state := range q.States {
		if !slices.Contains(exportStates, state) {
			return list, schemas.Errorf(schemas.CodeBadRequest, "state %s cannot be exported: the event of a timer that has ended is gone", state)
		}
	}
	if len(q.States) == 0 {
		list.States = exportDefault
	}
	return list, nil
}

// export adds a timer to an answer: to the skipped ones if its event cannot be published again.
func (s *Service) export(reply *schemas.ExportReply, t *store.Timer) {
	info, err := t.Record.Export(t.ID, t.Rev, s.nowMs())
	if most := s.o.Store.MaxMessage() - schemas.PayloadReserve; err == nil && len(info.Event) > most {
		err = schemas.Errorf(schemas.CodeTooLarge, "the event has %d bytes as JSON; the limit is %d", len(info.Event), most)
	}
	if err == nil {
		reply.Timers = append(reply.Timers, info)
		return
	}
	r := &t.Record
	reply.Skipped = append(reply.Skipped, schemas.ExportSkip{Timer: t.ID, ID: r.EventID, Source: r.Source, Code: cmp.Or(schemas.CodeOf(err), schemas.CodeDamaged), Error: err.Error()})
}
