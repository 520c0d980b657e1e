package flow

import "time"

// Reserve reserves times for n events that wait under an earlier generation of a limit. The limit must
// not be paused. Event i, from 0, asks again at firstNs + i·stepNs. As with Decide, the times are
// valid only if the caller then stores the state by compare-and-set.
func Reserve(l Limit, generation uint64, s *State, nowNs int64, n int) (firstNs, stepNs int64) {
	s.begin(l, generation, nowNs)
	stepNs = max(int64(l.step(s)), 1)
	firstNs = max(s.PlanNs, s.LateNs, nowNs+int64(time.Millisecond))
	if l.Rate.Count > 0 {
		firstNs = max(firstNs, s.GateNs-int64(l.tau()))
	}
	s.PlanNs = min(firstNs+int64(n)*stepNs, nowNs+2*int64(MaxDefer))
	return firstNs, stepNs
}
