package httpapi

import (
	"context"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// Operations are the operations of a router; *router.Service has them.
type Operations interface {
	Timers
	Schedules
	Letters
	Bulk
	Services
	Flows
	Calendars
}

// Timers are the operations on timers.
type Timers interface {
	AddAsync(header map[string][]string, data []byte, done func(schemas.AddReply, error))
	Add(ctx context.Context, header map[string][]string, data []byte) (schemas.AddReply, error)
	Describe(ctx context.Context, ref schemas.TimerRef) (schemas.TimerInfo, error)
	Inspect(ctx context.Context, q schemas.GetRequest) (schemas.TimerInfo, error)
	List(ctx context.Context, q schemas.ListRequest) (schemas.ListReply, error)
	Search(ctx context.Context, q schemas.SearchRequest) (schemas.SearchReply, error)
	Counts(ctx context.Context, q schemas.CountsRequest) (schemas.CountsReply, error)
	Cancel(ctx context.Context, q schemas.CancelRequest, from schemas.Caller) (store.Timer, error)
	Reschedule(ctx context.Context, q schemas.RescheduleRequest, from schemas.Caller) (store.Timer, error)
	Pause(ctx context.Context, q schemas.PauseRequest, from schemas.Caller) (store.Timer, error)
	Resume(ctx context.Context, q schemas.ResumeRequest, from schemas.Caller) (store.Timer, error)
	PauseGroup(ctx context.Context, q schemas.PauseRequest, from schemas.Caller) (schemas.GroupReply, error)
	ResumeGroup(ctx context.Context, q schemas.ResumeRequest, from schemas.Caller) (schemas.GroupReply, error)
	Why(ctx context.Context, q schemas.WhyRequest) (schemas.WhyReply, error)
}

// Schedules are the operations on schedules alone.
type Schedules interface {
	Update(ctx context.Context, header map[string][]string, data []byte, q router.UpdateRequest, from schemas.Caller) (schemas.UpdateReply, error)
	Trigger(ctx context.Context, q schemas.TriggerRequest, from schemas.Caller) (store.Timer, error)
	Backfill(ctx context.Context, q schemas.BackfillRequest, from schemas.Caller) (schemas.BackfillReply, error)
	Preview(ctx context.Context, q schemas.PreviewRequest) (schemas.PreviewReply, error)
	Runs(ctx context.Context, q schemas.RunsRequest) (schemas.RunsReply, error)
}

// Letters are the operations on events that have failed, or that wait for others.
type Letters interface {
	DeadList(ctx context.Context, q schemas.DeadListRequest) (schemas.DeadListReply, error)
	DeadReplay(ctx context.Context, q schemas.ReplayRequest, from schemas.Caller) (schemas.ReplayReply, error)
	RejectedList(ctx context.Context, q schemas.RejectedListRequest) (schemas.RejectedListReply, error)
	OrderList(ctx context.Context, q schemas.OrderListRequest) (schemas.OrderListReply, error)
}

// Flows are the operations on the limits of flow keys.
type Flows interface {
	FlowSet(ctx context.Context, q schemas.FlowSetRequest, from schemas.Caller) (schemas.FlowReply, error)
	FlowGet(ctx context.Context, q schemas.FlowRequest) (schemas.FlowStatus, error)
	FlowList(ctx context.Context, none struct{}) (schemas.FlowListReply, error)
	FlowPause(ctx context.Context, q schemas.FlowRequest, from schemas.Caller) (schemas.FlowReply, error)
	FlowResume(ctx context.Context, q schemas.FlowRequest, from schemas.Caller) (schemas.FlowReply, error)
	FlowReset(ctx context.Context, q schemas.FlowResetRequest, from schemas.Caller) (schemas.FlowResetReply, error)
	FlowDelete(ctx context.Context, q schemas.FlowRequest, from schemas.Caller) (schemas.FlowReply, error)
}

// Calendars are the operations on the calendars that schedules exclude.
type Calendars interface {
	CalendarPut(ctx context.Context, q schemas.CalendarPutRequest, from schemas.Caller) (schemas.CalendarPutReply, error)
	CalendarGet(ctx context.Context, q schemas.CalendarRequest) (schemas.CalendarInfo, error)
	CalendarList(ctx context.Context, none struct{}) (schemas.CalendarListReply, error)
	CalendarDelete(ctx context.Context, q schemas.CalendarRequest, from schemas.Caller) (schemas.CalendarInfo, error)
}
