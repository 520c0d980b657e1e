// Package flow decides when the call of an event may begin. It bounds the rate and the number of
// parallel calls of each flow key over the whole cluster, and stops them during a pause. It is pure:
// no I/O and no clock. The caller keeps the State of a key in the store and changes it only by
// compare-and-set, so two nodes never decide on the same state.
//
// # Guarantees
//
//   - Rate: in no window of length t are more than rate·t + burst attempts admitted, over all
//     nodes, even if calls start late or never after their admission, or nodes die.
//   - Parallel: never more than Limit.Parallel calls at once, also across a fail-over. A node
//     that dies gives its slots back when its lease ends.
//   - Order: while nothing fails, the events of a key are admitted in the order in which they
//     first asked. With Limit.Parallel, events that wait for the end of a call may overtake each
//     other, and without a rate a new event may overtake those with reserved times.
//   - Progress: an event is eventually called if the limit permits any call, provided that it asks
//     again at the time in its Verdict, and with more lead after an admission that had expired.
//   - Turns: with Limit.Parallel, no node keeps all slots with its own events while events wait in
//     another node. When these have waited for TurnFor, a slot is reserved for their node. If n nodes
//     have waited for longer, the node gets a slot after n + 1 further calls have ended. The node
//     notices that after an eighth of the average duration of a call, at most half a second.
//
// # Clocks
//
// All times are those of the caller's estimate of the cluster's clock. If the estimates of two
// nodes differ by d, a window of length t may have the attempts of one of length t + d. The bound
// on parallel calls holds while d is less than LeaseMargin.
//
// When the cluster's clock is stepped, the nodes notice the step at different times. A node that has
// noticed it makes no decision for StepSettle, so that no two nodes decide by clocks that differ by
// the step. It keeps the leases of other nodes (State.KeepLeases) for StepDoubt. For the rate, a step
// forward by s counts as if the time s had passed.
//
// # The gate
//
// The gate is the generic cell rate algorithm (GCRA, ITU-T Recommendation I.371, annex A). With
// the interval T = 1/rate, the theoretical arrival time TAT and the limit τ, an attempt conforms
// from TAT - τ, and moves TAT to max(TAT, its time) + T. Then n attempts take at least
// (n-1)·T - τ.
//
// An admission is not spent at once: the node writes the state first, may wait for At, and
// starts the call up to the tolerance D later. Attempts that start in a window of length t
// were admitted for a window of length t + D, so there are at most (t + D + τ)/T + 1. With
// τ = (burst - 1)·T - D these are t·rate + burst. τ may be negative: with a burst of 1 the
// calls are at least T + D apart.
//
// # The plan
//
// While more events wait than the gate admits within Ahead, each reserves the next time of the plan, T
// after the previous one. An event that comes back at its reserved time goes to the gate, before
// events without a reserved time; the gate then has room for it. After an outage, many events may come
// back together and the gate may be late. These events get separate later times (State.LateNs), so
// that they do not go to the end of the plan.
//
// Without a rate, an event without a reserved time may take a free slot before the plan: a slot that is
// not used now is lost. Events that come back at their reserved times get the next slots.
//
// # Failures
//
// An admission expires if the call does not start within its validity. The limit then permits fewer
// calls than it could, never more. A change of the limit voids all reserved times: their events ask
// again when they are due.
package flow

import "time"

// Limit bounds the calls of one flow key, or the adds of a service or tenant.
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
	// Pending is the number of pending timers that a service or tenant may have; 0 does not bound
	// them. Only limits of adds have it; Decide and Take do not look at it.
	Pending int
	// Schedules, Services and Bytes are the pending schedules, the services with pending timers, and the
	// bytes of the events of pending timers that a tenant may have; Schedules and Bytes are also for a service.
	// 0 does not bound them. Otherwise they are as Pending.
	Schedules, Services int
	Bytes               int64
	// Circuit is the number of consecutive connection errors after which the calls stop until the target
	// answers a probe; 0 for DefaultCircuit, NoCircuit for never. See Hold.
	Circuit int
}

// NoCircuit is the Limit.Circuit of a key whose calls never stop because of connection errors.
const NoCircuit = -1

// Counts reports whether the limit bounds pending timers or quotas, which the owners of the shards
// then count (package quota).
func (l Limit) Counts() bool { return l.Pending > 0 || l.Quotas() }

// Quotas reports whether the limit bounds schedules, services or bytes.
func (l Limit) Quotas() bool { return l.Schedules > 0 || l.Services > 0 || l.Bytes > 0 }

// Bounds reports whether the limit bounds calls. Every call then needs a Verdict.
func (l Limit) Bounds() bool { return l.Rate.Count > 0 || l.Parallel > 0 || l.Paused }

// CircuitAfter returns the number of consecutive connection errors that opens the circuit; 0 for never.
func (l Limit) CircuitAfter() int {
	switch l.Circuit {
	case 0:
		return DefaultCircuit
	case NoCircuit:
		return 0
	}
	return l.Circuit
}

// Rate is a number of attempts in a duration. The zero value is no rate.
type Rate struct {
	Count int
	Per   time.Duration
}

// State is the state of one flow key that all nodes share. Its times are Unix nanoseconds of the
// cluster's clock.
type State struct {
	// Generation is the revision of the limit under which the other fields were written.
	Generation uint64 `json:"g"`
	// GateNs is the theoretical arrival time of the gate: the next attempt conforms from
	// GateNs less the burst.
	GateNs int64 `json:"gate,omitempty"`
	// TauNs is the limit τ under which GateNs was written.
	TauNs int64 `json:"tau,omitempty"`
	// PlanNs is the next free time of the plan.
	PlanNs int64 `json:"plan,omitempty"`
	// LateNs is the next free time for events that the gate could not admit at their reserved time.
	LateNs int64 `json:"late,omitempty"`
	// TookNs is the average duration of a call, or a bound that a running call has reached; 0 for
	// unknown. It determines how long events wait for a free slot.
	TookNs int64 `json:"took,omitempty"`
	// Leases are the slots that nodes hold, for Limit.Parallel.
	Leases []Lease `json:"leases,omitempty"`
	// Turns are the nodes whose events wait for a slot, in the order of their turns.
	Turns []Turn `json:"turns,omitempty"`
}

// Lease is the number of calls of a node that count for Limit.Parallel until a time.
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
	// LeadNs is the minimum time in nanoseconds from the decision to AtNs, at most half of Ahead. An
	// event whose admission expired before the state was written asks with a longer lead, so that a
	// slow store delays it but does not starve it.
	LeadNs int64
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
