package store

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Group commit. Where every write is synced (sync_interval: always), a write by
// itself costs an fsync, and one that rolls up two. An atomic batch costs six and
// 1.5 ms of the server's CPU, and then next to nothing a message. All streams
// share one disk, so what is under way is bounded for the store as a whole: up to
// groupSingles writes go by themselves; once those are under way, writes wait, and
// groupMin of a stream go as one batch, or beside another one if they are many,
// the streams in turns. So the size of a batch follows from the load: it is what
// came while the other streams had their turn.
//
// A batch that is refused, because one of its writes lost a compare-and-set, is a
// duplicate or is too large, has had no effect: it is halved until the one is found,
// and that one's answer is its own. A write that the client itself refuses is known at
// once; the others of its batch are sent again.
const (
	groupSingles = 12
	groupMin     = 32   // writes that are worth a batch
	groupMax     = 1000 // the server's limit
	groupBatches = 2    // under way at a time: while one is synced the other is worked on
	// groupBeside writes are worth a batch beside another. Fewer had better wait and
	// become more: each batch takes the disk from single writes.
	groupBeside = 256
	// groupPatience is how long a batch keeps others waiting: its stream's server
	// may be dead, and others alive.
	groupPatience = 100 * time.Millisecond
)

const (
	batchIDHeader     = "Nats-Batch-Id"
	batchSeqHeader    = "Nats-Batch-Sequence"
	batchCommitHeader = "Nats-Batch-Commit"
)

// write is one message on its way.
type write struct {
	op, subject string
	hdr         nats.Header
	data        []byte
	done        func(ack, error)
}

// group gathers the writes of one stream.
type group struct {
	queue   []write
	halves  [][]write // of batches that were refused: these go first
	singles int       // under way
	batch   bool      // one is under way
	// sending says that a write has left the queue and not yet gone out: no other
	// may pass it.
	sending bool
}

// groups are those of a store's streams; nil where writes are not grouped.
type groups struct {
	pub     *publisher
	places  chan struct{} // bounds what waits and what is under way, of all streams
	wake    chan struct{}
	stop    chan struct{}
	once    sync.Once
	stopped sync.WaitGroup
	serial  atomic.Uint64

	mu      sync.Mutex
	by      map[string]*group
	all     []*group
	turn    int // whose turn it is in all
	singles int // under way, of all
	batches int
	closed  bool
}

func newGroups(pub *publisher, window int) *groups {
	gs := &groups{
		pub: pub, places: make(chan struct{}, window), wake: make(chan struct{}, 1),
		stop: make(chan struct{}), by: map[string]*group{},
	}
	gs.stopped.Go(gs.run)
	return gs
}

// of is the group of a stream. gs.mu is held.
func (gs *groups) of(stream string) *group {
	g := gs.by[stream]
	if g == nil {
		g = &group{}
		gs.by[stream], gs.all = g, append(gs.all, g)
	}
	return g
}

// close answers what waits; what is under way is the publisher's to answer.
func (gs *groups) close() {
	gs.once.Do(func() { close(gs.stop) })
	gs.stopped.Wait()
	gs.mu.Lock()
	gs.closed = true
	var rest []write
	for _, g := range gs.all {
		rest = append(append(rest, flatten(g.halves)...), g.queue...)
		g.queue, g.halves = nil, nil
	}
	gs.mu.Unlock()
	gs.answer(rest, nats.ErrConnectionClosed)
}

func flatten(parts [][]write) (all []write) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// send takes a write; it blocks only for a place.
func (gs *groups) send(stream string, w write) {
	select {
	case gs.places <- struct{}{}:
	default:
		select {
		case gs.places <- struct{}{}:
		case <-gs.stop:
			w.done(ack{}, mapError(w.op, nats.ErrConnectionClosed))
			return
		}
	}
	gs.mu.Lock()
	if gs.closed {
		gs.mu.Unlock()
		gs.answer([]write{w}, nats.ErrConnectionClosed)
		return
	}
	g := gs.of(stream)
	if !g.batch && !g.sending && len(g.queue) == 0 && len(g.halves) == 0 && gs.singleMay(g) {
		g.singles++
		gs.singles++
		gs.mu.Unlock()
		gs.single(g, w)
		return
	}
	g.queue = append(g.queue, w)
	n := len(g.queue)
	gs.mu.Unlock()
	if n == groupMin || n == groupBeside {
		gs.signal()
	}
}

// singleMay reports whether one more write of a stream may go by itself. Each
// stream may have one under way, however busy the others are.
func (gs *groups) singleMay(g *group) bool { return gs.singles < groupSingles || g.singles == 0 }

// answer fails writes that did not go out.
func (gs *groups) answer(ws []write, err error) {
	for _, w := range ws {
		<-gs.places
		w.done(ack{}, mapError(w.op, err))
	}
}

func (gs *groups) single(g *group, w write) {
	gs.pub.send(w.op, w.subject, w.hdr, w.data, func(a ack, err error) {
		<-gs.places
		gs.mu.Lock()
		g.singles--
		gs.singles--
		gs.mu.Unlock()
		gs.signal()
		w.done(a, err)
	})
}

func (gs *groups) signal() {
	select {
	case gs.wake <- struct{}{}:
	default:
	}
}

// run sends what waits, as places become free. Callbacks only wake it: they run
// on the goroutine that brings acknowledgements, which must not wait for one.
func (gs *groups) run() {
	for {
		select {
		case <-gs.stop:
			return
		case <-gs.wake:
		}
		for gs.step() {
		}
	}
}

// step sends one batch, or some single writes of one stream; false if there is
// nothing to send now.
func (gs *groups) step() bool {
	gs.mu.Lock()
	for range gs.all {
		g := gs.all[gs.turn]
		gs.turn = (gs.turn + 1) % len(gs.all)
		next := gs.next(g)
		if len(next) == 0 {
			continue
		}
		if len(next) >= groupMin {
			g.batch = true
			gs.batches++
			gs.mu.Unlock()
			gs.commit(g, next)
			return true
		}
		g.singles += len(next)
		gs.singles += len(next)
		g.sending = true
		gs.mu.Unlock()
		for _, w := range next {
			gs.single(g, w)
		}
		gs.mu.Lock()
		g.sending = false
		gs.mu.Unlock()
		return true
	}
	gs.mu.Unlock()
	return false
}

// next takes what of a stream may go now: groupMin writes or more as a batch,
// fewer each by itself. gs.mu is held.
func (gs *groups) next(g *group) []write {
	switch {
	case g.batch:
		return nil
	case len(g.halves) > 0:
		// The two parts of a batch that was refused stand first, in their order.
		next := g.halves[0]
		if len(next) >= groupMin && !gs.batchMay(len(next)) || len(next) < groupMin && g.singles > groupSingles {
			return nil
		}
		g.halves = g.halves[1:]
		return next
	case len(g.queue) >= groupMin:
		if !gs.batchMay(len(g.queue)) {
			return nil
		}
		return g.take(min(len(g.queue), groupMax))
	case len(g.queue) > 0 && gs.singleMay(g):
		return g.take(1)
	}
	return nil
}

// batchMay reports whether a batch of n writes may go now.
func (gs *groups) batchMay(n int) bool {
	return gs.batches == 0 || gs.batches < groupBatches && n >= groupBeside
}

// take takes the first n writes of the queue.
func (g *group) take(n int) []write {
	next := g.queue[:n:n]
	if g.queue = g.queue[n:]; len(g.queue) == 0 {
		g.queue = nil
	}
	return next
}

// commit sends a batch. Only its last message is answered.
func (gs *groups) commit(g *group, ws []write) {
	// One that is not answered for long keeps only its own stream waiting.
	leave := sync.OnceFunc(func() {
		gs.mu.Lock()
		gs.batches--
		gs.mu.Unlock()
	})
	late := time.AfterFunc(groupPatience, func() {
		leave()
		gs.signal()
	})
	end := func() {
		late.Stop()
		leave()
		gs.signal()
	}
	// Unique among all clients, as the inbox is.
	id := gs.pub.prefix + strconv.FormatUint(gs.serial.Add(1), 36)
	last := len(ws) - 1
	for i, w := range ws[:last] {
		if err := gs.pub.nc.PublishMsg(&nats.Msg{Subject: w.subject, Header: batchHeader(w.hdr, id, i+1, false), Data: w.data}); err != nil {
			// Nothing is committed without the last message.
			if Permanent(mapError(w.op, err)) {
				gs.without(g, ws, i, err, end)
				return
			}
			gs.finish(g, nil)
			end()
			gs.answer(ws, err)
			return
		}
	}
	w := ws[last]
	gs.pub.send(w.op, w.subject, batchHeader(w.hdr, id, last+1, true), w.data, func(a ack, err error) {
		gs.committed(g, ws, a, err, end)
	})
}

func batchHeader(h nats.Header, id string, seq int, commit bool) nats.Header {
	out := make(nats.Header, len(h)+3)
	for k, v := range h {
		out[k] = v
	}
	out[batchIDHeader] = []string{id}
	out[batchSeqHeader] = []string{strconv.Itoa(seq)}
	if commit {
		out[batchCommitHeader] = []string{"1"}
	}
	return out
}

// finish ends a batch; what is to be tried again goes before all else. It
// reports whether that will be.
func (gs *groups) finish(g *group, again [][]write) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g.batch = false
	if gs.closed {
		return false
	}
	if len(again) > 0 {
		g.halves = append(again, g.halves...)
	}
	return true
}

// without sends a batch again without the write that the client refuses for good,
// which is answered.
func (gs *groups) without(g *group, ws []write, refused int, err error, end func()) {
	var rest [][]write
	for _, part := range [][]write{ws[:refused:refused], ws[refused+1:]} {
		if len(part) > 0 {
			rest = append(rest, part)
		}
	}
	again := gs.finish(g, rest)
	end()
	gs.answer(ws[refused:refused+1], err)
	if !again {
		gs.answer(flatten(rest), nats.ErrConnectionClosed)
	}
}

func (gs *groups) committed(g *group, ws []write, a ack, err error, end func()) {
	n := len(ws)
	if a.Error == nil && Permanent(err) {
		// The client has refused the last write; no answer has come from the server.
		gs.without(g, ws, n-1, errors.Unwrap(err), end)
		return
	}
	if err != nil && a.Error != nil {
		// Refused as a whole. Both halves go before anything else.
		again := gs.finish(g, [][]write{ws[: n/2 : n/2], ws[n/2:]})
		end()
		if !again {
			gs.answer(ws, nats.ErrConnectionClosed)
		}
		return
	}
	gs.finish(g, nil)
	end()
	for i, w := range ws {
		<-gs.places
		if err != nil {
			w.done(ack{}, err)
			continue
		}
		// A batch takes sequences that follow each other.
		w.done(ack{Seq: a.Seq - uint64(n-1-i)}, nil)
	}
}

// write sends a message to a stream, by itself or with others.
func (s *Store) write(stream, op, subject string, hdr nats.Header, data []byte, done func(ack, error)) {
	if s.groups == nil {
		s.pub.send(op, subject, hdr, data, done)
		return
	}
	s.groups.send(stream, write{op: op, subject: subject, hdr: hdr, data: data, done: done})
}
