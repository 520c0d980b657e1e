package httpapi

import (
	"net/http"
	"slices"

	"github.com/belfryio/belfry/internal/token"
)

// route is an operation of the API.
type route struct {
	method, path, scope string
	// params are the query parameters that the route takes; each at most once, except state.
	params []string
	handle func(*request) (answer, error)
}

// routes are all operations. openapi.yaml describes each of them.
var routes = slices.Concat(timerRoutes, scheduleRoutes, letterRoutes, bulkRoutes, sharedRoutes, clockRoutes)

var timerRoutes = []route{
	{"POST", "/v1/timers", token.ScopeWrite, fieldNames(), addTimer},
	{"GET", "/v1/timers", token.ScopeRead, slices.Concat([]string{"id", "source", "state", "service", "group", "schedule", "claim", "limit", "cursor"}, searchNames), listOrGet},
	{"GET", "/v1/counts", token.ScopeRead, []string{"service", "from", "to", "bucket", "by_service"}, showCounts},
	{"DELETE", "/v1/timers", token.ScopeWrite, []string{"id", "source", "by"}, cancelTimer},
	{"PATCH", "/v1/timers", token.ScopeWrite, []string{"id", "source"}, moveTimer},
	{"GET", "/v1/timers/{timer}", token.ScopeRead, []string{"claim"}, getTimer},
	{"DELETE", "/v1/timers/{timer}", token.ScopeWrite, []string{"by"}, cancelTimer},
	{"PATCH", "/v1/timers/{timer}", token.ScopeWrite, nil, moveTimer},
	{"POST", "/v1/events", token.ScopeWrite, nil, addEvents},
}

// scheduleRoutes are the operations on schedules. Pause, resume and why are also for timers that
// fire once.
var scheduleRoutes = []route{
	{"PUT", "/v1/timers/{timer}", token.ScopeWrite, []string{"by"}, updateSchedule},
	{"POST", "/v1/timers/{timer}/pause", token.ScopeWrite, nil, pauseTimer},
	{"POST", "/v1/timers/{timer}/resume", token.ScopeWrite, nil, resumeTimer},
	{"POST", "/v1/timers/{timer}/trigger", token.ScopeWrite, nil, triggerSchedule},
	{"POST", "/v1/timers/{timer}/backfill", token.ScopeWrite, nil, backfillSchedule},
	{"GET", "/v1/timers/{timer}/why", token.ScopeRead, []string{"at"}, why},
	{"GET", "/v1/timers/{timer}/runs", token.ScopeRead, []string{"limit", "cursor"}, listRuns},
	{"GET", "/v1/timers/{timer}/preview", token.ScopeRead, []string{"from", "n"}, previewTimer},
	{"GET", "/v1/preview", token.ScopeRead, previewNames(), previewFields},
	{"POST", "/v1/groups/{group}/pause", token.ScopeWrite, nil, pauseGroup},
	{"POST", "/v1/groups/{group}/resume", token.ScopeWrite, nil, resumeGroup},
}

// letterRoutes are the operations on events that have fired, have failed, or wait for others.
var letterRoutes = []route{
	{"GET", "/v1/dead-letters", token.ScopeRead, []string{"service", "timer", "id", "source", "limit", "cursor"}, listDead},
	{"POST", "/v1/dead-letters/replay", token.ScopeWrite, nil, replayDead},
	{"GET", "/v1/rejections", token.ScopeRead, []string{"limit", "cursor"}, listRejected},
	{"GET", "/v1/stream", token.ScopeRead, []string{"service"}, streamFired},
	{"GET", "/v1/order-keys", token.ScopeRead, []string{"service", "limit", "cursor"}, listOrderKeys},
}

// sharedRoutes are the operations on what all tenants share. No token of a tenant may call them.
var sharedRoutes = []route{
	{"GET", "/v1/status", token.ScopeRead, nil, shared(showStatus)},
	{"GET", "/v1/doctor", token.ScopeAdmin, nil, shared(showDoctor)},
	{"GET", "/v1/flows", token.ScopeRead, nil, shared(listFlows)},
	{"GET", "/v1/flows/{key}", token.ScopeRead, nil, shared(getFlow)},
	{"PUT", "/v1/flows/{key}", token.ScopeAdmin, nil, shared(setFlow)},
	{"DELETE", "/v1/flows/{key}", token.ScopeAdmin, []string{"by"}, shared(deleteFlow)},
	{"POST", "/v1/flows/{key}/pause", token.ScopeAdmin, nil, shared(pauseFlow)},
	{"POST", "/v1/flows/{key}/resume", token.ScopeAdmin, nil, shared(resumeFlow)},
	{"POST", "/v1/flows/{key}/reset", token.ScopeAdmin, nil, shared(resetFlow)},
	{"GET", "/v1/calendars", token.ScopeRead, nil, shared(listCalendars)},
	{"GET", "/v1/calendars/{name}", token.ScopeRead, nil, shared(getCalendar)},
	{"PUT", "/v1/calendars/{name}", token.ScopeAdmin, nil, shared(putCalendar)},
	{"DELETE", "/v1/calendars/{name}", token.ScopeAdmin, []string{"by"}, shared(deleteCalendar)},
}

// String returns the pattern of the route.
func (rt *route) String() string { return rt.method + " " + rt.path }

// shared is the handler of an operation that concerns all tenants.
func shared(handle func(*request) (answer, error)) func(*request) (answer, error) {
	return func(q *request) (answer, error) {
		if q.id.Tenant != "" {
			return answer{}, &Error{Status: http.StatusForbidden, Code: codeForbidden, Detail: "this concerns all tenants; token " + q.id.Name + " is of tenant " + q.id.Tenant}
		}
		return handle(q)
	}
}
