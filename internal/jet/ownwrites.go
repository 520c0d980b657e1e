package jet

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxOwnWrites bounds the sequences from the first that is not delivered to the last kept write, and maxOwnBytes the
	// data of the kept writes.
	maxOwnWrites = 16384
	maxOwnBytes  = 8 << 20
	// minOwnWrites is the initial size of the ring. It and maxOwnWrites are powers of two.
	minOwnWrites = 256
)

// ownWrites keeps the writes of this client to one stream that the server has acknowledged, by their sequences, until
// the follower of the stream has delivered them, so the follower need not read them back from the stream. See
// ownFollower.
//
// It keeps writes only between begin and end. It is a cache: a write that it does not have is read from the stream. When
// it is full, it ends by itself. Safe for concurrent use.
type ownWrites struct {
	prefix string        // of the subjects whose messages the follower delivers, before their last token
	pause  time.Duration // ownPause, except in tests
	// inUse is true while a follower uses the writes; keeps is true between begin and end.
	inUse, keeps atomic.Bool
	// sent counts the writes, also while none are kept.
	sent atomic.Uint64
	// open counts the writes that are kept once they are acknowledged.
	open atomic.Int64
	// wake has an element when a write was kept and the follower waits.
	wake chan struct{}

	mu      sync.Mutex
	next    uint64     // sequences before it are delivered or skipped
	last    uint64     // the greatest sequence that was kept
	ring    []ownWrite // by sequence, modulo its length, which is a power of two
	bytes   int
	late    int  // acknowledgements that came after the follower had delivered or skipped their sequences
	waiting bool // for an element of wake
}

// ownWrite is an acknowledged write. Its subject is empty if the follower does not deliver it.
type ownWrite struct {
	seq     uint64
	subject string
	data    []byte
}

func newOwnWrites(prefix string) *ownWrites {
	return &ownWrites{prefix: prefix, pause: ownPause, wake: make(chan struct{}, 1)}
}

// keep returns done, extended to keep the write once it is acknowledged. reused says that the caller may change data
// before that, so keep copies it. A nil ownWrites returns done.
func (o *ownWrites) keep(subject string, data []byte, reused bool, done func(Ack, error)) func(Ack, error) {
	if o == nil {
		return done
	}
	o.sent.Add(1)
	if !o.keeps.Load() {
		return done
	}
	w := ownWrite{}
	if o.matches(subject) {
		if w.subject, w.data = subject, data; reused {
			w.data = bytes.Clone(data)
		}
	}
	o.open.Add(1)
	return func(a Ack, err error) {
		o.open.Add(-1)
		if err == nil && !a.Duplicate {
			w.seq = a.Seq
			o.put(w)
		}
		done(a, err)
	}
}

// filter is the filter of the follower.
func (o *ownWrites) filter() string { return o.prefix + "*" }

// matches reports whether the follower delivers the messages of a subject.
func (o *ownWrites) matches(subject string) bool {
	last, ok := strings.CutPrefix(subject, o.prefix)
	return ok && last != "" && !strings.Contains(last, ".")
}

// put keeps an acknowledged write.
func (o *ownWrites) put(w ownWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.keeps.Load():
		return
	case w.seq < o.next:
		o.late++
		return
	}
	for w.seq-o.next >= uint64(len(o.ring)) && len(o.ring) < maxOwnWrites {
		o.grow()
	}
	if w.seq-o.next >= uint64(len(o.ring)) {
		o.stop()
		return
	}
	if o.bytes += len(w.data) - len(o.at(w.seq).data); o.bytes > maxOwnBytes {
		o.stop()
		return
	}
	*o.at(w.seq) = w
	first := o.last < o.next
	o.last = max(o.last, w.seq)
	if o.waiting && (first || w.seq == o.next) {
		o.waiting = false
		signal(o.wake)
	}
}

// at returns the place of a sequence. o.mu is held.
func (o *ownWrites) at(seq uint64) *ownWrite { return &o.ring[seq&uint64(len(o.ring)-1)] }

// grow doubles the ring. o.mu is held.
func (o *ownWrites) grow() {
	old := o.ring
	o.ring = make([]ownWrite, 2*len(old))
	for _, w := range old {
		if w.seq >= o.next {
			*o.at(w.seq) = w
		}
	}
}

// begin keeps writes from now on. next is the first sequence that the follower has not delivered.
func (o *ownWrites) begin(next uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next, o.last, o.bytes, o.late, o.waiting = next, 0, 0, 0, false
	o.ring = make([]ownWrite, minOwnWrites)
	o.keeps.Store(true)
}

// end forgets all writes, and keeps none until begin.
func (o *ownWrites) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stop()
}

// stop is end for a caller that holds o.mu.
func (o *ownWrites) stop() {
	o.keeps.Store(false)
	o.ring, o.last, o.bytes = nil, 0, 0
	signal(o.wake)
}

// advance takes note that the follower has read a message from the stream, and all before it. It reports whether
// that was a write of this client that was kept.
func (o *ownWrites) advance(seq uint64) (own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ring == nil || seq < o.next {
		return false
	}
	own = seq-o.next < uint64(len(o.ring)) && o.at(seq).seq == seq
	o.skip(seq + 1)
	return own
}

// skip forgets the writes before a sequence. o.mu is held.
func (o *ownWrites) skip(next uint64) {
	for ; o.next < next && o.next <= o.last; o.next++ {
		o.drop()
	}
	o.next = max(o.next, next)
}

// drop empties the place of o.next. o.mu is held.
func (o *ownWrites) drop() {
	w := o.at(o.next)
	o.bytes -= len(w.data)
	*w = ownWrite{}
}

// take appends the next kept writes, up to the first gap or the capacity of buf. gap is the sequence of the first kept
// write after that gap. It is 0 if no write is kept after a gap, or if the next write did not fit into buf. Unless a
// write did not fit, wake has an element after the put of the next write, or of the first one behind a gap. ok is false
// after end.
func (o *ownWrites) take(buf []ownWrite) (took []ownWrite, gap uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ring == nil {
		return buf, 0, false
	}
	for o.next <= o.last && o.at(o.next).seq == o.next {
		if len(buf) == cap(buf) {
			return buf, 0, true
		}
		buf = append(buf, *o.at(o.next))
		o.drop()
		o.next++
	}
	o.waiting = true
	for seq := o.next; seq <= o.last; seq++ {
		if o.at(seq).seq == seq {
			return buf, seq, true
		}
	}
	return buf, 0, true
}

// takeLate returns the number of acknowledgements, since the last call, that came after the follower had delivered or
// skipped their sequences.
func (o *ownWrites) takeLate() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.late
	o.late = 0
	return n
}
