package schemas

import "time"

// The sources of an answer.
const (
	// FromRecords means that the answer is of the records, which are true now.
	FromRecords = "record"
	// FromHistory means that the answer is of a node's search index, as it was at AsOf or later.
	FromHistory = "history"
)

// SearchRequest is the body of timers.api.search. Empty filters match every timer, schedule and run;
// all but error and a q that ends with * are compared as a whole. Times are RFC 3339; a range
// includes its start and not its end.
type SearchRequest struct {
	// Q is an event id, a source or a type, or with a last * the start of an event id.
	Q      string `json:"q,omitempty"`
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
	Type   string `json:"type,omitempty"`
	// States, Service, Group and Schedule are as in ListRequest.
	States   []State `json:"state,omitempty"`
	Service  string  `json:"service,omitempty"`
	Group    string  `json:"group,omitempty"`
	Schedule *bool   `json:"schedule,omitempty"`
	// RunsOf is the timer id of a schedule: its runs.
	RunsOf   string `json:"runs_of,omitempty"`
	DueFrom  string `json:"due_from,omitempty"`
	DueTo    string `json:"due_to,omitempty"`
	DoneFrom string `json:"done_from,omitempty"`
	DoneTo   string `json:"done_to,omitempty"`
	// Host is the host of an HTTP callback, with its port if it has one, or nats:<subject>.
	Host string `json:"host,omitempty"`
	// Error is a part of the last attempt's error, in any case.
	Error string `json:"error,omitempty"`
	// Attributes are attributes of the event that the setting history-attributes names.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Sort is due, the default, or done, which selects only what is done. Descending begins with
	// the latest.
	Sort       string `json:"sort,omitempty"`
	Descending bool   `json:"desc,omitempty"`
	Limit      int    `json:"limit,omitempty"` // timers of a page, at most 100; 0 for the default
	Cursor     string `json:"cursor,omitempty"`
}

// Freshness says where an answer comes from, and how complete it is.
type Freshness struct {
	// From is FromHistory.
	From string `json:"from"`
	// AsOf: each timer that has not changed since this time is in the index in its current state. It is
	// zero, and absent, before it is known.
	AsOf time.Time `json:"as_of,omitzero"`
	// Behind is an upper bound of the changes that the index lacks. CountsOnly is true while the
	// index only counts, because timers change faster than it can be written.
	Behind     uint64 `json:"behind"`
	CountsOnly bool   `json:"counts_only"`
}

// SearchReply is one page of a search. Cursor is empty on the last page. Because the work of one
// request is bounded, a page before the last may have fewer timers than the limit, or none.
type SearchReply struct {
	Freshness
	Timers []TimerInfo `json:"timers"`
	Cursor string      `json:"cursor,omitempty"`
}

// CountsRequest is the body of timers.api.counts. From and To are RFC 3339 times; without them there
// are no buckets. Bucket is a duration in whole minutes, 1m by default.
type CountsRequest struct {
	Service   string `json:"service,omitempty"`
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	Bucket    string `json:"bucket,omitempty"`
	ByService bool   `json:"by_service,omitempty"`
}

// CountsReply has numbers of timers for charts.
type CountsReply struct {
	Freshness
	Totals  []TotalInfo  `json:"totals"`
	Buckets []BucketInfo `json:"buckets,omitempty"`
}

// TotalInfo is the number of timers of a service in a state that the index has.
type TotalInfo struct {
	Service string `json:"service"`
	Tenant  string `json:"tenant,omitempty"`
	State   State  `json:"state"`
	Timers  int64  `json:"timers"`
}

// BucketInfo has the numbers of a period: timers that were added, that fired first, that are open and
// due, and that reached each final state in it. Schedules do not count, their runs do. Service is
// empty unless the request asks for buckets by service.
type BucketInfo struct {
	Start   time.Time        `json:"start"`
	Service string           `json:"service,omitempty"`
	Tenant  string           `json:"tenant,omitempty"`
	Added   int64            `json:"added"`
	Fired   int64            `json:"fired"`
	Due     int64            `json:"due"`
	Done    map[string]int64 `json:"done,omitempty"`
}
