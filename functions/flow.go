package functions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file asks flow control before each call. Package flow makes the decisions; flowdelivery.go
// applies them to a delivery.
//
//	delivery ──ask──▶ flowGate of the key ── decides for all that ask, one CAS of the state ──▶ verdict
//
// A gate exists while deliveries of its key wait or run in this process. Without any limit a
// delivery costs one atomic load: see delivery.permitted.

const (
	// maxFlowWaiting and maxFlowBytes bound the deliveries that wait without a permit of their
	// service, over all keys, and the bytes of their events. Further ones are delivered again
	// flowFullPause later.
	maxFlowWaiting = 4096
	maxFlowBytes   = 64 << 20
	flowFullPause  = time.Second
	// maxFlowAhead is the longest time that a delivery waits in this process for its slot.
	maxFlowAhead = flow.Ahead
	// askHold is the longest time that a delivery keeps the permit of its service while it waits
	// for a verdict: a few times as long as a compare-and-set takes on a busy machine.
	askHold = 250 * time.Millisecond
	// flowHold is the longest time that a delivery keeps the permit while it waits for its slot.
	// A delivery whose admission ended before a permit was free keeps the next permit for up to
	// maxFlowAhead, so that it is called in the end.
	flowHold = 10 * time.Millisecond
	// flowAdopt is the time after which a gate adopts a state of a later generation than the
	// limit. Every copy of the limits is newer by then, so the later limit was deleted, and the limit
	// of a pattern applies again.
	flowAdopt = 3 * store.FlowFresh
	// flowStale is the interval at which a gate looks for a fresh copy of the limits.
	flowStale = 20 * time.Millisecond
	// maxRecentStates bounds the states of idle keys that a process remembers, which saves a
	// read; compare-and-set finds the states that have changed.
	maxRecentStates = 10_000
	// maxFlowBatch bounds the deliveries for which a gate decides at once.
	maxFlowBatch = 1000
)

// Flows has the store's calls for the limits of flow keys. Package store documents each call.
type Flows interface {
	FlowsNow() (set *store.FlowSet, fresh bool)
	FlowState(ctx context.Context, key string) (store.FlowKeyState, error)
	PutFlowState(ctx context.Context, s store.FlowKeyState, ttl time.Duration) (uint64, error)
	ChangeHold(ctx context.Context, key string, nowMs int64, change func(h *store.FlowHold) bool) (store.FlowHold, error)
	PutTargetRate(ctx context.Context, t store.TargetRate) error
	EndTargetRate(ctx context.Context, t store.TargetRate) error
	FlowReplan(ctx context.Context, pattern string) (store.Replan, error)
	PutFlowReplan(ctx context.Context, r store.Replan, deleted bool) (uint64, error)
	EachDeferred(ctx context.Context, shard int, fn func(store.Timer) (more bool, err error)) error
	Geometry() schemas.Geometry
}

// flowControl has the gates of the flow keys that are in use in this process.
type flowControl struct {
	f     *Functions
	node  string
	holds *flowHolds
	// maxReplan bounds the events that a node moves before it reads the shards again.
	maxReplan int

	mu    sync.Mutex
	gates map[string]*flowGate
	// recent has the last known states of keys, at most maxRecentStates.
	recent map[string]store.FlowKeyState
	// newer has the keys whose state has a later generation than their limit, and since when; at
	// most maxRecentStates.
	newer map[string]time.Time
	// waiting and bytes count the deliveries that wait without a permit of their service.
	waiting, bytes int
}

func newFlowControl(f *Functions) *flowControl {
	// A process that starts again under its name does not own the slots of its calls before.
	node := fmt.Sprintf("%s.%08x", f.o.Node, rand.Uint32())
	return &flowControl{f: f, node: node, holds: newFlowHolds(), maxReplan: defaultMaxReplan, gates: map[string]*flowGate{}, recent: map[string]store.FlowKeyState{}, newer: map[string]time.Time{}}
}

// park counts a delivery that waits without a permit. It returns false if too many wait.
func (c *flowControl) park(size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting >= maxFlowWaiting || c.waiting > 0 && c.bytes+size > maxFlowBytes {
		return false
	}
	c.waiting++
	c.bytes += size
	return true
}

func (c *flowControl) unpark(size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting--
	c.bytes -= size
}

// newerFor returns the time for which the state of a key has had a later generation than its limit; 0
// if newer is false.
func (c *flowControl) newerFor(key string, newer bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !newer {
		delete(c.newer, key)
		return 0
	}
	since, known := c.newer[key]
	if !known {
		if len(c.newer) >= maxRecentStates {
			clear(c.newer)
		}
		since = time.Now()
		c.newer[key] = since
	}
	return time.Since(since)
}

// nowNs returns the cluster's time in Unix nanoseconds.
func (c *flowControl) nowNs() int64 { return c.f.o.Now() * int64(time.Millisecond) }

// steadyFor returns the time since the cluster's clock was last stepped, or was first read.
func (c *flowControl) steadyFor() time.Duration {
	if c.f.o.SteadyFor == nil {
		return 1<<63 - 1
	}
	return c.f.o.SteadyFor()
}

// flowGate decides about the deliveries of one flow key, one batch at a time, and holds the
// key's slots of this process.
type flowGate struct {
	c     *flowControl
	label string // of metrics: the service that asked first
	key   string
	// wake has an element when asking or running has changed.
	wake chan struct{}

	// The next are guarded by flowControl.mu.

	// asking are the deliveries without a verdict, in the order in which they asked.
	asking []*flowAsk
	// running is the number of calls that hold a slot, or have been permitted to begin.
	running int
	// took is the average duration of the calls in this process, in nanoseconds; 0 for unknown.
	took int64
	// calledAt is the time at which the first call in this process began; zero for none.
	calledAt time.Time

	// Only run uses the next.

	// parked are the deliveries that wait for a free slot, until parkedUntil.
	parked      []*flowAsk
	parkedUntil time.Time
	// state is the last known state; known is false if it must be read.
	state store.FlowKeyState
	known bool
	// held is the number of slots that the state has for this process, renewed since heldSince.
	held      int
	heldSince time.Time
	// slots is the life of the slots; nil while the process holds none.
	slots *lease
}

// errSlotsLost is the cause of the cancellation of calls whose slots could not be renewed.
var errSlotsLost = errors.New("the slots of the flow key could not be renewed: another node may take them")

// flowAsk is a delivery that asks for its call.
type flowAsk struct {
	arrival flow.Arrival
	// answer gets one answer.
	answer chan flowAnswer
}

// flowAnswer is the answer to a flowAsk.
type flowAnswer struct {
	flow.Verdict
	generation uint64
	// free is true if no limit applies.
	free bool
	// unreadable is true if the limit or the state cannot be read by this node.
	unreadable bool
	// slot is the slot of a permitted call under a parallel limit; nil for none.
	slot *flowSlot
}

// flowSlot is a slot of one call. Its context ends if the slot is lost.
type flowSlot struct {
	g     *flowGate
	slots *lease
	began time.Time
	// called is true once the call began.
	called bool
}

// begin notes that the call begins. It may be called on a nil slot.
func (s *flowSlot) begin() {
	if s == nil {
		return
	}
	s.began, s.called = time.Now(), true
	s.g.c.mu.Lock()
	defer s.g.c.mu.Unlock()
	if s.g.calledAt.IsZero() {
		s.g.calledAt = s.began
	}
}

// leave returns the slot. It may be called on a nil slot.
func (s *flowSlot) leave() {
	if s == nil {
		return
	}
	c := s.g.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.g.running--
	if s.called {
		took := int64(time.Since(s.began))
		if s.g.took == 0 {
			s.g.took = took
		}
		s.g.took += (took - s.g.took) / 8
	}
	signal(s.g.wake)
}

// lost reports whether the slot was lost. It may be called on a nil slot.
func (s *flowSlot) lost() bool { return s != nil && s.slots.lost() }

// ask asks for a call of a key.
func (c *flowControl) ask(key, label string, a flow.Arrival) *flowAsk {
	q := &flowAsk{arrival: a, answer: make(chan flowAnswer, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gates[key]
	if g == nil {
		g = &flowGate{c: c, key: key, label: label, wake: make(chan struct{}, 1)}
		g.state, g.known = c.recent[key]
		c.gates[key] = g
		c.f.background.Go(g.run)
	}
	g.asking = append(g.asking, q)
	signal(g.wake)
	return q
}

// withdraw cancels a question whose delivery does not wait for the answer.
func (c *flowControl) withdraw(key string, q *flowAsk) {
	c.mu.Lock()
	if g := c.gates[key]; g != nil {
		if i := slices.Index(g.asking, q); i >= 0 {
			g.asking = slices.Delete(g.asking, i, i+1)
			c.mu.Unlock()
			return
		}
	}
	c.mu.Unlock()
	// The gate answers, or has answered: return the slot.
	c.f.background.Go(func() {
		select {
		case a := <-q.answer:
			a.slot.leave()
		case <-c.f.recording.Done():
		}
	})
}

// run decides until the gate is idle.
func (g *flowGate) run() {
	for g.await() {
		batch := slices.Concat(g.parked, g.take())
		g.parked = nil
		if len(batch) > 0 {
			g.decide(batch)
		}
		g.renew()
	}
}

// await waits until there is something to decide or to renew. It returns false, and removes the
// gate, when there is nothing left.
func (g *flowGate) await() bool {
	for {
		g.c.mu.Lock()
		asking, running := len(g.asking), g.running
		stopped := g.c.f.pulling.Err() != nil
		if stopped { // the deliveries that ask return by themselves
			asking, g.asking, g.parked = 0, nil, nil
		}
		if asking == 0 && len(g.parked) == 0 && running == 0 && g.held == 0 || g.c.f.recording.Err() != nil {
			delete(g.c.gates, g.key)
			if g.known {
				if len(g.c.recent) >= maxRecentStates {
					clear(g.c.recent)
				}
				g.c.recent[g.key] = g.state
			}
			g.c.mu.Unlock()
			return false
		}
		g.c.mu.Unlock()
		wait := time.Duration(1<<63 - 1)
		if asking > 0 || running < g.held {
			return true
		}
		if len(g.parked) > 0 {
			wait = time.Until(g.parkedUntil)
		}
		if g.held > 0 {
			wait = min(wait, time.Until(g.heldSince.Add(flow.LeaseFor/3)))
		}
		if wait <= 0 {
			return true
		}
		g.c.f.awaitWake(g.wake, wait)
	}
}

// take returns the deliveries that ask, at most maxFlowBatch.
func (g *flowGate) take() []*flowAsk {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	n := min(len(g.asking), max(maxFlowBatch-len(g.parked), 1))
	batch := slices.Clone(g.asking[:n])
	g.asking = slices.Delete(g.asking, 0, n)
	return batch
}

// decide answers a batch, except the deliveries that wait for a slot: it parks them.
func (g *flowGate) decide(batch []*flowAsk) {
	f := g.c.f
	all := func(a flowAnswer) {
		for _, q := range batch {
			q.answer <- a
		}
	}
	for wait := minPause; ; {
		if f.pulling.Err() != nil {
			return // functions stops: the deliveries return by themselves
		}
		set, fresh := f.o.Store.FlowsNow()
		if !fresh {
			g.renew()
			pause.For(f.pulling, flowStale)
			continue
		}
		l, ok := set.Find(g.key)
		switch {
		case ok && l.Err != nil:
			g.complain(l.Err)
			all(flowAnswer{unreadable: true})
			return
		case !ok, !l.Limit.Bounds():
			all(flowAnswer{free: true})
			return
		case g.c.steadyFor() < flow.StepSettle:
			g.renew()
			pause.For(f.pulling, flowStale)
			continue
		}
		err := g.try(l, batch)
		switch {
		case err == nil:
			return
		case errors.Is(err, schemas.ErrNewer):
			g.complain(err)
			all(flowAnswer{unreadable: true})
			return
		case errors.Is(err, store.ErrRevision):
			// Another node decided at the same time. A random pause lets one of them win.
			f.metrics.flowConflicts.Inc()
			pause.Random(f.pulling, flow.ConflictPause)
		default:
			g.complain(err)
			g.expire()
			pause.For(f.pulling, wait)
			wait = min(wait*2, maxPause)
		}
	}
}

// try decides about a batch by one compare-and-set of the state, and answers it. After an error it has
// answered nothing: admissions in a write whose answer was lost stay unused.
func (g *flowGate) try(l store.FlowLimit, batch []*flowAsk) error {
	cached := g.known
	if err := g.read(l.Limit); err != nil {
		return err
	}
	rev := g.state.Rev
	arrivals := make([]flow.Arrival, len(batch))
	for i, q := range batch {
		arrivals[i] = q.arrival
	}
	running := g.calls()
	var verdicts []flow.Verdict
	began := time.Now()
	adopt := g.c.newerFor(g.key, g.state.State.Generation > l.Rev) > flowAdopt
	err := g.write(func(s *flow.State, nowNs int64) {
		if adopt {
			s.Generation = 0
		}
		verdicts = flow.Decide(l.Limit, l.Rev, g.c.node, s, nowNs, running, arrivals)
	})
	if err != nil {
		return err
	}
	if cached && g.state.Rev == rev && slices.ContainsFunc(verdicts, waits) {
		// Nothing was written, so other nodes may have returned slots since the state was read.
		g.known = false
		return g.try(l, batch)
	}
	if l.Limit.Parallel > 0 && (g.slots == nil || g.slots.lost()) {
		g.slots = newLease(g.c.f.calling, flow.LeaseFor, errSlotsLost)
	}
	if g.held = g.slotsHeld(); g.held > 0 {
		g.renewedAt(began)
	}
	g.parkedUntil = began.Add(maxFlowAhead)
	for i, q := range batch {
		a := flowAnswer{Verdict: verdicts[i], generation: l.Rev}
		switch {
		case a.Kind == flow.Wait && l.Limit.Parallel > 0 && a.AtNs-g.c.nowNs() <= int64(maxFlowAhead):
			g.parked = append(g.parked, q)
			if until := time.Now().Add(time.Duration(a.AtNs - g.c.nowNs())); until.Before(g.parkedUntil) {
				g.parkedUntil = until
			}
			continue
		case a.Kind == flow.Go && l.Limit.Parallel > 0:
			g.c.mu.Lock()
			g.running++
			g.c.mu.Unlock()
			a.slot = &flowSlot{g: g, slots: g.slots}
		}
		q.answer <- a
	}
	return nil
}

func waits(v flow.Verdict) bool { return v.Kind == flow.Wait }

// read reads the state unless it is known.
func (g *flowGate) read(l flow.Limit) (err error) {
	if g.known {
		return nil
	}
	g.state, err = g.c.f.o.Store.FlowState(g.c.f.recording, g.key)
	if errors.Is(err, schemas.ErrDamaged) {
		g.complain(err)
		g.state.State, err = flow.Worst(l, g.c.nowNs(), maxFlowAhead), nil
	}
	g.known = err == nil
	return err
}

// calls returns the number of calls that hold a slot, or have been permitted to begin.
func (g *flowGate) calls() int {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return g.running
}

// write changes the state by compare-and-set. If a call has ended in this process, the state
// then has the average duration of its calls; otherwise the time for which the first one has run.
func (g *flowGate) write(change func(s *flow.State, nowNs int64)) error {
	now := g.c.nowNs()
	next := g.state
	next.State = g.state.State.Clone()
	g.c.mu.Lock()
	switch {
	case g.took != 0:
		next.State.TookNs = g.took
	case g.running > 0 && !g.calledAt.IsZero():
		next.State.NoteRunning(time.Since(g.calledAt))
	}
	g.c.mu.Unlock()
	if g.c.steadyFor() < flow.StepDoubt {
		next.State.KeepLeases(now)
	}
	change(&next.State, now)
	if g.state.State.Equal(&next.State) {
		return nil
	}
	rev, err := g.c.f.o.Store.PutFlowState(g.c.f.recording, next, time.Duration(next.State.UsedUntilNs()-now))
	if err != nil {
		g.known = false
		return err
	}
	next.Rev = rev
	g.state = next
	return nil
}

// slotsHeld returns the slots that the state has for this process.
func (g *flowGate) slotsHeld() int {
	for _, x := range g.state.State.Leases {
		if x.Node == g.c.node {
			return x.Slots
		}
	}
	return 0
}

// renew renews the slots of the calls that run, and returns the others. It tries once; run calls it
// again after an error.
func (g *flowGate) renew() {
	running := g.calls()
	if g.held == 0 || running == g.held && time.Since(g.heldSince) < flow.LeaseFor/3 {
		return
	}
	began := time.Now()
	err := g.read(flow.Limit{})
	if err == nil {
		err = g.write(func(s *flow.State, nowNs int64) { s.Hold(g.c.node, running, nowNs) })
	}
	switch {
	case err == nil:
		g.held = running
		g.renewedAt(began)
		if running == 0 && g.slots != nil {
			g.slots.drop(nil)
			g.slots = nil
		}
		return
	case errors.Is(err, store.ErrRevision):
		g.c.f.metrics.flowConflicts.Inc()
		pause.Random(g.c.f.recording, flow.ConflictPause)
	default:
		g.complain(err)
		pause.For(g.c.f.recording, minPause)
	}
	g.expire()
}

// expire cancels the calls whose slots could not be renewed, before another node may take the
// slots.
func (g *flowGate) expire() {
	if g.slots == nil || time.Since(g.heldSince) < flow.LeaseFor-leaseMargin {
		return
	}
	g.slots.drop(errSlotsLost)
	g.slots, g.held = nil, 0
}

// renewedAt notes that the slots of this process were renewed by a state that was computed at began.
func (g *flowGate) renewedAt(began time.Time) {
	g.heldSince = began
	if g.slots != nil {
		g.slots.renewed(began)
	}
}

// complain logs the reason why the gate cannot decide.
func (g *flowGate) complain(err error) { g.c.complain(g.key, err) }

// complain logs the reason why no decision about a key is possible.
func (c *flowControl) complain(key string, err error) {
	f := c.f
	if f.recording.Err() == nil && f.complaints.Allow("flow "+key, time.Now()) {
		f.o.Log.Warn().Err(err).Str("flow", key).Msg("flow control cannot decide about a key; its events wait")
	}
}
