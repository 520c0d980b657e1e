package sim

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file simulates one feed apart from the cluster, because the faults of a feed need many
// more rests and wakes than a cluster has in two minutes. Production code runs the protocol:
// store.Waker for publishers and functions.Rester for nodes that serve. The simulation provides
// the key, the stream and the consumer, lost requests and answers, late and broken watches, and
// processes that die.

// PropResting means that an event of a resting service is delivered within feedBound. It needs the sweeper
// only if both its publisher and a process that serves have died.
const PropResting = "an event of a resting service is delivered"

// Times of the simulation. A publish must take less than feedGrace/2.
const (
	feedGrace   = 12 * time.Second
	feedIdle    = time.Second
	feedAckWait = 5 * time.Second
	feedTimeout = 5 * time.Second
	feedActive  = 6 * time.Minute
	feedQuiet   = 2 * time.Minute
	feedSweep   = 30 * time.Second
	// feedBound bounds the time until an event is delivered. It allows for the last check,
	// feedGrace after a rest, and for several lost requests in a row. If both a publisher and
	// a process that serves may die, the event may also wait for the sweeper.
	feedBound = 60 * time.Second
	// maxFeedEvents bounds the events of the simulation's queue. It is far more than a run has.
	maxFeedEvents = 500_000
)

// FeedStats are the counts of a run.
type FeedStats struct{ Published, Delivered, Rests, Wakes, Crashes, Behind int }

// feedWorld is one simulation of one feed.
type feedWorld struct {
	rng    *rand.Rand
	now    time.Duration
	queue  events
	order  uint64
	feed   store.Feed
	stats  FeedStats
	faults bool // false once the run ends
	mode   feedMode
	bound  time.Duration

	key     store.ServiceState
	revs    uint64
	changes []store.ServiceChange
	stream  []*feedEvent
	cons    *feedConsumer
	procs   []*feedProc
	failure string
}

// feedMode is which of the processes die. Three parts of the protocol find an event that is
// stored while its feed comes to rest: the publisher that follows the key, functions' checks
// after a rest, and the sweeper. Each hides a bug in another, so the last two modes leave only
// one part at work. In these modes one publisher publishes pairs of events, far apart, many
// more requests are lost, and watches break for longer.
type feedMode int

const (
	anyDies feedMode = iota
	// serversDie: every process that serves dies when it has put the feed to rest, so
	// only the publisher finds the event.
	serversDie
	// publishersDie: every publisher may die when its event is stored, so only functions'
	// checks find it.
	publishersDie
)

// feedEvent is a message of the stream. Its sequence is its position, counted from 1.
type feedEvent struct {
	id        int
	seq       uint64
	delivered bool
	removed   bool // acknowledged in a work queue
}

// feedConsumer is the durable consumer, while there is one.
type feedConsumer struct {
	floor   uint64
	last    time.Duration // of the last delivery or acknowledgement
	pending map[uint64]bool
	acked   uint64
	deleted bool
}

// feedProc is a process. Its tasks end with it.
type feedProc struct {
	w       *feedWorld
	dead    bool
	dies    func() // kills the process; nil if it lives until the end
	tasks   []*feedTask
	waker   *store.Waker
	serving *feedConsumer
	used    time.Duration
	busy    int
	serves  bool // it is a process of functions
	wanted  bool // a task serves the feed, or is about to
}

// feedTask is a coroutine of a process.
type feedTask struct {
	next   func() (struct{}, bool)
	cancel func()
	yield  func(struct{}) bool
}

type feedTaskKey struct{}

// RunFeed runs one seed. It returns a description of the violation, or "" if the property
// holds.
func RunFeed(seed uint64) (violation string, stats FeedStats) {
	w := &feedWorld{rng: rand.New(rand.NewPCG(seed, 0x66656564)), feed: store.Feed{Service: "s"}, faults: true}
	if seed%4 == 3 {
		w.feed.Kind = store.KindRetry
	}
	w.after(feedActive, func() { w.faults = false })
	publisherDies, serverDies := seed%3 != 1, seed%3 != 0
	publishers := 2
	switch {
	case seed%10 == 0: // without deaths
		publisherDies, serverDies = false, false
	case seed%5 == 4:
		w.mode = serversDie + feedMode(seed/5%2)
		publisherDies, serverDies, publishers = w.mode == publishersDie, w.mode == serversDie, 1
	}
	for range publishers {
		w.start((*feedProc).publish, publisherDies)
	}
	for range 2 {
		w.start((*feedProc).serve, serverDies)
	}
	w.bound = feedBound
	if publisherDies && serverDies {
		w.bound += feedSweep
		w.start((*feedProc).sweep, false)
	}
	w.loop()
	for _, p := range w.procs {
		p.kill()
	}
	for _, e := range w.stream {
		if !e.delivered && w.failure == "" {
			w.failure = fmt.Sprintf("event %d of %d was not delivered; the key is %+v", e.seq, len(w.stream), w.key)
		}
	}
	return w.failure, w.stats
}

func (w *feedWorld) loop() {
	for n := 0; w.queue.len() > 0; n++ {
		e := w.queue.pop()
		if w.now = time.Duration(e.at); w.now > feedActive+feedQuiet {
			return
		}
		if n > maxFeedEvents {
			w.failure = "the run does not end"
			return
		}
		e.f()
	}
}

func (w *feedWorld) after(d time.Duration, f func()) {
	w.order++
	w.queue.push(event{at: int64(w.now + d), order: w.order, f: f})
}

func (w *feedWorld) oneIn(n int) bool { return w.faults && w.rng.IntN(n) == 0 }

func (w *feedWorld) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// delay returns a random delay of the network, or of a slow process.
func (w *feedWorld) delay() time.Duration {
	if w.oneIn(10) {
		return w.upTo(2 * time.Second)
	}
	return w.upTo(5 * time.Millisecond)
}

// start starts a process, and starts another one whenever it dies.
func (w *feedWorld) start(run func(*feedProc, context.Context), dies bool) {
	p := &feedProc{w: w}
	p.waker = store.NewWaker(p, feedGrace, func() time.Time { return time.Unix(1_000_000_000, 0).Add(w.now) })
	w.procs = append(w.procs, p)
	p.spawn(func(ctx context.Context) { run(p, ctx) })
	if !dies {
		return
	}
	p.dies = func() {
		if !w.faults || p.dead {
			return
		}
		w.stats.Crashes++
		p.kill()
		w.after(w.upTo(3*time.Second), func() { w.start(run, true) })
	}
	if w.mode == anyDies {
		w.after(w.upTo(40*time.Second), p.dies)
	}
}

// mayDie sometimes kills the process. It is called at the most critical moment: right after a
// request has taken effect.
func (p *feedProc) mayDie(n int) {
	if p.dies != nil && p.w.oneIn(n) {
		p.w.after(0, p.dies)
	}
}

func (p *feedProc) kill() {
	p.dead = true
	for _, t := range p.tasks {
		t.cancel()
	}
	p.tasks = nil
}

// spawn runs f as a task of the process. It always returns true.
func (p *feedProc) spawn(f func(ctx context.Context)) bool {
	t := &feedTask{}
	ctx := context.WithValue(context.Background(), feedTaskKey{}, t)
	t.next, t.cancel = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if e := recover(); e != nil {
				if _, ok := e.(killed); !ok {
					panic(e)
				}
			}
		}()
		t.yield = yield
		f(ctx)
	})
	p.tasks = append(p.tasks, t)
	p.w.after(0, func() { p.resume(t) })
	return true
}

func (p *feedProc) resume(t *feedTask) {
	if !p.dead {
		t.next()
	}
}

// sleep pauses the task of ctx.
func (p *feedProc) sleep(ctx context.Context, d time.Duration) {
	t := ctx.Value(feedTaskKey{}).(*feedTask)
	p.w.after(d, func() { p.resume(t) })
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
}

// call makes a request. The request or its answer may be lost.
func (p *feedProc) call(ctx context.Context, effect func() error) error {
	w, loss := p.w, 25
	if w.mode != anyDies {
		loss = 8
	}
	if w.oneIn(loss) {
		p.sleep(ctx, feedTimeout)
		return schemas.ErrUnavailable
	}
	p.sleep(ctx, w.delay())
	err := effect()
	if w.oneIn(loss) {
		p.sleep(ctx, feedTimeout)
		return schemas.ErrUnavailable
	}
	p.sleep(ctx, w.delay())
	return err
}

// --- the server ---

// put changes the key by compare-and-set.
func (w *feedWorld) put(rev uint64, st store.ServiceState) error {
	if w.key.Rev != rev {
		return store.ErrRevision
	}
	w.revs++
	st.Rev = w.revs
	w.key = st
	w.changes = append(w.changes, store.ServiceChange{Feed: w.feed, Awake: st.Awake, Rev: st.Rev, Floor: st.Floor})
	return nil
}

// ServiceState reads the key. It and the following methods implement store.FeedKeys and
// functions.RestStore.
func (p *feedProc) ServiceState(ctx context.Context, _ store.Feed) (st store.ServiceState, err error) {
	err = p.call(ctx, func() error {
		st = p.w.key
		return nil
	})
	return st, err
}

// PutActive makes the feed awake.
func (p *feedProc) PutActive(ctx context.Context, _ store.Feed, floor, rev uint64) (next uint64, err error) {
	err = p.call(ctx, func() error {
		err := p.w.put(rev, store.ServiceState{Awake: true, Floor: floor})
		if err == nil {
			p.w.stats.Wakes++
		}
		next = p.w.key.Rev
		return err
	})
	return next, err
}

// RestService puts the feed to rest.
func (p *feedProc) RestService(ctx context.Context, _ store.Feed, rev, floor uint64) error {
	return p.call(ctx, func() error {
		err := p.w.put(rev, store.ServiceState{Floor: floor})
		if err == nil {
			p.w.stats.Rests++
			if p.w.mode == serversDie {
				p.mayDie(1)
			} else {
				p.mayDie(4)
			}
		}
		return err
	})
}

// WakeService wakes the feed.
func (p *feedProc) WakeService(ctx context.Context, f store.Feed) error {
	if p.waker.Awake(f) {
		return nil
	}
	return p.waker.WakeFor(ctx, f, 0)
}

// ServiceActivity looks at the consumer.
func (p *feedProc) ServiceActivity(ctx context.Context, _ store.Feed) (a store.ServiceActivity, err error) {
	err = p.call(ctx, func() error {
		c := p.w.cons
		if c == nil {
			a = store.ServiceActivity{Busy: true, Absent: true}
			return nil
		}
		a = store.ServiceActivity{Idle: p.w.now - c.last, Busy: len(c.pending) > 0, Floor: max(c.floor, c.acked)}
		return nil
	})
	return a, err
}

// ServiceBacklog reports whether there is an event after a floor.
func (p *feedProc) ServiceBacklog(ctx context.Context, f store.Feed, floor uint64) (left bool, err error) {
	err = p.call(ctx, func() error {
		left = false
		for _, e := range p.w.stream {
			left = left || !e.removed && (f.Kind == store.KindRetry || e.seq > floor)
		}
		if left {
			p.w.stats.Behind++
		}
		return nil
	})
	return left, err
}

// DropService removes the consumer.
func (p *feedProc) DropService(ctx context.Context, _ store.Feed) error {
	return p.call(ctx, func() error {
		if c := p.w.cons; c != nil {
			c.deleted = true
			p.w.cons = nil
		}
		return nil
	})
}

// consumer makes the consumer, or finds it.
func (p *feedProc) consumer(ctx context.Context, floor uint64) (c *feedConsumer, err error) {
	w := p.w
	err = p.call(ctx, func() error {
		if w.cons == nil {
			if w.feed.Kind == store.KindRetry || floor > uint64(len(w.stream)) {
				floor = 0
			}
			w.cons = &feedConsumer{floor: floor, last: w.now, pending: map[uint64]bool{}}
			for _, e := range w.stream {
				if e.seq > floor && !e.removed {
					w.offer(e)
				}
			}
		}
		c = w.cons
		return nil
	})
	return c, err
}

// offer hands an event to the consumer.
func (w *feedWorld) offer(e *feedEvent) {
	if c := w.cons; c != nil {
		c.pending[e.seq] = true
		w.deliver(c, e)
	}
}

// deliver hands an event to a process that serves, and repeats that until the event is
// acknowledged.
func (w *feedWorld) deliver(c *feedConsumer, e *feedEvent) {
	if c.deleted || !c.pending[e.seq] {
		return
	}
	var serving []*feedProc
	for _, p := range w.procs {
		if !p.dead && p.serving == c {
			serving = append(serving, p)
		}
	}
	if len(serving) == 0 {
		w.after(50*time.Millisecond, func() { w.deliver(c, e) })
		return
	}
	p := serving[w.rng.IntN(len(serving))]
	c.last = w.now
	w.after(feedAckWait, func() { w.deliver(c, e) })
	p.spawn(func(ctx context.Context) {
		p.busy++
		p.used = w.now
		p.sleep(ctx, w.upTo(300*time.Millisecond))
		if !e.delivered {
			e.delivered = true
			w.stats.Delivered++
		}
		p.busy--
		p.used = w.now
		_ = p.call(ctx, func() error { // if the request is lost, the event is delivered again
			if !c.deleted && c.pending[e.seq] {
				delete(c.pending, e.seq)
				c.last, e.removed = w.now, w.feed.Kind == store.KindRetry
				if len(c.pending) == 0 {
					c.acked = uint64(len(w.stream))
				}
			}
			return nil
		})
	})
}

// --- publishers ---

// publish publishes events one after the other. It repeats each until it is acknowledged.
func (p *feedProc) publish(ctx context.Context) {
	w := p.w
	p.spawn(func(ctx context.Context) { p.watch(ctx, false) })
	for w.faults {
		// Sometimes pause so long that no later event wakes the feed within the bound.
		pause := w.upTo(6 * time.Second)
		if w.rng.IntN(4) == 0 && w.mode == anyDies {
			pause += w.bound
		}
		p.sleep(ctx, pause)
		if w.mode != anyDies {
			// Publish a second event while the feed is put to rest, or soon after.
			w.stats.Published++
			p.publishOne(w.stats.Published)
			p.sleep(ctx, feedIdle/2+w.upTo(2*feedGrace))
			w.stats.Published++
			p.publishOne(w.stats.Published)
			p.sleep(ctx, w.bound)
			continue
		}
		for range 1 + w.rng.IntN(3) {
			w.stats.Published++
			p.publishOne(w.stats.Published)
		}
	}
}

func (p *feedProc) publishOne(id int) {
	p.spawn(func(ctx context.Context) {
		for done, ok := false, false; !ok; {
			done = false
			p.waker.Publish(ctx, p.w.feed, func(f func()) bool {
				f() // in this task: it waits for the outcome anyway
				return true
			}, func(ctx context.Context, f store.Feed) error { return p.waker.WakeFor(ctx, f, 0) }, func(answer func(uint64, bool, error)) {
				seq, duplicate, err := p.send(ctx, id)
				answer(seq, duplicate, err)
			}, func(_ uint64, _ bool, err error) { done, ok = true, err == nil })
			if !done {
				panic("a publish has no outcome")
			}
			if !ok {
				p.sleep(ctx, 100*time.Millisecond)
			}
		}
	})
}

// send stores an event, once for each id.
func (p *feedProc) send(ctx context.Context, id int) (seq uint64, duplicate bool, err error) {
	w := p.w
	err = p.call(ctx, func() error {
		for _, e := range w.stream {
			if e.id == id {
				seq, duplicate = e.seq, true
				return nil
			}
		}
		e := &feedEvent{id: id, seq: uint64(len(w.stream)) + 1}
		w.stream = append(w.stream, e)
		seq = e.seq
		w.offer(e)
		if w.mode == publishersDie {
			p.mayDie(2)
		}
		w.after(w.bound, func() {
			if !e.delivered && w.failure == "" {
				w.failure = fmt.Sprintf("event %d was not delivered within %s; the key is %+v", e.seq, w.bound, w.key)
			}
		})
		p.mayDie(6)
		return nil
	})
	return seq, duplicate, err
}

// wakeAgain wakes the feed for an event until that succeeds.
func (p *feedProc) wakeAgain(ctx context.Context, need uint64) {
	for p.waker.WakeFor(ctx, p.w.feed, need) != nil {
		p.sleep(ctx, 500*time.Millisecond)
	}
}

// watch follows the key. Its changes arrive late, and sometimes it breaks and begins again. If
// all is set, it begins with the present state of the key.
func (p *feedProc) watch(ctx context.Context, all bool) {
	w := p.w
	at := len(w.changes)
	if all && at > 0 {
		at--
	}
	for {
		for at < len(w.changes) {
			ch := w.changes[at]
			at++
			p.sleep(ctx, w.delay())
			p.changed(ch)
		}
		p.sleep(ctx, 20*time.Millisecond)
		breaks, longest := 400, 5*time.Second
		if w.mode != anyDies && !p.serves {
			breaks, longest = 100, 2*feedGrace
		}
		if !w.oneIn(breaks) {
			continue
		}
		p.sleep(ctx, w.upTo(longest))
		at = len(w.changes)
		if all && at > 0 {
			at--
		}
		for _, need := range p.waker.Missed() {
			p.spawn(func(ctx context.Context) { p.wakeAgain(ctx, need) })
		}
	}
}

func (p *feedProc) changed(ch store.ServiceChange) {
	if ch.Awake {
		p.want()
		return
	}
	p.serving = nil
	if need := p.waker.Rested(ch); need > 0 {
		p.spawn(func(ctx context.Context) { p.wakeAgain(ctx, need) })
	}
}

// sweep wakes the feed if an event without a result was published long ago, as the scheduler's
// sweeper does.
func (p *feedProc) sweep(ctx context.Context) {
	for {
		p.sleep(ctx, feedSweep)
		for _, e := range p.w.stream {
			if !e.delivered {
				for p.WakeService(ctx, p.w.feed) != nil {
					p.sleep(ctx, time.Second)
				}
				break
			}
		}
	}
}

// --- nodes that serve ---

// serve runs a process of functions.
func (p *feedProc) serve(ctx context.Context) {
	p.serves = true
	p.spawn(func(ctx context.Context) { p.watch(ctx, true) })
	rester := functions.Rester{Store: p}
	for {
		p.sleep(ctx, 200*time.Millisecond+p.w.upTo(200*time.Millisecond))
		if p.serving == nil || p.busy > 0 || p.w.now-p.used < feedIdle {
			continue
		}
		r, err := rester.Rest(ctx, p.w.feed, feedIdle)
		if r.InUse {
			p.used = p.w.now
		}
		if err != nil || !r.Done {
			continue
		}
		p.serving = nil
		p.spawn(func(ctx context.Context) { p.check(ctx, rester, r.Floor) })
	}
}

// check makes both checks of a feed that was put to rest.
func (p *feedProc) check(ctx context.Context, r functions.Rester, floor uint64) {
	for _, last := range []bool{false, true} {
		resting, err := r.Check(ctx, p.w.feed, floor, last)
		for ; err != nil; resting, err = r.Check(ctx, p.w.feed, floor, last) {
			p.sleep(ctx, time.Second)
		}
		if !resting {
			return
		}
		p.sleep(ctx, feedGrace)
	}
}

// want starts a task that serves the feed, unless there is one.
func (p *feedProc) want() {
	if !p.serves || p.wanted {
		return
	}
	p.wanted = true
	p.spawn(func(ctx context.Context) {
		defer func() { p.wanted = false }()
		for wait := 50 * time.Millisecond; ; p.sleep(ctx, wait) {
			st, err := p.ServiceState(ctx, p.w.feed)
			if err != nil {
				continue
			}
			if !st.Awake {
				p.serving = nil
				return
			}
			c, err := p.consumer(ctx, st.Floor)
			if err != nil {
				continue
			}
			p.serving, p.used = c, p.w.now
			for !c.deleted && p.serving == c {
				p.sleep(ctx, 20*time.Millisecond) // until the server reports that the consumer is gone
			}
		}
	})
}
