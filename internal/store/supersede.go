package store

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 1 (docs/internals/nats-server.md). A write of a record leaves the replaced
// revision on disk. If the server drops that revision because of the bucket's history limit,
// it writes nothing about it to the file. When later the newest revision expires, and the
// server is killed before it writes its index, the rebuilt bucket has the older revision
// again: for example a delivered record, with its event, of a timer that was done long ago
// (nats-server 2.15.2 and before). Therefore Belfry removes every replaced revision itself,
// in one of two ways that the file records:
//
//   - A roll-up: the server removes the older revision with the write itself. It visits every
//     block of the file between the two revisions. That takes 5 µs if they are in memory,
//     and hundreds of milliseconds in a shard of 400,000 timers that has been idle.
//   - A delete of the one sequence after the write was acknowledged: 40 µs of CPU.
//
// A write rolls up if the older revision could fire after it came back:
//   - when a timer is cancelled, paused or moved, because the old index entry still names the timer
//     (not for a schedule whose last due time is more than nearAge past: its old index entry
//     has expired);
//   - when the new revision expires within shortTTL, maybe before a node that dies is up again.
//
// A write also rolls up where that is cheap: if the timer was added less than nearAge ago, and
// in warm shards (see warmth). All other writes delete.
//
// A process that dies between a write and its delete leaves the older revision behind. So
// does a server that dies between a write and its roll-up. See leftover.go. A write that gets no
// answer may leave it behind, too; see unanswered.go.
//
// Work-around 19: a roll-up shall not remove two revisions. If it did, the server would count the pending
// messages of each consumer of the stream, and the stream would take no write meanwhile. For a consumer that
// reads far behind the stream's end, such as that of a search index that catches up, the server visits all
// subjects of the stream: 22 ms in a shard of 300,000 timers. So while the delete of a record's replaced
// revision is queued or in flight, the next write of the record does not roll up: the revision that it
// replaces is deleted, too. A write that must roll up waits for the delete.
const (
	// nearAge is the age of a timer up to which its revisions are near each other in the file.
	nearAge = time.Minute
	// shortTTL is the TTL below which a revision is written with a roll-up. It must be longer
	// than the restart of a node, which removes leftovers.
	shortTTL = 10 * time.Minute
	// history is the limit of revisions of a key in a bucket of timers. Only marks of far entries, journals and touches reach it.
	history = 16
	// removals bounds the deletes in flight. It must stay far below 10,000 requests, at which
	// JetStream drops its whole queue (work-around 9).
	removals = 256
	// removeRetry is the pause before a failed delete is sent again.
	removeRetry = 100 * time.Millisecond
	// closeBound bounds the time that Close waits for deletes.
	closeBound = time.Second
)

// revisionGC removes the revisions of records that later revisions have replaced: it decides
// which writes roll up, and deletes the revisions that other writes replaced. Safe for
// concurrent use.
type revisionGC struct {
	jet    *jet.Client
	shards *Shards
	nodes  *Nodes
	log    zerolog.Logger
	// window is the greatest number of writes in flight. replicated is true if the shards'
	// streams have replicas.
	window     int
	replicated bool
	// shortTTL is the constant shortTTL, except in tests.
	shortTTL time.Duration

	rem        *remover
	unanswered unansweredWrites
	writes     []oldWrites // by shard
	// touches has an element when a shard was marked for a touch.
	touches chan struct{}
	// rush has an element when a rush has begun in a shard and warmth has not handled it.
	rush chan struct{}
}

// oldWrites has the number of writes to one shard that replace a record of a timer older than
// nearAge (see warmth), and the mark for a touch of the shard (see touch.go).
type oldWrites struct {
	n    atomic.Int64 // in the current window
	warm atomic.Bool
	// blocks is the number of blocks of the shard's stream; unknownBlocks at first.
	blocks atomic.Uint64
	touch  atomic.Bool
}

// unknownBlocks makes a shard too large to be warm.
const unknownBlocks = math.MaxUint64

func newRevisionGC(c *jet.Client, shards *Shards, nodes *Nodes, window int, replicated bool, log zerolog.Logger) *revisionGC {
	g := &revisionGC{
		jet: c, shards: shards, nodes: nodes, log: log, window: window, replicated: replicated, shortTTL: shortTTL,
		rem: newRemover(c, window), unanswered: unansweredWrites{after: [2]time.Duration{unansweredFirst, unansweredLast}}, writes: make([]oldWrites, shards.geo.Shards), rush: make(chan struct{}, 1), touches: make(chan struct{}, 1),
	}
	if replicated {
		g.rem.notFound = func(v superseded) {
			g.unanswered.add(1, unansweredWrite{revision: v.revision, subject: v.subject, at: time.Now()})
		}
	}
	for n := range g.writes {
		g.writes[n].blocks.Store(unknownBlocks)
	}
	return g
}

// mustRollUp reports whether the revision that w replaces could fire if it returned.
func (g *revisionGC) mustRollUp(w *Write) bool {
	switch w.Record.State {
	case schemas.StateCancelled:
		return true
	case schemas.StatePending, schemas.StatePaused:
		// The replaced revision of a schedule that runs seldom is far away in the file. If it
		// returned, it would not fire: its due time is past, and its index entry has expired.
		if s := w.Record.Schedule; s == nil || s.Last.Run == 0 || w.Record.DueMs-s.Last.DueMs < nearAge.Milliseconds() {
			return true
		}
	}
	return w.TTL > 0 && w.TTL < g.shortTTL
}

// isYoung reports whether the timer of w was added less than an age ago. It is false if the cluster's time is not known.
func (g *revisionGC) isYoung(w *Write, age time.Duration) bool {
	now, ok := g.nodes.carriedMs()
	return ok && now-w.Record.AddedMs < age.Milliseconds()
}

// signal fills a channel of one element, unless it is full.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// mayRollUp reports whether a roll-up with w is cheap. It counts w for warmth.
func (g *revisionGC) mayRollUp(w *Write) bool {
	if g.isYoung(w, nearAge) {
		return true
	}
	sh := &g.writes[g.shards.geo.Shard(w.ID)]
	if sh.n.Add(1)%rushWrites == 0 {
		signal(g.rush) // warmth handles all rushes at once
	}
	return sh.warm.Load()
}

// The server keeps the subjects of a block in memory for two minutes after their last use.
// If oldWrites grows by warmRate per second, the writes of a shard use all of its blocks more
// often than that. Its roll-ups then find all blocks in memory, and keep them there: the
// shard is warm.
const (
	// warmCheck is the length of a window in which oldWrites counts.
	warmCheck = 10 * time.Second
	// blocksCheck is the interval at which the blocks of the shards are counted.
	blocksCheck = time.Minute
	// warmWindows is the number of busy windows in a row that make a shard warm.
	warmWindows = 3
	// warmRate is the number of oldWrites per second that make a window busy.
	warmRate = 70
	// warmBlocks is the number of blocks of a shard's stream above which a roll-up costs more
	// than a delete, although all blocks are in memory.
	warmBlocks = 200
	// blockBytes is the size of a block in nats-server's file store.
	blockBytes = 8 << 20
	// rushWrites, and rushPerBlock for each block of the shard's stream, is the number of oldWrites in one window
	// that is a rush: a burst of timers that were added long before. A rush makes a shard warm at once. The first
	// roll-up then reads all blocks, up to 20 ms each, while the stream takes no writes. As many deletes as make
	// a rush have cost about as much: 40 µs of CPU each, and an fsync of some 0.3 ms if every write is synced.
	rushWrites   = 1000
	rushPerBlock = 60
	// rushBlocks is the number of blocks above which no number of writes is a rush: it bounds the time in which the
	// stream takes no writes.
	rushBlocks = 64
	// blocksRetry is the pause before a shard whose number of blocks is not known is asked again.
	blocksRetry = time.Second
)

// isRush reports whether a number of oldWrites in one window is a rush in a shard with a number of blocks.
func isRush(writes int64, blocks uint64) bool {
	return blocks <= rushBlocks && writes >= max(rushWrites, rushPerBlock*int64(blocks))
}

// warmth decides which shards are warm, after each window and when a rush begins, until ctx
// ends. It asks for the number of blocks before there is a rush: while thousands of deletes wait, the server
// answers other requests seconds later.
func (g *revisionGC) warmth(ctx context.Context) {
	var counting sync.WaitGroup
	defer counting.Wait()
	counting.Go(func() { g.countBlocks(ctx) })
	tick := time.NewTicker(warmCheck)
	defer tick.Stop()
	streak := make([]int, g.shards.geo.Shards)
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.rush:
			for n := range g.writes {
				if sh := &g.writes[n]; !sh.warm.Load() && isRush(sh.n.Load(), sh.blocks.Load()) {
					streak[n] = warmWindows
					sh.warm.Store(true)
				}
			}
			continue
		case <-tick.C:
		}
		for n := range g.writes {
			sh := &g.writes[n]
			busy := sh.n.Swap(0) >= warmRate*int64(warmCheck/time.Second) && sh.blocks.Load() <= warmBlocks
			if streak[n]++; !busy {
				streak[n] = 0
			}
			sh.warm.Store(streak[n] >= warmWindows)
		}
	}
}

// countBlocks keeps the numbers of blocks until ctx ends.
func (g *revisionGC) countBlocks(ctx context.Context) {
	for {
		next := blocksCheck
		for n := range g.writes {
			blocks := &g.writes[n].blocks
			if info, err := g.jet.Stream(ctx, g.shards.subjects[n].stream); err == nil {
				blocks.Store(info.State.Bytes / blockBytes)
			} else if blocks.Load() == unknownBlocks {
				next = blocksRetry
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// revision is a revision of a record.
type revision struct {
	stream string
	seq    uint64
}

// superseded is a revision of a record that a later revision has replaced.
type superseded struct {
	revision
	subject string
	by      uint64 // the sequence of the later revision
	// reconnects is the number of reconnects before the later revision was written or read, or checkFirst; see
	// remover.check.
	reconnects uint64
	// void is the time, in Unix nanoseconds, at which a void revision was stored: its timer has ended, and the final
	// record has expired. by is then the revision itself. It is 0 for a revision that a later one has replaced.
	void int64
}

// checkFirst is a number of reconnects that makes the remover check a revision before it deletes it.
const checkFirst = math.MaxUint64

// later returns the revision that has replaced s.
func (s superseded) later() revision { return revision{s.stream, s.by} }

// remover deletes superseded revisions after the writes that replaced them, at most removals
// at a time. A write takes a permit (reserve) before it is sent. Its superseded revision
// keeps the permit until it is deleted, which bounds the queue.
//
// After a lost connection the server may have lost its power, and with it the later revision, if it does not sync
// every write. The revision in the queue is then the record again, or a new message has its sequence. So the remover
// checks what was queued before the connection was lost.
type remover struct {
	jet      *jet.Client
	permits  chan struct{} // an element for each permit that is taken
	inflight chan struct{} // an element for each delete in flight
	wake     chan struct{} // has an element when the queue may not be empty
	stop     chan struct{} // closed when run must end
	stopped  sync.WaitGroup
	// notFound, if not nil, takes a revision that a check has not found. The server may have led the stream before, and not
	// have it.
	notFound func(superseded)

	mu    sync.Mutex
	queue []superseded
	idle  *sync.Cond // signals that taken is 0
	taken int        // permits
	// after has the revisions whose predecessors are in the queue or being deleted, with the calls that
	// wait for that; nil when run has ended.
	after map[revision][]func()
}

func newRemover(c *jet.Client, window int) *remover {
	r := &remover{
		jet: c, permits: make(chan struct{}, window), inflight: make(chan struct{}, removals),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), after: map[revision][]func(){},
	}
	r.idle = sync.NewCond(&r.mu)
	r.stopped.Go(r.run)
	return r
}

// reserve takes a permit for the write or the search that op names, and waits for it. Errors: schemas.ErrUnavailable if
// the remover has ended, or if it has to wait while the connection is down: then no delete returns a permit. ctx.Err().
func (r *remover) reserve(ctx context.Context, op string) error {
	select {
	case r.permits <- struct{}{}:
	default:
		if err := r.waitForPermit(ctx, op); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.taken++
	r.mu.Unlock()
	return nil
}

func (r *remover) waitForPermit(ctx context.Context, op string) error {
	tick := time.NewTicker(removeRetry)
	defer tick.Stop()
	for {
		select {
		case r.permits <- struct{}{}:
			return nil
		case <-r.stop:
			return r.jet.ClosedError(op)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if r.jet.Down() {
				return r.jet.DownError(op)
			}
		}
	}
}

// release returns a permit.
func (r *remover) release() {
	<-r.permits
	r.mu.Lock()
	if r.taken--; r.taken == 0 {
		r.idle.Broadcast()
	}
	r.mu.Unlock()
}

// put queues a revision for deletion. The revision takes over the caller's permit.
func (r *remover) put(v superseded) {
	r.mu.Lock()
	r.queue = append(r.queue, v)
	if _, ok := r.after[v.later()]; !ok && r.after != nil {
		r.after[v.later()] = nil
	}
	r.mu.Unlock()
	signal(r.wake)
}

// deletes reports whether the predecessor of a revision is in the queue or being deleted.
func (r *remover) deletes(v revision) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.after[v]
	return ok
}

// call calls fn on another goroutine once the predecessor of v is deleted, or that has failed for the next time: a
// call shall not wait as long as the server does not answer. It calls fn at once if that predecessor is neither
// queued nor being deleted. When the remover ends, it makes all calls that still wait.
func (r *remover) call(v revision, fn func()) {
	r.mu.Lock()
	waiting, ok := r.after[v]
	if ok {
		r.after[v] = append(waiting, fn)
	}
	r.mu.Unlock()
	if !ok {
		fn()
	}
}

// gone takes note that a revision is deleted.
func (r *remover) gone(v superseded) {
	r.mu.Lock()
	waiting := r.after[v.later()]
	delete(r.after, v.later())
	r.mu.Unlock()
	r.release()
	callAll(waiting)
}

// again queues a revision whose delete has failed.
func (r *remover) again(v superseded) {
	r.mu.Lock()
	waiting := r.after[v.later()]
	if waiting != nil {
		r.after[v.later()] = nil
	}
	r.mu.Unlock()
	callAll(waiting)
	// Retry until the delete succeeds or the store is closed.
	time.AfterFunc(removeRetry, func() { r.put(v) })
}

// callAll makes calls, each on a goroutine: this one may be that which receives acknowledgements, which must not publish.
func callAll(fns []func()) {
	for _, fn := range fns {
		go fn()
	}
}

// take empties the queue and returns its elements.
func (r *remover) take() []superseded {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queue
	r.queue = nil
	return q
}

// run deletes the queued revisions until stop is closed.
func (r *remover) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var checks sync.WaitGroup
	defer checks.Wait()
	defer cancel() // before the wait
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
			if now := r.jet.Reconnects(); now != v.reconnects {
				checks.Go(func() { r.check(ctx, v, now) })
				continue
			}
			r.remove(v)
		}
	}
}

// check deletes a revision that was queued before the connection was lost, if it is a replaced revision of the same
// record still. reconnects is the number of reconnects now.
func (r *remover) check(ctx context.Context, v superseded, reconnects uint64) {
	replaced, err := r.replaced(ctx, v)
	again := err != nil || r.jet.Reconnects() != reconnects
	if replaced && !again {
		v.reconnects = reconnects
		r.remove(v)
		return
	}
	<-r.inflight
	if again {
		r.again(v)
		return
	}
	r.gone(v)
}

// replaced reports whether a revision exists, and a later one of the same record. A void revision needs no later one.
func (r *remover) replaced(ctx context.Context, v superseded) (bool, error) {
	m, err := r.jet.At(ctx, v.stream, v.seq)
	if errors.Is(err, schemas.ErrNotFound) {
		r.missing(v)
		return false, nil
	}
	if err == nil && m.Subject != v.subject {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if v.void != 0 {
		return m.Time.UnixNano() == v.void, nil // otherwise a new message has the sequence
	}
	last, err := r.jet.Last(ctx, v.stream, v.subject)
	if errors.Is(err, schemas.ErrNotFound) {
		r.missing(v)
		return false, nil
	}
	return err == nil && last.Sequence > v.seq, err
}

// missing passes a revision on that a check has not found, unless the check follows a look, which has a look after it, or the
// revision is void.
func (r *remover) missing(v superseded) {
	if r.notFound != nil && v.reconnects != checkFirst {
		r.notFound(v)
	}
}

// remove deletes one revision, and returns its permit when the revision is gone.
func (r *remover) remove(v superseded) {
	r.jet.DeleteMsgAsync("remove a superseded revision", v.stream, v.seq, func(err error) {
		<-r.inflight
		if err == nil || errors.Is(err, schemas.ErrNotFound) {
			r.gone(v)
			return
		}
		r.again(v)
	})
}

// close waits up to closeBound for the deletes that are queued or in flight, ends run, and makes the
// calls that still wait. It may be called twice.
func (r *remover) close() {
	late := time.AfterFunc(closeBound, func() {
		r.mu.Lock()
		r.taken = 0
		r.idle.Broadcast()
		r.mu.Unlock()
	})
	r.mu.Lock()
	for r.taken > 0 && !r.jet.Down() {
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
	r.mu.Lock()
	waiting := r.after
	r.after = nil
	r.mu.Unlock()
	for _, fns := range waiting {
		for _, fn := range fns {
			fn()
		}
	}
}
