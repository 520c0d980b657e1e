// Package check judges a history: what clients of Belfry did and saw while its
// processes were killed. It knows nothing of how the history was made, and is
// itself proven by histories with planted violations (check_test.go).
//
// # What it takes as the truth
//
//   - A call that was answered had the effect that the answer says.
//   - A call that was not answered may have taken effect, or not, or later: an add
//     of that kind may fire or not, a cancel of that kind may have cancelled.
//   - "Early" is judged by the timestamp that JetStream gave the fired event, not
//     by when a client saw it.
package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kind says what an Event is.
type Kind string

// The kinds. A call is one of Add, Cancel and Reschedule, later answered by an
// event with the same Call; one that never is answered is unknown.
const (
	// Begin ties the history's clock to the wall's, TimeNs, once.
	Begin      Kind = "begin"
	Add        Kind = "add"
	Cancel     Kind = "cancel"
	Reschedule Kind = "reschedule"
	// Answer ends a call: OK, or Code says why not.
	Answer Kind = "answer"
	// Unknown ends a call without an answer.
	Unknown Kind = "unknown"
	// Fired is an event as it stands on timers.fired.
	Fired Kind = "fired"
	// Called is a callback as its receiver saw it.
	Called Kind = "called"
	// Done says that everything is over: nothing may fire or be called after it.
	Done Kind = "done"
	// Kill and Start tell of processes; only for the reader.
	Kill  Kind = "kill"
	Start Kind = "start"
	// Fault and Heal are the two ends of a fault. All is well again at Heal.
	Fault Kind = "fault"
	Heal  Kind = "heal"
	// Clock is a shard's clock, as its owner moved it.
	Clock Kind = "clock"
	// Elected tells that the stream Name has a new leader, Target.
	Elected Kind = "elected"
)

// Event is one line of a history.
type Event struct {
	// AtNs is when it was recorded, nanoseconds of one monotonic clock.
	AtNs int64 `json:"at"`
	Kind Kind  `json:"kind"`
	// Call pairs a call with its answer.
	Call int64 `json:"call,omitempty"`
	// Source and ID are CloudEvents' identity.
	Source string `json:"source,omitempty"`
	ID     string `json:"id,omitempty"`
	// Via is how a call or a callback went: publish, api, http, nats.
	Via string `json:"via,omitempty"`
	// DueMs (Unix milliseconds), Data and Callback are what an Add asked for, DueMs
	// also what a Reschedule did; DueMs and Data are also what came back.
	DueMs    int64  `json:"due,omitempty"`
	Data     string `json:"data,omitempty"`
	Callback bool   `json:"callback,omitempty"`
	// OK and Code are an Answer's.
	OK   bool   `json:"ok,omitempty"`
	Code string `json:"code,omitempty"`
	// Sequence and TimeNs (Unix nanoseconds) are those of a Fired message and of a
	// Clock, TimeNs also when a receiver was Called, and when a Fault or Heal was.
	Sequence uint64 `json:"seq,omitempty"`
	TimeNs   int64  `json:"time,omitempty"`
	// Key is the Nats-Msg-Id of a Fired message, the idempotency key of a Called.
	Key string `json:"key,omitempty"`
	// Webhook is the webhook-id of a Called, if it was signed.
	Webhook string `json:"webhook,omitempty"`
	Note    string `json:"note,omitempty"`
	// Fault numbers a Fault and its Heal, from 1; Name is its kind, Target whom it
	// hits, Shards those that must go on elsewhere, or after an election.
	Fault  int    `json:"fault,omitempty"`
	Name   string `json:"name,omitempty"`
	Target string `json:"target,omitempty"`
	Shards []int  `json:"shards,omitempty"`
	// Shard is that of a Clock or a Fired, Owner, Epoch and Tail those of a Clock.
	Shard int    `json:"shard,omitempty"`
	Owner string `json:"owner,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	Tail  uint64 `json:"tail,omitempty"`
}

// Recorder collects a history on one monotonic clock and writes it as JSON lines.
// Safe for concurrent use.
type Recorder struct {
	start  time.Time
	mu     sync.Mutex
	calls  int64
	events []Event
	enc    *json.Encoder
	err    error
}

// NewRecorder records from now on; w takes the lines and may be nil.
func NewRecorder(w io.Writer) *Recorder {
	r := &Recorder{start: time.Now()}
	if w != nil {
		r.enc = json.NewEncoder(w)
	}
	return r
}

// Begin puts the event that ties the history's clock to the wall's.
func (r *Recorder) Begin() { r.Put(Event{Kind: Begin, TimeNs: r.start.UnixNano()}) }

// Put records an event now and returns its Call, which is a new one for Add,
// Cancel and Reschedule.
func (r *Recorder) Put(e Event) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.AtNs = int64(time.Since(r.start))
	if e.Kind == Add || e.Kind == Cancel || e.Kind == Reschedule {
		r.calls++
		e.Call = r.calls
	}
	r.events = append(r.events, e)
	if r.enc != nil {
		r.err = errors.Join(r.err, r.enc.Encode(e))
	}
	return e.Call
}

// Events are a copy of what was recorded; the error is that of the writer.
func (r *Recorder) Events() ([]Event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...), r.err
}

// Read reads a history back.
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
