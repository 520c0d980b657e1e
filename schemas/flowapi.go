package schemas

import "time"

// This file has the requests and answers of timers.api.flow.

const (
	// MaxFlowKeys bounds the flow keys in the answer of timers.api.flow.get.
	MaxFlowKeys = 20
	// MaxFlowHolds bounds the holds in the answer of timers.api.flow.list.
	MaxFlowHolds = 1000
	// MaxFlowExcept bounds the names in FlowReply.Except.
	MaxFlowExcept = 20
)

// FlowSetRequest is the body of timers.api.flow.set. It replaces the whole limit of a flow key,
// or makes a new one, except a pause, which stays until timers.api.flow.resume. By is as in
// CancelRequest.
type FlowSetRequest struct {
	// Key is a flow key, or a pattern with '*', whose limit applies to each matching key by
	// itself.
	Key string `json:"key"`
	// Rate is a number of calls in a duration, such as 5/s, 100/m or 100/10m; empty for no bound.
	Rate string `json:"rate,omitempty"`
	// Burst is the number of calls that may start at once; 0 for the default of the rate.
	Burst int `json:"burst,omitempty"`
	// Parallel bounds the calls that run at once; 0 does not.
	Parallel int `json:"parallel,omitempty"`
	// Pending bounds the pending timers of a service or tenant; only with a key of AddsFlowPrefix. 0 does
	// not.
	Pending int `json:"pending,omitempty"`
	// Schedules and Bytes bound the pending schedules of a service or tenant, and the bytes of the events of
	// its pending timers; Services bounds the services of a tenant that have pending timers, at most 4,096.
	// Otherwise they are as Pending.
	Schedules int   `json:"schedules,omitempty"`
	Services  int   `json:"services,omitempty"`
	Bytes     int64 `json:"bytes,omitempty"`
	// Circuit is the number of consecutive connection errors after which the calls of a key stop
	// until the target answers a probe; 0 for never, nil for the default, 5.
	Circuit *int `json:"circuit,omitempty"`
	// Revision is the revision that the limit must have; 0 for any.
	Revision uint64 `json:"revision,omitempty"`
	// DryRun stores nothing. The answer has the effect of the limit.
	DryRun bool   `json:"dry_run,omitempty"`
	By     string `json:"by,omitempty"`
}

// FlowRequest is the body of timers.api.flow.get, pause, resume and delete. By is as in
// CancelRequest.
type FlowRequest struct {
	// Key is a flow key, or the pattern of a stored limit.
	Key string `json:"key"`
	// Note is the reason of a pause, at most MaxPauseNote bytes; only for pause.
	Note string `json:"note,omitempty"`
	// Revision is the revision that a limit to be changed must have; 0 for any.
	Revision uint64 `json:"revision,omitempty"`
	By       string `json:"by,omitempty"`
}

// FlowReply is the answer to a change of a limit. The change is in force: every call that
// begins after the answer follows it.
type FlowReply struct {
	// Limit is the limit after the change; nil if no limit is stored for the key.
	Limit *FlowLimitInfo `json:"limit,omitempty"`
	// Before is the limit before the change; nil if there was none.
	Before *FlowLimitInfo `json:"before,omitempty"`
	// Except are stored limits that apply instead of this one to keys that match its pattern,
	// at most MaxFlowExcept.
	Except []string `json:"except,omitempty"`
	// Waiting is the number of events that wait for their call. Partial is true if the time was
	// too short to count all.
	Waiting int  `json:"waiting"`
	Partial bool `json:"partial,omitempty"`
	// Drained is the time at which the rate permits the last of them; zero if nothing waits,
	// without a rate, or while the calls are paused.
	Drained time.Time `json:"drained,omitzero"`
}

// FlowLimitInfo describes a stored limit. In FlowStatus and FlowListReply it may also be the limit of
// a flow key that only its target limits; its Revision is 0.
type FlowLimitInfo struct {
	// Key is the flow key, or the pattern, that the limit is stored for.
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
	Rate     string `json:"rate,omitempty"`     // calls in a duration; empty for no bound
	Burst    int    `json:"burst,omitempty"`    // only with a rate
	Parallel int    `json:"parallel,omitempty"` // 0 for no bound
	Pending  int    `json:"pending,omitempty"`  // 0 for no bound
	// Schedules, Services and Bytes are as in FlowSetRequest; 0 for no bound.
	Schedules int   `json:"schedules,omitempty"`
	Services  int   `json:"services,omitempty"`
	Bytes     int64 `json:"bytes,omitempty"`
	// Circuit is as in FlowSetRequest.
	Circuit *int `json:"circuit,omitempty"`
	Paused  bool `json:"paused,omitempty"`
	// PauseNote, PausedAt and PausedBy are the reason, the time and the caller of a pause.
	PauseNote string    `json:"pause_note,omitempty"`
	PausedAt  time.Time `json:"paused_at,omitzero"`
	PausedBy  string    `json:"paused_by,omitempty"`
	// Changed is the time of the last change, and By says who made it.
	Changed time.Time `json:"changed,omitzero"`
	By      string    `json:"by,omitempty"`
	// Target is the rate that the target of the flow key allows; nil if it names none. Only
	// FlowStatus and FlowListReply have it.
	Target *FlowTarget `json:"target,omitempty"`
	// Error is the reason why the limit cannot be read. Its calls then wait, and the other fields
	// are empty.
	Error string `json:"error,omitempty"`
}

// FlowTarget is the rate that a target allows in the webhook handshake.
type FlowTarget struct {
	// PerMinute is the number of calls a minute.
	PerMinute int `json:"per_minute"`
	// URL is the target that allows no more, without query and credentials. For a caller that does not see all
	// tenants it has no path.
	URL string `json:"url"`
	// Asked is the time of the answer. Until is the time at which the rate ends, unless the target is
	// asked again before.
	Asked time.Time `json:"asked"`
	Until time.Time `json:"until"`
}

// FlowStatus is the answer of timers.api.flow.get.
type FlowStatus struct {
	Key string `json:"key"`
	// Limit is the limit that applies; Limit.Key is the pattern that gave it. It is nil if no
	// limit applies. Of a flow key with Limit.Target it has the lower one of both rates.
	Limit *FlowLimitInfo `json:"limit,omitempty"`
	// Hold is the hold that stops the calls of the key; nil for none, and for a pattern.
	Hold *FlowHoldInfo `json:"hold,omitempty"`
	// Except is as in FlowReply.
	Except []string `json:"except,omitempty"`
	// Keys are the flow keys under the limit that are in use, the ones with the most waiting
	// events first, at most MaxFlowKeys. For a flow key it has that key alone.
	Keys []FlowKeyInfo `json:"keys"`
	// More is true if further keys are in use.
	More bool `json:"more,omitempty"`
	// Uncounted is the number of shards whose pending timers are not counted yet for a limit of pending
	// timers; their number in Keys may be too low.
	Uncounted int `json:"uncounted,omitempty"`
}

// FlowKeyInfo is the use of a flow key's limit.
type FlowKeyInfo struct {
	Key string `json:"key"`
	// InFlight is the number of permits for calls that nodes hold; only with a limit on
	// parallel calls.
	InFlight int `json:"in_flight"`
	// Waiting is the number of events that wait for their call. Partial is true if there was no
	// time to count all.
	Waiting int  `json:"waiting"`
	Partial bool `json:"partial,omitempty"`
	// Pending is the number of pending timers, about a second old; only with a limit that counts them.
	// Schedules, Services and Bytes are their use of the quotas in FlowSetRequest.
	Pending   int64 `json:"pending,omitempty"`
	Schedules int64 `json:"schedules,omitempty"`
	Services  int64 `json:"services,omitempty"`
	Bytes     int64 `json:"bytes,omitempty"`
	// Next is the earliest time of a call of a further event; zero while the calls are paused.
	Next time.Time `json:"next,omitzero"`
	// Drained is the time at which the last waiting event is called, if every call is on time;
	// zero if nothing waits, or while the calls are paused.
	Drained time.Time `json:"drained,omitzero"`
}

// FlowHoldInfo is the hold of a flow key: its target asked for a pause, or its circuit is open.
type FlowHoldInfo struct {
	Key string `json:"key"`
	// Until is the end of the pause for which the target asked; zero for none.
	Until time.Time `json:"until,omitzero"`
	// Open is the time since which the target cannot be reached, so that the circuit is open; zero
	// for a closed circuit. Probes is the number of probes since then, and NextProbe the time from
	// which the next may begin.
	Open      time.Time `json:"open,omitzero"`
	Probes    int       `json:"probes,omitempty"`
	NextProbe time.Time `json:"next_probe,omitzero"`
	// Reason is the answer, or the error, that stopped the calls.
	Reason string `json:"reason,omitempty"`
	// Changed is the time of the last change. By is the node that made it, or the caller of a reset.
	Changed time.Time `json:"changed,omitzero"`
	By      string    `json:"by,omitempty"`
}

// FlowResetRequest is the body of timers.api.flow.reset. By is as in CancelRequest.
type FlowResetRequest struct {
	Key string `json:"key"` // a flow key, no pattern
	By  string `json:"by,omitempty"`
}

// FlowResetReply is the answer to a reset: the hold before it.
type FlowResetReply struct {
	Before FlowHoldInfo `json:"before"`
}

// FlowListReply has all stored limits, and the flow keys that only their targets limit, by key.
type FlowListReply struct {
	Limits []FlowLimitInfo `json:"limits"`
	// Holds are the holds that stop the calls of flow keys, at most MaxFlowHolds.
	Holds []FlowHoldInfo `json:"holds,omitempty"`
}
