package store

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// barrierPatience bounds the wait for the answer to a barrier's message, before another one is sent.
const barrierPatience = 250 * time.Millisecond

// barriers find out as of which sequence a read sees everything that was acknowledged before. Safe for concurrent use.
//
// A server that led a shard's stream and was paused or cut off may answer reads as of its last message (work-around 21,
// docs/internals/nats-server.md). It cannot store anything. So a barrier stores a message without content under the key of
// the touches (touch.go). Its sequence is higher than that of every message that was acknowledged before it was sent.
//
// Calls for one shard share messages: a call joins the next barrier, which is sent when the one under way has an answer.
// A message that was sent before the call proves nothing for it.
type barriers struct {
	jet    *jet.Client
	shards *Shards

	mu      sync.Mutex
	byShard []shardBarriers
}

// shardBarriers are the barriers of one shard.
type shardBarriers struct {
	sent *barrier // the one under way; nil for none
	next *barrier // not sent yet; nil if no call waits for it
}

// barrier is shared by the calls that joined it before its first message was sent.
type barrier struct {
	sentAt time.Time     // of the last message; zero before the first
	open   int           // messages without an answer
	ended  bool          // done is closed
	done   chan struct{} // closed when seq and err are set
	seq    uint64
	err    error
}

func newBarriers(c *jet.Client, shards *Shards) *barriers {
	return &barriers{jet: c, shards: shards, byShard: make([]shardBarriers, shards.geo.Shards)}
}

// sequence returns a sequence of a shard's stream that is higher than that of every message that was acknowledged
// before the call. Errors: schemas.ErrStoreFull, schemas.ErrUnavailable.
func (b *barriers) sequence(ctx context.Context, shard int) (uint64, error) {
	w := b.join(shard)
	late := time.NewTicker(barrierPatience)
	defer late.Stop()
	for {
		select {
		case <-w.done:
			return w.seq, w.err
		case <-late.C:
			b.repeat(shard, w)
		case <-ctx.Done():
			return 0, schemas.Errorf(schemas.CodeUnavailable, "no server has shown that it leads shard %d: %w", shard, context.Cause(ctx))
		}
	}
}

// join returns the next barrier of a shard, and sends it unless another one is under way.
func (b *barriers) join(shard int) *barrier {
	b.mu.Lock()
	s := &b.byShard[shard]
	if s.next == nil {
		s.next = &barrier{done: make(chan struct{})}
	}
	w := s.next
	send := s.sent == nil
	if send {
		s.advance()
	}
	b.mu.Unlock()
	if send {
		b.send(shard, w)
	}
	return w
}

// repeat sends another message for a barrier, unless one was sent less than barrierPatience ago. A barrier that was not sent
// yet does not wait any longer for the one under way.
func (b *barriers) repeat(shard int, w *barrier) {
	b.mu.Lock()
	s := &b.byShard[shard]
	send := !w.ended && time.Since(w.sentAt) >= barrierPatience
	switch {
	case send && s.next == w:
		s.advance()
	case send:
		w.sending()
	}
	b.mu.Unlock()
	if send {
		b.send(shard, w)
	}
}

// advance makes the next barrier the one under way, and returns it. The caller sends it.
func (s *shardBarriers) advance() *barrier {
	s.sent, s.next = s.next, nil
	if s.sent != nil {
		s.sent.sending()
	}
	return s.sent
}

// sending counts a message that the caller sends.
func (w *barrier) sending() {
	w.sentAt = time.Now()
	w.open++
}

// send stores a message of a barrier.
func (b *barriers) send(shard int, w *barrier) {
	sh := &b.shards.subjects[shard]
	b.jet.WriteAsync(sh.stream, "show which server leads a shard", sh.touch, nil, nil, func(a jet.Ack, err error) { b.answer(shard, w, a.Seq, err) })
}

// answer takes the answer to a message. Any answer will do; an error counts only if no other message has none.
func (b *barriers) answer(shard int, w *barrier, seq uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.open--
	if w.ended || err != nil && w.open > 0 {
		return
	}
	w.seq, w.err, w.ended = seq, err, true
	close(w.done)
	if s := &b.byShard[shard]; s.sent == w {
		if next := s.advance(); next != nil {
			go b.send(shard, next) // an answer's callback must not write
		}
	}
}
