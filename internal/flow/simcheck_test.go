package flow

import (
	"fmt"
	"slices"
	"time"
)

// This file has the checks of the simulation.

// checkRate checks every window against the limits that were in force in it: at most the burst at
// its beginning, and what the rates permit until its end. A step forward of the cluster's clock
// counts as time.
func (s *simulation) checkRate() error {
	if s.bound.Rate.Count == 0 {
		return nil
	}
	slack := perSecond(s.bound.Rate) * s.clockError.Seconds()
	permitted := make([]float64, len(s.spent)) // from the first call on
	for i := 1; i < len(s.spent); i++ {
		permitted[i] = permitted[i-1] + s.permitted(s.spent[i-1], s.spent[i])
	}
	for i, from := range s.spent {
		burst := 0
		for _, l := range s.limitsAt(from) {
			burst = max(burst, l.Burst)
		}
		for j := i; j < len(s.spent); j++ {
			most := float64(burst) + permitted[j] - permitted[i] + slack
			for _, step := range s.steps {
				if step.byNs > 0 && step.atNs > from-int64(2*StepSettle) && step.atNs < s.spent[j] {
					most += min(float64(s.bound.Burst), perSecond(s.bound.Rate)*time.Duration(step.byNs).Seconds())
				}
			}
			if n := float64(j - i + 1); n > most+1e-6 {
				return fmt.Errorf("rate: %.0f calls in %s, the limits permit %.2f", n, time.Duration(s.spent[j]-from), most)
			}
		}
	}
	return nil
}

func perSecond(r Rate) float64 { return float64(r.Count) / r.Per.Seconds() }

// limitsAt returns the limits that are in force at a true time.
func (s *simulation) limitsAt(at int64) (all []simLimit) {
	for _, l := range s.inForce {
		if l.fromNs <= at && at <= l.untilNs {
			all = append(all, l)
		}
	}
	return all
}

// permitted returns the number of calls that the rates in force permit between two true times.
func (s *simulation) permitted(from, to int64) (n float64) {
	times := []int64{from, to}
	for _, l := range s.inForce {
		for _, at := range []int64{l.fromNs, l.untilNs} {
			if at > from && at < to {
				times = append(times, at)
			}
		}
	}
	slices.Sort(times)
	for i := 1; i < len(times); i++ {
		highest := 0.0
		for _, l := range s.limitsAt((times[i-1] + times[i]) / 2) {
			highest = max(highest, perSecond(l.Rate))
		}
		n += highest * time.Duration(times[i]-times[i-1]).Seconds()
	}
	return n
}

// parallelAt returns the greatest number of parallel calls of the limits in force; 0 for no bound.
func (s *simulation) parallelAt(at int64) (most int) {
	for _, l := range s.limitsAt(at) {
		most = max(most, l.Parallel)
	}
	return most
}

const (
	// simSettle is the time after a fault in which nodes may wait for permits that are free: those
	// of a dead node, after a step of the clock.
	simSettle = StepSettle + StepDoubt + LeaseFor + 2*LeaseMargin
	// simRoomFor is the longest time for which events wait in a node while a permit is free.
	simRoomFor = 2 * time.Second
	// simWatch is the interval of the checks of contended runs.
	simWatch = 100 * time.Millisecond
)

// fault says that something fails, for a duration.
func (s *simulation) fault(lasts time.Duration) {
	s.calmAt = max(s.calmAt, s.now+int64(lasts+simSettle))
}

// noteWait notes since when a node has events that wait.
func (s *simulation) noteWait(n *simNode) {
	switch {
	case len(n.waiting)+len(n.parked) == 0:
		n.waitSince = 0
	case n.waitSince == 0:
		n.waitSince = s.now
	}
}

// noteRoom notes since when fewer calls are permitted than the limit has.
func (s *simulation) noteRoom() {
	calls := 0
	for _, n := range s.nodes {
		calls += len(n.calls)
	}
	switch {
	case calls >= s.limit.Parallel:
		s.roomSince = 0
	case s.roomSince == 0:
		s.roomSince = s.now
	}
}

// turnWithin returns the longest time until a node whose events wait gets a slot: TurnFor, a call for each
// node, and the time until each of them notices the end of that.
func (s *simulation) turnWithin() time.Duration {
	return TurnFor + 2*s.clockError + time.Duration(len(s.nodes))*(s.longest+mostTurnWait) + simRoomFor
}

// watch checks again and again that no event waits while there is room, and that nodes take turns.
func (s *simulation) watch() {
	s.checkWaits()
	if s.over == nil {
		s.after(simWatch, s.watch)
	}
}

func (s *simulation) checkWaits() {
	if s.limit.Paused {
		s.fault(0)
	}
	for _, n := range s.nodes {
		if n.waitSince == 0 || s.now < s.calmAt {
			continue
		}
		since := max(n.waitSince, s.calmAt)
		if wait, most := time.Duration(s.now-since), s.turnWithin(); wait > most {
			s.over = fmt.Errorf("turns: events wait in %s for %s, and none was admitted; the guarantee is %s", n.name, wait, most)
		}
		if wait := time.Duration(s.now - max(since, s.roomSince)); s.roomSince != 0 && wait > simRoomFor {
			s.over = fmt.Errorf("room: events wait in %s for %s, and fewer calls than %d are permitted", n.name, wait, s.limit.Parallel)
		}
	}
}
