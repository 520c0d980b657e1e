package flow

import (
	"math"
	"slices"
	"time"
)

// This file has the faults of the simulation, and the changes of its limit.

// step steps the cluster's clock; each node notices it within a second. At times it comes with a
// fault, as when another server leads: the writes of a node fail.
func (s *simulation) step() {
	s.fault(0)
	by := int64(s.upTo([]time.Duration{2 * time.Second, time.Minute, time.Hour}[s.rng.IntN(3)]))
	if s.rng.IntN(2) == 0 {
		by = -by
	}
	s.clockStep += by
	s.steps = append(s.steps, simStep{s.now, by})
	if s.rng.IntN(2) == 0 {
		s.cut(s.node(), 2*LeaseFor)
	}
	for _, n := range s.nodes {
		s.after(s.upTo(time.Second), func() {
			if n.stepNs != s.clockStep { // it has not started meanwhile
				n.stepNs, n.steadyNs = s.clockStep, s.now
			}
		})
	}
}

// cut makes the writes of a node fail for at most a duration.
func (s *simulation) cut(n *simNode, most time.Duration) {
	n.cutUntil = s.now + int64(s.upTo(most))
	s.fault(time.Duration(n.cutUntil - s.now))
}

// change stores another limit; each node learns it within a second.
func (s *simulation) change() {
	next := s.randomLimit()
	if s.bound.Rate.Count == 0 || next.Rate.Count == 0 {
		next.Rate, next.Burst = s.bound.Rate, s.bound.Burst
	}
	if s.bound.Parallel == 0 || next.Parallel == 0 {
		next.Parallel = s.bound.Parallel
	}
	if s.rng.IntN(2) == 0 { // only the burst, often to much more
		burst := next.Burst
		if next = s.limit; next.Rate.Count > 0 {
			if next.Burst = max(burst, 30); next.Check() != nil {
				next.Burst = s.limit.Burst
			}
		}
	}
	next.Paused = s.rng.IntN(4) == 0
	s.store(next)
	if s.rng.IntN(2) == 0 {
		s.after(2*time.Second, s.replan)
	}
	if r := next.Rate; r.Count > 0 && perSecond(r) > perSecond(s.bound.Rate) {
		s.bound.Rate = r
	}
	s.bound.Burst, s.bound.Parallel = max(s.bound.Burst, next.Burst), max(s.bound.Parallel, next.Parallel)
	generation := s.generation
	for _, n := range s.nodes {
		s.after(s.upTo(time.Second), func() {
			if n.generation < generation {
				n.limit, n.generation = next, generation
				s.decide(n)
			}
		})
	}
	if next.Paused {
		s.after(s.upTo(5*time.Minute), func() { // resume
			if s.generation == generation {
				next.Paused = false
				s.store(next)
				for _, n := range s.nodes {
					n.limit, n.generation = s.limit, s.generation
					s.decide(n)
				}
			}
		})
	}
}

// replan lets all deferred events come now.
func (s *simulation) replan() {
	var all []*simEvent
	for e := range s.deferred {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *simEvent) int { return a.id - b.id })
	for _, e := range all {
		s.arrive(e)
	}
}

// store stores a limit.
func (s *simulation) store(l Limit) {
	s.inForce[len(s.inForce)-1].untilNs = s.now + int64(simAfterChange)
	s.inForce = append(s.inForce, simLimit{l, s.now, math.MaxInt64})
	s.limit = l
	s.generation++
	s.fault(0)
	s.noteRoom()
}

// crash ends a process: its calls end, and its events are delivered again. Another starts under
// another name.
func (s *simulation) crash(n *simNode) {
	if !s.chance(1) {
		return
	}
	s.fault(0)
	s.endCalls(n)
	lost := slices.Concat(n.parked, n.waiting)
	*n = simNode{
		name: n.name + "x", incarnate: n.incarnate + 1, limit: n.limit, generation: n.generation, calls: map[*simCall]bool{},
		errorNs: n.errorNs, stepNs: s.clockStep, steadyNs: s.now,
	}
	for _, e := range lost {
		s.after(15*time.Second, func() { s.arrive(e) })
	}
}
