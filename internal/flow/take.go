package flow

import "time"

// Asked are adds of a service that ask one limit at the same time. Adds have no calls to wait for,
// so they are counted, not listed.
type Asked struct {
	// Returned come at a time that they have reserved before; New have reserved none.
	Returned, New int
	// Reserve is the number of adds that may reserve a time if they are not admitted.
	Reserve int
	// Within bounds how far ahead a time may be reserved.
	Within time.Duration
}

// Taken is the answer to Asked.
type Taken struct {
	// Returned and New are the numbers that are admitted now, at the time of the decision.
	Returned, New int
	// Reserved is the number of the others that have reserved a time. The i-th of the others,
	// from 0, may come back at NextNs + i·StepNs, whether it has reserved that or not.
	Reserved       int
	NextNs, StepNs int64
	// Unchanged is true if the state has not changed, so it needs no write.
	Unchanged bool
}

// Take admits as many adds as the rate of a limit permits at nowNs, and reserves times of the
// plan for others. New adds are not admitted while adds wait for reserved times. The rate is kept by
// the same gate as that of Decide; there is no time between the admission and its use, so in no
// window of length t are more than rate·t + burst admitted. Limit.Parallel and Limit.Paused are not
// looked at. As with Decide, the answer holds only if the caller then stores the state by
// compare-and-set, also if it admits none, unless the state is Unchanged.
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
	for t.Reserved < min(a.Reserve, a.Returned-t.Returned+a.New-t.New) {
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
