package schemas

import (
	"math"
	"strings"
	"time"
)

// TimerInfo is what the API tells of a timer. Times are RFC 3339 in UTC with
// milliseconds, and absent where there is none yet.
type TimerInfo struct {
	Timer     TimerID `json:"timer"`
	ID        string  `json:"id"`
	Source    string  `json:"source"`
	Type      string  `json:"type"`
	Service   string  `json:"service"`
	Group     string  `json:"group,omitempty"`
	Callback  string  `json:"callback,omitempty"` // credentials redacted
	State     State   `json:"state"`
	Scheduled string  `json:"scheduled"`
	Due       string  `json:"due"` // when the wheel acts next: later than scheduled for a retry
	Added     string  `json:"added,omitempty"`
	Fired     string  `json:"fired,omitempty"`
	Done      string  `json:"done,omitempty"`
	Next      string  `json:"next,omitempty"` // the next attempt
	// Until is the earliest time of the last attempt if all earlier attempts fail. Jitter
	// and Retry-After make it later. It is set only while the state is retrying.
	Until       string       `json:"until,omitempty"`
	Run         uint32       `json:"run"`
	Attempts    uint32       `json:"attempts"`
	MaxAttempts uint32       `json:"maxattempts"`
	Outcome     *OutcomeInfo `json:"outcome,omitempty"`
	// History holds the last control operations, oldest first.
	History  []OperationInfo `json:"history,omitempty"`
	Revision uint64          `json:"revision"`
}

// DueTime is Due as a time.
func (t TimerInfo) DueTime() time.Time { return readTime(t.Due) }

// ScheduledTime is Scheduled as a time.
func (t TimerInfo) ScheduledTime() time.Time { return readTime(t.Scheduled) }

// FiredTime is Fired as a time, zero where there is none yet.
func (t TimerInfo) FiredTime() time.Time { return readTime(t.Fired) }

// DoneTime is Done as a time, zero where there is none yet.
func (t TimerInfo) DoneTime() time.Time { return readTime(t.Done) }

func readTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil { // none yet
		return time.Time{}
	}
	return t
}

// OutcomeInfo is the last callback attempt.
type OutcomeInfo struct {
	Code     int32  `json:"code,omitempty"`
	Error    string `json:"error,omitempty"`
	Response string `json:"response,omitempty"`
}

// FromRecord describes a record.
func FromRecord(id TimerID, r *Record, rev uint64) TimerInfo {
	text := func(ms int64) string {
		if ms == 0 {
			return ""
		}
		return FormatTime(ms)
	}
	info := TimerInfo{
		Timer: id, ID: r.EventID, Source: r.Source, Type: r.Type, Service: r.Service, Group: r.Group, Callback: RedactURL(r.Callback),
		State: r.State, Scheduled: FormatTime(r.ScheduledMs), Due: FormatTime(r.DueMs), Added: text(r.AddedMs), Fired: text(r.FiredMs), Done: text(r.DoneMs),
		Next: text(r.NextMs), Until: text(r.retryUntilMs()), Run: r.Run, Attempts: r.Attempt, MaxAttempts: r.MaxAttempt, History: operations(r.History), Revision: rev,
	}
	if o := r.Outcome; o.Code != 0 || o.Error != "" || len(o.Response) > 0 {
		info.Outcome = &OutcomeInfo{Code: o.Code, Error: o.Error, Response: cleanText(string(o.Response))}
	}
	return info
}

// AddReply answers timers.api.add.
type AddReply struct {
	Timer     TimerID `json:"timer"`
	Due       string  `json:"due"`
	Duplicate bool    `json:"duplicate"`
	State     State   `json:"state"`
	// Remark warns of something that was accepted but may be a mistake; see
	// PastDueRemark.
	Remark string `json:"remark,omitempty"`
}

// remarkPastMs is how far in the past a due time must lie for a remark, in milliseconds.
// A shorter time can be the duration of the add or a small clock error.
const remarkPastMs = 1000

// PastDueRemark returns the remark for a timer that was due a second or more before it
// was added, such as "due 3h ago: fires now", or "". Times are Unix milliseconds.
func PastDueRemark(dueMs, addedMs int64) string {
	if addedMs-dueMs < remarkPastMs {
		return ""
	}
	ago := time.Duration(min(addedMs-dueMs, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	if ago >= time.Minute {
		ago = ago.Truncate(time.Second)
	}
	return "due " + shortDuration(ago) + " ago: fires now"
}

// shortDuration writes 3h instead of 3h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// TimerRef names a timer in a request: by timer id, or by id and source.
type TimerRef struct {
	Timer  string `json:"timer,omitempty"`
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
}

// Resolve returns the timer id.
func (r TimerRef) Resolve() (TimerID, error) {
	switch {
	case r.Timer != "" && (r.ID != "" || r.Source != ""):
		return TimerID{}, Errorf(CodeBadRequest, "both timer and id are given; one names the timer")
	case r.Timer != "":
		return ParseTimerID(r.Timer)
	case r.ID != "" && r.Source != "":
		return NewTimerID(r.Source, r.ID), nil
	}
	return TimerID{}, Errorf(CodeBadRequest, "name the timer: timer, or id and source")
}

// CancelRequest is the body of timers.api.cancel.
type CancelRequest struct {
	TimerRef
	// By is the caller's name for the timer's history, at most MaxBy bytes. It is not
	// verified.
	By string `json:"by,omitempty"`
}

// RescheduleRequest is the body of timers.api.reschedule: At (RFC 3339) or After
// (a duration from now). By is as in CancelRequest.
type RescheduleRequest struct {
	TimerRef
	By    string `json:"by,omitempty"`
	At    string `json:"at,omitempty"`
	After string `json:"after,omitempty"`
}

// ListRequest is the body of timers.api.list.
type ListRequest struct {
	States  []State `json:"state,omitempty"`
	Service string  `json:"service,omitempty"`
	Group   string  `json:"group,omitempty"`
	Limit   int     `json:"limit,omitempty"`
	Cursor  string  `json:"cursor,omitempty"`
}

// ListReply is one page; Cursor is empty at the end.
type ListReply struct {
	Timers []TimerInfo `json:"timers"`
	Cursor string      `json:"cursor,omitempty"`
}

// DeadListRequest is the body of timers.api.dead.list. TimerRef is optional.
type DeadListRequest struct {
	TimerRef
	Service string `json:"service,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
}

// DeadInfo is one dead letter.
type DeadInfo struct {
	Sequence  uint64  `json:"sequence"`
	Timer     TimerID `json:"timer"`
	ID        string  `json:"id"`
	Source    string  `json:"source"`
	Type      string  `json:"type"`
	Service   string  `json:"service"`
	Scheduled string  `json:"scheduled"`
	Died      string  `json:"died"`
	Attempts  uint32  `json:"attempts"`
	ErrorCode string  `json:"errorcode"`
	ErrorData string  `json:"errordata,omitempty"`
	// Consumer is the name of the consumer of timers.fired.<service> (the Go client's
	// Handle) that wrote the dead letter. Such a dead letter cannot be replayed.
	Consumer string `json:"consumer,omitempty"`
}

// DeadListReply is one page; Cursor is empty at the end.
type DeadListReply struct {
	Dead   []DeadInfo `json:"dead"`
	Cursor string     `json:"cursor,omitempty"`
}

// RejectedListRequest is the body of timers.api.rejected.list.
type RejectedListRequest struct {
	Limit  int    `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// MaxRejectedData bounds the data of a rejected add in a list, in bytes.
const MaxRejectedData = 1 << 10

// RejectedInfo is an add that was rejected after it had been stored in TIMERS_ADD.
type RejectedInfo struct {
	// Sequence is that of stream TIMERS_REJECTED, AddSequence that of the add in
	// TIMERS_ADD.
	Sequence    uint64 `json:"sequence"`
	AddSequence uint64 `json:"addsequence,omitempty"`
	Rejected    string `json:"rejected"` // when
	Code        Code   `json:"code"`
	Error       string `json:"error"`
	// Source and ID are those of the event, empty if it cannot be decoded.
	Source string `json:"source,omitempty"`
	ID     string `json:"id,omitempty"`
	// DataBytes is the size of the data that is kept; Data is its start as text,
	// at most MaxRejectedData bytes.
	DataBytes int    `json:"databytes"`
	Data      string `json:"data,omitempty"`
}

// RejectedListReply is one page, oldest first; Cursor is empty at the end.
type RejectedListReply struct {
	Rejected []RejectedInfo `json:"rejected"`
	Cursor   string         `json:"cursor,omitempty"`
}

// ReplayRequest is the body of timers.api.dead.replay: a timer, or a service. By is
// as in CancelRequest.
type ReplayRequest struct {
	TimerRef
	By      string `json:"by,omitempty"`
	Service string `json:"service,omitempty"`
	Limit   int    `json:"limit,omitempty"`
}

// ReplayReply says what was replayed. More says that the limit cut it off.
type ReplayReply struct {
	Replayed int       `json:"replayed"`
	Timers   []TimerID `json:"timers"`
	More     bool      `json:"more"`
}
