package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// This file simulates one feed apart from the cluster, because the faults of a feed need many
// more rests and wakes than a cluster has in two minutes. Production code runs the protocol:
// store.Waker for publishers and functions.Rester for nodes that serve. The simulation provides
// the key, the stream and the consumer (feedserver.go), processes that die, lost requests and
// answers (feedproc.go), and the loops of publishers (feedpublish.go) and of nodes that serve
// (feedserve.go), with late and broken watches.

// PropResting means that an event of a resting service is delivered within feedBound, also if
// its publisher and the process that put the feed to rest have died. The scheduler's sweeper
// does not take part.
const PropResting = "an event of a resting service is delivered"

// Times of the simulation. A publish must take less than feedGrace/2.
const (
	feedGrace   = 12 * time.Second
	feedIdle    = time.Second
	feedAckWait = 5 * time.Second
	feedTimeout = 5 * time.Second
	feedActive  = 6 * time.Minute
	feedQuiet   = 2 * time.Minute
	// feedOld is the age from which on a rest is checked at once; functions' restedBefore.
	feedOld = time.Second
	// feedBound bounds the time until an event is delivered. It allows for the last check,
	// feedGrace after a rest, and for several lost requests in a row.
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
	calm   bool // watches break rarely, in mode publisherFinds
	bound  time.Duration

	key     store.ServiceState
	revs    uint64
	changes []store.ServiceChange
	stream  []*feedEvent
	cons    *feedConsumer
	procs   []*feedProc
	failure string
}

// feedMode is which of the processes die. These parts of the protocol find an event that is
// stored while its feed comes to rest: the publisher that follows the key, and the checks of
// the process that put it to rest and of the other processes that serve. Each hides a bug in
// another, so each of the other modes leaves only one part at work. In these modes one publisher
// publishes pairs of events, far apart, and many more requests are lost.
type feedMode int

const (
	anyDies feedMode = iota
	// publisherFinds: every process that serves dies when it has put the feed to rest, and
	// the others do not check the feed, so only the publisher finds the event. In half of the
	// runs its watch breaks often, which makes it look at the key again and again; in the
	// other half rarely.
	publisherFinds
	// publishersDie: every publisher may die when its event is stored, so only functions'
	// checks find it.
	publishersDie
	// watchFails: the publisher's watch breaks for longer than the bound. The checks are over
	// when it publishes its second event, so it must not trust that the feed is still awake.
	watchFails

	feedModes = int(watchFails)
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
		w.mode = publisherFinds + feedMode(seed/5%uint64(feedModes))
		w.calm = seed%2 == 0
		publisherDies, serverDies, publishers = w.mode == publishersDie, w.mode == publisherFinds, 1
	}
	for range publishers {
		w.start((*feedProc).publish, publisherDies)
	}
	for range 2 {
		w.start((*feedProc).serve, serverDies)
	}
	w.bound = feedBound
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
