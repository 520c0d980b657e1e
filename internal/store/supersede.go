package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 1 (docs/internals/nats-server.md). A record that replaces another leaves the older revision on disk. If the
// server drops it because of the bucket's history limit, it does so without a
// trace in the file, and when the newest revision expires by its TTL and the
// server is killed before its index is written, the rebuilt bucket brings the
// older one back: a delivered record, with its event, under a timer that was
// done long ago (nats-server 2.15.2 and before). So no revision here is ever
// dropped by the limit; each one is removed so that the file says it is gone:
//
//   - by a roll-up, which the server carries out with the write itself, where the
//     timer was added within nearAge. A roll-up visits every block of the file
//     between the two revisions, which costs 5 µs when they are in memory and
//     hundreds of milliseconds when a shard of 400,000 timers has been idle;
//   - by a roll-up also where the shard is so busy that its blocks are in memory,
//     and not so large that visiting them costs more than a delete; and in a rush of
//     old timers where it is so small that they soon will be (see warmth);
//   - by a delete of that one sequence after the write was acknowledged, else;
//     that is 40 µs of CPU;
//   - always by a roll-up where a timer that is due in the future is cancelled or
//     moved, since its index entry would make a returned record fire, and where the
//     new revision expires before a node that dies would be up again.
//
// A process that dies between a write and its delete leaves a revision behind, and
// so does a server between a write and its roll-up; see leftover.go.
const (
	nearAge = time.Minute
	// shortTTL is the TTL below which a revision is written with a roll-up.
	shortTTL = 10 * time.Minute
	// history is the limit of revisions of a key in a bucket of timers. It is never
	// reached: see above.
	history = 16
	// removals bounds the deletes in flight: far below the 10,000
	// requests at which JetStream drops its whole queue (work-around 9).
	removals    = 256
	removeRetry = 100 * time.Millisecond
	// closeBound bounds the time that Close waits for deletes in flight.
	closeBound = time.Second
)

// revisionGC removes the revisions of records that later ones have replaced. Safe for
// concurrent use.
type revisionGC struct {
	jet    *jet.Client
	shards *Shards
	nodes  *Nodes
	log    zerolog.Logger
	// window is the greatest number of writes in flight, replicated true if the shards'
	// streams have replicas.
	window     int
	replicated bool
	// shortTTL is the constant; tests change it.
	shortTTL time.Duration

	rem    *remover
	writes []oldWrites // by shard
	// rush has an element when many old timers are replaced in some shard; see warmth.
	rush chan struct{}
}

// oldWrites describes the replaced records of old timers in a shard; see warmth.
type oldWrites struct {
	n    atomic.Int64
	warm atomic.Bool
}

func newRevisionGC(c *jet.Client, shards *Shards, nodes *Nodes, window int, replicated bool, log zerolog.Logger) *revisionGC {
	return &revisionGC{
		jet: c, shards: shards, nodes: nodes, log: log, window: window, replicated: replicated, shortTTL: shortTTL,
		rem: newRemover(c, window), writes: make([]oldWrites, shards.geo.Shards), rush: make(chan struct{}, 1),
	}
}

// rollsUp reports whether w removes the revision that it replaces by a roll-up, rather than
// by a delete after it.
func (g *revisionGC) rollsUp(w *Write) bool {
	switch w.Record.State {
	case schemas.StateCancelled, schemas.StatePending, schemas.StatePaused:
		return true
	}
	if w.TTL > 0 && w.TTL < g.shortTTL {
		return true
	}
	if now, ok := g.nodes.carriedMs(); ok && now-w.Record.AddedMs < nearAge.Milliseconds() {
		return true
	}
	sh := &g.writes[g.shards.geo.Shard(w.ID)]
	if sh.n.Add(1) == rushWrites {
		select {
		case g.rush <- struct{}{}:
		default: // warmth has a rush to handle
		}
	}
	return sh.warm.Load()
}

// The server keeps a block's subjects in memory for two minutes after they were
// last looked at. A shard in which old timers are replaced at warmRate looks at
// all of its blocks more often than that, and then roll-ups keep them there.
const (
	warmCheck   = 10 * time.Second
	warmWindows = 3   // this many windows in a row make a shard warm
	warmRate    = 70  // replaced old timers a second
	warmBlocks  = 200 // above, a delete is cheaper
	blockBytes  = 8 << 20
	// A rush is this many replaced old timers in one window: a burst of timers that
	// were added long before. In a shard of at most rushBlocks their deletes, an
	// fsync each where every write is synced, cost more than reading its blocks once.
	rushWrites = 1000
	rushBlocks = 16
)

// warmth decides, window by window and when a rush begins, which shards are warm.
func (g *revisionGC) warmth(ctx context.Context) {
	tick := time.NewTicker(warmCheck)
	defer tick.Stop()
	streak := make([]int, g.shards.geo.Shards)
	blocks := func(n int) uint64 {
		info, err := g.jet.Stream(ctx, g.shards.subjects[n].stream)
		if err != nil {
			return 1<<64 - 1 // as if it were too large
		}
		return info.State.Bytes / blockBytes
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.rush:
			for n := range g.writes {
				if sh := &g.writes[n]; sh.n.Load() >= rushWrites && !sh.warm.Load() && blocks(n) <= rushBlocks {
					streak[n] = warmWindows
					sh.warm.Store(true)
				}
			}
			continue
		case <-tick.C:
		}
		for n := range g.writes {
			sh := &g.writes[n]
			busy := sh.n.Swap(0) >= warmRate*int64(warmCheck/time.Second) && blocks(n) <= warmBlocks
			if streak[n]++; !busy {
				streak[n] = 0
			}
			sh.warm.Store(streak[n] >= warmWindows)
		}
	}
}

// superseded is a revision that a later revision has replaced.
type superseded struct {
	stream string
	seq    uint64
}

// remover deletes superseded revisions after the writes that replaced them, at most removals
// at a time.
type remover struct {
	jet *jet.Client
	// places bounds the writes that will leave something to delete, and the
	// deletes that wait or are under way, together.
	places   chan struct{}
	inflight chan struct{}
	wake     chan struct{}
	stop     chan struct{}
	stopped  sync.WaitGroup

	mu    sync.Mutex
	queue []superseded
	idle  *sync.Cond
	open  int // places taken
}

func newRemover(c *jet.Client, window int) *remover {
	r := &remover{
		jet: c, places: make(chan struct{}, window), inflight: make(chan struct{}, removals),
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	r.idle = sync.NewCond(&r.mu)
	r.stopped.Go(r.run)
	return r
}

// reserve takes a place; false if the remover has ended.
func (r *remover) reserve() bool {
	select {
	case r.places <- struct{}{}:
	default:
		select {
		case r.places <- struct{}{}:
		case <-r.stop:
			return false
		}
	}
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	return true
}

func (r *remover) release() {
	<-r.places
	r.mu.Lock()
	if r.open--; r.open == 0 {
		r.idle.Broadcast()
	}
	r.mu.Unlock()
}

// put queues a revision for deletion. It takes over the place that was reserved.
func (r *remover) put(v superseded) {
	r.mu.Lock()
	r.queue = append(r.queue, v)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *remover) take() []superseded {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queue
	r.queue = nil
	return q
}

func (r *remover) run() {
	for {
		select {
		case <-r.stop:
			return
		case <-r.wake:
		}
		for _, v := range r.take() {
			select {
			case r.inflight <- struct{}{}:
			case <-r.stop:
				return
			}
			r.remove(v)
		}
	}
}

func (r *remover) remove(v superseded) {
	r.jet.DeleteMsgAsync("remove a superseded revision", v.stream, v.seq, func(err error) {
		<-r.inflight
		if err == nil || errors.Is(err, schemas.ErrNotFound) {
			r.release()
			return
		}
		// Retry until the delete succeeds or the store is closed.
		time.AfterFunc(removeRetry, func() { r.put(v) })
	})
}

// close waits for the deletes that are queued or under way, up to closeBound.
func (r *remover) close() {
	late := time.AfterFunc(closeBound, func() {
		r.mu.Lock()
		r.open = 0
		r.idle.Broadcast()
		r.mu.Unlock()
	})
	r.mu.Lock()
	for r.open > 0 && !r.jet.Down() {
		r.idle.Wait()
	}
	r.mu.Unlock()
	late.Stop()
	select {
	case <-r.stop:
	default:
		close(r.stop)
	}
	r.stopped.Wait()
}
