package order

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/agenda"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// The simulation runs several nodes that share the State of one key, in virtual time. Writes
// conflict and lose their answers; nodes die between a decision and what follows from it, are cut
// off, and have wrong clocks; events come late, twice, in any order; calls fail; events are
// cancelled while they wait. It checks the guarantees of the package.

// simulation is one seeded run.
type simulation struct {
	rng   *rand.Rand
	now   int64 // Unix milliseconds
	queue agenda.Agenda
	err   error

	state    State
	revision int
	most     int
	nodes    []*simNode
	faulty   bool
	jumps    bool // the cluster's clock jumps
	jumped   int64
	steadyAt int64 // no faults from here on

	events  []*simEvent
	running []*simCall
	called  time.Duration // all calls and all delays between them
	lastAt  int64         // of the last arrival
}

// simNode is a process.
type simNode struct {
	name      string
	incarnate int
	skew      int64
	cutUntil  int64 // the store does not answer until then
	live      map[*simEvent]bool
}

func (n *simNode) id() string { return fmt.Sprint(n.name, ".", n.incarnate) }

// simEvent is an event and its record.
type simEvent struct {
	Event
	final    bool
	waiting  bool // the record waits in the wheel until slot
	slot     int64
	wakeSeq  int
	defers   uint32
	attempts int
	fails    int // the calls that fail
	retryAt  int64
	came     bool
	asked    bool
	aside    bool
}

// simCall is a call in progress.
type simCall struct {
	e       *simEvent
	n       *simNode
	life    int
	renewed int64
	ended   bool
}

func (s *simulation) after(d time.Duration, do func()) {
	s.queue.Add(s.now+max(d, 0).Milliseconds(), do)
}

// chance reports whether a fault happens.
func (s *simulation) chance(p float64) bool {
	return s.faulty && s.now < s.steadyAt && s.rng.Float64() < p
}

func (s *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d) + 1))
}

func (s *simulation) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// clock is the cluster's time as a node reads it.
func (s *simulation) clock(n *simNode) int64 { return s.now + n.skew + s.jumped }

// newSimulation makes a run. Every second seed has no faults, so that the order and the time can be
// checked exactly; in a quarter of the seeds more events wait than have places.
func newSimulation(seed uint64) *simulation {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 2)), now: 1_800_000_000_000, most: MaxWaiting}
	s.faulty = seed%2 == 0
	s.jumps = seed%8 == 0
	s.steadyAt = s.now + (3 * time.Minute).Milliseconds()
	if seed%4 > 1 {
		s.most = 4 + s.rng.IntN(6)
	}
	for i := range 1 + s.rng.IntN(3) {
		n := &simNode{name: fmt.Sprint("n", i), live: map[*simEvent]bool{}}
		if s.faulty {
			n.skew = int64(s.rng.IntN(800)) - 400
		}
		s.nodes = append(s.nodes, n)
	}
	for i := range 10 + s.rng.IntN(50) {
		e := &simEvent{Event: Event{DueMs: s.now - int64(s.rng.IntN(40)), AddedMs: s.now - int64(s.rng.IntN(3))}}
		e.ID[0] = byte(i + 1)
		if s.rng.IntN(5) == 0 {
			e.fails = 1 + s.rng.IntN(3)
		}
		s.events = append(s.events, e)
	}
	return s
}

func (s *simulation) node() *simNode { return s.nodes[s.rng.IntN(len(s.nodes))] }

func (s *simulation) event(id schemas.TimerID) *simEvent {
	if int(id[0]) == 0 || int(id[0]) > len(s.events) {
		return nil
	}
	return s.events[id[0]-1]
}

// run delivers the events, and makes the faults, until nothing is left to do.
func (s *simulation) run() error {
	spread := []time.Duration{0, time.Second, time.Minute}[s.rng.IntN(3)]
	for _, e := range s.events {
		d := s.upTo(spread)
		s.lastAt = max(s.lastAt, s.now+d.Milliseconds())
		s.after(d, func() { s.deliver(e) })
	}
	began := s.now
	if s.faulty {
		for _, e := range s.events {
			s.redeliver(e)
		}
		for range s.rng.IntN(8) {
			s.after(s.upTo(2*time.Minute), func() { s.crash(s.node()) })
		}
		for range s.rng.IntN(5) {
			s.after(s.upTo(2*time.Minute), func() { s.node().cutUntil = s.now + s.upTo(40*time.Second).Milliseconds() })
		}
		for range s.rng.IntN(5) { // an event comes twice
			e := s.events[s.rng.IntN(len(s.events))]
			s.after(s.upTo(2*time.Minute), func() { s.deliver(e) })
		}
		for range s.rng.IntN(5) { // a cancel, by a process that may die before it says so
			e := s.events[s.rng.IntN(len(s.events))]
			s.after(s.upTo(2*time.Minute), func() { s.cancel(e) })
		}
		if s.jumps {
			s.after(s.upTo(2*time.Minute), func() { s.jumped = int64(s.rng.IntN(7200_000)) - 3600_000 })
		}
	}
	end := s.now + (24 * time.Hour).Milliseconds()
	for steps := 0; s.err == nil && s.left() > 0 && s.queue.Len() > 0; steps++ {
		at, do := s.queue.Next()
		if s.now = at; s.now > end || steps > 3_000_000 {
			break
		}
		do()
	}
	if s.err == nil && s.left() > 0 {
		s.fail("progress: %d of %d events are not concluded, head %x, %d wait", s.left(), len(s.events), s.state.Head.ID[0], len(s.state.Waiting))
	}
	if took := time.Duration(s.now-began) * time.Millisecond; s.err == nil && !s.faulty {
		most := time.Duration(s.lastAt-began)*time.Millisecond + s.called + time.Duration(len(s.events))*150*time.Millisecond + time.Second
		if s.most < len(s.events) {
			most += time.Duration(2+2*len(s.events)/s.most) * 2 * CollectFor
		}
		if took > most {
			s.fail("time: took %s, more than %s", took, most)
		}
	}
	return s.err
}

func (s *simulation) left() (n int) {
	for _, e := range s.events {
		if !e.final {
			n++
		}
	}
	return n
}

// redeliver delivers an event again and again until its record is concluded or waits in the wheel.
func (s *simulation) redeliver(e *simEvent) {
	s.after(15*time.Second, func() {
		if e.came && !e.waiting && s.now >= e.retryAt {
			s.deliver(e)
		}
		if !e.final {
			s.redeliver(e)
		}
	})
}

// crash ends a process with its calls. Its events are delivered again.
func (s *simulation) crash(n *simNode) {
	if !s.chance(1) {
		return
	}
	for _, c := range slices.Clone(s.running) {
		if c.n == n {
			s.endCall(c)
		}
	}
	n.incarnate++
	n.live = map[*simEvent]bool{}
}

// settle ends the handling of an event in a process.
func (s *simulation) settle(n *simNode, life int, e *simEvent) {
	if n.incarnate == life {
		delete(n.live, e)
	}
}

// cancel concludes an event that waits.
func (s *simulation) cancel(e *simEvent) {
	if !e.waiting || e.final {
		return
	}
	e.final, e.waiting = true, false
	if s.rng.IntN(2) == 0 {
		n := &simNode{name: "router"}
		s.decide(n, 0, e, Ask{Kind: Done, Event: Event{ID: e.ID}}, func(Answer) {})
	}
}

// deliver gives an event to a node.
func (s *simulation) deliver(e *simEvent) {
	n := s.node()
	life := n.incarnate
	e.came = true
	if e.final || e.waiting {
		return // acknowledged: the record is concluded, or waits in the wheel
	}
	if n.live[e] {
		s.after(100*time.Millisecond, func() { s.deliver(e) })
		return
	}
	n.live[e] = true
	s.decide(n, life, e, Ask{Kind: Join, Event: e.Event, Deferrals: e.defers}, func(a Answer) {
		switch {
		case a.Go:
			s.call(n, life, e)
		case a.Busy:
			s.settle(n, life, e)
			s.after(500*time.Millisecond, func() { s.deliver(e) })
		default:
			s.putBack(n, life, e, a.AtMs)
		}
	})
}

// putBack puts the record into the wheel, and asks once more.
func (s *simulation) putBack(n *simNode, life int, e *simEvent, atMs int64) {
	s.after(s.upTo(5*time.Millisecond), func() {
		if n.incarnate != life {
			return
		}
		if e.final || e.waiting {
			s.settle(n, life, e)
			return
		}
		e.defers++
		e.waiting = true
		s.moveTo(e, atMs)
		if s.chance(0.05) {
			s.crash(n)
			return
		}
		s.decide(n, life, e, Ask{Kind: Confirm, Event: e.Event}, func(Answer) { s.settle(n, life, e) })
	})
}

// moveTo makes a waiting record due at a time of the cluster's clock.
func (s *simulation) moveTo(e *simEvent, atMs int64) {
	e.slot = atMs
	e.wakeSeq++
	seq := e.wakeSeq
	s.after(time.Duration(atMs-s.now-s.jumped)*time.Millisecond+s.upTo(5*time.Millisecond), func() {
		if e.waiting && e.wakeSeq == seq {
			e.waiting = false
			s.deliver(e)
		}
	})
}

// decide makes a node ask one question until it is answered, as store.Orders does.
func (s *simulation) decide(n *simNode, life int, e *simEvent, ask Ask, then func(Answer)) {
	var try func(asks []Ask)
	try = func(asks []Ask) {
		s.after(s.upTo(3*time.Millisecond), func() {
			if n.incarnate != life {
				return
			}
			if s.now < n.cutUntil {
				s.after(100*time.Millisecond, func() { try(asks) })
				return
			}
			was, expect := s.state.Clone(), s.revision
			next := was.Clone()
			answers, wakes := Decide(&next, n.id(), s.clock(n), s.most, asks)
			s.after(s.upTo(3*time.Millisecond), func() {
				if !reflect.DeepEqual(was, next) {
					if s.revision != expect || s.now < n.cutUntil {
						try(asks)
						return
					}
					s.commit(was, next, asks)
					if s.chance(0.03) { // the answer is lost
						try(asks)
						return
					}
				}
				if n.incarnate == life && n.live != nil && s.chance(0.02) {
					s.crash(n) // between the decision and the wake
				}
				if n.incarnate != life {
					return
				}
				if ended := s.wake(wakes); len(ended) > 0 {
					again := asks[:1:1]
					for _, x := range ended {
						again = append(again, Ask{Kind: Done, Event: x})
					}
					try(again)
					return
				}
				then(answers[0])
			})
		})
	}
	try([]Ask{ask})
}

// wake carries out the wakes, and returns the concluded events.
func (s *simulation) wake(wakes []Wake) (ended []Event) {
	for _, w := range wakes {
		e := s.event(w.Event.ID)
		switch at := max(w.AtMs, s.now+s.jumped); {
		case e.final:
			ended = append(ended, w.Event)
		case e.waiting && e.slot > at:
			s.moveTo(e, at)
		}
	}
	return ended
}

// commit stores a state, and checks the step.
func (s *simulation) commit(was, next State, asks []Ask) {
	s.state = next.Clone()
	s.revision++
	if len(next.Waiting) > s.most {
		s.fail("bound: %d events wait, the limit is %d", len(next.Waiting), s.most)
	}
	for _, a := range asks {
		if e := s.event(a.Event.ID); a.Kind == Join && e != nil {
			e.asked = true
		}
	}
	for _, e := range s.events {
		e.aside = e.asked && e.ID != next.Head.ID && !slices.ContainsFunc(next.Waiting, func(w Event) bool { return w.ID == e.ID })
	}
	if was.Head.ID == next.Head.ID {
		return
	}
	if h := s.event(was.Head.ID); h != nil && !h.final {
		s.fail("overtaken: event %x lost its turn to %x before it was concluded", was.Head.ID[0], next.Head.ID[0])
	}
	if next.Head.IsZero() {
		return
	}
	for _, e := range s.events {
		if e.asked && !e.final && e.Compare(next.Head) < 0 && (!e.aside || !s.faulty) {
			s.fail("order: event %x gets its turn before %x, which had asked", next.Head.ID[0], e.ID[0])
		}
	}
}

// call makes the call of the head.
func (s *simulation) call(n *simNode, life int, e *simEvent) {
	if e.final { // the record is read before the call
		s.leave(n, life, e, Ask{Kind: Leave, Event: e.Event, Look: true})
		return
	}
	c := &simCall{e: e, n: n, life: life, renewed: s.now}
	for _, other := range s.running {
		if other.e != e || !s.jumps {
			s.fail("one at a time: event %x is called by %s while %x is by %s", e.ID[0], n.id(), other.e.ID[0], other.n.id())
		}
	}
	s.running = append(s.running, c)
	took := s.upTo(200 * time.Millisecond)
	if s.rng.IntN(8) == 0 {
		took = s.upTo(25 * time.Second)
	}
	s.renewals(c)
	s.after(took, func() {
		if !s.endCall(c) {
			return
		}
		e.attempts++
		s.called += took
		s.result(n, life, e)
	})
}

// result records the result of a call, and reports it.
func (s *simulation) result(n *simNode, life int, e *simEvent) {
	s.after(s.upTo(3*time.Millisecond), func() {
		if n.incarnate != life {
			return
		}
		if e.final {
			s.leave(n, life, e, Ask{Kind: Leave, Event: e.Event, Look: true})
			return
		}
		if e.fails >= e.attempts { // a retry after a while, in the wheel or in the consumer
			backoff := s.upTo(20 * time.Second)
			s.called += backoff
			e.retryAt = s.now + backoff.Milliseconds()
			s.after(backoff, func() { s.deliver(e) })
			s.leave(n, life, e, Ask{Kind: Leave, Event: e.Event})
			return
		}
		e.final = true
		if s.chance(0.1) {
			s.crash(n) // before it gives the turn on
			return
		}
		s.leave(n, life, e, Ask{Kind: Done, Event: e.Event})
	})
}

// leave reports the end of a call.
func (s *simulation) leave(n *simNode, life int, e *simEvent, ask Ask) {
	s.decide(n, life, e, ask, func(Answer) { s.settle(n, life, e) })
}

// endCall ends a call; false if it had ended.
func (s *simulation) endCall(c *simCall) bool {
	if c.ended {
		return false
	}
	c.ended = true
	s.running = slices.DeleteFunc(s.running, func(x *simCall) bool { return x == c })
	return true
}

// renewals renews the lease of a call, and cancels it if that fails.
func (s *simulation) renewals(c *simCall) {
	s.after(LeaseFor-2*time.Second, func() { s.expire(c) })
	s.after(LeaseFor/3, func() { s.keep(c) })
}

func (s *simulation) expire(c *simCall) {
	if c.ended {
		return
	}
	if left := c.renewed + (LeaseFor - 2*time.Second).Milliseconds() - s.now; left > 0 {
		s.after(time.Duration(left)*time.Millisecond, func() { s.expire(c) })
		return
	}
	s.lose(c)
}

// lose cancels a call whose lease is lost; its event is delivered again.
func (s *simulation) lose(c *simCall) {
	s.endCall(c)
	n, e := c.n, c.e
	s.after(time.Second, func() { s.deliver(e) })
	s.leave(n, c.life, e, Ask{Kind: Leave, Event: e.Event, Look: true})
}

func (s *simulation) keep(c *simCall) {
	if c.ended {
		return
	}
	began := s.now
	s.decide(c.n, c.life, c.e, Ask{Kind: Keep, Event: c.e.Event}, func(a Answer) {
		if c.ended {
			return
		}
		if !a.Go {
			s.lose(c)
			return
		}
		c.renewed = began
		s.after(LeaseFor/3, func() { s.keep(c) })
	})
}

// TestSimulation runs seeds of the simulation.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testsize.Choose(t, "seeds", 100, 200, 200)) {
		s := newSimulation(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d, %d events, %d places, %d nodes, faults %t: %v", seed, len(s.events), s.most, len(s.nodes), s.faulty, err)
		}
	}
}
