package flow

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The simulation runs several nodes that share the State of one key, in virtual time. Their
// writes conflict, take time, and lose answers; nodes die with all that they hold; deferred
// events come back late; the limit changes. It checks the guarantees of the package.

// simulation is one seeded run.
type simulation struct {
	rng   *rand.Rand
	now   int64
	queue simQueue
	seq   int

	limit      Limit // the stored limit
	generation uint64
	bound      Limit // the largest limit of the run
	state      State
	revision   int
	nodes      []*simNode
	faulty     bool
	steadyAt   int64 // no faults from here on

	events  int
	spent   []int64
	order   []int // events in the order in which they were called
	called  map[int]bool
	running int
	most    int // the most calls at once
}

// simNode is a process.
type simNode struct {
	name       string
	incarnate  int
	limit      Limit
	generation uint64
	waiting    []*simEvent
	deciding   bool
	known      bool
	state      State
	revision   int
	calls      int
	ended      []time.Duration
	heldNs     int64 // the last write of the lease
	cutUntil   int64 // writes fail until then
}

// simEvent is an event that waits for its call.
type simEvent struct {
	id      int
	arrival Arrival
}

type simAction struct {
	at  int64
	seq int
	do  func()
}

type simQueue []simAction

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simAction)) }
func (q *simQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

func (s *simulation) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, simAction{s.now + int64(max(d, 0)), s.seq, do})
}

// chance reports whether a fault happens.
func (s *simulation) chance(p float64) bool {
	return s.faulty && s.now < s.steadyAt && s.rng.Float64() < p
}

func (s *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d) + 1))
}

// newSimulation makes a run. Every second seed has no faults, so that the order and the use of
// the limit can be checked exactly.
func newSimulation(seed uint64) *simulation {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 1)), now: int64(1_800_000_000) * int64(time.Second), called: map[int]bool{}}
	s.faulty = seed%2 == 0
	s.limit = s.randomLimit()
	s.bound, s.generation = s.limit, 1
	nodes := 1
	if s.faulty {
		nodes += s.rng.IntN(3)
	}
	for i := range nodes {
		n := &simNode{name: fmt.Sprintf("n%d", i), limit: s.limit, generation: 1}
		s.nodes = append(s.nodes, n)
	}
	s.events = 30 + s.rng.IntN(250)
	s.steadyAt = s.now + int64(2*time.Minute)
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
	if s.rng.IntN(2) == 0 {
		spread = s.upTo(time.Minute)
	}
	at := make([]time.Duration, s.events)
	for i := range at {
		at[i] = s.upTo(spread)
	}
	slices.Sort(at)
	for i, d := range at {
		s.after(d, func() { s.arrive(&simEvent{id: i}) })
	}
	for _, n := range s.nodes {
		s.renewals(n)
	}
	if s.faulty {
		for range s.rng.IntN(6) {
			s.after(s.upTo(time.Minute), func() { s.crash(s.node()) })
		}
		for range s.rng.IntN(4) {
			s.after(s.upTo(time.Minute), func() { s.node().cutUntil = s.now + int64(s.upTo(30*time.Second)) })
		}
		for range s.rng.IntN(4) {
			s.after(s.upTo(time.Minute), s.change)
		}
	}
	end := s.now + int64(30*24*time.Hour)
	for steps := 0; len(s.order) < s.events && len(s.queue) > 0; steps++ {
		a := heap.Pop(&s.queue).(simAction)
		if s.now = a.at; s.now > end || steps > 3_000_000 {
			return fmt.Errorf("progress: %d of %d events were called after %d steps", len(s.order), s.events, steps)
		}
		a.do()
		s.most = max(s.most, s.running)
		if p := s.bound.Parallel; p > 0 && s.running > p {
			return fmt.Errorf("parallel: %d calls at once, the limit is %d", s.running, p)
		}
	}
	return s.check()
}

// check checks the guarantees at the end of a run.
func (s *simulation) check() error {
	if len(s.order) < s.events {
		return fmt.Errorf("progress: %d of %d events were called", len(s.order), s.events)
	}
	if r := s.bound.Rate; r.Count > 0 {
		for i := range s.spent {
			for j := i; j < len(s.spent); j++ {
				if float64(j-i+1-s.bound.Burst)*float64(r.Per) > float64(r.Count)*float64(s.spent[j]-s.spent[i])*(1+1e-9)+1 {
					return fmt.Errorf("rate: %d calls in %s, the limit is %s with burst %d", j-i+1, time.Duration(s.spent[j]-s.spent[i]), r, s.bound.Burst)
				}
			}
		}
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

func (s *simulation) node() *simNode { return s.nodes[s.rng.IntN(len(s.nodes))] }

// arrive delivers an event to a node.
func (s *simulation) arrive(e *simEvent) {
	n := s.node()
	n.waiting = append(n.waiting, e)
	s.decide(n)
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
	next.Paused = s.rng.IntN(4) == 0
	s.limit = next
	s.generation++
	if r := next.Rate; r.Count > 0 && float64(r.Count)/r.Per.Seconds() > float64(s.bound.Rate.Count)/s.bound.Rate.Per.Seconds() {
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
				s.limit.Paused = false
				s.generation++
				for _, n := range s.nodes {
					n.limit, n.generation = s.limit, s.generation
					s.decide(n)
				}
			}
		})
	}
}

// crash ends a process: its calls end, and its events are delivered again.
func (s *simulation) crash(n *simNode) {
	if !s.chance(1) {
		return
	}
	s.running -= n.calls
	lost := n.waiting
	*n = simNode{name: n.name, incarnate: n.incarnate + 1, limit: n.limit, generation: n.generation}
	for _, e := range lost {
		s.after(15*time.Second, func() { s.arrive(e) })
	}
}

// renewals renews the lease of a node while it lives, and cancels its calls if it cannot.
func (s *simulation) renewals(n *simNode) {
	s.after(LeaseFor/3, func() {
		if n.calls > 0 {
			s.decide(n)
			if s.now-n.heldNs > int64(LeaseFor)*8/10 {
				s.running -= n.calls // the node cancels its calls; their events are called already
				n.calls = 0
			}
		}
		s.renewals(n)
	})
}

// decide makes a node decide about its events, one write at a time.
func (s *simulation) decide(n *simNode) {
	if n.deciding || len(n.waiting) == 0 && n.calls == 0 && len(n.ended) == 0 {
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
	if !n.known {
		n.state, n.revision, n.known = s.state, s.revision, true
	}
	batch := n.waiting
	n.waiting = nil
	arrivals := make([]Arrival, len(batch))
	for i, e := range batch {
		arrivals[i] = e.arrival
	}
	next, limit, generation := n.state, n.limit, n.generation
	next.Leases = slices.Clone(next.Leases)
	began, ended := s.now, n.ended
	for _, took := range ended {
		next.TookNs = int64(took)
	}
	verdicts := Decide(limit, generation, n.name, &next, s.now, n.calls, arrivals)
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
			n.deciding = false
			if !stored || lost {
				n.known = false
				n.waiting = append(batch, n.waiting...)
				s.after(20*time.Millisecond, func() { s.decide(n) })
				return
			}
			n.state, n.revision, n.heldNs, n.ended = next, expect+1, began, n.ended[len(ended):]
			for i, e := range batch {
				s.obey(n, life, e, verdicts[i], generation)
			}
			s.decide(n)
		})
	})
}

// obey does what a verdict says.
func (s *simulation) obey(n *simNode, life int, e *simEvent, v Verdict, generation uint64) {
	again := func() {
		if n.incarnate != life {
			s.after(15*time.Second, func() { s.arrive(e) })
			return
		}
		n.waiting = append(n.waiting, e)
		s.decide(n)
	}
	until := time.Duration(v.AtNs - s.now)
	switch v.Kind {
	case Wait:
		s.after(until, again)
	case Defer:
		e.arrival = Arrival{SlotNs: v.AtNs, Generation: generation, Deferrals: e.arrival.Deferrals + 1}
		if s.chance(0.1) {
			until += s.upTo(100 * time.Second)
		}
		s.after(until+s.upTo(2*time.Millisecond), func() { s.arrive(e) })
	case Go:
		n.calls++ // a slot for the call, also while the event waits for its time
		free := func() {
			if n.incarnate == life && n.calls > 0 {
				n.calls--
			}
		}
		delay := time.Duration(0)
		if s.faulty {
			delay = s.upTo(time.Duration(float64(v.UntilNs-v.AtNs) * 1.05))
		}
		s.after(max(until, 0)+delay, func() {
			if n.incarnate != life || s.now > v.UntilNs {
				free()
				again()
				return
			}
			if s.called[e.id] {
				panic("called twice")
			}
			s.called[e.id] = true
			s.order = append(s.order, e.id)
			s.spent = append(s.spent, s.now)
			s.running++
			took := s.upTo(2 * time.Second)
			s.after(took, func() {
				if n.incarnate == life && n.calls > 0 {
					n.calls--
					s.running--
					n.ended = append(n.ended, took)
					s.decide(n)
				}
			})
		})
	}
}

// TestSimulation runs seeds of the simulation.
func TestSimulation(t *testing.T) {
	t.Parallel()
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		s := newSimulation(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d, limit %+v, %d events, %d nodes, faults %t: %v", seed, s.bound, s.events, len(s.nodes), s.faulty, err)
		}
	}
}
