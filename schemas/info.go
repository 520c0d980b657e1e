package schemas

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"
)

// TimerInfo describes a timer in the answers of the API. Its JSON has times in RFC 3339,
// UTC, with milliseconds. Optional times are zero, and absent from the JSON, until the
// event that they describe has happened.
type TimerInfo struct {
	Timer   TimerID `json:"timer"`
	ID      string  `json:"id"`
	Source  string  `json:"source"`
	Type    string  `json:"type"`
	Service string  `json:"service"`
	// Tenant is the tenant that the timer belongs to, empty for the default tenant. Service is
	// the tenant's own name for the service.
	Tenant   string `json:"tenant,omitempty"`
	Group    string `json:"group,omitempty"`
	Callback string `json:"callback,omitempty"` // credentials are redacted
	State    State  `json:"state"`
	// Scheduled is the due time that the user set. Due is the time of Belfry's next action, which is
	// later than Scheduled for a retry. Both are always set.
	Scheduled time.Time `json:"scheduled"`
	Due       time.Time `json:"due"`
	// Added, Fired and Done are the times at which Belfry added, first fired and finished the
	// timer. A retry does not change Fired.
	Added time.Time `json:"added,omitzero"`
	Fired time.Time `json:"fired,omitzero"`
	Done  time.Time `json:"done,omitzero"`
	// Next is the time of the next attempt of the callback.
	Next time.Time `json:"next,omitzero"`
	// Until is the earliest time of the last attempt if all earlier attempts fail. Jitter
	// and Retry-After make it later. It is set only while the state is retrying.
	Until time.Time `json:"until,omitzero"`
	// Run counts the due occurrences from 1. It is 0 before the timer has fired.
	Run uint32 `json:"run"`
	// Attempts counts the calls of this run that have ended. After MaxAttempts of them the run becomes a
	// dead letter. A call that uses up no attempt, such as one answered "not now", counts in Attempts and
	// raises MaxAttempts by one.
	Attempts    uint32 `json:"attempts"`
	MaxAttempts uint32 `json:"maxattempts"`
	// Outcome is the result of the last attempt, nil before the first.
	Outcome *OutcomeInfo `json:"outcome,omitempty"`
	// LastAttempts holds the last attempts, oldest first, at most MaxKeptAttempts.
	// List leaves them out.
	LastAttempts []AttemptInfo `json:"last_attempts,omitempty"`
	// History holds the last control operations, oldest first.
	History []OperationInfo `json:"history,omitempty"`
	// Flow is set while the timer waits for a slot of its flow key; the state is then retrying.
	Flow *FlowInfo `json:"flow,omitempty"`
	// Order is set for a timer with an ordering key.
	Order *OrderInfo `json:"order,omitempty"`
	// PauseNote is the note of a pause.
	PauseNote string `json:"pause_note,omitempty"`
	// Schedule is set for a schedule. Scheduled is then the next nominal time, or the last one
	// if none is left, Due the time at which Belfry acts on the schedule next, and Run the
	// number of the next run.
	Schedule *ScheduleInfo `json:"schedule,omitempty"`
	// Origin is set for a run of a schedule.
	Origin *OriginInfo `json:"origin,omitempty"`
	// Revision is the record's revision in its KV bucket.
	Revision uint64 `json:"revision"`
	// Claim is set for a timer that has fired if the request asks for it; see GetRequest.
	Claim *ClaimInfo `json:"claim,omitempty"`
	// From is FromHistory for a timer whose record has expired. The answer then comes from a node's
	// search index. Each timer that has not changed since AsOf is there in its current state. From is
	// empty if the answer comes from the record.
	From string    `json:"from,omitempty"`
	AsOf time.Time `json:"as_of,omitzero"`
}

// GetRequest asks for one timer. With Claim the answer has TimerInfo.Claim, which costs two further
// reads.
type GetRequest struct {
	TimerRef
	Claim bool `json:"claim,omitempty"`
}

// ClaimInfo is the proof that a timer has fired: the claim and the published event.
type ClaimInfo struct {
	// Epoch is the term of the shard's owner that made the last claim. Node is that owner; "" once 64 later terms
	// of the shard have begun.
	Epoch uint64 `json:"epoch"`
	Node  string `json:"node,omitempty"`
	// Message is the message id of the event. Sequence is its place in TIMERS_FIRED; 0 if the event has
	// left the stream, or is not among the first events of the service after the claim.
	Message  string `json:"message"`
	Sequence uint64 `json:"sequence,omitempty"`
}

// OutcomeInfo is the result of one attempt of a callback.
type OutcomeInfo struct {
	// Code is the HTTP status. After a NATS request it is the number in Nats-Service-Error-Code, or
	// the code of JetStream's refusal; 0 for none.
	Code     int32  `json:"code,omitempty"`
	Error    string `json:"error,omitempty"`    // reason of a failure
	Response string `json:"response,omitempty"` // the start of the answer, or the handler's result
}

// Text describes the result for people, without the answer: the error, or the HTTP status of a
// success. It is empty for a success without one.
func (o OutcomeInfo) Text() string { return resultText(o.Code, o.Error) }

// resultText returns the error, or the HTTP status of a success. The error names the code: only
// there it is known whether the code came over HTTP or over NATS.
func resultText(code int32, failure string) string {
	if failure != "" || code == 0 {
		return failure
	}
	return "HTTP status " + strconv.Itoa(int(code))
}

// FromRecord returns the description of a record with revision rev. It redacts the
// callback.
func FromRecord(id TimerID, r *Record, rev uint64) TimerInfo {
	info := TimerInfo{
		Timer: id, ID: r.EventID, Source: r.Source, Type: r.Type, Group: r.Group, Callback: RedactURL(r.Callback),
		State: r.State, Scheduled: TimeOf(r.ScheduledMs), Due: TimeOf(r.DueMs),
		Added: optionalTime(r.AddedMs), Fired: optionalTime(r.FirstMs()), Done: optionalTime(r.DoneMs), Next: optionalTime(r.NextMs), Until: optionalTime(r.retryUntilMs()),
		Run: r.Run, Attempts: r.Attempt, MaxAttempts: r.MaxAttempt, LastAttempts: attemptInfos(r), History: operations(r.History), Revision: rev,
	}
	info.Tenant, info.Service = SplitService(r.Service)
	if o := r.Outcome; o.Code != 0 || o.Error != "" || len(o.Response) > 0 {
		info.Outcome = &OutcomeInfo{Code: o.Code, Error: o.Error, Response: cleanText(string(o.Response))}
	}
	info.PauseNote, info.Flow, info.Order = r.PauseNote, r.flowInfo(), r.orderInfo()
	if s := r.Schedule; s != nil {
		info.Schedule, info.PauseNote = s.info(), s.PauseNote
		info.Scheduled = TimeOf(cmp.Or(r.ScheduledMs, s.Last.NominalMs))
	}
	if r.Origin != nil {
		info.Origin = r.Origin.info()
	}
	return info
}

// TimeOf converts Unix milliseconds to a time in UTC.
func TimeOf(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// optionalTime is TimeOf, but returns the zero time for 0.
func optionalTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return TimeOf(ms)
}

// AddReply is the answer of timers.api.add.
type AddReply struct {
	Timer TimerID   `json:"timer"`
	Due   time.Time `json:"due"`
	// Duplicate is true if the timer existed already. Due and State are then those of the
	// existing timer.
	Duplicate bool  `json:"duplicate"`
	State     State `json:"state"`
	// Remark warns of a value that Belfry accepts but that may be a mistake; see
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
	return "due " + FormatDuration(ago) + " ago: fires now"
}

// FormatDuration leaves out zero units: 24h instead of 24h0m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// TimerRef names a timer in a request, either by timer id or by the id and source of its
// event. Timer may also be the identity of a schedule's run, <schedule id>.<run>.
type TimerRef struct {
	Timer  string `json:"timer,omitempty"`
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
}

// Resolve returns the timer id: for a run, that of its own record. Source and ID are those of
// an event of the tenant. Its errors have CodeBadRequest, or CodeInvalidTimerID.
func (r TimerRef) Resolve(tenant string) (TimerID, error) {
	switch {
	case r.Timer != "" && (r.ID != "" || r.Source != ""):
		return TimerID{}, Errorf(CodeBadRequest, "timer and id are both set; name the timer by one of them")
	case r.namesRun():
		run, err := ParseRunID(r.Timer)
		return RunTimer(run.Timer, run.Run), err
	case r.Timer != "":
		return ParseTimerID(r.Timer)
	case r.ID != "" && r.Source != "":
		return NewTenantTimerID(tenant, r.Source, r.ID), nil
	}
	return TimerID{}, Errorf(CodeBadRequest, "name the timer: timer, or id and source")
}

// namesRun reports whether Timer can only be a run, <timer id>.<run>.
func (r TimerRef) namesRun() bool {
	return len(r.Timer) > TimerIDLength && r.Timer[TimerIDLength] == '.'
}

// Run returns the run that r names. ok is false if r names a timer, or is malformed.
func (r TimerRef) Run() (run RunID, ok bool) {
	if r.ID != "" || r.Source != "" || !r.namesRun() {
		return RunID{}, false
	}
	run, err := ParseRunID(r.Timer)
	return run, err == nil
}

// CancelRequest is the body of timers.api.cancel.
type CancelRequest struct {
	TimerRef
	// By is the caller's name for the timer's history, at most MaxBy bytes. Belfry does not
	// verify it.
	By string `json:"by,omitempty"`
	// Revision is the revision that the timer must have, else the answer is conflict; 0 for any.
	Revision uint64 `json:"revision,omitempty"`
}

// RescheduleRequest is the body of timers.api.reschedule: At (RFC 3339) or After
// (a duration from now). By is as in CancelRequest.
type RescheduleRequest struct {
	TimerRef
	By    string `json:"by,omitempty"`
	At    string `json:"at,omitempty"`
	After string `json:"after,omitempty"`
}

// ListRequest is the body of timers.api.list. Empty filters match every timer.
type ListRequest struct {
	States  []State `json:"state,omitempty"`
	Service string  `json:"service,omitempty"`
	Group   string  `json:"group,omitempty"`
	// Schedule selects only schedules if it is true, only other timers if it is false.
	Schedule *bool  `json:"schedule,omitempty"`
	Limit    int    `json:"limit,omitempty"`  // timers per page; 0 for the default
	Cursor   string `json:"cursor,omitempty"` // that of the previous page
}

// ListReply is one page of timers. Cursor is empty on the last page.
type ListReply struct {
	// From is FromRecords.
	From   string      `json:"from"`
	Timers []TimerInfo `json:"timers"`
	Cursor string      `json:"cursor,omitempty"`
}

// DeadListRequest is the body of timers.api.dead.list. Its filters are optional; Limit and
// Cursor are as in ListRequest.
type DeadListRequest struct {
	TimerRef
	Service string `json:"service,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
}

// DeadInfo describes a dead letter: the event of a timer whose callback or handler failed
// permanently or used up its attempts.
type DeadInfo struct {
	Sequence uint64  `json:"sequence"` // in stream TIMERS_DEAD
	Timer    TimerID `json:"timer"`
	// Schedule and Run are the schedule of a run and the run's number; zero for a one-shot
	// timer. Timer is then the id of the run's own record.
	Schedule  TimerID   `json:"schedule,omitzero"`
	Run       uint32    `json:"run,omitempty"`
	ID        string    `json:"id"`
	Source    string    `json:"source"`
	Type      string    `json:"type"`
	Service   string    `json:"service"`
	Tenant    string    `json:"tenant,omitempty"`
	Scheduled time.Time `json:"scheduled,omitzero"` // zero if the dead letter cannot be decoded
	Died      time.Time `json:"died"`
	Attempts  uint32    `json:"attempts"`
	ErrorCode string    `json:"error_code"`
	ErrorData string    `json:"error_data,omitempty"`
	// Host is the host of an HTTP callback, in lower case and with its port if the URL has one; empty for
	// other callbacks, for a path below the base URL of the service, and if the callback cannot be decrypted.
	Host string `json:"host,omitempty"`
	// Consumer is the name of the consumer of timers.fired.<service> (the Go client's
	// Handle) that wrote the dead letter. Such a dead letter cannot be replayed.
	Consumer string `json:"consumer,omitempty"`
}

// DeadListReply is one page of dead letters. Cursor is empty on the last page.
type DeadListReply struct {
	Dead   []DeadInfo `json:"dead"`
	Cursor string     `json:"cursor,omitempty"`
}

// RejectedListRequest is the body of timers.api.rejected.list. Limit and Cursor are as in
// ListRequest.
type RejectedListRequest struct {
	Limit  int    `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// MaxRejectedData bounds the data of a rejected add in a list, in bytes.
const MaxRejectedData = 1 << 10

// RejectedInfo is an add that was rejected after it had been stored in TIMERS_ADD.
type RejectedInfo struct {
	// Sequence is the stream sequence in TIMERS_REJECTED; AddSequence is the stream
	// sequence that the add had in TIMERS_ADD.
	Sequence    uint64    `json:"sequence"`
	AddSequence uint64    `json:"add_sequence,omitempty"`
	Rejected    time.Time `json:"rejected"` // time of the rejection
	Code        Code      `json:"code"`
	Error       string    `json:"error"`
	// Tenant and Account say who sent the add; both are empty for the default tenant. Tenant is
	// empty for an account that no configuration names.
	Tenant  string `json:"tenant,omitempty"`
	Account string `json:"account,omitempty"`
	// Source and ID are the event's attributes, empty if the event cannot be decoded.
	Source string `json:"source,omitempty"`
	ID     string `json:"id,omitempty"`
	// DataBytes is the size of the stored data; Data is its start as text, at most
	// MaxRejectedData bytes.
	DataBytes int    `json:"data_bytes"`
	Data      string `json:"data,omitempty"`
}

// RejectedListReply is one page of rejected adds, oldest first. Cursor is empty on the last
// page.
type RejectedListReply struct {
	Rejected []RejectedInfo `json:"rejected"`
	Cursor   string         `json:"cursor,omitempty"`
}

// ReplayRequest is the body of timers.api.dead.replay. It names one timer, or a service
// whose dead letters to replay, at most Limit of them. By is as in CancelRequest.
type ReplayRequest struct {
	TimerRef
	By      string `json:"by,omitempty"`
	Service string `json:"service,omitempty"`
	Limit   int    `json:"limit,omitempty"`
}

// ReplayReply lists the replayed timers. More is true if the limit left further dead
// letters.
type ReplayReply struct {
	Replayed int       `json:"replayed"`
	Timers   []TimerID `json:"timers"`
	More     bool      `json:"more"`
}
