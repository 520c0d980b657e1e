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

// key names what a message replaces: a subject, the record of a timer (slot -1),
// or the index entry of a timer in a slot.
type key struct {
	subject string
	id      schemas.TimerID
	slot    int64
}

const recordSlot = -1

func recordKey(id schemas.TimerID) key { return key{id: id, slot: recordSlot} }

// message is one stored message. It is never changed but for removed, older, and the data
// of a damaged record.
type message struct {
	key
	seq uint64
	// at is the leader's stamp in Unix nanoseconds, real the true time of its
	// commit, by which replicas lag.
	at, real int64
	// expires is by the leader's clock, 0 for never.
	expires int64
	// removed says that it is in the stream no more: deleted or rolled up.
	removed bool
	older   *message

	// ids are the timers that an index entry names, whose key is not that of one.
	ids   []schemas.TimerID
	rec   *schemas.Record
	level store.FormatLevel // that a process must read to decode rec
	val   any               // of the clock bucket
	hdr   jet.Header
	// data of a record is nil, or its bytes if it is damaged: rec is then what it was
	// before, nil for a foreign message.
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
	// created is the timer that an entry was last written for with its record.
	created schemas.TimerID
	// window is the dedup window, ids what it remembers, maxAge after how long a
	// message leaves a stream of events.
	window, maxAge time.Duration
	ids            map[string]*message
	// watch is called with every message before it is stored, and the message it replaces.
	watch func(was, m *message)
}

func newStream(now func() (int64, int64), window, maxAge time.Duration) *stream {
	return &stream{now: now, last: map[key]*message{}, slots: map[int64]map[schemas.TimerID]*message{}, window: window, maxAge: maxAge, ids: map[string]*message{}}
}

// alive reports whether a message is still there by the leader's clock.
func (s *stream) alive(m *message) bool {
	if m == nil || m.removed {
		return false
	}
	leader, _ := s.now()
	return (m.expires == 0 || m.expires > leader) && (s.maxAge == 0 || m.at+int64(s.maxAge) > leader)
}

// current is the sequence that a compare-and-set has to name, 0 for none.
func (s *stream) current(k key) uint64 {
	if m := s.last[k]; s.alive(m) {
		return m.seq
	}
	return 0
}

// put stores a message. expect is the revision that it replaces; nil for any.
func (s *stream) put(m *message, expect *uint64, ttl time.Duration) (uint64, error) {
	if expect != nil && s.current(m.key) != *expect {
		return 0, store.ErrRevision
	}
	s.seq++
	m.seq = s.seq
	m.at, m.real = s.now()
	if ttl > 0 {
		// The server's resolution is a second; see store's ttlString.
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

// publish stores an event, unless the dedup window has its id.
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

// bySeq is the message of a sequence, nil if it has left.
func (s *stream) bySeq(seq uint64) *message {
	if seq == 0 || seq > s.seq {
		return nil
	}
	if m := s.log[seq-1]; s.alive(m) {
		return m
	}
	return nil
}

// lastSeq as of a true time: where a replica stands that lags since then.
func (s *stream) seqAt(realNs int64) uint64 {
	return uint64(sort.Search(len(s.log), func(i int) bool { return s.log[i].real > realNs }))
}

// asOf is the newest message of a key up to a sequence.
func (s *stream) asOf(m *message, upTo uint64) *message {
	for m != nil && m.seq > upTo {
		m = m.older
	}
	if !s.alive(m) {
		return nil
	}
	return m
}

// slot lists the index entries of a slot as of a sequence, in stream order.
func (s *stream) slot(slot int64, upTo uint64, into []*message) []*message {
	for id, m := range s.slots[slot] {
		if m := s.asOf(m, upTo); m != nil {
			into = append(into, m)
		} else if leader, _ := s.now(); s.slots[slot][id].expires != 0 && s.slots[slot][id].expires+int64(time.Hour) < leader {
			delete(s.slots[slot], id) // long gone, on every replica
		}
	}
	return into
}

func inOrder(msgs []*message) []*message {
	slices.SortFunc(msgs, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	return msgs
}

// superseded reports whether a message was removed because a later one of its key is in
// the stream. A foreign message over a record removes nothing: the record before it stays.
func (s *stream) superseded(m *message, upTo uint64) bool {
	last := s.asOf(s.last[m.key], upTo)
	for last != m && last != nil && last.isRecord() && last.rec == nil {
		last = last.older
	}
	return last != m
}
