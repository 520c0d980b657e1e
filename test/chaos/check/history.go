// Package check checks a history: the calls of clients and the events and callbacks that
// they saw while processes of Belfry were killed. It does not depend on how the history
// was recorded. Its own tests are histories with planted violations (check_test.go).
//
// Assumptions:
//
// A call that was answered had the effect that the answer reports.
//
// A call without an answer may have taken effect, at any time or never: such an add may
// fire, and such a cancel may have cancelled.
//
// Whether an event is early is decided by its JetStream timestamp, not by the time at
// which a client received it.
package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Kind is the kind of an Event.
type Kind string

// The kinds of events. Those up to DeleteCalendar are calls, except Begin. An Answer or Unknown
// with the same Call ends a call. A call without either has an unknown outcome.
const (
	// Begin relates the history's clock to the wall clock, TimeNs, once.
	Begin      Kind = "begin"
	Add        Kind = "add"
	Cancel     Kind = "cancel"
	Reschedule Kind = "reschedule"
	// Pause, Resume, Trigger, Backfill and Update are calls for schedules.
	Pause    Kind = "pause"
	Resume   Kind = "resume"
	Trigger  Kind = "trigger"
	Backfill Kind = "backfill"
	Update   Kind = "update"
	// PutCalendar and DeleteCalendar are calls for the calendar ID. Each names the revision that
	// it replaces, so a call without an answer has no effect after a later call was
	// acknowledged.
	PutCalendar    Kind = "put-calendar"
	DeleteCalendar Kind = "delete-calendar"
	// Answer ends a call with success (OK) or an error (Code).
	Answer Kind = "answer"
	// Unknown ends a call that was not answered.
	Unknown Kind = "unknown"
	// Stored is the record of a schedule, as a client has read it.
	Stored Kind = "stored"
	// Result is the record of the run of a schedule, as a client has read it after the end.
	Result Kind = "result"
	// Passed states that the low watermark of every shard has passed TimeNs. A Stored after
	// it must not be older than that.
	Passed Kind = "passed"
	// Fired is an event in TIMERS_FIRED.
	Fired Kind = "fired"
	// Overdue is an event in TIMERS_OVERDUE.
	Overdue Kind = "overdue"
	// Called is a callback, recorded by its receiver.
	Called Kind = "called"
	// Done ends the run: nothing may fire or be called after it.
	Done Kind = "done"
	// Kill and Start of processes help the reader of a history; the check ignores them.
	Kill  Kind = "kill"
	Start Kind = "start"
	// Fault and Heal are the start and the end of a fault. At Heal the cluster has
	// recovered.
	Fault Kind = "fault"
	Heal  Kind = "heal"
	// Clock is a write of a shard's clock.
	Clock Kind = "clock"
	// Elected reports that stream Name has the new leader Target.
	Elected Kind = "elected"
)

// Event is one line of a history.
type Event struct {
	// AtNs is the time of recording in nanoseconds of a monotonic clock.
	AtNs int64 `json:"at"`
	Kind Kind  `json:"kind"`
	// Call relates an answer to its call.
	Call int64 `json:"call,omitempty"`
	// Source and ID identify the CloudEvent.
	Source string `json:"source,omitempty"`
	ID     string `json:"id,omitempty"`
	// Recurrence makes an Add that of a schedule. An Update has the new one.
	Recurrence *schemas.Recurrence `json:"recurrence,omitempty"`
	// Schedule, State, AddedMs and UpdatedMs are parts of the record in a Stored. UpdatedMs is
	// the time of the last update, 0 for none. Sequence is the revision.
	Schedule  *schemas.Schedule `json:"schedule,omitempty"`
	State     schemas.State     `json:"state,omitempty"`
	AddedMs   int64             `json:"added,omitempty"`
	UpdatedMs int64             `json:"updated,omitempty"`
	// FromMs and ToMs are the period of a Backfill. Count is the number of nominal times in
	// its Answer.
	FromMs int64 `json:"from,omitempty"`
	ToMs   int64 `json:"to,omitempty"`
	Count  int   `json:"count,omitempty"`
	// Dates are the dates of a PutCalendar.
	Dates []string `json:"dates,omitempty"`
	// ClaimedMs is the time at which the event of a Fired or an Overdue was claimed: attribute
	// timerfired. DeadlineMs is the deadline of an Overdue, whose DueMs is its last nominal time.
	// StoredMs and DoneMs belong to a Result: the time of the record's last revision, and the
	// time of its result.
	ClaimedMs  int64 `json:"claimed,omitempty"`
	DeadlineMs int64 `json:"deadline,omitempty"`
	StoredMs   int64 `json:"stored,omitempty"`
	DoneMs     int64 `json:"done,omitempty"`
	// Run is the number of a Fired, an Overdue or a Result. In the Answer to a call for a schedule it is the last
	// run that was claimed when the call took effect. Missed belongs to a Fired or an Overdue,
	// Trigger to a Fired.
	Run     uint32          `json:"run,omitempty"`
	Missed  uint32          `json:"missed,omitempty"`
	Trigger schemas.Trigger `json:"trigger,omitempty"`
	// Via is the transport of a call or callback: publish, api, sdk, batch, http, nats or
	// work.
	Via string `json:"via,omitempty"`
	// DueMs (Unix milliseconds), Data and Callback are the arguments of an Add; DueMs
	// also that of a Reschedule, Data of an Update. Fired and Called have the received DueMs and Data.
	DueMs    int64  `json:"due,omitempty"`
	Data     string `json:"data,omitempty"`
	Callback bool   `json:"callback,omitempty"`
	// OK and Code are the result in an Answer.
	OK   bool   `json:"ok,omitempty"`
	Code string `json:"code,omitempty"`
	// Sequence is that of a Fired or Overdue message or a Clock. TimeNs (Unix nanoseconds) is
	// the time of a Fired or Overdue message, a Clock, a Called, a Fault or a Heal.
	Sequence uint64 `json:"seq,omitempty"`
	TimeNs   int64  `json:"time,omitempty"`
	// Key is the Nats-Msg-Id of a Fired or Overdue message or the idempotency key of a Called.
	Key string `json:"key,omitempty"`
	// Webhook is the webhook-id of a signed Called.
	Webhook string `json:"webhook,omitempty"`
	Note    string `json:"note,omitempty"`
	// Fault numbers a Fault and its Heal, from 1. Name is the kind of fault, Target the
	// process or stream that it hits, and Shards the shards that need a new owner or
	// leader.
	Fault  int    `json:"fault,omitempty"`
	Name   string `json:"name,omitempty"`
	Target string `json:"target,omitempty"`
	Shards []int  `json:"shards,omitempty"`
	// Shard belongs to a Clock or a Fired; Owner, Epoch and Tail to a Clock.
	Shard int    `json:"shard,omitempty"`
	Owner string `json:"owner,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	Tail  uint64 `json:"tail,omitempty"`
}

// Recorder records a history with one monotonic clock and writes it as JSON lines. It is
// safe for concurrent use.
type Recorder struct {
	start  time.Time
	mu     sync.Mutex
	calls  int64
	events []Event
	// operations are the calls without an answer that are no adds; served is the number of
	// operations that have succeeded.
	operations map[int64]bool
	served     int
	enc        *json.Encoder
	err        error
}

// NewRecorder starts a history. w receives the lines and may be nil.
func NewRecorder(w io.Writer) *Recorder {
	r := &Recorder{start: time.Now(), operations: map[int64]bool{}}
	if w != nil {
		r.enc = json.NewEncoder(w)
	}
	return r
}

// Served returns the number of operations, other than adds, that have succeeded.
func (r *Recorder) Served() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served
}

// Begin records the event that relates the history's clock to the wall clock.
func (r *Recorder) Begin() { r.Put(Event{Kind: Begin, TimeNs: r.start.UnixNano()}) }

// calls reports whether events of the kind are calls.
func (k Kind) calls() bool {
	switch k {
	case Add, Cancel, Reschedule, Pause, Resume, Trigger, Backfill, Update, PutCalendar, DeleteCalendar:
		return true
	}
	return false
}

// Put records an event now. It assigns a new call number to a call, and returns the number.
func (r *Recorder) Put(e Event) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.AtNs = int64(time.Since(r.start))
	if e.Kind.calls() {
		r.calls++
		e.Call = r.calls
		if e.Kind != Add {
			r.operations[e.Call] = true
		}
	}
	if e.Kind == Answer && r.operations[e.Call] {
		delete(r.operations, e.Call)
		if e.OK {
			r.served++
		}
	}
	r.events = append(r.events, e)
	if r.enc != nil {
		r.err = errors.Join(r.err, r.enc.Encode(e))
	}
	return e.Call
}

// Events returns a copy of the history, and errors of the writer.
func (r *Recorder) Events() ([]Event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...), r.err
}

// Read reads a history that a Recorder has written.
func Read(r io.Reader) ([]Event, error) {
	var out []Event
	s := bufio.NewScanner(r)
	for s.Scan() {
		var e Event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(out)+1, err)
		}
		out = append(out, e)
	}
	return out, s.Err()
}
