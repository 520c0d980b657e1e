package flow

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/agenda"
	"github.com/belfryio/belfry/internal/testsize"
)

// The simulation runs several nodes that share the State of one key, in virtual time. Their
// writes conflict, take time, and lose answers; nodes die with all that they hold; deferred
// events come back late; the limit changes. Each node has its own error of the cluster's clock,
// which is stepped at times. The simulation checks the guarantees of the package. In contended runs,
// each node has events of its own that compete for few parallel calls, and the first node has the most.

// simulation is one seeded run.
type simulation struct {
	rng   *rand.Rand
	now   int64
	queue agenda.Agenda

	limit      Limit // the stored limit
	generation uint64
	bound      Limit // the largest limit of the run
	inForce    []simLimit
	clockError time.Duration // the largest difference between the clocks of two nodes
	clockStep  int64         // the sum of the steps of the cluster's clock
	steps      []simStep
	state      State
	revision   int
	nodes      []*simNode
	deferred   map[*simEvent]bool
	faulty     bool
	longCalls  bool  // many calls are longer than a lease
	leases     bool  // the limit is a number of parallel calls
	atOnce     bool  // all events come at the same time
	deferrals  int   // how often events were deferred
	steadyAt   int64 // no faults from here on

	events  int
	spent   []int64
	order   []int // events in the order in which they were called
	called  map[int]bool
	running int
	over    error // too many calls at once, or a node that waits for too long

	contended bool  // nodes with work of their own compete for few parallel calls
	calmAt    int64 // by then the last fault has no consequences
	roomSince int64 // since when fewer calls are permitted than the limit has; 0 if none is free
	longest   time.Duration
}

// simNode is a process.
type simNode struct {
	name        string
	incarnate   int
	limit       Limit
	generation  uint64
	waiting     []*simEvent // without a verdict
	parked      []*simEvent // that wait for the end of a call, until parkedUntil
	parkedUntil int64
	waitSince   int64 // since when events have waited, and none was admitted; 0 for no event
	deciding    bool
	known       bool
	state       State
	revision    int
	calls       map[*simCall]bool // permitted, or under way
	ended       []time.Duration
	heldNs      int64 // the last write of the lease
	cutUntil    int64 // writes fail until then
	errorNs     int64 // of the node's estimate of the cluster's clock
	stepNs      int64 // the steps of the cluster's clock that the node has noticed
	steadyNs    int64 // when it noticed the last one, or started
}

// simCall is a call that a node was permitted to make. begun is true once it runs.
type simCall struct {
	begun   bool
	beganNs int64
}

// simLimit is a limit, and the true times between which calls may begin under it.
type simLimit struct {
	Limit
	fromNs, untilNs int64
}

// simStep is a step of the cluster's clock at a true time.
type simStep struct{ atNs, byNs int64 }

// simAfterChange is how long calls may begin under a limit that was changed: the time until every
// node knows the change, and an admission before that.
const simAfterChange = time.Second + 20*time.Millisecond + Ahead + maxTolerance

// simEvent is an event that waits for its call.
type simEvent struct {
	id      int
	home    int // the node that gets it in a contended run
	arrival Arrival
	// turn counts its arrivals, so that it comes once if its slot is moved.
	turn int
}

func (s *simulation) after(d time.Duration, do func()) {
	s.queue.Add(s.now+int64(max(d, 0)), do)
}

// chance reports whether a fault happens.
func (s *simulation) chance(p float64) bool {
	return s.faulty && s.now < s.steadyAt && s.rng.Float64() < p
}

func (s *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d) + 1))
}

// newSimulation makes a run. Every second seed has no faults, so that the order and the use of
// the limit can be checked exactly. Every fourth has few parallel calls that are longer than a lease,
// on nodes whose clocks differ by the most that is permitted, and that often cannot write. Two of
// eight are contended, one of them without faults.
func newSimulation(seed uint64) *simulation {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 1)), now: int64(1_800_000_000) * int64(time.Second), called: map[int]bool{}, deferred: map[*simEvent]bool{}}
	s.faulty, s.leases = seed%2 == 0, seed%4 == 2
	s.limit = s.randomLimit()
	if s.leases {
		s.limit = Limit{Parallel: 1 + s.rng.IntN(2)}
	}
	s.longest = 2 * time.Second
	if s.contended = seed%8 == 4 || seed%8 == 5; s.contended {
		s.limit, s.longest = Limit{Parallel: 1 + s.rng.IntN(3)}, []time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second}[s.rng.IntN(3)]
	}
	s.bound, s.generation = s.limit, 1
	s.inForce = []simLimit{{s.limit, 0, math.MaxInt64}}
	nodes := 1
	if s.contended {
		nodes = 2 + s.rng.IntN(3)
	}
	if s.faulty {
		nodes += s.rng.IntN(3)
		if s.leases {
			nodes = max(nodes, 3)
		}
		s.clockError = []time.Duration{0, 20 * time.Millisecond, LeaseMargin - time.Millisecond, LeaseMargin - time.Millisecond}[s.rng.IntN(4)]
		s.longCalls = s.rng.IntN(2) == 0 && !s.contended
	}
	for i := range nodes {
		n := &simNode{name: fmt.Sprintf("n%d", i), limit: s.limit, generation: 1, calls: map[*simCall]bool{}}
		n.errorNs = int64(s.upTo(s.clockError))
		s.nodes = append(s.nodes, n)
	}
	s.events = 30 + s.rng.IntN(250)
	if s.leases && !s.contended {
		s.events, s.clockError, s.longCalls = 60, LeaseMargin-time.Millisecond, true
		for _, n := range s.nodes {
			n.errorNs = int64(s.upTo(s.clockError))
		}
	}
	s.steadyAt = s.now + int64(2*time.Minute)
	if s.contended { // work for several minutes
		s.events = s.limit.Parallel * int(4*time.Minute/(s.longest/2))
	}
	return s
}

func (s *simulation) randomLimit() Limit {
	for {
		var l Limit
		switch s.rng.IntN(3) {
		case 0:
			l.Rate = Rate{1 + s.rng.IntN(500), time.Second}
		case 1:
			l.Rate = Rate{1 + s.rng.IntN(600), time.Minute}
		}
		if l.Rate.Count > 0 {
			l.Burst = []int{1, l.Rate.DefaultBurst(), 1 + s.rng.IntN(60)}[s.rng.IntN(3)]
		}
		if l.Rate.Count == 0 || s.rng.IntN(4) == 0 {
			l.Parallel = 1 + s.rng.IntN(8)
		}
		if l.Check() == nil {
			return l
		}
	}
}

// run adds the events, and the faults, and runs until nothing is left to do.
func (s *simulation) run() error {
	spread := time.Duration(0)
	if s.rng.IntN(2) == 0 && !s.atOnce {
		spread = s.upTo(time.Minute)
	}
	at := make([]time.Duration, s.events)
	for i := range at {
		at[i] = s.upTo(spread)
	}
	slices.Sort(at)
	for i, d := range at {
		e := &simEvent{id: i}
		if s.rng.IntN(2) == 0 { // else the first node has a backlog
			e.home = s.rng.IntN(len(s.nodes))
		}
		s.after(d, func() { s.arrive(e) })
	}
	if s.contended {
		s.watch()
	}
	for _, n := range s.nodes {
		s.renewals(n)
	}
	if s.faulty {
		for range s.rng.IntN(6) {
			s.after(s.upTo(time.Minute), func() { s.crash(s.node()) })
		}
		cuts := s.rng.IntN(4)
		if s.leases {
			cuts = 12
		}
		for range cuts {
			s.after(s.upTo(time.Minute), func() { s.cut(s.node(), 30*time.Second) })
		}
		for range s.rng.IntN(4) {
			s.after(s.upTo(time.Minute), s.change)
		}
		for range s.rng.IntN(4) {
			s.after(s.upTo(time.Minute), s.step)
		}
	}
	end := s.now + int64(30*24*time.Hour)
	for steps := 0; len(s.order) < s.events && s.queue.Len() > 0; steps++ {
		at, do := s.queue.Next()
		if s.now = at; s.now > end || steps > 3_000_000 {
			return fmt.Errorf("progress: %d of %d events were called after %d steps", len(s.order), s.events, steps)
		}
		if do(); s.over != nil {
			return s.over
		}
	}
	return s.check()
}

// check checks the guarantees at the end of a run.
func (s *simulation) check() error {
	if len(s.order) < s.events {
		return fmt.Errorf("progress: %d of %d events were called", len(s.order), s.events)
	}
	if err := s.checkRate(); err != nil {
		return err
	}
	if s.faulty {
		return nil
	}
	if s.bound.Parallel == 0 && !slices.IsSorted(s.order) {
		return fmt.Errorf("order: called %v", s.order)
	}
	if r := s.bound.Rate; r.Count > 0 && s.bound.Parallel == 0 {
		took := s.spent[len(s.spent)-1] - s.spent[0]
		most := int64(max(0, s.events-s.bound.Burst))*int64(r.Interval()+r.Interval()/20) + int64(time.Minute) + int64(2*time.Second)
		if took > most {
			return fmt.Errorf("use: %d events at %s took %s, more than %s", s.events, r, time.Duration(took), time.Duration(most))
		}
	}
	return nil
}

// clock returns a node's estimate of the cluster's clock.
func (s *simulation) clock(n *simNode) int64 { return s.now + n.stepNs + n.errorNs }

func (s *simulation) node() *simNode { return s.nodes[s.rng.IntN(len(s.nodes))] }

// arrive delivers an event to a node.
func (s *simulation) arrive(e *simEvent) {
	n := s.node()
	if s.contended {
		n = s.nodes[e.home]
	}
	e.turn++
	delete(s.deferred, e)
	n.waiting = append(n.waiting, e)
	s.noteWait(n)
	s.decide(n)
}

// endCalls ends all calls of a node; their events are called already. A call that has not begun
// asks again.
func (s *simulation) endCalls(n *simNode) {
	for c := range n.calls {
		if c.begun {
			s.running--
		}
	}
	clear(n.calls)
	s.noteRoom()
}

// renewals renews the lease of a node, and its reading of the clock.
func (s *simulation) renewals(n *simNode) {
	s.after(LeaseFor/3, func() {
		n.errorNs = int64(s.upTo(s.clockError))
		s.decide(n)
		s.renewals(n)
	})
}

// leaseEnds ends the calls of a node at the end of its lease, unless it has renewed the lease.
func (s *simulation) leaseEnds(n *simNode) {
	life, held := n.incarnate, n.heldNs
	s.after(time.Duration(held-s.now)+LeaseFor, func() {
		if n.incarnate == life && n.heldNs == held {
			s.endCalls(n)
		}
	})
}

// decide makes a node decide about its events, one write at a time.
func (s *simulation) decide(n *simNode) {
	if n.deciding || len(n.waiting) == 0 && len(n.parked) == 0 && len(n.calls) == 0 && len(n.ended) == 0 {
		return
	}
	n.deciding = true
	life := n.incarnate
	s.after(s.upTo(time.Millisecond), func() {
		if n.incarnate == life {
			s.write(n, life)
		}
	})
}

// write decides about the events that wait, and stores the state.
func (s *simulation) write(n *simNode, life int) {
	fresh := !n.known
	if fresh {
		n.state, n.revision, n.known = s.state, s.revision, true
	}
	var batch []*simEvent
	settled := s.now - n.steadyNs - int64(StepSettle)
	if settled >= 0 {
		batch, n.parked, n.waiting = slices.Concat(n.parked, n.waiting), nil, nil
	}
	arrivals := make([]Arrival, len(batch))
	for i, e := range batch {
		arrivals[i] = e.arrival
	}
	next, limit, generation := n.state.Clone(), n.limit, n.generation
	began, ended := s.now, n.ended
	for _, took := range ended {
		next.TookNs = int64(took)
	}
	for c := range n.calls {
		if c.begun {
			next.NoteRunning(time.Duration(s.now - c.beganNs))
		}
	}
	if s.now-n.steadyNs < int64(StepDoubt) {
		next.KeepLeases(s.clock(n))
	}
	var verdicts []Verdict
	switch {
	case settled >= 0:
		verdicts = Decide(limit, generation, n.name, &next, s.clock(n), len(n.calls), arrivals)
	case len(n.calls) > 0 && limit.Parallel > 0:
		next.Hold(n.name, len(n.calls), s.clock(n))
	default:
		s.after(time.Duration(-settled), func() {
			if n.incarnate == life {
				n.deciding = false
				s.decide(n)
			}
		})
		return
	}
	waits := slices.ContainsFunc(verdicts, func(v Verdict) bool { return v.Kind == Wait })
	switch same := n.state.Equal(&next); {
	case same && waits && !fresh: // others may have changed the state meanwhile
		n.deciding, n.known, n.waiting = false, false, batch
		s.decide(n)
		return
	case same && settled >= 0:
		n.ended = n.ended[len(ended):]
		s.answer(n, life, batch, verdicts, generation)
		return
	}
	expect := n.revision
	s.after(s.upTo(12*time.Millisecond), func() {
		stored := s.revision == expect && s.now >= n.cutUntil
		if stored {
			s.state, s.revision = next, s.revision+1
		}
		lost := s.chance(0.05)
		s.after(s.upTo(3*time.Millisecond), func() {
			if n.incarnate != life {
				for _, e := range batch { // the process died with its answer
					s.after(15*time.Second, func() { s.arrive(e) })
				}
				return
			}
			if !stored || lost {
				n.deciding, n.known = false, false
				n.waiting = append(batch, n.waiting...)
				s.after(20*time.Millisecond, func() { s.decide(n) })
				return
			}
			n.state, n.revision, n.heldNs, n.ended = next, expect+1, began, n.ended[len(ended):]
			s.leaseEnds(n)
			s.answer(n, life, batch, verdicts, generation)
			if settled < 0 {
				s.after(time.Duration(-settled), func() { s.decide(n) })
			}
		})
	})
}

// answer gives the verdicts of a decision that is stored, or that changed nothing.
func (s *simulation) answer(n *simNode, life int, batch []*simEvent, verdicts []Verdict, generation uint64) {
	n.deciding, n.parkedUntil = false, math.MaxInt64
	for i, e := range batch {
		s.obey(n, life, e, verdicts[i], generation)
	}
	if parked := n.parkedUntil; parked != math.MaxInt64 {
		s.after(time.Duration(parked-s.now), func() {
			if n.incarnate == life && n.parkedUntil == parked {
				s.decide(n)
			}
		})
	}
	s.noteWait(n)
	if s.now-n.steadyNs >= int64(StepSettle) && (len(n.waiting) > 0 || len(n.ended) > 0) {
		s.decide(n)
	}
}

// obey does what a verdict says.
func (s *simulation) obey(n *simNode, life int, e *simEvent, v Verdict, generation uint64) {
	again := func() {
		if n.incarnate != life {
			s.after(15*time.Second, func() { s.arrive(e) })
			return
		}
		n.waiting = append(n.waiting, e)
		s.noteWait(n)
		s.decide(n)
	}
	until := time.Duration(v.AtNs - s.clock(n))
	switch v.Kind {
	case Wait:
		n.parked = append(n.parked, e)
		n.parkedUntil = min(n.parkedUntil, s.now+int64(until))
	case Defer:
		e.arrival = Arrival{SlotNs: v.AtNs, Generation: generation, Deferrals: e.arrival.Deferrals + 1}
		if s.chance(0.1) {
			until += s.upTo(100 * time.Second)
		}
		turn := e.turn
		s.deferrals++
		s.deferred[e] = true
		s.after(until+s.upTo(2*time.Millisecond), func() {
			if e.turn == turn {
				s.arrive(e)
			}
		})
	case Go:
		c := &simCall{}
		n.waitSince = 0
		n.calls[c] = true // a slot for the call, also while the event waits for its time
		s.noteRoom()
		delay := time.Duration(0)
		if s.faulty {
			delay = s.upTo(time.Duration(float64(v.UntilNs-v.AtNs) * 1.05))
		}
		s.after(max(until, 0)+delay, func() {
			if !n.calls[c] || s.clock(n) > v.UntilNs {
				delete(n.calls, c)
				s.noteRoom()
				again()
				return
			}
			s.begin(n, c, e)
		})
	}
}

// begin begins the call of an event.
func (s *simulation) begin(n *simNode, c *simCall, e *simEvent) {
	if s.called[e.id] {
		panic("called twice")
	}
	s.called[e.id] = true
	s.order = append(s.order, e.id)
	s.spent = append(s.spent, s.now)
	c.begun, c.beganNs = true, s.now
	s.running++
	if most := s.parallelAt(s.now); most > 0 && s.running > most && s.over == nil {
		s.over = fmt.Errorf("parallel: %d calls at once, the limit is %d", s.running, most)
	}
	took := s.upTo(s.longest)
	if s.longCalls && s.rng.IntN(4) == 0 {
		took = s.upTo(3 * LeaseFor)
	}
	s.after(took, func() {
		if n.calls[c] {
			delete(n.calls, c)
			s.noteRoom()
			s.running--
			n.ended = append(n.ended, took)
			s.decide(n)
		}
	})
}

// TestSimulation runs seeds of the simulation.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testsize.Choose(t, "seeds", 60, 600, 600)) {
		s := newSimulation(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d, limit %+v, %d events, %d nodes, faults %t: %v", seed, s.bound, s.events, len(s.nodes), s.faulty, err)
		}
	}
}

// TestBacklogSimulation: a backlog comes to nodes that do not know the duration of a call. The slots are
// used for most of the time until the last event is called, and events do not ask again too often.
func TestBacklogSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testsize.Choose(t, "seeds", 8, 40, 40)) {
		s := newSimulation(8*seed + 1) // without faults
		s.limit = Limit{Parallel: 1 + s.rng.IntN(4)}
		s.bound, s.inForce = s.limit, []simLimit{{s.limit, 0, math.MaxInt64}}
		s.nodes = nil
		for i := range 1 + s.rng.IntN(3) {
			s.nodes = append(s.nodes, &simNode{name: fmt.Sprintf("n%d", i), limit: s.limit, generation: 1, calls: map[*simCall]bool{}})
		}
		s.events, s.atOnce, s.longest = 300, true, []time.Duration{40 * time.Millisecond, time.Second, 20 * time.Second}[seed%3]
		began := s.now
		if err := s.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		// A write takes up to 15 ms, and a node that waits asks after up to a second.
		took, most := time.Duration(s.spent[len(s.spent)-1]-began), 2*time.Duration(s.events)*(s.longest/2+15*time.Millisecond)/time.Duration(s.limit.Parallel)+2*time.Second
		if took > most {
			t.Errorf("seed %d, %d slots, %d nodes: the last of %d events was called after %s, more than %s", seed, s.limit.Parallel, len(s.nodes), s.events, took, most)
		}
		if s.deferrals > 4*s.events {
			t.Errorf("seed %d, calls of up to %s: %d events were deferred %d times", seed, s.longest, s.events, s.deferrals)
		}
	}
}
