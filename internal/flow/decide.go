package flow

import (
	"cmp"
	"slices"
	"time"
)

// Constants of the decisions.
const (
	// Ahead is the longest time between a decision and an admission.
	Ahead = time.Second
	// MaxWait is the longest time that an event with a reserved slot waits for the gate without
	// a new slot.
	MaxWait = 30 * time.Second
	// LeaseFor is how long a node holds its slots of a parallel limit without renewing them.
	LeaseFor = 10 * time.Second
	// leaseSkew is how much longer than LeaseFor other nodes respect a lease: the estimates of
	// the cluster's time differ between nodes.
	leaseSkew = 200 * time.Millisecond
	// maxTolerance bounds how late an admission may be spent, and minTolerance is the least
	// that is worth an admission ahead: with less, an event is admitted only at once, and
	// spends its admission within spendWithin.
	maxTolerance = 100 * time.Millisecond
	minTolerance = 5 * time.Millisecond
	spendWithin  = 20 * time.Millisecond
	// firstPause is the first deferral of a paused key; each further one doubles it up to
	// lastPause.
	firstPause = time.Minute
	lastPause  = time.Hour
	// minWaiting is the least number of events of a key that wait for a free slot in a node; it
	// is twice the slots if that is more. The others are deferred.
	minWaiting = 16
	// defaultTook is the assumed duration of a call before the first has ended.
	defaultTook = time.Second
)

// Interval returns the time between two attempts at the rate, rounded up.
func (r Rate) Interval() time.Duration {
	if r.Count <= 0 {
		return 0
	}
	return (r.Per + time.Duration(r.Count) - 1) / time.Duration(r.Count)
}

// gate is the exact limit of the rate: GCRA (ITU-T I.371) over admissions. An admission at A
// may be spent until A+tolerance. So that in no window of length t more than rate·t + burst are
// spent, the gate permits tolerance/interval less at once.
type gate struct {
	interval, tolerance int64
	// credit is how far the theoretical arrival time may be ahead of an admission.
	credit int64
}

func newGate(l Limit) gate {
	g := gate{interval: int64(l.Rate.Interval())}
	g.credit = int64(max(l.Burst, 1)-1) * g.interval
	if g.tolerance = min(g.credit/2, int64(maxTolerance)); g.tolerance < int64(minTolerance) {
		g.tolerance = 0
	}
	g.credit -= g.tolerance
	return g
}

// next returns the earliest time of the next admission.
func (g gate) next(s *State, nowNs int64) int64 {
	if g.interval == 0 {
		return nowNs
	}
	return max(nowNs, s.GateNs-g.credit)
}

// admit admits an attempt at atNs.
func (g gate) admit(s *State, atNs int64) Verdict {
	s.GateNs = max(s.GateNs, atNs) + g.interval
	return Verdict{Kind: Go, AtNs: atNs, UntilNs: atNs + cmp.Or(g.tolerance, int64(spendWithin))}
}

// Decide decides about the events of a key that ask on one node, in the order in which they
// asked, and changes the state. The decisions are valid once the state has been stored by
// compare-and-set. running is the number of calls of the key that the node makes, or has been
// permitted to make. nowNs is the cluster's time in Unix nanoseconds.
func Decide(l Limit, generation uint64, node string, s *State, nowNs int64, running int, arrivals []Arrival) []Verdict {
	out := make([]Verdict, len(arrivals))
	if l.Paused {
		for i, a := range arrivals {
			out[i] = Verdict{Kind: Defer, AtNs: nowNs + int64(min(firstPause<<min(a.Deferrals, 6), lastPause))}
		}
		hold(s, node, running, nowNs)
		return out
	}
	g := newGate(l)
	if s.Generation != generation {
		// The slots that were reserved are void. Admissions under a slower limit may have moved
		// the gate farther than the new one ever does.
		s.Generation, s.PlanNs = generation, 0
		s.GateNs = min(s.GateNs, nowNs+int64(Ahead)+g.credit+g.interval)
	}
	ahead := int64(Ahead)
	if g.tolerance == 0 && g.interval > 0 {
		ahead = 0
	}
	free, waiting, late := freeSlots(l, node, s, nowNs, running), 0, int64(0)
	spacing := max(g.interval, parallelInterval(l, s))
	for _, i := range order(arrivals, generation) {
		a := arrivals[i]
		reserved := a.SlotNs != 0 && a.Generation == generation
		at := g.next(s, nowNs)
		switch {
		case (reserved || s.PlanNs <= nowNs) && at-nowNs <= ahead && free > 0:
			out[i] = g.admit(s, at)
			free--
			running++
		case free <= 0 && waiting < max(2*l.Parallel, minWaiting):
			// It asks again when a call of this node has ended, or soon.
			waiting++
			out[i] = Verdict{Kind: Wait, AtNs: nowNs + int64(Ahead)}
		case reserved && at+late-nowNs <= int64(MaxWait):
			// The gate is late, for example after an outage.
			out[i] = Verdict{Kind: Wait, AtNs: max(at+late, nowNs+int64(time.Millisecond))}
			late += g.interval
		default:
			s.PlanNs = max(s.PlanNs, at, nowNs+int64(time.Millisecond))
			out[i] = Verdict{Kind: Defer, AtNs: s.PlanNs}
			s.PlanNs += spacing
		}
	}
	if l.Parallel > 0 {
		hold(s, node, running, nowNs)
	} else {
		s.Leases = nil
	}
	return out
}

// order returns the indexes of the arrivals: those with a slot by their slots, then the others.
func order(arrivals []Arrival, generation uint64) []int {
	out := make([]int, len(arrivals))
	for i := range out {
		out[i] = i
	}
	slot := func(i int) int64 {
		if a := arrivals[i]; a.SlotNs != 0 && a.Generation == generation {
			return a.SlotNs
		}
		return 1<<63 - 1
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(slot(a), slot(b)) })
	return out
}

// freeSlots returns how many more calls the node may begin, and drops the leases that have
// ended.
func freeSlots(l Limit, node string, s *State, nowNs int64, running int) int {
	if l.Parallel == 0 {
		return 1<<31 - 1
	}
	s.Leases = slices.DeleteFunc(s.Leases, func(x Lease) bool { return x.UntilNs+int64(leaseSkew) <= nowNs })
	free := l.Parallel - running
	for _, x := range s.Leases {
		if x.Node != node {
			free -= x.Slots
		}
	}
	return free
}

// parallelInterval returns the expected time between two free slots.
func parallelInterval(l Limit, s *State) int64 {
	if l.Parallel == 0 {
		return 0
	}
	return cmp.Or(s.TookNs, int64(defaultTook)) / int64(l.Parallel)
}

// Renew sets the slots that a node holds to the calls that it makes, for LeaseFor. With 0 it
// returns them.
func Renew(s *State, node string, nowNs int64, running int) { hold(s, node, running, nowNs) }

func hold(s *State, node string, slots int, nowNs int64) {
	s.Leases = slices.DeleteFunc(s.Leases, func(x Lease) bool { return x.Node == node })
	if slots > 0 {
		s.Leases = append(s.Leases, Lease{Node: node, Slots: slots, UntilNs: nowNs + int64(LeaseFor)})
	}
}
