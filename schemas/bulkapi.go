package schemas

import "time"

// Bounds of the bulk operations.
const (
	// MaxBulk bounds the timers, or dead letters, of a page of a bulk operation.
	MaxBulk = 200
	// DefaultBulk is that number for a request without a limit.
	DefaultBulk = 100
	// MaxBulkSequences bounds BulkDeadRequest.Sequences.
	MaxBulkSequences = 2000
)

// BulkRequest is the body of timers.api.bulk.cancel: it selects a page of timers. The other filters
// are optional, but a service or a group is required, so that a forgotten filter does not select
// everything.
type BulkRequest struct {
	// States are pending, paused and retrying; the default is pending and paused.
	States  []State `json:"state,omitempty"`
	Service string  `json:"service,omitempty"`
	Group   string  `json:"group,omitempty"`
	// Schedule is as in ListRequest.
	Schedule *bool `json:"schedule,omitempty"`
	// DryRun changes nothing. The answer has the timers that the filter selects.
	DryRun bool   `json:"dry_run,omitempty"`
	By     string `json:"by,omitempty"`     // as in CancelRequest
	Limit  int    `json:"limit,omitempty"`  // timers of the page: 1 to MaxBulk; 0 for DefaultBulk
	Cursor string `json:"cursor,omitempty"` // that of the previous page
}

// BulkRescheduleRequest is the body of timers.api.bulk.reschedule: a BulkRequest without schedules,
// whose States are pending and paused, and either At or After as in RescheduleRequest. After counts
// from the first page.
type BulkRescheduleRequest struct {
	BulkRequest
	At    string `json:"at,omitempty"`
	After string `json:"after,omitempty"`
}

// BulkCounts are the counts of one page of a bulk operation. Matched is the sum of the others; in a
// dry run the others are 0.
type BulkCounts struct {
	// Matched is the number that the filter selects on this page.
	Matched int `json:"matched"`
	Done    int `json:"done"`
	// Refused is the number that could not be changed, and Reasons the same by error code.
	Refused int          `json:"refused"`
	Reasons map[Code]int `json:"reasons,omitempty"`
}

// Add adds the counts of another page.
func (c *BulkCounts) Add(page BulkCounts) {
	c.Matched += page.Matched
	c.Done += page.Done
	for code, n := range page.Reasons {
		c.Refuse(code, n)
	}
}

// Refuse counts n items that could not be changed, with the error code of their refusal.
func (c *BulkCounts) Refuse(code Code, n int) {
	if c.Reasons == nil {
		c.Reasons = map[Code]int{}
	}
	c.Refused += n
	c.Reasons[code] += n
}

// BulkReply is the answer to a bulk operation on a page of timers. Cursor is empty on the last page.
// A page may have no timers and still have a cursor.
type BulkReply struct {
	BulkCounts
	// Timers are the changed timers, without their attempts, and in a dry run the timers
	// that would be changed. Over NATS the last ones are left out, but counted, if they do not fit one
	// message.
	Timers []TimerInfo `json:"timers"`
	Cursor string      `json:"cursor,omitempty"`
}

// BulkDeadRequest is the body of timers.api.bulk.replay and timers.api.bulk.discard: it selects a
// page of dead letters, oldest first. At least one filter is required.
type BulkDeadRequest struct {
	TimerRef
	Service string `json:"service,omitempty"`
	// Sequence selects one dead letter by its sequence in TIMERS_DEAD.
	Sequence uint64 `json:"sequence,omitempty"`
	// Sequences selects dead letters by their sequences, at most MaxBulkSequences; not with Sequence.
	Sequences []uint64 `json:"sequences,omitempty"`
	// ErrorCode selects those with this reason; see DeadInfo.ErrorCode.
	ErrorCode string `json:"error_code,omitempty"`
	// Rate spreads the calls of a replay, such as 10/s or 100/m: the due times of the letters of all
	// pages follow each other at this rate. Without a rate all are due at once. Only for replay.
	Rate string `json:"rate,omitempty"`
	// DryRun changes nothing. The answer has the dead letters that the filter selects.
	DryRun bool   `json:"dry_run,omitempty"`
	By     string `json:"by,omitempty"`     // as in CancelRequest
	Limit  int    `json:"limit,omitempty"`  // dead letters of the page: 1 to MaxBulk; 0 for DefaultBulk
	Cursor string `json:"cursor,omitempty"` // that of the previous page
}

// BulkDeadReply is the answer to a bulk operation on a page of dead letters; see BulkReply.
type BulkDeadReply struct {
	BulkCounts
	// Dead are the dead letters that were replayed or discarded, and in a dry run the dead letters
	// that would be.
	Dead   []DeadInfo `json:"dead"`
	Cursor string     `json:"cursor,omitempty"`
	// Last is the due time of the last letter that was replayed; zero without a rate.
	Last time.Time `json:"last,omitzero"`
}
