package flow

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// Ahead is the maximum time between the admission of an attempt and its start. The event waits in
	// the process meanwhile.
	Ahead = time.Second
	// LeaseFor is the time for which the calls of a node count after its last write of the state. A
	// node that cannot write must cancel its calls before the lease ends.
	LeaseFor = 10 * time.Second
	// LeaseMargin is added to a lease by other nodes, because their clocks may differ.
	LeaseMargin = time.Second
	// StepSettle is the time after a step of the cluster's clock in which a node makes no decision.
	// It must exceed the time until every node has read the clock again, which happens once a second.
	StepSettle = 3 * time.Second
	// StepDoubt is the time after a step of the cluster's clock, or after the start of the node, in
	// which the node keeps the leases of other nodes that have ended by the new clock. Live nodes
	// renew their leases within that time.
	StepDoubt = LeaseFor + 2*LeaseMargin
	// MaxDefer bounds the time until a deferred event asks again.
	MaxDefer = 365 * 24 * time.Hour
	// leastPause and mostPause bound the time until an event under a paused limit asks again.
	// The time doubles with each deferral. It delays no event after a resume, because a resume moves
	// the events.
	leastPause = time.Minute
	mostPause  = time.Hour
	// ConflictPause bounds the random pause before a caller of Decide or Take decides again because
	// another node has changed the state. The pause lets one of the nodes win.
	ConflictPause = 2 * time.Millisecond
	// staleWait is the time until an event asks again if the caller's copy of the limit is outdated.
	staleWait = 250 * time.Millisecond
	// busyWait is the time until an event asks again that waits in the process for the end of a call,
	// if no slot is reserved for the node. When a call of the same node ends, the event asks at once.
	busyWait = 750 * time.Millisecond
	// At most max(leastWaiting, 2·Limit.Parallel) events of a key wait in one process for the end of
	// a call.
	leastWaiting = 16
)

// Decide decides about events that ask on one node, in the order in which they asked, and
// changes the state. nowNs is the cluster's time in Unix nanoseconds, generation the revision of
// the limit. running is the number of calls that the node makes, or has been permitted to make. It
// corrects the node's lease if the answer to an earlier write was lost.
//
// The verdicts are in the order of the arrivals. They hold only if the caller then stores the
// state by compare-and-set; after a conflict it asks again with the other node's state.
func Decide(l Limit, generation uint64, node string, s *State, nowNs int64, running int, arrivals []Arrival) []Verdict {
	out := make([]Verdict, len(arrivals))
	if s.Generation > generation {
		for i := range out {
			out[i] = Verdict{Kind: Wait, AtNs: nowNs + int64(staleWait)}
		}
		return out
	}
	s.begin(l, generation, nowNs)
	if l.Parallel > 0 || l.Paused {
		s.Hold(node, running, nowNs)
	} else {
		s.Leases = nil
	}
	if l.Parallel == 0 || l.Paused {
		s.Turns = nil
	}
	if l.Paused {
		for i, a := range arrivals {
			out[i] = Verdict{Kind: Defer, AtNs: nowNs + int64(PauseFor(a.Deferrals))}
		}
		return out
	}
	d := decision{l: l, s: s, now: nowNs, free: max(0, s.free(l, nowNs)-s.reserved(node, nowNs))}
	if l.Rate.Count > 0 {
		d.interval, d.tau, d.tolerance = int64(l.Rate.Interval()), int64(l.tau()), int64(l.tolerance())
	}
	d.step = int64(l.step(s))
	for _, i := range order(arrivals, generation) {
		a := arrivals[i]
		if out[i] = d.one(slot(a, generation) != 0, min(max(a.LeadNs, 0), int64(Ahead/2))); out[i].Kind == Go {
			running++
			d.admitted++
		}
	}
	if l.Parallel > 0 {
		s.Hold(node, running, nowNs)
		d.turn(node, out)
	}
	return out
}

// slot returns the time that an event has reserved, 0 for none.
func slot(a Arrival, generation uint64) int64 {
	if a.Generation != generation {
		return 0
	}
	return a.SlotNs
}

// order returns the indexes of the arrivals in the order of the decisions: events with a
// reserved time by their times, then the others.
func order(arrivals []Arrival, generation uint64) []int {
	out := make([]int, len(arrivals))
	for i := range out {
		out[i] = i
	}
	key := func(i int) int64 {
		if at := slot(arrivals[i], generation); at != 0 {
			return at
		}
		return math.MaxInt64
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(key(a), key(b)) })
	return out
}

// PauseFor is the time until an event under a paused limit asks again: 1 minute, twice as long
// after each deferral, at most 1 hour.
func PauseFor(deferrals uint32) time.Duration {
	return min(leastPause<<min(deferrals, 10), mostPause)
}

// begin adapts a state that was written under another generation, or that has implausible values.
func (s *State) begin(l Limit, generation uint64, nowNs int64) {
	if s.Generation != generation {
		// The next attempt conforms at the same time as under the last limit, but not before the
		// present. So a window over the change has at most the attempts of the larger limit.
		fresh := s.Generation == 0 && s.GateNs == 0
		next := nowNs
		if s.GateNs != 0 {
			next = max(s.GateNs-s.TauNs, nowNs)
		}
		if s.GateNs = 0; l.Rate.Count > 0 && !fresh {
			s.GateNs = next + int64(l.tau())
		}
		s.Generation, s.PlanNs, s.LateNs = generation, 0, 0
	}
	// An implausible lease would block slots or permit too many calls.
	s.Leases = slices.DeleteFunc(s.Leases, func(l Lease) bool { return l.Slots <= 0 })
	for i := range s.Leases {
		s.Leases[i].UntilNs = min(s.Leases[i].UntilNs, nowNs+int64(LeaseFor+LeaseMargin))
	}
	s.beginTurns(nowNs)
	s.TauNs = 0
	if l.Rate.Count > 0 {
		s.TauNs = int64(l.tau())
		// Admissions are at most Ahead ahead; more is damage, or a clock that went back.
		s.GateNs = min(s.GateNs, nowNs+int64(Ahead)+int64(LeaseMargin)+2*int64(l.Rate.Interval())+max(0, s.TauNs))
	}
	if s.PlanNs > nowNs+2*int64(MaxDefer) {
		s.PlanNs = 0
	}
	if s.LateNs > nowNs+2*int64(MaxDefer) {
		s.LateNs = 0
	}
}

// decision is the state of one call of Decide.
type decision struct {
	l                              Limit
	s                              *State
	now                            int64
	interval, tau, tolerance, step int64
	// free is the number of calls that may start now; waiting counts the events that wait in
	// this process for the end of a call, admitted the events with Go.
	free, waiting, admitted int
}

// turn changes the turn of the node, and sets the time at which its events that wait for a slot ask
// again.
func (d *decision) turn(node string, out []Verdict) {
	askNs := d.s.turn(node, d.now, d.admitted > 0, d.waiting > 0)
	for i := range out {
		if out[i].Kind == Wait {
			out[i].AtNs = askNs
		}
	}
}

// one decides about one event. reserved is true if it has reserved a time; lead is
// Arrival.LeadNs.
func (d *decision) one(reserved bool, lead int64) Verdict {
	at := max(d.gate(), d.now+lead)
	switch {
	case !reserved && d.l.Rate.Count > 0 && max(d.s.PlanNs, d.s.LateNs) > d.now:
		// Other events have reserved times. An admission of this event would delay them. Without a rate,
		// a free slot that no event takes now is lost: an event with a reserved time gets the next one.
		return d.plan(max(at, d.s.LateNs), reserved)
	case at > d.now+int64(Ahead):
		return d.plan(at, reserved)
	case d.l.Parallel > 0 && d.free == 0:
		if d.waiting < max(2*d.l.Parallel, leastWaiting) {
			d.waiting++
			return Verdict{Kind: Wait}
		}
		return d.plan(max(at, d.now+int64(Ahead)), reserved)
	}
	d.free--
	v := Verdict{Kind: Go, AtNs: at, UntilNs: at + int64(maxTolerance)}
	if d.l.Rate.Count > 0 {
		v.UntilNs = at + d.tolerance
		d.s.GateNs = max(d.s.GateNs, at) + d.interval
	}
	return v
}

// gate returns the time from which the next attempt conforms to the rate.
func (d *decision) gate() int64 {
	if d.l.Rate.Count == 0 {
		return d.now
	}
	return max(d.now, d.s.GateNs-d.tau)
}

// plan reserves the next time from at on.
func (d *decision) plan(at int64, reserved bool) Verdict {
	next := &d.s.PlanNs
	if reserved {
		next = &d.s.LateNs
	}
	at = min(max(at, *next), d.now+int64(MaxDefer))
	*next = at + d.step
	return Verdict{Kind: Defer, AtNs: at}
}

// Equal reports whether two states are the same, for example before and after a decision.
func (s *State) Equal(o *State) bool {
	return s.Generation == o.Generation && s.GateNs == o.GateNs && s.TauNs == o.TauNs && s.PlanNs == o.PlanNs &&
		s.LateNs == o.LateNs && s.TookNs == o.TookNs && slices.Equal(s.Leases, o.Leases) && slices.Equal(s.Turns, o.Turns)
}

// UsedUntilNs returns the time until which the state must be kept: the latest of its times. It leaves
// out leases and turns, because the store keeps every state for longer than these last.
func (s *State) UsedUntilNs() int64 { return max(s.GateNs, s.PlanNs, s.LateNs) }

// Worst replaces a damaged state. It returns the state after the maximum of calls or adds that the
// limit permits. ahead is the time by which they are permitted in advance.
func Worst(l Limit, nowNs int64, ahead time.Duration) (s State) {
	if l.Parallel > 0 {
		s.Leases = []Lease{{Node: "?", Slots: l.Parallel, UntilNs: nowNs + int64(LeaseFor)}}
	}
	if l.Rate.Count > 0 {
		s.GateNs = nowNs + int64(ahead) + int64(l.Rate.Interval())*int64(l.Burst)
	}
	return s
}

// Clone returns a copy that can be changed.
func (s *State) Clone() State {
	c := *s
	c.Leases, c.Turns = slices.Clone(s.Leases), slices.Clone(s.Turns)
	return c
}

// Hold sets the number of slots that a node holds, for LeaseFor; 0 returns all its slots. It removes
// the leases that have ended. It never shortens the node's lease: after a step back of the cluster's
// clock, other nodes may still use the time before the step.
func (s *State) Hold(node string, slots int, nowNs int64) {
	untilNs := nowNs + int64(LeaseFor)
	s.Leases = slices.DeleteFunc(s.Leases, func(l Lease) bool {
		if l.Node == node {
			untilNs = max(untilNs, l.UntilNs)
			return true
		}
		return l.UntilNs+int64(LeaseMargin) <= nowNs
	})
	if slots > 0 {
		s.Leases = append(s.Leases, Lease{Node: node, Slots: slots, UntilNs: untilNs})
		slices.SortFunc(s.Leases, func(a, b Lease) int { return strings.Compare(a.Node, b.Node) })
	}
}

// KeepLeases extends the leases that have ended at nowNs. After a step of the cluster's clock, they may
// not have ended in real time. The caller must call it before each change of the state for StepDoubt
// after the step.
func (s *State) KeepLeases(nowNs int64) {
	for i := range s.Leases {
		s.Leases[i].UntilNs = max(s.Leases[i].UntilNs, nowNs)
	}
}

// free returns the number of calls that may start now.
func (s *State) free(l Limit, nowNs int64) int {
	if l.Parallel == 0 {
		return 0
	}
	return max(0, l.Parallel-s.running(nowNs-int64(LeaseMargin)))
}

// running returns the number of calls of all nodes whose leases end after a time.
func (s *State) running(nowNs int64) (n int) {
	for _, l := range s.Leases {
		if l.UntilNs > nowNs {
			n += l.Slots
		}
	}
	return n
}

// Summary describes the use of a key's limit at a time. Times are Unix nanoseconds.
type Summary struct {
	// InFlight is the number of calls under way, if Limit.Parallel counts them.
	InFlight int
	// Waiting is the number of events that have reserved a time.
	Waiting int
	// NextNs is the earliest time at which the call of one more event may begin; 0 while the limit is
	// paused. If all slots are in use, it is an estimate.
	NextNs int64
	// DrainedNs is the last reserved time; 0 if none is reserved or the limit is paused.
	DrainedNs int64
}

// Summary describes the state under a limit and its generation.
func (s *State) Summary(l Limit, generation uint64, nowNs int64) Summary {
	now := s.Clone()
	sum := Summary{InFlight: now.running(nowNs)}
	if now.Generation > generation || l.Paused {
		return sum
	}
	now.begin(l, generation, nowNs)
	step := max(l.step(&now), 1)
	sum.NextNs = max(nowNs, now.PlanNs, now.LateNs)
	if l.Rate.Count > 0 {
		sum.NextNs = max(sum.NextNs, now.GateNs-int64(l.tau()))
	}
	if l.Parallel > 0 && sum.InFlight >= l.Parallel {
		sum.NextNs = max(sum.NextNs, nowNs+int64(step))
	}
	if last := max(now.PlanNs, now.LateNs); last > nowNs {
		sum.Waiting = int((last - nowNs + int64(step) - 1) / int64(step))
		sum.DrainedNs = max(nowNs, last-int64(step))
	}
	return sum
}
