package store

import (
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// message is the header and the data of one write of a record. Where writes are
// not grouped the client has copied both when send returns, and they serve the
// next write: they were a tenth of what a busy node allocates.
type message struct {
	hdr  nats.Header
	data []byte

	values [3][1]string // of hdr: revision, expiry, roll-up
	reuse  bool
}

// reuseMost is how large data may be that is kept for the next write.
const reuseMost = 16 << 10

var messages = sync.Pool{New: func() any { return &message{hdr: nats.Header{}, reuse: true} }}

// message encodes a write. recycle is called when it was sent.
func (s *Store) message(w *Write) *message {
	var m *message
	if s.groups == nil {
		m = messages.Get().(*message)
	} else {
		m = &message{hdr: nats.Header{}}
	}
	m.encode(w, s.RecordFormat())
	return m
}

func (m *message) encode(w *Write, format schemas.RecordFormat) {
	if size := 256 + w.Record.Body.Size(); cap(m.data) < size {
		m.data = make([]byte, 0, size)
	}
	m.data = w.Record.AppendFormat(m.data[:0], format)
	clear(m.hdr)
	m.cas(w.Rev, w.TTL)
}

// cas says which revision is replaced (0: none), and when the message expires.
func (m *message) cas(rev uint64, ttl time.Duration) {
	m.set(0, jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(rev, 10))
	if ttl > 0 {
		m.set(1, jetstream.MsgTTLHeader, ttlString(ttl))
	}
}

// rollUp has the revisions before removed with the write itself.
func (m *message) rollUp() { m.set(2, rollupHeader, rollupSubject) }

func (m *message) set(i int, name, value string) {
	m.values[i][0] = value
	m.hdr[name] = m.values[i][:]
}

// recycle lets the next write have what nobody reads any more.
func (m *message) recycle() {
	if m.reuse && cap(m.data) <= reuseMost {
		messages.Put(m)
	}
}
