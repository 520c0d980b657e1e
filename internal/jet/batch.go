package jet

import (
	"slices"
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
// Before a batch with roll-ups, the committer writes their journal (work-around 18); see Journal.
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
	// batchPatience bounds the time that an unanswered batch keeps other streams waiting: the
	// server of its stream may be dead while the servers of the other streams are alive.
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
}

// streamWrites are the writes of one stream.
type streamWrites struct {
	queue   []write
	halves  [][]write  // parts of refused batches, which go first
	singles int        // in flight
	batch   bool       // a batch is in flight, or its journal is
	ready   *batch     // the batch whose journal is stored: it goes next
	own     *ownWrites // nil: they are not kept
	journal string     // the subject of the journals, "" if no write of the stream rolls up
	// unstored is the id of the last batch that has a journal and was not stored. It is the writer's part of that id if
	// the batch was not answered, and "" if there is none, or if an empty journal follows.
	unstored string
	// restored is the number of reconnects after which the stream's records were restored.
	restored uint64
	// sending says that a write has left the queue and is not sent yet: no other write
	// may overtake it.
	sending bool
}

// batch is a batch on its way.
type batch struct {
	id     string // unique among all clients, as the inbox in it is
	q      *streamWrites
	writes []write
	// unstored is what finish passes on to streamWrites.unstored: "" as long as the batch has no journal, and once
	// the batch is stored.
	unstored string
	late     *time.Timer
	leave    func() // lets other streams go; called once or more
}

// refuse takes note that the batch is certainly not stored.
func (b *batch) refuse() {
	if b.unstored != "" {
		b.unstored = b.id
	}
}

// committer commits the writes of several streams, by themselves or in batches.
type committer struct {
	pub        *publisher
	own        map[string]*ownWrites // by stream
	journalOf  func(stream string) (subject string)
	maxJournal int           // bytes
	permits    chan struct{} // bounds the writes that wait or are in flight
	wake       chan struct{}
	stop       chan struct{}
	once       sync.Once
	stopped    sync.WaitGroup
	serial     atomic.Uint64

	mu      sync.Mutex
	by      map[string]*streamWrites
	all     []*streamWrites
	turn    int // index in all of the stream whose turn it is
	singles int // in flight, of all streams
	batches int // in flight, of all streams
	closed  bool
}

func newCommitter(pub *publisher, window int, j Journals, own map[string]*ownWrites) *committer {
	c := &committer{
		pub: pub, own: own, journalOf: j.Subject, maxJournal: max(j.MaxBytes-journalFrame, 0), permits: make(chan struct{}, window), wake: make(chan struct{}, 1),
		stop: make(chan struct{}), by: map[string]*streamWrites{},
	}
	c.stopped.Go(c.run)
	return c
}

// of returns the writes of a stream. c.mu is held.
func (c *committer) of(stream string) *streamWrites {
	q := c.by[stream]
	if q == nil {
		q = &streamWrites{journal: c.journalOf(stream), own: c.own[stream]}
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
		if q.ready != nil {
			rest = append(rest, q.ready.writes...)
		}
		rest = append(append(rest, flatten(q.halves)...), q.queue...)
		q.queue, q.halves, q.ready = nil, nil, nil
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
	if !q.batch && !q.sending && q.unstored == "" && len(q.queue) == 0 && len(q.halves) == 0 && c.singleMay(q) {
		q.singles++
		c.singles++
		c.mu.Unlock()
		c.single(q, w)
		return
	}
	q.queue = append(q.queue, w)
	n, unstored := len(q.queue), q.unstored != ""
	c.mu.Unlock()
	if n == minBatch || n == minSecondBatch || unstored {
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

// mayWrite returns an error if the connection was lost and the records of a stream are not restored yet. A write would
// hide where the stream ended; see Journal.BatchStored.
func (c *committer) mayWrite(q *streamWrites) error {
	if q.journal == "" {
		return nil
	}
	reconnects := c.pub.reconnects() // waits for the connection, so not under the lock
	c.mu.Lock()
	defer c.mu.Unlock()
	if reconnects != q.restored {
		return nats.ErrDisconnected
	}
	return nil
}

// setRestored allows the writes of a stream until the connection is lost for the next time.
func (c *committer) setRestored(stream string, reconnects uint64) {
	c.mu.Lock()
	c.of(stream).restored = reconnects
	c.mu.Unlock()
}

func (c *committer) single(q *streamWrites, w write) {
	done := func(a Ack, err error) {
		<-c.permits
		c.mu.Lock()
		q.singles--
		c.singles--
		c.mu.Unlock()
		c.signal()
		w.done(a, err)
	}
	if err := c.mayWrite(q); err != nil {
		done(Ack{}, c.pub.mapErr.wrap(w.op, err))
		return
	}
	c.pub.send(w.op, w.subject, w.hdr, w.data, done)
}

func (c *committer) signal() { signal(c.wake) }

// signal fills a channel of one element, unless it is full.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
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
		if b := q.ready; b != nil {
			q.ready = nil
			c.mu.Unlock()
			c.commit(b)
			return true
		}
		next := c.next(q)
		if len(next) == 0 {
			continue
		}
		if q.unstored != "" {
			if err := c.writeEmptyJournal(q); err != nil {
				c.mu.Unlock()
				c.fail(next, err)
				return true
			}
		}
		if len(next) >= minBatch {
			q.batch = true
			c.batches++
			c.mu.Unlock()
			c.begin(q, next)
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

// writeEmptyJournal writes an empty journal after that of a batch that was refused or not answered. It goes on the same
// connection as the writes that follow, so it is stored before them. If it fails, the next call repeats it. It returns an
// error if the stream may not be written yet. c.mu is held, and released meanwhile.
func (c *committer) writeEmptyJournal(q *streamWrites) error {
	batch := q.unstored
	q.unstored, q.sending = "", true
	c.mu.Unlock()
	failed := func() {
		c.mu.Lock()
		if q.unstored == "" {
			q.unstored = batch
		}
		c.mu.Unlock()
	}
	err := c.mayWrite(q)
	if err != nil {
		failed()
	} else {
		c.pub.send("write an empty journal", q.journal, nil, emptyJournal(batch), q.own.keep(q.journal, nil, false, func(_ Ack, err error) {
			if err != nil {
				failed()
			}
		}))
	}
	c.mu.Lock()
	q.sending = false
	return err
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
		if n := c.fitting(q.queue); n >= minBatch {
			return q.take(n)
		}
		if c.singleMay(q) {
			return q.take(1)
		}
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

// fitting returns how many of the first writes fit into one batch and its journal.
func (c *committer) fitting(queue []write) int {
	n, size := 0, 0
	for n < min(len(queue), MaxBatch) {
		if size += queue[n].size(); size > c.maxJournal {
			break
		}
		n++
	}
	return n
}

// begin sends the journal of a batch, or the batch itself if it needs none.
func (c *committer) begin(q *streamWrites, ws []write) {
	// A batch without an answer keeps other streams waiting for batchPatience only.
	b := &batch{q: q, writes: ws, id: c.pub.prefix + strconv.FormatUint(c.serial.Add(1), 36), leave: sync.OnceFunc(func() {
		c.mu.Lock()
		c.batches--
		c.mu.Unlock()
	})}
	b.late = time.AfterFunc(batchPatience, func() {
		b.leave()
		c.signal()
	})
	if err := c.mayWrite(q); err != nil {
		c.abandon(b, err)
		return
	}
	var journal []byte
	if q.journal != "" {
		journal = journalOf(b.id, ws)
	}
	if journal == nil {
		c.commit(b)
		return
	}
	c.pub.send("write the journal of a batch", q.journal, nil, journal, q.own.keep(q.journal, nil, false, func(a Ack, err error) { c.journaled(b, a, err) }))
}

// journaled has a batch sent once its journal is stored. If the server or the client refuses the journal, for example
// because the stream is full, the writes of the batch go by themselves.
func (c *committer) journaled(b *batch, a Ack, err error) {
	refused := a.refused != nil || Permanent(err)
	if !refused {
		b.unstored = writerOf(b.id)
	}
	c.mu.Lock()
	if err == nil && !c.closed {
		b.q.ready = b
		c.mu.Unlock()
		c.signal()
		return
	}
	c.mu.Unlock()
	var again [][]write
	if refused {
		again = slices.Collect(slices.Chunk(b.writes, minBatch-1))
	}
	switch goOn := c.finish(b, again); {
	case refused && goOn:
	case refused || err == nil:
		c.fail(b.writes, nats.ErrConnectionClosed)
	default:
		c.fail(b.writes, err)
	}
}

// commit sends a batch. The server answers its last message only.
func (c *committer) commit(b *batch) {
	ws := b.writes
	if err := c.mayWrite(b.q); err != nil {
		c.abandon(b, err)
		return
	}
	last := len(ws) - 1
	for i, w := range ws[:last] {
		if err := c.pub.nc.PublishMsg(&nats.Msg{Subject: w.subject, Header: batchHeader(&w, b.id, i+1, false), Data: w.data}); err != nil {
			// Nothing is committed without the last message.
			if Permanent(c.pub.mapErr.wrap(w.op, err)) {
				c.without(b, i, err)
				return
			}
			c.abandon(b, err)
			return
		}
	}
	w := ws[last]
	c.pub.send(w.op, w.subject, batchHeader(&w, b.id, last+1, true), w.data, func(a Ack, err error) {
		c.committed(b, a, err)
	})
}

func batchHeader(w *write, id string, seq int, commit bool) nats.Header {
	out := make(nats.Header, len(w.hdr)+3)
	for k, v := range w.hdr {
		out[k] = v
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
func (c *committer) finish(b *batch, again [][]write) bool {
	b.late.Stop()
	b.leave()
	defer c.signal()
	c.mu.Lock()
	defer c.mu.Unlock()
	b.q.batch = false
	if b.unstored != "" {
		b.q.unstored = b.unstored
	}
	if c.closed {
		return false
	}
	if len(again) > 0 {
		b.q.halves = append(again, b.q.halves...)
	}
	return true
}

// abandon ends a batch that was not sent, and fails its writes.
func (c *committer) abandon(b *batch, err error) {
	b.refuse()
	c.finish(b, nil)
	c.fail(b.writes, err)
}

// without sends a batch again without the write that the client refuses for good, and
// fails that write.
func (c *committer) without(b *batch, refused int, err error) {
	ws := b.writes
	b.refuse()
	var rest [][]write
	for _, part := range [][]write{ws[:refused:refused], ws[refused+1:]} {
		if len(part) > 0 {
			rest = append(rest, part)
		}
	}
	again := c.finish(b, rest)
	c.fail(ws[refused:refused+1], err)
	if !again {
		c.fail(flatten(rest), nats.ErrConnectionClosed)
	}
}

func (c *committer) committed(b *batch, a Ack, err error) {
	ws := b.writes
	n := len(ws)
	if a.refused == nil && Permanent(err) {
		// The client refuses the last write; the server has not answered.
		c.without(b, n-1, err)
		return
	}
	if err != nil && a.refused != nil {
		// The server refuses the batch as a whole.
		b.refuse()
		if !c.finish(b, [][]write{ws[: n/2 : n/2], ws[n/2:]}) {
			c.fail(ws, nats.ErrConnectionClosed)
		}
		return
	}
	if err == nil {
		b.unstored = ""
	}
	c.finish(b, nil)
	for i, w := range ws {
		<-c.permits
		if err != nil {
			w.done(Ack{}, err)
			continue
		}
		// The sequences of a batch are consecutive.
		w.done(Ack{Seq: a.Seq - uint64(n-1-i)}, nil)
	}
}
