package console

import (
	"slices"

	"github.com/belfryio/belfry/internal/token"
)

// route is a page, or a change that a form of a page asks for.
type route struct {
	method, path, scope string
	// shared is true for a route that concerns all tenants: no token of a tenant may call it.
	shared bool
	handle func(*request) (view, error)
}

// routes are all pages and changes.
var routes = slices.Concat(timerRoutes, scheduleRoutes, otherRoutes, groupRoutes, sharedRoutes, clockRoutes)

var timerRoutes = []route{
	{"GET", "/{$}", token.ScopeRead, false, showHome},
	{"GET", "/timers", token.ScopeRead, false, listTimers},
	{"POST", "/timers/cancel", token.ScopeWrite, false, cancelMany},
	{"POST", "/timers/reschedule", token.ScopeWrite, false, moveMany},
	{"POST", "/timers/cancel-all", token.ScopeWrite, false, cancelAll},
	{"POST", "/timers/reschedule-all", token.ScopeWrite, false, moveAll},
	{"GET", "/timers/{timer}", token.ScopeRead, false, showTimer},
	{"POST", "/timers/{timer}/cancel", token.ScopeWrite, false, cancelTimer},
	{"POST", "/timers/{timer}/move", token.ScopeWrite, false, moveTimer},
	{"POST", "/timers/{timer}/fire", token.ScopeWrite, false, fireTimer},
	{"POST", "/timers/{timer}/pause", token.ScopeWrite, false, pauseTimer},
	{"POST", "/timers/{timer}/resume", token.ScopeWrite, false, resumeTimer},
	{"POST", "/timers/{timer}/replay", token.ScopeWrite, false, replayTimer},
	{"GET", "/new", token.ScopeWrite, false, showNew},
	{"POST", "/new", token.ScopeWrite, false, addNew},
}

var scheduleRoutes = []route{
	{"GET", "/schedules", token.ScopeRead, false, listSchedules},
	{"GET", "/timers/{timer}/runs", token.ScopeRead, false, showRuns},
	{"POST", "/timers/{timer}/trigger", token.ScopeWrite, false, triggerSchedule},
	{"POST", "/timers/{timer}/backfill", token.ScopeWrite, false, backfillSchedule},
	{"POST", "/timers/{timer}/edit", token.ScopeWrite, false, editSchedule},
}

var otherRoutes = []route{
	{"GET", "/dead", token.ScopeRead, false, listDead},
	{"POST", "/dead/replay", token.ScopeWrite, false, replayDead},
	{"POST", "/dead/discard", token.ScopeWrite, false, discardDead},
	{"GET", "/rejected", token.ScopeRead, false, listRejected},
	{"GET", "/now", token.ScopeRead, false, showNow},
	{"GET", "/upcoming", token.ScopeRead, false, showUpcoming},
	{"GET", "/services", token.ScopeRead, false, showServices},
	{"GET", "/services/{service}", token.ScopeRead, false, showService},
	{"GET", "/tail", token.ScopeRead, false, showTail},
}

var groupRoutes = []route{
	{"GET", "/groups", token.ScopeRead, false, listGroups},
	{"POST", "/groups/pause", token.ScopeWrite, false, pauseGroup},
	{"POST", "/groups/resume", token.ScopeWrite, false, resumeGroup},
	{"GET", "/orders", token.ScopeRead, false, listOrders},
}

// sharedRoutes are the routes that concern all tenants, with the scopes of the API.
var sharedRoutes = []route{
	{"GET", "/cluster", token.ScopeRead, true, showCluster},
	{"GET", "/cluster/doctor", token.ScopeAdmin, true, showDoctor},
	{"GET", "/limits", token.ScopeRead, true, listLimits},
	{"GET", "/limits/key", token.ScopeRead, true, showLimit},
	{"POST", "/limits/set", token.ScopeAdmin, true, setLimit},
	{"POST", "/limits/pause", token.ScopeAdmin, true, pauseLimit},
	{"POST", "/limits/resume", token.ScopeAdmin, true, resumeLimit},
	{"POST", "/limits/reset", token.ScopeAdmin, true, resetLimit},
	{"POST", "/limits/delete", token.ScopeAdmin, true, deleteLimit},
	{"GET", "/calendars", token.ScopeRead, true, listCalendars},
	{"GET", "/calendars/{name}", token.ScopeRead, true, showCalendar},
	{"POST", "/calendars/set", token.ScopeAdmin, true, setCalendar},
	{"POST", "/calendars/{name}/delete", token.ScopeAdmin, true, deleteCalendar},
}

// Route is a page or a change, for the table of commands in the documentation.
type Route struct {
	Method, Path, Scope string
	// Shared is true for a route that no token of a tenant may call.
	Shared bool
}

// String returns the pattern of the route.
func (r Route) String() string { return r.Method + " " + r.Path }

// Routes returns all pages and changes that need a scope.
func Routes() []Route {
	var all []Route
	for _, rt := range routes {
		all = append(all, Route{rt.method, rt.path, rt.scope, rt.shared})
	}
	return all
}

// navigation lists the links on every page. A caller of a tenant does not get the shared ones.
var navigation = []struct {
	Path, Text, scope string
	shared            bool
}{
	{"/now", "Now", token.ScopeRead, false},
	{"/timers", "Timers", token.ScopeRead, false},
	{"/upcoming", "Upcoming", token.ScopeRead, false},
	{"/new", "New", token.ScopeWrite, false},
	{"/schedules", "Schedules", token.ScopeRead, false},
	{"/dead", "Dead letters", token.ScopeRead, false},
	{"/rejected", "Rejections", token.ScopeRead, false},
	{"/groups", "Groups", token.ScopeRead, false},
	{"/orders", "Ordering keys", token.ScopeRead, false},
	{"/limits", "Limits", token.ScopeRead, true},
	{"/calendars", "Calendars", token.ScopeRead, true},
	{"/services", "Services", token.ScopeRead, false},
	{"/tail", "Tail", token.ScopeRead, false},
	{"/cluster", "Cluster", token.ScopeRead, true},
}

// String returns the pattern of the route.
func (rt *route) String() string { return rt.method + " " + rt.path }
