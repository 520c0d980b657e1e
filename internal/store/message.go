package store

import (
	"sync"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// message holds the header and the data of one write of a record. Unless writes are
// committed in batches, the NATS client has copied both when the call returns, so a pool
// keeps the message for the next write. This saves a tenth of the allocations of a busy node.
type message struct {
	jet.WriteHeader
	data  []byte
	reuse bool // recycle may return it to the pool
}

// maxReuseBytes is the largest data that the pool keeps.
const maxReuseBytes = 16 << 10

var messages = sync.Pool{New: func() any { return &message{WriteHeader: jet.WriteHeader{Header: jet.Header{}}, reuse: true} }}

// message encodes a write. The caller calls recycle when it has sent the message.
func (r *Records) message(w *Write) *message {
	var m *message
	if r.jet.InBatches() {
		m = &message{WriteHeader: jet.WriteHeader{Header: jet.Header{}}}
	} else {
		m = messages.Get().(*message)
	}
	m.encode(w, r.levels.RecordFormat())
	return m
}

func (m *message) encode(w *Write, format schemas.RecordFormat) {
	if size := 256 + w.Record.Body.Size(); cap(m.data) < size {
		m.data = make([]byte, 0, size)
	}
	m.data = w.Record.AppendFormat(m.data[:0], format)
	m.CAS(w.Rev, w.TTL)
}

// recycle returns the message to the pool.
func (m *message) recycle() {
	if m.reuse && cap(m.data) <= maxReuseBytes {
		messages.Put(m)
	}
}
