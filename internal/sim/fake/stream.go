package fake

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// key is the key of a message, by which a later message replaces it: a subject, the record of
// a timer (slot recordSlot), or the index entry of a timer in a slot.
type key struct {
	subject string
	id      schemas.TimerID
	slot    int64
}

const recordSlot = -1

func recordKey(id schemas.TimerID) key { return key{id: id, slot: recordSlot} }

// message is one stored message. After it is stored, only removed, older, and the data of a
// damaged record change.
type message struct {
	key
	seq uint64
	// at is the leader's timestamp, real the true time of the commit, from which the lag of
	// replicas counts. Both are Unix nanoseconds.
	at, real int64
	// expires is the end of the TTL by the leader's clock, in Unix nanoseconds; 0 for none.
	expires int64
	// removed is true once the message has been deleted, or acknowledged in a work queue.
	removed bool
	older   *message // the previous message of the key

	// ids are the timers that a shared index entry names; its key belongs to neither.
	ids []schemas.TimerID
	// tick is the tick of the timer that a far entry names.
	tick  int64
	rec   *schemas.Record
	level store.FormatLevel // the level that a process must read to decode rec
	val   any               // the value of a key of the clock bucket
	hdr   jet.Header
	// data is the data of an event. A record has data only if it is damaged: the damaged bytes.
	// Its rec is then the record before the damage, or nil if a foreign client wrote it.
	data  []byte
	msgID string
}

// stream is one stream, or the stream under a bucket.
type stream struct {
	now  func() (leaderNs, realNs int64)
	seq  uint64
	log  []*message
	last map[key]*message
	// slots has the index entries of a shard by slot.
	slots map[int64]map[schemas.TimerID]*message
	// created is the timer of the last index entry that was written together with a record.
	created schemas.TimerID
	// window is the dedup window, maxAge the age at which a message leaves a stream of events,
	// 0 for never.
	window, maxAge time.Duration
	ids            map[string]*message // the last message of each message id
	// watch is called with every message m before it is stored, and with the message that it
	// replaces.
	watch func(was, m *message)
}

func newStream(now func() (int64, int64), window, maxAge time.Duration) *stream {
	return &stream{now: now, last: map[key]*message{}, slots: map[int64]map[schemas.TimerID]*message{}, window: window, maxAge: maxAge, ids: map[string]*message{}}
}

// alive reports whether the stream still has a message, by the leader's clock.
func (s *stream) alive(m *message) bool {
	if m == nil || m.removed {
		return false
	}
	leader, _ := s.now()
	return (m.expires == 0 || m.expires > leader) && (s.maxAge == 0 || m.at+int64(s.maxAge) > leader)
}

// current returns the sequence that a compare-and-set of the key must expect, 0 for a new key.
func (s *stream) current(k key) uint64 {
	if m := s.last[k]; s.alive(m) {
		return m.seq
	}
	return 0
}

// put stores a message if the key's revision is expect, or in any case if expect is nil. A ttl
// of 0 means no TTL. Errors: store.ErrRevision.
func (s *stream) put(m *message, expect *uint64, ttl time.Duration) (uint64, error) {
	if expect != nil && s.current(m.key) != *expect {
		return 0, store.ErrRevision
	}
	s.seq++
	m.seq = s.seq
	m.at, m.real = s.now()
	if ttl > 0 {
		// The server's resolution is a second; see TTLHeader of package jet.
		m.expires = m.at + int64((max(ttl, time.Second) + time.Second - 1).Truncate(time.Second))
	}
	m.older = s.last[m.key]
	if s.watch != nil {
		s.watch(m.older, m)
	}
	s.last[m.key] = m
	if m.slot >= 0 && m.subject == "" {
		if s.slots[m.slot] == nil {
			s.slots[m.slot] = map[schemas.TimerID]*message{}
		}
		s.slots[m.slot][m.id] = m
	}
	s.log = append(s.log, m)
	return m.seq, nil
}

// refuse returns the answer of a server that led the stream up to a sequence, and has no quorum any more, to a write
// of a key.
func (s *stream) refuse(k key, expect, upTo uint64) error {
	rev := uint64(0)
	if m := s.asOf(s.last[k], upTo); m != nil {
		rev = m.seq
	}
	if rev != expect {
		return store.ErrRevision
	}
	return schemas.ErrUnavailable
}

// publish stores an event unless its message id is in the dedup window. It returns the
// sequence of the stored event.
func (s *stream) publish(m *message) (seq uint64, duplicate bool) {
	leader, _ := s.now()
	if was := s.ids[m.msgID]; m.msgID != "" && was != nil && was.at+int64(s.window) > leader {
		return was.seq, true
	}
	s.seq++
	m.seq = s.seq
	m.at, m.real = s.now()
	if s.watch != nil {
		s.watch(nil, m)
	}
	s.log = append(s.log, m)
	if m.msgID != "" {
		s.ids[m.msgID] = m
	}
	return m.seq, false
}

// bySeq returns the message with a sequence, or nil if the stream no longer has it.
func (s *stream) bySeq(seq uint64) *message {
	if seq == 0 || seq > s.seq {
		return nil
	}
	if m := s.log[seq-1]; s.alive(m) {
		return m
	}
	return nil
}

// seqAt returns the last sequence of a replica that has received nothing since a true time,
// in Unix nanoseconds.
func (s *stream) seqAt(realNs int64) uint64 {
	return uint64(sort.Search(len(s.log), func(i int) bool { return s.log[i].real > realNs }))
}

// asOf returns the newest message of a key up to a sequence, or nil. m is the newest message
// of the key at all.
func (s *stream) asOf(m *message, upTo uint64) *message {
	for m != nil && m.seq > upTo {
		m = m.older
	}
	if !s.alive(m) {
		return nil
	}
	return m
}

// slot appends the index entries of a slot as of a sequence to into, in no order.
func (s *stream) slot(slot int64, upTo uint64, into []*message) []*message {
	for id, m := range s.slots[slot] {
		if m := s.asOf(m, upTo); m != nil {
			into = append(into, m)
		} else if leader, _ := s.now(); s.slots[slot][id].expires != 0 && s.slots[slot][id].expires+int64(time.Hour) < leader {
			delete(s.slots[slot], id) // expired an hour ago, so on every replica
		}
	}
	return into
}

// inOrder sorts messages in stream order.
func inOrder(msgs []*message) []*message {
	slices.SortFunc(msgs, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	return msgs
}

// superseded reports whether a later message of its key has replaced m, as of a sequence. A
// foreign message over a record does not replace it: the record stays in the stream.
func (s *stream) superseded(m *message, upTo uint64) bool {
	last := s.asOf(s.last[m.key], upTo)
	for last != m && last != nil && last.isRecord() && last.rec == nil {
		last = last.older
	}
	return last != m
}
