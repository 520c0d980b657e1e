package jet

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Batch commit. Where the server syncs every write (sync_interval: always), a write by
// itself costs an fsync, and a write that rolls up costs two. An atomic batch costs six
// fsyncs and 1.5 ms of the server's CPU, and then next to nothing a message. All streams
// share one disk, so the committer bounds the writes in flight for all streams together:
//
//   - up to maxSingles writes go by themselves;
//   - once those are in flight, writes wait, and minBatch of a stream or more go as one
//     batch, the streams in turns;
//   - while one batch is in flight, a second one goes only if it has minSecondBatch
//     writes.
//
// The size of a batch adapts to the load: a batch takes what arrived while the other
// streams had their turn.
//
// The server refuses a batch as a whole if one of its writes lost a compare-and-set, is a
// duplicate or is too large. The committer then splits the batch in two, and each half
// again, until that write is alone and gets its own answer. A write that the client
// itself refuses is known at once; the committer sends the rest of its batch again.
//
// Work-around 18 (docs/internals/nats-server.md). When the server commits a batch, it rewrites older blocks of the
// stream, without what was removed from them, before it syncs the block with the new messages. If the power
// fails between the two, both revisions of a key that the batch replaced with a roll-up may be gone. A write by
// itself is synced before the server removes the revision that it replaces. So a batch leaves out the roll-ups of
// Writes.ReplaceAsync.
const (
	maxSingles = 12
	minBatch   = 16
	// MaxBatch is the server's limit of messages in a batch.
	MaxBatch = 1000
	// maxBatches are in flight at a time: while one is synced the server works on the
	// other.
	maxBatches = 2
	// minSecondBatch is the least size of a second batch in flight. A smaller one had
	// better wait and grow: each batch takes the disk from single writes.
	minSecondBatch = 256
	// batchPatience is how long a batch without an answer keeps other streams waiting:
	// its stream's server may be dead, and theirs alive.
	batchPatience = 100 * time.Millisecond
)

const (
	batchIDHeader     = "Nats-Batch-Id"
	batchSeqHeader    = "Nats-Batch-Sequence"
	batchCommitHeader = "Nats-Batch-Commit"
)

// write is a message that waits or is in flight.
type write struct {
	op, subject string
	hdr         nats.Header
	data        []byte
	done        func(Ack, error)
	// keepReplaced says that a batch leaves out the roll-up.
	keepReplaced bool
}

// streamWrites are the writes of one stream.
type streamWrites struct {
	queue   []write
	halves  [][]write // parts of refused batches, which go first
	singles int       // in flight
	batch   bool      // a batch is in flight
	// sending says that a write has left the queue and is not sent yet: no other write
	// may overtake it.
	sending bool
}

// committer commits the writes of several streams, by themselves or in batches.
type committer struct {
	pub     *publisher
	permits chan struct{} // bounds the writes that wait or are in flight
	wake    chan struct{}
	stop    chan struct{}
	once    sync.Once
	stopped sync.WaitGroup
	serial  atomic.Uint64

	mu      sync.Mutex
	by      map[string]*streamWrites
	all     []*streamWrites
	turn    int // index in all of the stream whose turn it is
	singles int // in flight, of all streams
	batches int // in flight, of all streams
	closed  bool
}

func newCommitter(pub *publisher, window int) *committer {
	c := &committer{
		pub: pub, permits: make(chan struct{}, window), wake: make(chan struct{}, 1),
		stop: make(chan struct{}), by: map[string]*streamWrites{},
	}
	c.stopped.Go(c.run)
	return c
}

// of returns the writes of a stream. c.mu is held.
func (c *committer) of(stream string) *streamWrites {
	q := c.by[stream]
	if q == nil {
		q = &streamWrites{}
		c.by[stream], c.all = q, append(c.all, q)
	}
	return q
}

// close fails the writes that wait; the publisher fails those in flight.
func (c *committer) close() {
	c.once.Do(func() { close(c.stop) })
	c.stopped.Wait()
	c.mu.Lock()
	c.closed = true
	var rest []write
	for _, q := range c.all {
		rest = append(append(rest, flatten(q.halves)...), q.queue...)
		q.queue, q.halves = nil, nil
	}
	c.mu.Unlock()
	c.fail(rest, nats.ErrConnectionClosed)
}

func flatten(parts [][]write) (all []write) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// send takes a write. It blocks only while all permits are in use.
func (c *committer) send(stream string, w write) {
	select {
	case c.permits <- struct{}{}:
	default:
		select {
		case c.permits <- struct{}{}:
		case <-c.stop:
			w.done(Ack{}, c.pub.mapErr.wrap(w.op, nats.ErrConnectionClosed))
			return
		}
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.fail([]write{w}, nats.ErrConnectionClosed)
		return
	}
	q := c.of(stream)
	if !q.batch && !q.sending && len(q.queue) == 0 && len(q.halves) == 0 && c.singleMay(q) {
		q.singles++
		c.singles++
		c.mu.Unlock()
		c.single(q, w)
		return
	}
	q.queue = append(q.queue, w)
	n := len(q.queue)
	c.mu.Unlock()
	if n == minBatch || n == minSecondBatch {
		c.signal()
	}
}

// singleMay reports whether one more write of a stream may go by itself. Each stream may
// have one in flight, however busy the others are.
func (c *committer) singleMay(q *streamWrites) bool { return c.singles < maxSingles || q.singles == 0 }

// fail fails writes that were not sent.
func (c *committer) fail(ws []write, err error) {
	for _, w := range ws {
		<-c.permits
		w.done(Ack{}, c.pub.mapErr.wrap(w.op, err))
	}
}

func (c *committer) single(q *streamWrites, w write) {
	c.pub.send(w.op, w.subject, w.hdr, w.data, func(a Ack, err error) {
		<-c.permits
		c.mu.Lock()
		q.singles--
		c.singles--
		c.mu.Unlock()
		c.signal()
		w.done(a, err)
	})
}

func (c *committer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run sends waiting writes as earlier ones are answered. Callbacks only wake it: they run
// on the goroutine that receives acknowledgements, which must not wait for one.
func (c *committer) run() {
	for {
		select {
		case <-c.stop:
			return
		case <-c.wake:
		}
		for c.step() {
		}
	}
}

// step sends one batch, or single writes of one stream. It returns false if there is
// nothing to send now.
func (c *committer) step() bool {
	c.mu.Lock()
	for range c.all {
		q := c.all[c.turn]
		c.turn = (c.turn + 1) % len(c.all)
		next := c.next(q)
		if len(next) == 0 {
			continue
		}
		if len(next) >= minBatch {
			q.batch = true
			c.batches++
			c.mu.Unlock()
			c.commit(q, next)
			return true
		}
		q.singles += len(next)
		c.singles += len(next)
		q.sending = true
		c.mu.Unlock()
		for _, w := range next {
			c.single(q, w)
		}
		c.mu.Lock()
		q.sending = false
		c.mu.Unlock()
		return true
	}
	c.mu.Unlock()
	return false
}

// next takes the writes of a stream that may go now: minBatch writes or more as a batch,
// fewer each by itself. c.mu is held.
func (c *committer) next(q *streamWrites) []write {
	switch {
	case q.batch:
		return nil
	case len(q.halves) > 0:
		// The two halves of a refused batch go first, in their order.
		next := q.halves[0]
		if len(next) >= minBatch && !c.batchMay(len(next)) || len(next) < minBatch && q.singles > maxSingles {
			return nil
		}
		q.halves = q.halves[1:]
		return next
	case len(q.queue) >= minBatch:
		if !c.batchMay(len(q.queue)) {
			return nil
		}
		return q.take(min(len(q.queue), MaxBatch))
	case len(q.queue) > 0 && c.singleMay(q):
		return q.take(1)
	}
	return nil
}

// batchMay reports whether a batch of n writes may go now.
func (c *committer) batchMay(n int) bool {
	return c.batches == 0 || c.batches < maxBatches && n >= minSecondBatch
}

// take removes the first n writes from the queue.
func (q *streamWrites) take(n int) []write {
	next := q.queue[:n:n]
	if q.queue = q.queue[n:]; len(q.queue) == 0 {
		q.queue = nil
	}
	return next
}

// commit sends a batch. The server answers its last message only.
func (c *committer) commit(q *streamWrites, ws []write) {
	// A batch without an answer keeps other streams waiting for batchPatience only.
	leave := sync.OnceFunc(func() {
		c.mu.Lock()
		c.batches--
		c.mu.Unlock()
	})
	late := time.AfterFunc(batchPatience, func() {
		leave()
		c.signal()
	})
	end := func() {
		late.Stop()
		leave()
		c.signal()
	}
	// Unique among all clients, as the inbox is.
	id := c.pub.prefix + strconv.FormatUint(c.serial.Add(1), 36)
	last := len(ws) - 1
	for i, w := range ws[:last] {
		if err := c.pub.nc.PublishMsg(&nats.Msg{Subject: w.subject, Header: batchHeader(&w, id, i+1, false), Data: w.data}); err != nil {
			// Nothing is committed without the last message.
			if Permanent(c.pub.mapErr.wrap(w.op, err)) {
				c.without(q, ws, i, err, end)
				return
			}
			c.finish(q, nil)
			end()
			c.fail(ws, err)
			return
		}
	}
	w := ws[last]
	c.pub.send(w.op, w.subject, batchHeader(&w, id, last+1, true), w.data, func(a Ack, err error) {
		c.committed(q, ws, a, err, end)
	})
}

func batchHeader(w *write, id string, seq int, commit bool) nats.Header {
	out := make(nats.Header, len(w.hdr)+3)
	for k, v := range w.hdr {
		out[k] = v
	}
	if w.keepReplaced {
		delete(out, headerRollup)
	}
	out[batchIDHeader] = []string{id}
	out[batchSeqHeader] = []string{strconv.Itoa(seq)}
	if commit {
		out[batchCommitHeader] = []string{"1"}
	}
	return out
}

// finish ends a batch. The parts in again go before all other writes of the stream; finish
// returns false if they will not be sent.
func (c *committer) finish(q *streamWrites, again [][]write) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.batch = false
	if c.closed {
		return false
	}
	if len(again) > 0 {
		q.halves = append(again, q.halves...)
	}
	return true
}

// without sends a batch again without the write that the client refuses for good, and
// fails that write.
func (c *committer) without(q *streamWrites, ws []write, refused int, err error, end func()) {
	var rest [][]write
	for _, part := range [][]write{ws[:refused:refused], ws[refused+1:]} {
		if len(part) > 0 {
			rest = append(rest, part)
		}
	}
	again := c.finish(q, rest)
	end()
	c.fail(ws[refused:refused+1], err)
	if !again {
		c.fail(flatten(rest), nats.ErrConnectionClosed)
	}
}

func (c *committer) committed(q *streamWrites, ws []write, a Ack, err error, end func()) {
	n := len(ws)
	if a.refused == nil && Permanent(err) {
		// The client refuses the last write; the server has not answered.
		c.without(q, ws, n-1, err, end)
		return
	}
	if err != nil && a.refused != nil {
		// The server refuses the batch as a whole.
		again := c.finish(q, [][]write{ws[: n/2 : n/2], ws[n/2:]})
		end()
		if !again {
			c.fail(ws, nats.ErrConnectionClosed)
		}
		return
	}
	c.finish(q, nil)
	end()
	for i, w := range ws {
		<-c.permits
		if err != nil {
			w.done(Ack{}, err)
			continue
		}
		// The sequences of a batch are consecutive.
		w.done(Ack{Seq: a.Seq - uint64(n-1-i), KeptReplaced: w.keepReplaced}, nil)
	}
}
