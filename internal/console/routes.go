package console

import (
	"slices"

	"github.com/belfryio/belfry/internal/token"
)

// route is a page, or a change that a form of a page asks for.
type route struct {
	method, path, scope string
	// shared marks what concerns all tenants: no token of a tenant may call it.
	shared bool
	handle func(*request) (view, error)
}

// routes are all pages and changes.
var routes = slices.Concat(timerRoutes, scheduleRoutes, otherRoutes)

var timerRoutes = []route{
	{"GET", "/{$}", token.ScopeRead, false, showHome},
	{"GET", "/timers", token.ScopeRead, false, listTimers},
	{"POST", "/timers/cancel", token.ScopeWrite, false, cancelMany},
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
	{"GET", "/rejected", token.ScopeRead, false, listRejected},
	{"GET", "/now", token.ScopeRead, false, showNow},
	{"GET", "/upcoming", token.ScopeRead, false, showUpcoming},
	{"GET", "/services", token.ScopeRead, false, showServices},
	{"GET", "/tail", token.ScopeRead, false, showTail},
	{"GET", "/cluster", token.ScopeRead, true, showCluster},
	{"GET", "/cluster/doctor", token.ScopeAdmin, true, showDoctor},
}

// navigation are the pages that every page leads to.
var navigation = []struct{ Path, Text, scope string }{
	{"/now", "Now", token.ScopeRead},
	{"/timers", "Timers", token.ScopeRead},
	{"/upcoming", "Upcoming", token.ScopeRead},
	{"/new", "New", token.ScopeWrite},
	{"/schedules", "Schedules", token.ScopeRead},
	{"/dead", "Dead letters", token.ScopeRead},
	{"/rejected", "Rejections", token.ScopeRead},
	{"/services", "Services", token.ScopeRead},
	{"/tail", "Tail", token.ScopeRead},
	{"/cluster", "Cluster", token.ScopeRead},
}

// String returns the pattern of the route.
func (rt *route) String() string { return rt.method + " " + rt.path }
