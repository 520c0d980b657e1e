package flow

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/agenda"
	"github.com/belfryio/belfry/internal/testsize"
)

// The simulation of holds runs several nodes that share the Hold of one key, in virtual time. The
// target fails and comes back, and asks for pauses; the copies of the nodes are late by up to a
// second; writes conflict, take time and lose answers; nodes die with their streaks and probes. It
// checks that a key is left alone when the target says so or does not answer, that one event at a time
// looks for the target, and that every event is called once the target is back.

// holdSim is one seeded run.
type holdSim struct {
	rng   *rand.Rand
	now   int64
	queue agenda.Agenda

	changes  []holdChange // the holds that were stored, in order; the first is none
	nodes    []*holdNode
	circuit  int
	steadyAt int64 // no faults, and the target is well, from here on

	events, called int
	calls          []holdCall
	// row is the number of connection errors since the last answer, crash or closing, whose number
	// is resets.
	row, resets int
	over        error
}

// holdChange is a stored hold.
type holdChange struct {
	atNs int64
	Hold
}

// holdCall is a call of the target.
type holdCall struct {
	atNs  int64
	probe bool
}

// holdNode is a process. It has seen the changes up to an index.
type holdNode struct {
	incarnate int
	seen      int
	streak    Streak
}

// simKnown is the time until every node knows a change: store.FlowFresh.
const simKnown = time.Second

func newHoldSim(seed uint64) *holdSim {
	s := &holdSim{rng: rand.New(rand.NewPCG(seed, 2)), now: start, circuit: 1 + int(seed%7), events: 20 + int(seed%5)*30}
	s.steadyAt, s.changes = s.now+int64(10*time.Minute), []holdChange{{}}
	for range 1 + s.rng.IntN(4) {
		s.nodes = append(s.nodes, &holdNode{})
	}
	return s
}

func (s *holdSim) after(d time.Duration, do func()) { s.queue.Add(s.now+int64(max(d, 0)), do) }
func (s *holdSim) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d) + 1))
}

func (s *holdSim) chance(p float64) bool { return s.now < s.steadyAt && s.rng.Float64() < p }

// down reports whether the target is out of reach: 90 s of each 2 minutes until steadyAt.
func (s *holdSim) down() bool {
	return s.now < s.steadyAt && (s.now-start)%int64(2*time.Minute) > int64(30*time.Second)
}

func (s *holdSim) run() error {
	for range s.events {
		s.after(s.upTo(8*time.Minute), func() { s.arrive(0) })
	}
	for range s.rng.IntN(5) {
		s.after(s.upTo(10*time.Minute), func() {
			n := s.nodes[s.rng.IntN(len(s.nodes))]
			n.incarnate++
			n.streak = 0
			s.reset()
		})
	}
	end := s.steadyAt + int64(3*time.Hour)
	for s.called < s.events && s.over == nil {
		at, do := s.queue.Next()
		if s.now = at; s.now > end {
			return fmt.Errorf("progress: %d of %d events were called, the hold is %+v", s.called, s.events, s.hold())
		}
		do()
	}
	if s.over != nil {
		return s.over
	}
	return s.check()
}

// hold returns the stored hold.
func (s *holdSim) hold() Hold { return s.changes[len(s.changes)-1].Hold }

// copyOf returns the hold that a node knows: late by up to simKnown, and never older than before.
func (s *holdSim) copyOf(n *holdNode) Hold {
	by := s.now - int64(s.upTo(simKnown))
	for n.seen+1 < len(s.changes) && s.changes[n.seen+1].atNs <= by {
		n.seen++
	}
	return s.changes[n.seen].Hold
}

// reset begins a new row of connection errors.
func (s *holdSim) reset() { s.row, s.resets = 0, s.resets+1 }

// failed counts a connection error. When a node must have had enough of them, the circuit opens.
func (s *holdSim) failed() {
	if s.row++; s.row < len(s.nodes)*s.circuit {
		return
	}
	resets := s.resets
	s.after(time.Second, func() {
		if s.resets == resets && s.hold().OpenNs == 0 && s.over == nil {
			s.over = fmt.Errorf("circuit: %d connection errors in a row on %d nodes have not opened it", s.row, len(s.nodes))
		}
	})
}

// arrive delivers an event that was put back some times.
func (s *holdSim) arrive(deferrals uint32) {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	h := s.copyOf(n)
	p, at := h.Ask(s.now)
	switch p {
	case Free:
		s.call(n, deferrals, 0)
	case Held:
		// Some look for the target at the time of the probe, the others later.
		if s.rng.IntN(4) > 0 {
			at = max(at, s.now+int64(PauseFor(deferrals)))
		}
		s.after(time.Duration(at-s.now), func() { s.arrive(deferrals + 1) })
	case Probe:
		s.change(n, func(h *Hold) bool { return h.TakeProbe(s.now) }, func(stored bool) {
			if !stored {
				s.after(time.Second, func() { s.arrive(deferrals + 1) })
				return
			}
			s.call(n, deferrals, s.changes[n.seen].OpenNs)
		})
	}
}

// change changes the hold by compare-and-set. done gets false if nothing was changed, or the answer
// was lost. The process that dies meanwhile does not go on; its event is delivered again.
func (s *holdSim) change(n *holdNode, change func(h *Hold) bool, done func(stored bool)) {
	life, next, expect := n.incarnate, s.hold(), len(s.changes)
	if !change(&next) {
		n.seen = len(s.changes) - 1
		done(false)
		return
	}
	s.after(s.upTo(20*time.Millisecond), func() {
		if len(s.changes) != expect {
			s.change(n, change, done)
			return
		}
		if s.hold().OpenNs != 0 && next.OpenNs == 0 {
			s.reset()
		}
		s.changes = append(s.changes, holdChange{s.now, next})
		if lost := s.chance(0.1); lost || n.incarnate != life {
			done(false)
			return
		}
		n.seen = expect
		done(true)
	})
}

// call calls the target. open is the opening that a probe belongs to, 0 for another call.
func (s *holdSim) call(n *holdNode, deferrals uint32, open int64) {
	s.calls = append(s.calls, holdCall{s.now, open != 0})
	life, contact, wait := n.incarnate, Answered, time.Duration(0)
	switch {
	case s.down() && s.rng.IntN(20) == 0:
		contact = Unknown
	case s.down():
		contact = Unreachable
	case s.chance(0.05):
		wait = time.Duration(1+s.rng.IntN(100)) * time.Second
	}
	again := func(d time.Duration) { s.after(d, func() { s.arrive(deferrals) }) }
	s.after(s.upTo(200*time.Millisecond), func() {
		if n.incarnate != life {
			again(15 * time.Second)
			return
		}
		nothing := func(bool) {}
		switch contact {
		case Answered:
			s.reset()
		case Unreachable:
			s.failed()
		case Unknown:
		}
		if n.streak.Count(contact, s.circuit) {
			n.streak = 0
			s.change(n, func(h *Hold) bool { return h.Open(s.now) }, nothing)
		}
		if open != 0 && contact == Answered {
			s.change(n, func(h *Hold) bool { return h.Close(open) }, nothing)
		}
		switch {
		case wait > 0:
			s.change(n, func(h *Hold) bool { return h.RetryAfter(wait, s.now) }, nothing)
			again(wait)
		case contact == Answered:
			s.called++
		default:
			again(s.upTo(10 * time.Second))
		}
	})
}

// check checks that no call begins against a hold that every node knows, and that the probes keep
// their distance.
func (s *holdSim) check() error {
	var lastProbe int64
	for _, c := range s.calls {
		if s.known(c.atNs, func(h Hold) bool { return c.atNs < h.UntilNs }) {
			return fmt.Errorf("hold: a call begins during a pause that every node knows")
		}
		if c.probe {
			if gap := c.atNs - lastProbe; lastProbe != 0 && gap < int64(leastProbe)-int64(50*time.Millisecond) {
				return fmt.Errorf("probes: two within %s", time.Duration(gap))
			}
			lastProbe = c.atNs
			continue
		}
		if s.known(c.atNs, func(h Hold) bool { return h.OpenNs != 0 && c.atNs < h.ProbeNs+int64(CircuitKeep) }) {
			return fmt.Errorf("circuit: a call that is no probe begins although every node knows that the circuit is open")
		}
	}
	return nil
}

// known reports whether something is true of every hold that a node may know at a time.
func (s *holdSim) known(atNs int64, is func(Hold) bool) bool {
	h := s.changes[0]
	for _, c := range s.changes[1:] {
		if c.atNs > atNs {
			break
		}
		if c.atNs > atNs-int64(simKnown) && !is(h.Hold) { // some nodes know the hold before, some this one
			return false
		}
		h = c
	}
	return is(h.Hold)
}

// TestHoldSimulation runs seeds of the simulation of holds.
func TestHoldSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testsize.Choose(t, "seeds", 60, 400, 400)) {
		s := newHoldSim(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d, circuit %d, %d events, %d nodes: %v", seed, s.circuit, s.events, len(s.nodes), err)
		}
	}
}
