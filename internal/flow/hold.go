package flow

import "time"

// This file decides when the calls of a key stop because its target asks for a pause, or does not
// answer. Operators set limits; the node that made a call sets a hold. Both apply to a key at the same
// time, and neither changes the other.

const (
	// MaxHold bounds the pause that a target can ask for with Retry-After: 1 hour.
	MaxHold = time.Hour
	// DefaultCircuit is the number of consecutive connection errors that opens the circuit of a key,
	// unless its limit has another number.
	DefaultCircuit = 5
	// MaxCircuit bounds Limit.Circuit.
	MaxCircuit = 10_000
	// leastProbe and mostProbe bound the time between two probes of an open circuit: 1 second, twice
	// as long after each probe, at most 1 minute.
	leastProbe = time.Second
	mostProbe  = time.Minute
	// CircuitKeep is the time after which a circuit without a probe closes. A circuit has no probe
	// while no event of the key asks.
	CircuitKeep = time.Hour
)

// Hold stops the calls of one flow key for a while: the target asked for a pause, or its circuit is
// open. The zero value stops nothing. Its times are Unix nanoseconds of the cluster's clock. All nodes
// share it and change it by compare-and-set.
//
//	          Circuit errors in a row            Ask after ProbeNs: one event probes
//	closed ────────────────────────────▶ open ◀──────────────┐
//	  ▲                                   │  │  no answer     │
//	  └───────── the probe is answered ───┘  └────────────────┘
type Hold struct {
	// UntilNs is the end of the pause for which the target asked; 0 for none.
	UntilNs int64 `json:"until,omitempty"`
	// OpenNs is the time at which the circuit opened; 0 while it is closed.
	OpenNs int64 `json:"open,omitempty"`
	// Probes is the number of probes since the circuit opened.
	Probes int `json:"probes,omitempty"`
	// ProbeNs is the time from which the next probe may begin.
	ProbeNs int64 `json:"probe,omitempty"`
}

// Permission is the answer of a Hold to an event that asks for its call.
type Permission uint8

// The permissions.
const (
	// Free: the hold does not stop the call.
	Free Permission = iota
	// Held: the event asks again later.
	Held
	// Probe: one event may call, to test whether the target answers. The node must first call
	// TakeProbe and store the hold.
	Probe
)

// Ask decides whether a call may begin at nowNs. For Held, atNs is the earliest time at which a call
// may begin.
func (h Hold) Ask(nowNs int64) (p Permission, atNs int64) {
	paused := h.pausedAt(nowNs)
	switch {
	case !h.OpenAt(nowNs) && paused:
		return Held, h.UntilNs
	case !h.OpenAt(nowNs):
		return Free, nowNs
	case paused:
		return Held, max(h.UntilNs, h.ProbeNs)
	case nowNs < h.ProbeNs:
		return Held, h.ProbeNs
	}
	return Probe, nowNs
}

// pausedAt reports whether the pause of the target lasts at a time. A pause that ends more than MaxHold
// later counts as ended: it is damaged, or the clock was set back.
func (h Hold) pausedAt(nowNs int64) bool {
	return nowNs < h.UntilNs && h.UntilNs <= nowNs+int64(MaxHold+LeaseMargin)
}

// OpenAt reports whether the circuit is open at a time. A circuit that was not probed for CircuitKeep is
// closed, and so is a circuit whose next probe is too far ahead.
func (h Hold) OpenAt(nowNs int64) bool {
	return h.OpenNs != 0 && nowNs < h.ProbeNs+int64(CircuitKeep) && h.ProbeNs <= nowNs+int64(mostProbe+LeaseMargin)
}

// EndsNs returns the time from which the hold stops nothing, even without another change; 0 for a hold
// that stops nothing.
func (h Hold) EndsNs() int64 {
	if h.OpenNs == 0 {
		return h.UntilNs
	}
	return max(h.UntilNs, h.ProbeNs+int64(CircuitKeep))
}

// RetryAfter stops the calls for the duration that the target named, at most MaxHold. It returns false
// if that would extend the pause by less than a tenth of the duration. Such an answer belongs to a
// call that began before the pause, and is not worth a write.
func (h *Hold) RetryAfter(d time.Duration, nowNs int64) (changed bool) {
	d = min(d, MaxHold)
	until := nowNs + int64(d)
	if d <= 0 || h.pausedAt(nowNs) && until-h.UntilNs < int64(d/10) {
		return false
	}
	h.UntilNs = until
	return true
}

// Open opens the circuit. It returns false if it is open.
func (h *Hold) Open(nowNs int64) (changed bool) {
	if h.OpenAt(nowNs) {
		return false
	}
	h.OpenNs, h.Probes, h.ProbeNs = nowNs, 0, nowNs+int64(leastProbe)
	return true
}

// TakeProbe takes the probe for one event and sets the time of the next. It returns false if no
// probe may begin, such as when another event has taken it.
func (h *Hold) TakeProbe(nowNs int64) (taken bool) {
	if p, _ := h.Ask(nowNs); p != Probe {
		return false
	}
	h.Probes++
	h.ProbeNs = nowNs + int64(min(leastProbe<<min(h.Probes, 10), mostProbe))
	return true
}

// Close closes the circuit that opened at openNs, after a probe was answered. It returns false if that
// circuit has been closed already, for example by an operator, even if the circuit has opened again.
func (h *Hold) Close(openNs int64) (changed bool) {
	if h.OpenNs == 0 || h.OpenNs != openNs {
		return false
	}
	h.OpenNs, h.Probes, h.ProbeNs = 0, 0, 0
	return true
}

// Contact is the result of a call for the question whether its target can be reached.
type Contact uint8

// The contacts.
const (
	// Unknown: the call was not made, or had no answer in time.
	Unknown Contact = iota
	// Answered: the target answered, possibly with an error.
	Answered
	// Unreachable: no connection was made, or it broke before an answer.
	Unreachable
)

// Streak counts the consecutive connection errors of a key in one process.
type Streak int

// Count counts a call. It returns true if the circuit opens, which is after circuit consecutive
// errors. A circuit of 0 never opens.
func (s *Streak) Count(c Contact, circuit int) (open bool) {
	switch c {
	case Answered:
		*s = 0
	case Unreachable:
		*s++
	case Unknown:
	}
	return c == Unreachable && circuit > 0 && int(*s) >= circuit
}
