package jet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Work-around 18 (docs/internals/nats-server.md). When the server commits a batch, it rewrites older blocks of the
// stream, without the revisions that the batch rolled up, before it syncs the block with the new ones. If the power
// fails between the two, a key of the batch may have lost both. Therefore the committer first writes the batch's
// roll-ups into one message, the batch's journal, and waits until that is synced. A program that opens the stream after a
// power loss writes the lost keys again, from the journal (package store).
//
// A rewrite can also drop the mark of an earlier removal from the block. Then the power loss takes both revisions of
// a key and brings back a still older one, which was removed before. So the journal has the revision that each write
// replaces, its base, and that program replaces a revision which is older than the base.
//
// A power loss may have taken messages of a batch only if
//   - its journal is the last one of its writer, which has at most one batch in flight in a stream, and
//   - nothing follows the batch: no more sequences follow the journal than the batch has writes, apart from messages that
//     are not of this batch. If the batch spans two blocks, its end may be on disk and its beginning lost.
//
// If nothing follows a batch, nothing but its TTL has ended a record of it. So a record that does not exist, and would
// not have expired, is lost. If anything follows it, its journal is not used, even if messages were removed since. Then lost
// records are not restored in two cases: another writer stored messages between the journal and the batch, and as many
// of these as the batch has writes have been removed again; or another writer stored messages after the batch, before
// that was synced.
//
// A revision older than the base exists only after a power loss. The writer saw the base, and later revisions of a key
// have greater sequences, so all of these are gone. Other writers do not remove the last revision of a key: repair
// replaces it by a marker. A TTL ends only final records. There are two exceptions. A final record whose TTL ended can
// leave an older revision behind (work-arounds 1 and 23). A writer may have read the base before an earlier power loss, after
// which the server used its sequence again: the server refuses that write, so its journal is used only if the power
// fails again before the empty journal.
//
// After the server has refused a batch or has not answered it, later writes of the stream may end its records, while the
// batch was never stored. So the committer writes an empty journal before the next write. A committer that ends
// before that leaves a journal that may be used, until it is removed one to two minutes later. An empty journal has the id
// of a batch that was certainly not stored, otherwise only the writer's part of the id.

// Journal is the content of a batch's journal.
type Journal struct {
	// Batch is the id of the batch.
	Batch string
	// Writes is the number of writes in the batch, with and without a roll-up.
	Writes int
	// RolledUp are the writes of the batch that roll up, in its order.
	RolledUp []JournalWrite
}

// Writer returns the part of the batch's id that is unique to the connection which committed it.
func (j *Journal) Writer() string { return writerOf(j.Batch) }

func writerOf(batch string) string { return batch[:strings.LastIndexByte(batch, '.')+1] }

// IsOf reports whether a message was committed by the batch.
func (j *Journal) IsOf(m *Msg) bool { return m.Header.Get(batchIDHeader) == j.Batch }

// BatchStored reports whether the whole batch was stored, or is empty. seq is the sequence of the journal, and last is the
// last sequence of the stream. others is the number of messages after the journal, up to last, that are not of the batch.
func (j *Journal) BatchStored(seq, last uint64, others int) bool {
	return j.Writes == 0 || last > seq+uint64(others)+uint64(j.Writes)
}

// JournalWrite is a write that rolls up.
type JournalWrite struct {
	Subject string
	// TTL is the life of the message; 0 if it does not expire.
	TTL time.Duration
	// Base is the revision that the write replaces by compare-and-set; 0 if there is none, or if the journal does not
	// say it.
	Base uint64
	Data []byte
}

const (
	// journalFormat is the format of new journals. Writes in journalFormat1 have no base.
	journalFormat  = 2
	journalFormat1 = 1
	// journalFrame is the greatest size of a journal without its writes, journalEntry of a write without subject and data.
	journalFrame = 256
	journalEntry = 4 * binary.MaxVarintLen64
)

// size is a bound of the bytes that a write takes in a journal.
func (w *write) size() int {
	if !w.rollsUp() {
		return 0
	}
	return journalEntry + len(w.subject) + len(w.data)
}

func (w *write) rollsUp() bool { return len(w.hdr[headerRollup]) > 0 }

// base is the revision that a compare-and-set replaces, 0 for none.
func (w *write) base() uint64 { return revisionIn(w.hdr) }

// emptyJournal returns an empty journal with the id of a batch, or the writer's part of it, encoded.
func emptyJournal(batch string) []byte {
	return append(appendField([]byte{journalFormat}, batch), 0)
}

// journalOf returns the journal of a batch, encoded; nil if none of its writes rolls up.
func journalOf(batch string, ws []write) []byte {
	size := 0
	for i := range ws {
		size += ws[i].size()
	}
	if size == 0 {
		return nil
	}
	b := append(make([]byte, 0, journalFrame+size), journalFormat)
	b = appendField(b, batch)
	b = binary.AppendUvarint(b, uint64(len(ws)))
	for i := range ws {
		if w := &ws[i]; w.rollsUp() {
			ttl, _ := time.ParseDuration(w.hdr.Get(headerTTL)) // none: 0
			b = appendField(b, w.subject)
			b = binary.AppendUvarint(b, uint64(ttl/time.Second))
			b = binary.AppendUvarint(b, w.base())
			b = appendField(b, w.data)
		}
	}
	return b
}

func appendField[T string | []byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// errJournal is the error of a message that is not a journal.
var errJournal = errors.New("not a journal of a batch")

// maxTTL bounds the TTL of a write in a journal, so that it fits into a time.Duration.
const maxTTL = uint64(1<<63-1) / uint64(time.Second)

// ParseJournal decodes a journal. RolledUp refers to b.
func ParseJournal(b []byte) (*Journal, error) {
	if len(b) == 0 || b[0] != journalFormat && b[0] != journalFormat1 {
		return nil, fmt.Errorf("%w: format %.1x", errJournal, b)
	}
	r := fields{rest: b[1:]}
	j := &Journal{Batch: string(r.bytes()), Writes: int(r.number(MaxBatch))}
	for len(r.rest) > 0 && !r.bad {
		w := JournalWrite{Subject: string(r.bytes()), TTL: time.Duration(r.number(maxTTL)) * time.Second}
		if b[0] != journalFormat1 {
			w.Base = r.number(math.MaxUint64)
		}
		w.Data = r.bytes()
		j.RolledUp = append(j.RolledUp, w)
	}
	if r.bad || len(j.RolledUp) > j.Writes {
		return nil, errJournal
	}
	return j, nil
}

// fields reads the fields of a journal. bad is set once a field is incomplete or out of range.
type fields struct {
	rest []byte
	bad  bool
}

func (r *fields) number(most uint64) uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > most {
		r.rest, r.bad = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *fields) bytes() []byte {
	n := r.number(uint64(len(r.rest)))
	if n > uint64(len(r.rest)) {
		r.rest, r.bad = nil, true
		return nil
	}
	field := r.rest[:n:n]
	r.rest = r.rest[n:]
	return field
}
