package flow

import (
	"slices"
	"time"
)

// This file shares the slots of Limit.Parallel between nodes.
//
//	State.Turns   A  B  C    the nodes whose events wait for a slot, the first of them first
//
// A node that gets a slot goes to the end if more of its events wait. Until its events have waited for
// TurnFor, other nodes may reuse the slots of their own ended calls. After that, one slot is reserved
// for the node, and a node may take only slots that are not reserved for a node before it.

const (
	// TurnFor is the time that the events of a node wait before a slot is reserved for the node.
	TurnFor = time.Second
	// turnKept is the time for which a turn is kept after its node last asked. The node renews it
	// after half of that time. turnKept must be longer than 2·(busyWait + LeaseMargin).
	turnKept = 6 * time.Second
	// leastTurnWait and mostTurnWait bound the time until a node with a reserved slot asks again. The
	// time is an eighth of the average duration of a call.
	leastTurnWait = 20 * time.Millisecond
	mostTurnWait  = 500 * time.Millisecond
)

// Turn is the place of a node whose events wait for a slot. Times are Unix nanoseconds of the
// cluster's clock.
type Turn struct {
	Node string `json:"n"`
	// SinceNs is the time of the node's last admission, or the time at which its events began to wait.
	SinceNs int64 `json:"a"`
	// UntilNs is the end of the turn, unless the node renews it.
	UntilNs int64 `json:"u"`
}

// beginTurns removes the turns that have ended, and corrects turns with implausible times, which a
// step of the clock or damage can leave.
func (s *State) beginTurns(nowNs int64) {
	s.Turns = slices.DeleteFunc(s.Turns, func(t Turn) bool { return t.UntilNs <= nowNs })
	for i := range s.Turns {
		t := &s.Turns[i]
		t.SinceNs = min(t.SinceNs, nowNs+int64(LeaseMargin))
		t.UntilNs = min(t.UntilNs, nowNs+int64(turnKept+LeaseMargin))
	}
}

// reserved returns the number of slots that are reserved for nodes before a node.
func (s *State) reserved(node string, nowNs int64) (n int) {
	for _, t := range s.Turns {
		if t.Node == node {
			break
		}
		if nowNs-t.SinceNs >= int64(TurnFor) {
			n++
		}
	}
	return n
}

// turn changes the place of a node after a decision: admitted is true if an event was admitted,
// waits if events wait for a slot. It returns when the node asks again if they do.
func (s *State) turn(node string, nowNs int64, admitted, waits bool) (askNs int64) {
	i := slices.IndexFunc(s.Turns, func(t Turn) bool { return t.Node == node })
	if !waits || !s.shared(node) {
		s.Turns = slices.DeleteFunc(s.Turns, func(t Turn) bool { return t.Node == node })
		return nowNs + int64(busyWait)
	}
	switch {
	case i < 0:
		i = len(s.Turns)
		s.Turns = append(s.Turns, Turn{node, nowNs, nowNs + int64(turnKept)})
	case admitted:
		s.Turns = append(slices.Delete(s.Turns, i, i+1), Turn{node, nowNs, nowNs + int64(turnKept)})
		i = len(s.Turns) - 1
	case s.Turns[i].UntilNs < nowNs+int64(turnKept/2):
		s.Turns[i].UntilNs = nowNs + int64(turnKept)
	}
	if ahead := s.Turns[i].SinceNs + int64(TurnFor) - nowNs; ahead > 0 {
		return nowNs + min(ahead, int64(busyWait))
	}
	took := s.TookNs
	if took <= 0 {
		took = int64(unknownTook)
	}
	return nowNs + min(max(took/8, int64(leastTurnWait)), int64(mostTurnWait))
}

// shared reports whether other nodes have slots, or wait for them.
func (s *State) shared(node string) bool {
	return slices.ContainsFunc(s.Leases, func(l Lease) bool { return l.Node != node }) ||
		slices.ContainsFunc(s.Turns, func(t Turn) bool { return t.Node != node })
}
