package flow

import "time"

// Asked has the numbers of adds of a service that ask one limit at the same time.
type Asked struct {
	// Returned is the number of adds that come at the time that they have reserved, New the number of
	// adds without a reserved time.
	Returned, New int
	// Waiting is the number of the New adds, the first ones, that may reserve a time if they are not
	// admitted. All Returned adds may.
	Waiting int
	// Reserve bounds the number of times that are reserved.
	Reserve int
	// Within bounds how far ahead a time may be reserved.
	Within time.Duration
}

// Taken is the answer to Asked.
type Taken struct {
	// Returned and New are the numbers of adds that are admitted at the time of the decision.
	Returned, New int
	// Reserved is the number of the other adds, the first ones, that have reserved a time. Add i of the
	// others, from 0, may come back at NextNs + i·StepNs, even without a reserved time. The others are the
	// Returned adds that are not admitted, and then such New adds.
	Reserved       int
	NextNs, StepNs int64
	// Unchanged is true if the state did not change, so that it needs no write.
	Unchanged bool
}

// Take admits as many adds as the rate of a limit permits at nowNs, and reserves times of the plan for
// others. It admits no New adds while adds wait for reserved times. It uses the gate of Decide. An
// admission takes effect at once, so in no window of length t are more than rate·t + burst adds
// admitted. Take ignores Limit.Parallel and Limit.Paused. As with Decide, the answer is valid only if
// the caller then stores the state by compare-and-set, even if no add is admitted, unless the state is
// Unchanged.
func Take(l Limit, generation uint64, s *State, nowNs int64, a Asked) (t Taken) {
	if s.Generation > generation {
		return Taken{NextNs: nowNs + int64(staleWait), StepNs: int64(l.Rate.Interval()), Unchanged: true}
	}
	before := s.Clone()
	s.begin(l, generation, nowNs)
	d := decision{l: l, s: s, now: nowNs, interval: int64(l.Rate.Interval()), tau: int64(l.tau())}
	one := func() bool {
		if d.gate() > nowNs {
			return false
		}
		s.GateNs = max(s.GateNs, nowNs) + d.interval
		return true
	}
	for t.Returned < a.Returned && one() {
		t.Returned++
	}
	for s.PlanNs <= nowNs && t.New < a.New && one() {
		t.New++
	}
	t.StepNs = max(int64(l.step(s)), 1)
	t.NextNs = max(d.gate(), s.PlanNs)
	for t.Reserved < min(a.Reserve, a.Returned-t.Returned+max(0, a.Waiting-t.New)) {
		at := t.NextNs + int64(t.Reserved)*t.StepNs
		if at > nowNs+int64(a.Within) {
			break
		}
		s.PlanNs = at + t.StepNs
		t.Reserved++
	}
	t.Unchanged = s.Equal(&before)
	return t
}
