package store

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// Group commit. Where every write is synced (sync_interval: always), a write by
// itself costs an fsync, 0.12 ms in which its stream does nothing else. An atomic
// batch costs two milliseconds and then next to nothing a message. So while
// little is asked of a stream, writes go by themselves; once groupSingles of them
// are under way, those that follow wait for each other and go as one batch, and
// what comes while that is committed makes the next one.
//
// A batch that is refused, because one of its writes lost a compare-and-set or is
// a duplicate, has had no effect: it is halved until the one is found, and that
// one's answer is its own.
const (
	groupSingles = 16
	groupMin     = 24   // writes that are worth a batch
	groupMax     = 1000 // the server's limit
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
	pub    *publisher
	places chan struct{} // bounds what waits, in all groups together
	serial *atomic.Uint64
	wake   chan struct{}
	stop   chan struct{}

	mu      sync.Mutex
	queue   []write
	halves  [][]write // of batches that were refused: these go first
	singles int       // under way
	batch   bool      // one is under way
	closed  bool
}

// groups are those of a store's streams; nil where writes are not grouped.
type groups struct {
	places  chan struct{}
	stop    chan struct{}
	once    sync.Once
	stopped sync.WaitGroup
	pub     *publisher
	serial  atomic.Uint64

	mu sync.RWMutex
	by map[string]*group
}

func newGroups(pub *publisher, window int) *groups {
	return &groups{places: make(chan struct{}, window), stop: make(chan struct{}), pub: pub, by: map[string]*group{}}
}

// of is the group of a stream.
func (gs *groups) of(stream string) *group {
	gs.mu.RLock()
	g := gs.by[stream]
	gs.mu.RUnlock()
	if g != nil {
		return g
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g = gs.by[stream]; g == nil {
		g = &group{pub: gs.pub, places: gs.places, serial: &gs.serial, wake: make(chan struct{}, 1), stop: gs.stop}
		gs.by[stream] = g
		gs.stopped.Go(g.run)
	}
	return g
}

// close answers what waits; what is under way is the publisher's to answer.
func (gs *groups) close() {
	gs.once.Do(func() { close(gs.stop) })
	gs.stopped.Wait()
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for _, g := range gs.by {
		g.mu.Lock()
		rest := append(flatten(g.halves), g.queue...)
		g.queue, g.halves, g.closed = nil, nil, true
		g.mu.Unlock()
		g.answer(rest, nats.ErrConnectionClosed)
	}
}

func flatten(parts [][]write) (all []write) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// send takes a write; it blocks only for a place.
func (g *group) send(w write) {
	select {
	case g.places <- struct{}{}:
	default:
		select {
		case g.places <- struct{}{}:
		case <-g.stop:
			w.done(ack{}, mapError(w.op, nats.ErrConnectionClosed))
			return
		}
	}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		g.answer([]write{w}, nats.ErrConnectionClosed)
		return
	}
	if !g.batch && len(g.queue) == 0 && len(g.halves) == 0 && g.singles < groupSingles {
		g.singles++
		g.mu.Unlock()
		g.single(w)
		return
	}
	g.queue = append(g.queue, w)
	g.mu.Unlock()
}

// answer fails writes that did not go out.
func (g *group) answer(ws []write, err error) {
	for _, w := range ws {
		<-g.places
		w.done(ack{}, mapError(w.op, err))
	}
}

func (g *group) single(w write) {
	g.pub.send(w.op, w.subject, w.hdr, w.data, func(a ack, err error) {
		<-g.places
		g.mu.Lock()
		g.singles--
		g.mu.Unlock()
		g.signal()
		w.done(a, err)
	})
}

func (g *group) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run sends what waits, as places become free. Callbacks only wake it: they run
// on the goroutine that brings acknowledgements, which must not wait for one.
func (g *group) run() {
	for {
		select {
		case <-g.stop:
			return
		case <-g.wake:
		}
		for g.step() {
		}
	}
}

// step sends one batch, or one write; false if there is nothing to send now.
func (g *group) step() bool {
	g.mu.Lock()
	if g.batch {
		g.mu.Unlock()
		return false
	}
	var next []write
	switch {
	case len(g.halves) > 0:
		// The two parts of a batch that was refused stand first, in their order.
		next = g.halves[0]
		if len(next) < groupMin && g.singles+len(next) > groupSingles+groupMin {
			g.mu.Unlock()
			return false
		}
		g.halves = g.halves[1:]
	case len(g.queue) >= groupMin:
		n := min(len(g.queue), groupMax)
		next = g.queue[:n:n]
		if g.queue = g.queue[n:]; len(g.queue) == 0 {
			g.queue = nil
		}
	case len(g.queue) > 0 && g.singles < groupSingles:
		next = g.queue[:1:1]
		g.queue = g.queue[1:]
	default:
		g.mu.Unlock()
		return false
	}
	if len(next) < groupMin {
		g.singles += len(next)
		g.mu.Unlock()
		for _, w := range next {
			g.single(w)
		}
		return true
	}
	g.batch = true
	g.mu.Unlock()
	g.commit(next)
	return true
}

// commit sends a batch. Only its last message is answered.
func (g *group) commit(ws []write) {
	// Unique among all clients, as the inbox is.
	id := g.pub.prefix + strconv.FormatUint(g.serial.Add(1), 36)
	last := len(ws) - 1
	for i, w := range ws[:last] {
		if err := g.pub.nc.PublishMsg(&nats.Msg{Subject: w.subject, Header: batchHeader(w.hdr, id, i+1, false), Data: w.data}); err != nil {
			// Nothing is committed without the last message.
			g.finish()
			g.answer(ws, err)
			return
		}
	}
	w := ws[last]
	g.pub.send(w.op, w.subject, batchHeader(w.hdr, id, last+1, true), w.data, func(a ack, err error) { g.committed(ws, a, err) })
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

func (g *group) finish() {
	g.mu.Lock()
	g.batch = false
	g.mu.Unlock()
	g.signal()
}

func (g *group) committed(ws []write, a ack, err error) {
	n := len(ws)
	if err != nil && a.Error != nil {
		// Refused as a whole. Both halves go before anything else.
		g.mu.Lock()
		closed := g.closed
		if !closed {
			g.halves = append([][]write{ws[: n/2 : n/2], ws[n/2:]}, g.halves...)
		}
		g.batch = false
		g.mu.Unlock()
		if closed {
			g.answer(ws, nats.ErrConnectionClosed)
		}
		g.signal()
		return
	}
	g.finish()
	for i, w := range ws {
		<-g.places
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
	s.groups.of(stream).send(write{op: op, subject: subject, hdr: hdr, data: data, done: done})
}
