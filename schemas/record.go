package schemas

import (
	"encoding/binary"
	"math"
)

// Record is what JetStream keeps of a timer under the key KeyTimer(id): the one
// authority on it. Every change is a compare-and-set on the key's revision.
// Times are Unix milliseconds of the cluster's clock; 0 is "not yet".
type Record struct {
	State State
	// Queued says that the record waits in the wheel: DueMs has an index entry.
	// It is true for pending and for long retries, false for short ones.
	Queued bool
	// Run counts due occurrences from 1.
	Run uint32
	// Attempt counts concluded callback attempts of this run.
	Attempt uint32
	// MaxAttempt is the attempt after which the run is dead-lettered; a replay
	// raises it.
	MaxAttempt uint32
	// Moves counts reschedules; 0 marks the record that created the timer.
	Moves uint32
	// DueMs is when the wheel acts on the record next.
	DueMs int64
	// ScheduledMs is when the run was asked for: timerscheduled.
	ScheduledMs int64
	AddedMs     int64
	FiredMs     int64
	DoneMs      int64
	// NextMs is when a retrying callback is tried again.
	NextMs int64
	// Epoch is the clock epoch of the owner that claimed the run.
	Epoch uint64
	// Hash tells a repeated add from a conflicting one.
	Hash     [16]byte
	Service  string
	Group    string
	Callback string
	Source   string
	EventID  string
	Type     string
	Outcome  Outcome
	// Body is the event; empty once the state is final.
	Body Body
}

// Outcome is what the last callback attempt came to.
type Outcome struct {
	// Code is the HTTP status, or 0 where there was none.
	Code int32
	// Error is the failure in a sentence, at most MaxOutcomeError bytes.
	Error string
	// Response is the start of the answer's body, at most MaxOutcomeResponse bytes.
	Response []byte
}

// Bounds of what is kept of a callback attempt.
const (
	MaxOutcomeError    = 512
	MaxOutcomeResponse = 1024
)

// Mode is the CloudEvents content mode in which an event came, and leaves.
type Mode uint8

// The content modes of the CloudEvents NATS protocol binding.
const (
	ModeNone       Mode = 0 // no event kept
	ModeStructured Mode = 1
	ModeBinary     Mode = 2
)

// Body is an event as it came.
type Body struct {
	Mode Mode
	// Headers are, in binary mode, the ce-* attributes, content-type and the
	// user's own headers that are kept, as sent on the wire: name, value.
	Headers []HeaderField
	// Data is the whole JSON document in structured mode, the data in binary mode.
	Data []byte
}

// HeaderField is one header line.
type HeaderField struct{ Name, Value string }

// Size is the number of bytes that the body adds to a message.
func (b Body) Size() int {
	n := len(b.Data)
	for _, h := range b.Headers {
		n += len(h.Name) + len(h.Value) + 4
	}
	return n
}

// Pending reports whether the wheel has to act on the record.
func (r *Record) Pending() bool {
	return r.State == StatePending || r.State == StateRetrying && r.Queued
}

// recordVersion is the first byte of every record. A reader refuses versions
// that it does not know, so that a rolling upgrade misreads nothing.
const recordVersion = 1

// maxRecordVersion is the highest version that a future format may use. Versions
// stay below the printable characters, so that text that overwrote a record, such
// as a JSON answer, is never mistaken for a record of a newer version.
const maxRecordVersion = 0x1f

// flagQueued is the only flag of version 1.
const flagQueued = 1

// maxField bounds a decoded string, well above every limit on the way in.
const maxField = 64 << 20

// Append appends the encoded record. Layout, version 1: the version byte, the
// state, a flag byte, uvarints for the numbers (times zig-zag), 16 bytes of
// hash, length-prefixed strings, then the body. Binary rather than JSON because
// each timer's record is encoded three times and decoded four.
func (r *Record) Append(dst []byte) []byte {
	var flags byte
	if r.Queued {
		flags |= flagQueued
	}
	dst = append(dst, recordVersion, byte(r.State), flags)
	for _, n := range [...]uint32{r.Run, r.Attempt, r.MaxAttempt, r.Moves} {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	for _, n := range [...]int64{r.DueMs, r.ScheduledMs, r.AddedMs, r.FiredMs, r.DoneMs, r.NextMs} {
		dst = binary.AppendVarint(dst, n)
	}
	dst = binary.AppendUvarint(dst, r.Epoch)
	dst = append(dst, r.Hash[:]...)
	for _, s := range [...]string{r.Service, r.Group, r.Callback, r.Source, r.EventID, r.Type} {
		dst = appendString(dst, s)
	}
	dst = binary.AppendVarint(dst, int64(r.Outcome.Code))
	dst = appendString(dst, r.Outcome.Error)
	dst = binary.AppendUvarint(dst, uint64(len(r.Outcome.Response)))
	dst = append(dst, r.Outcome.Response...)
	dst = append(dst, byte(r.Body.Mode))
	if r.Body.Mode == ModeNone {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Body.Headers)))
	for _, h := range r.Body.Headers {
		dst = appendString(dst, h.Name)
		dst = appendString(dst, h.Value)
	}
	return append(dst, r.Body.Data...)
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// DecodeRecord reads a record. It returns ErrNewer for a record of a newer version,
// and ErrDamaged for bytes that are not a record. The result's Body.Data aliases b.
func DecodeRecord(b []byte) (Record, error) {
	var r Record
	if len(b) < 3 {
		return r, Errorf(CodeDamaged, "record of %d bytes is too short", len(b))
	}
	switch {
	case b[0] == recordVersion:
	case b[0] > recordVersion && b[0] <= maxRecordVersion:
		return r, Errorf(CodeUnknownFormat, "record has format version %d; this version of belfry reads %d: upgrade this node", b[0], recordVersion)
	default:
		return r, Errorf(CodeDamaged, "record of %d bytes is damaged: it begins with byte %d, which is not a format version", len(b), b[0])
	}
	r.State, r.Queued = State(b[1]), b[2]&flagQueued != 0
	d := decoder{b: b[3:]}
	for _, p := range [...]*uint32{&r.Run, &r.Attempt, &r.MaxAttempt, &r.Moves} {
		*p = d.uint32()
	}
	for _, p := range [...]*int64{&r.DueMs, &r.ScheduledMs, &r.AddedMs, &r.FiredMs, &r.DoneMs, &r.NextMs} {
		*p = d.varint()
	}
	r.Epoch = d.uvarint()
	copy(r.Hash[:], d.take(len(r.Hash)))
	d.strings(&r.Service, &r.Group, &r.Callback, &r.Source, &r.EventID, &r.Type)
	code := d.varint()
	r.Outcome.Error = string(d.bytes())
	if resp := d.bytes(); len(resp) > 0 {
		r.Outcome.Response = append([]byte(nil), resp...)
	}
	if mode := d.take(1); len(mode) == 1 {
		r.Body.Mode = Mode(mode[0])
	}
	if r.Body.Mode != ModeNone {
		n := d.uvarint()
		if n > uint64(len(d.b)/2) { // each has two lengths
			d.bad = true
			n = 0
		}
		if n > 0 {
			r.Body.Headers = make([]HeaderField, n)
			fields := make([]*string, 0, 2*n)
			for i := range r.Body.Headers {
				fields = append(fields, &r.Body.Headers[i].Name, &r.Body.Headers[i].Value)
			}
			d.strings(fields...)
		}
		r.Body.Data = d.b
	} else if len(d.b) > 0 {
		d.bad = true
	}
	if d.bad || b[2]&^flagQueued != 0 || !r.State.Valid() || r.Body.Mode > ModeBinary || code < math.MinInt32 || code > math.MaxInt32 {
		return Record{}, Errorf(CodeDamaged, "record of %d bytes is damaged", len(b))
	}
	r.Outcome.Code = int32(code)
	return r, nil
}

// decoder reads fields until the first that does not fit, then yields zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > math.MaxUint32 {
		d.bad = true
	}
	return uint32(v)
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.b, d.bad = nil, true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > maxField {
		d.b, d.bad = nil, true
		return nil
	}
	return d.take(int(n))
}

// strings reads as many strings. They share one copy of the bytes: there are
// several in each record, and each by itself is one more thing to collect.
func (d *decoder) strings(into ...*string) {
	from := d.b
	for range into {
		d.bytes()
	}
	if d.bad {
		return
	}
	text := string(from[:len(from)-len(d.b)])
	again := decoder{b: from}
	for _, p := range into {
		n := len(again.bytes())
		end := len(from) - len(again.b)
		*p = text[end-n : end]
	}
}
