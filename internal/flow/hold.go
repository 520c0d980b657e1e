package flow

import "time"

// This file decides when the calls of a key stop because of an answer of its target, or
// because the target does not answer at all. Limits are stored by people; a hold is set by the node
// that made the call. Both apply to a key at the same time, and neither changes the other.

const (
	// MaxHold bounds the pause that a target can ask for with Retry-After: 1 hour.
	MaxHold = time.Hour
	// DefaultCircuit is the number of connection errors in a row that opens the circuit of a key,
	// unless its limit names another.
	DefaultCircuit = 5
	// MaxCircuit bounds that number.
	MaxCircuit = 10_000
	// leastProbe and mostProbe bound the time between two probes of an open circuit: 1 second, twice
	// as long after each probe, at most 1 minute.
	leastProbe = time.Second
	mostProbe  = time.Minute
	// CircuitKeep is how long a circuit stays open without a probe, because no event of the key
	// asks. After that the key is as new.
	CircuitKeep = time.Hour
)

// Hold is what stops the calls of one flow key for a while. The zero value stops nothing. Its times
// are Unix nanoseconds of the cluster's clock. All nodes share it and change it by
// compare-and-set.
//
//	          Circuit errors in a row            Ask after ProbeNs: one event probes
//	closed ────────────────────────────▶ open ◀──────────────┐
//	  ▲                                   │  │  no answer     │
//	  └───────── the probe is answered ───┘  └────────────────┘
type Hold struct {
	// UntilNs is the time before which the target does not want to be called; 0 for none.
	UntilNs int64 `json:"until,omitempty"`
	// OpenNs is the time at which the circuit opened; 0 while it is closed.
	OpenNs int64 `json:"open,omitempty"`
	// Probes is the number of probes since then.
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
	// Probe: one event may call, to find out whether the target answers. The node must store the
	// hold after TakeProbe first.
	Probe
)

// Ask says whether a call may begin, and for Held the earliest time at which one may.
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

// pausedAt reports whether the target has asked for no calls at a time. A longer pause than MaxHold
// is damage, or the clock went back: then it has ended.
func (h Hold) pausedAt(nowNs int64) bool {
	return nowNs < h.UntilNs && h.UntilNs <= nowNs+int64(MaxHold+LeaseMargin)
}

// OpenAt reports whether the circuit is open at a time. A circuit that was not probed for CircuitKeep is
// closed, and so is a circuit whose next probe is too far ahead.
func (h Hold) OpenAt(nowNs int64) bool {
	return h.OpenNs != 0 && nowNs < h.ProbeNs+int64(CircuitKeep) && h.ProbeNs <= nowNs+int64(mostProbe+LeaseMargin)
}

// EndsNs is the time from which the hold stops nothing, whatever happens; 0 if it never did.
func (h Hold) EndsNs() int64 {
	if h.OpenNs == 0 {
		return h.UntilNs
	}
	return max(h.UntilNs, h.ProbeNs+int64(CircuitKeep))
}

// RetryAfter stops the calls for the duration that the target named, at most MaxHold. It returns
// false if the calls are stopped for about that long already: an extension by less than a tenth
// of the duration is worth no write, and comes from a call that began before the first answer.
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

// Close closes the circuit that opened at openNs, after a probe was answered. It returns false if
// that circuit is closed, such as by hand, whether or not another has opened since.
func (h *Hold) Close(openNs int64) (changed bool) {
	if h.OpenNs == 0 || h.OpenNs != openNs {
		return false
	}
	h.OpenNs, h.Probes, h.ProbeNs = 0, 0, 0
	return true
}

// Contact is what a call says about its target.
type Contact uint8

// The contacts.
const (
	// Unknown: the call says nothing, because it was not made or had no answer in time.
	Unknown Contact = iota
	// Answered: the target answered, also with an error.
	Answered
	// Unreachable: no connection was made, or it broke before an answer.
	Unreachable
)

// Streak counts the connection errors of a key in a row, in one process.
type Streak int

// Count counts a call. It returns true if the circuit opens: after circuit errors in a row; 0 for
// never.
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
