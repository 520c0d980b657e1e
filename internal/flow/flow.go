// Package flow decides when an event may be called: how many a second, how many at once, or
// not now, for each flow key over the whole cluster. It is pure: no I/O and no clock. The
// caller keeps the State of a key in the store and changes it only by compare-and-set, so two
// nodes never decide on the same state.
//
// # Guarantees
//
//   - Rate: in no window of length t are more than rate·t + burst attempts admitted, over all
//     nodes, also if admissions are spent late or never, or if nodes die.
//   - Parallel: never more than Limit.Parallel calls at once, also across a fail-over. A node
//     that dies gives its slots back when its lease ends.
//   - Order: while nothing fails, the events of a key are admitted in the order in which they
//     asked.
//   - Progress: an event that asks again at the time that its Verdict names is admitted in the
//     end, if the limit permits any call.
//
// # How it fails
//
// An admission that is not spent within its validity is lost: the limit then permits less than
// it could, never more. After a change of the limit all reserved slots are void: their events
// ask again when they are due.
package flow

import "time"

// Limit is what may be asked of one target.
type Limit struct {
	// Rate bounds the attempts; the zero value does not.
	Rate Rate
	// Burst is the number of attempts that may start at once after a pause, 1 or more with a
	// rate.
	Burst int
	// Parallel is the number of calls that may run at once; 0 does not bound them.
	Parallel int
	// Paused permits no call.
	Paused bool
}

// Rate is a number of attempts in a duration. The zero value is no rate.
type Rate struct {
	Count int
	Per   time.Duration
}

// State is what all nodes share about one flow key. Its times are Unix nanoseconds of the
// cluster's clock.
type State struct {
	// Generation is the revision of the limit under which the other fields were written.
	Generation uint64 `json:"g"`
	// GateNs is the theoretical arrival time of the gate: the next attempt conforms from
	// GateNs less the burst.
	GateNs int64 `json:"gate,omitempty"`
	// PlanNs is the next time that no event has reserved.
	PlanNs int64 `json:"plan,omitempty"`
	// TookNs is the average duration of a call, by which events wait for a free slot.
	TookNs int64 `json:"took,omitempty"`
	// Leases are the slots that nodes hold, for Limit.Parallel.
	Leases []Lease `json:"leases,omitempty"`
}

// Lease is a number of slots that a node holds until a time.
type Lease struct {
	Node    string `json:"n"`
	Slots   int    `json:"s"`
	UntilNs int64  `json:"u"`
}

// Arrival is an event that asks to be called.
type Arrival struct {
	// SlotNs is the time that the event has reserved, under Generation; 0 for none.
	SlotNs     int64
	Generation uint64
	// Deferrals is the number of times that the event was deferred.
	Deferrals uint32
}

// Verdict is the answer to one Arrival.
type Verdict struct {
	Kind Kind
	// AtNs is the time from which the call may start (Go), or at which the event asks again.
	AtNs int64
	// UntilNs is the end of the validity of Go: a call that has not started asks again.
	UntilNs int64
}

// Kind is the kind of a Verdict.
type Kind uint8

// The kinds.
const (
	// Go permits the call from AtNs to UntilNs.
	Go Kind = iota
	// Wait lets the event ask again at AtNs. Nothing is reserved.
	Wait
	// Defer reserves AtNs: the event asks again then, with AtNs as its SlotNs.
	Defer
)
