package schemas

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// RecordFormat is the format version of an encoded record, its first byte.
// docs/adr/0009 describes the formats and when each is written.
type RecordFormat uint8

// The record formats.
const (
	// RecordFormat1 has no checksum and no extensions.
	RecordFormat1 RecordFormat = 1
	// RecordFormat2 adds a block of extensions and ends with a CRC32C.
	RecordFormat2 RecordFormat = 2
	// NewestRecordFormat is the newest format that this version reads and writes.
	NewestRecordFormat = RecordFormat2
	// maxRecordFormat is the highest version number of any future format. It is below the
	// printable characters, so text that overwrote a record, such as a JSON answer, is
	// never mistaken for a record of a newer version.
	maxRecordFormat RecordFormat = 0x1f
	// RecordFormatTest stands for a future format in tests: the layout of format 2 under
	// the highest version. DecodeRecord does not read it.
	RecordFormatTest = maxRecordFormat
)

// checksumBytes is the length of the checksum at the end of every record from
// format 2 on: the CRC32C (Castagnoli) of all bytes before it, little-endian. Future
// formats must keep it: by the checksum a reader distinguishes a record of a newer version
// from a damaged record.
const checksumBytes = 4

// prefixBytes is the length of the version, the state and the flags, one byte each.
const prefixBytes = 3

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// flagQueued is the only flag of formats 1 and 2.
const flagQueued = 1

// Extension is a part of a record that this version does not interpret.
type Extension struct {
	// Type identifies the extension. Odd types are critical: a reader that does not know
	// the type fails with ErrNewer. It skips unknown even types.
	Type uint32
	// Value is the extension in its own encoding.
	Value []byte
}

// Critical reports whether a reader that does not know the extension must not use the
// record.
func (e Extension) Critical() bool { return e.Type&1 == 1 }

// The types of the extensions in fields of Record. Schedule and origin are critical: without
// them a node would fire the record as a one-shot timer. So is the deferral: without it a node
// would publish the event on timers.fired again. And so is the ordering key: without it a node
// would call the event out of order.
const (
	extHistory  = 2
	extRetry    = 4
	extAttempts = 6
	extPause    = 8
	extFirst    = 10
	extLatest   = 12
	extReplayed = 14
	extUntaken  = 16
	extSchedule = 7
	extOrigin   = 9
	extDeferral = 11
	extKey      = 13
)

// maxField bounds a decoded string, in bytes. It is far above the limits of an add.
const maxField = 64 << 20

// Append appends the record in the newest format.
func (r *Record) Append(dst []byte) []byte { return r.AppendFormat(dst, NewestRecordFormat) }

// AppendFormat appends the record in the given format: RecordFormat1, RecordFormat2 or
// RecordFormatTest. Format 1 omits Retry, Attempts, History, FirstFiredMs, LatestDueMs, Replayed, Unattempted and Ext; a record with a
// Schedule, an Origin, a Deferral or a Key is written in format 2 instead, because it would become
// another timer without them. The encoding is binary rather than JSON because each timer's record is
// encoded three times and decoded four.
//
// Layout: the version byte; the state; a flag byte; the numbers as uvarints and the times
// as zig-zag varints; 16 bytes of hash; length-prefixed strings; in format 2 a
// length-prefixed block of extensions (type, length, value); the body; in format 2 the
// checksum.
func (r *Record) AppendFormat(dst []byte, format RecordFormat) []byte {
	if r.Schedule != nil || r.Origin != nil || r.Deferral != nil || r.Key != "" {
		format = max(format, RecordFormat2)
	}
	start := len(dst)
	var flags byte
	if r.Queued {
		flags |= flagQueued
	}
	dst = append(dst, byte(format), byte(r.State), flags)
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
	dst = r.Outcome.append(dst)
	if format >= RecordFormat2 {
		dst = r.appendExtensions(dst)
	}
	dst = append(dst, byte(r.Body.Mode))
	if r.Body.Mode != ModeNone {
		dst = binary.AppendUvarint(dst, uint64(len(r.Body.Headers)))
		for _, h := range r.Body.Headers {
			dst = appendString(dst, h.Name)
			dst = appendString(dst, h.Value)
		}
		dst = append(dst, r.Body.Data...)
	}
	if format >= RecordFormat2 {
		dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
	}
	return dst
}

// append appends the encoded outcome.
func (o *Outcome) append(dst []byte) []byte {
	dst = binary.AppendVarint(dst, int64(o.Code))
	dst = appendString(dst, o.Error)
	dst = binary.AppendUvarint(dst, uint64(len(o.Response)))
	return append(dst, o.Response...)
}

// Extended reports whether a message on timers.fired lacks a part of the record: attempts,
// history, an earlier firing, an earlier due time, a replay, requests that no worker took, extensions, a deferral, an ordering key,
// or a due time that is not the nominal time, such as that of a run with jitter. The origin of a run is in the message's claim. HeaderRetry or the
// event has the retry policy, and a record in a final state does not need it.
func (r *Record) Extended() bool {
	return len(r.Attempts) > 0 || len(r.History) > 0 || r.FirstFiredMs != 0 || r.LatestDueMs != 0 || r.Replayed != 0 || r.Unattempted != 0 || len(r.Ext) > 0 || r.Deferral != nil || r.Key != "" || r.DueMs != r.ScheduledMs
}

// appendExtensions appends the block of extensions with its length.
func (r *Record) appendExtensions(dst []byte) []byte {
	// A record with a policy and one attempt is encoded without an allocation.
	var room, valueRoom [64]byte
	block := room[:0]
	if len(r.History) > 0 {
		value := valueRoom[:0]
		for i := range r.History {
			value = r.History[i].append(value)
		}
		block = appendExtension(block, Extension{extHistory, value})
	}
	if r.Retry != nil {
		block = appendExtension(block, Extension{extRetry, r.Retry.append(valueRoom[:0])})
	}
	if len(r.Attempts) > 0 {
		value := valueRoom[:0]
		for i := range r.Attempts {
			value = r.Attempts[i].append(value)
		}
		block = appendExtension(block, Extension{extAttempts, value})
	}
	if r.PauseNote != "" {
		block = appendExtension(block, Extension{extPause, []byte(r.PauseNote)})
	}
	if r.FirstFiredMs != 0 {
		block = appendExtension(block, Extension{extFirst, binary.AppendVarint(valueRoom[:0], r.FirstFiredMs)})
	}
	if r.LatestDueMs != 0 {
		block = appendExtension(block, Extension{extLatest, binary.AppendVarint(valueRoom[:0], r.LatestDueMs)})
	}
	if r.Replayed != 0 {
		block = appendExtension(block, Extension{extReplayed, binary.AppendUvarint(valueRoom[:0], uint64(r.Replayed))})
	}
	if r.Unattempted != 0 {
		value := binary.AppendUvarint(valueRoom[:0], uint64(r.Unattempted))
		block = appendExtension(block, Extension{extUntaken, binary.AppendUvarint(value, uint64(r.UnattemptedInRow))})
	}
	if r.Schedule != nil {
		block = appendExtension(block, Extension{extSchedule, r.Schedule.append(nil)})
	}
	if r.Origin != nil {
		block = appendExtension(block, Extension{extOrigin, r.Origin.append(valueRoom[:0])})
	}
	if r.Deferral != nil {
		block = appendExtension(block, Extension{extDeferral, r.Deferral.append(nil)})
	}
	if r.Key != "" {
		block = appendExtension(block, Extension{extKey, []byte(r.Key)})
	}
	for _, e := range r.Ext {
		block = appendExtension(block, e)
	}
	dst = binary.AppendUvarint(dst, uint64(len(block)))
	return append(dst, block...)
}

func appendExtension(dst []byte, e Extension) []byte {
	dst = binary.AppendUvarint(dst, uint64(e.Type))
	dst = binary.AppendUvarint(dst, uint64(len(e.Value)))
	return append(dst, e.Value...)
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// DecodeRecord decodes a record of any known format; see DecodeRecordUpTo.
func DecodeRecord(b []byte) (Record, error) { return DecodeRecordUpTo(b, NewestRecordFormat) }

// DecodeRecordUpTo decodes a record of format newest or older. Tests use it to behave like
// an older version of Belfry. It returns ErrDamaged for bytes that are not a complete,
// intact record, and ErrNewer for an intact record with a format, flag, state, content mode
// or critical extension that it does not know. The result's Body.Data aliases b.
func DecodeRecordUpTo(b []byte, newest RecordFormat) (Record, error) {
	if len(b) < prefixBytes {
		return Record{}, Errorf(CodeDamaged, "record of %d bytes is too short", len(b))
	}
	format := RecordFormat(b[0])
	switch {
	case format == 0 || format > maxRecordFormat:
		return Record{}, Errorf(CodeDamaged, "record of %d bytes is damaged: it begins with byte %d, which is not a format version", len(b), b[0])
	case format == RecordFormat1:
		return decodeRecord(b, b)
	}
	fields := len(b) - checksumBytes
	if fields < prefixBytes || crc32.Checksum(b[:fields], castagnoli) != binary.LittleEndian.Uint32(b[fields:]) {
		return Record{}, Errorf(CodeDamaged, "record of %d bytes is damaged: its checksum does not match", len(b))
	}
	if format > newest || format > NewestRecordFormat && format != RecordFormatTest {
		return Record{}, Errorf(CodeUnknownFormat, "record has format version %d; this version of belfry reads %d: upgrade this node", format, newest)
	}
	return decodeRecord(b, b[:fields])
}

// decodeRecord decodes the fields of a record of format 1 or 2. whole is the record
// with its checksum; error texts give its length.
func decodeRecord(whole, b []byte) (Record, error) {
	var r Record
	format, flags := RecordFormat(b[0]), b[2]
	r.State, r.Queued = State(b[1]), flags&flagQueued != 0
	d := decoder{b: b[prefixBytes:]}
	for _, p := range [...]*uint32{&r.Run, &r.Attempt, &r.MaxAttempt, &r.Moves} {
		*p = d.uint32()
	}
	for _, p := range [...]*int64{&r.DueMs, &r.ScheduledMs, &r.AddedMs, &r.FiredMs, &r.DoneMs, &r.NextMs} {
		*p = d.varint()
	}
	r.Epoch = d.uvarint()
	copy(r.Hash[:], d.take(len(r.Hash)))
	d.strings(&r.Service, &r.Group, &r.Callback, &r.Source, &r.EventID, &r.Type)
	r.Outcome = d.outcome()
	var unknown error
	if format >= RecordFormat2 {
		unknown = d.extensions(&r)
	}
	if mode := d.take(1); len(mode) == 1 {
		r.Body.Mode = Mode(mode[0])
	}
	if r.Body.Mode != ModeNone {
		n := d.uvarint()
		if n > uint64(len(d.b)/2) { // a header takes at least two bytes, its two lengths
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
	if flags&^flagQueued != 0 || !r.State.Valid() || r.Body.Mode > ModeBinary {
		unknown = Errorf(CodeUnknownFormat, "record has flags %#x, state %d and content mode %d; this version of belfry does not know all of them: upgrade this node", flags, r.State, r.Body.Mode)
	}
	switch {
	// Only the checksum shows that a newer version wrote the unknown value.
	case format >= RecordFormat2 && unknown != nil:
		return Record{}, unknown
	case d.bad || unknown != nil:
		return Record{}, Errorf(CodeDamaged, "record of %d bytes is damaged", len(whole))
	}
	return r, nil
}

// decoder decodes fields. After the first malformed field, bad is true and all further
// fields are zero.
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

// extensions decodes the block of extensions. It returns ErrNewer for a critical extension
// that this version does not know.
func (d *decoder) extensions(r *Record) error {
	block := decoder{b: d.bytes()}
	var unknown error
	for len(block.b) > 0 {
		e := Extension{Type: block.uint32()}
		value := block.bytes()
		if block.bad {
			d.b, d.bad = nil, true
			return nil
		}
		if r.readExtension(e.Type, value) {
			continue
		}
		if e.Critical() && unknown == nil {
			unknown = Errorf(CodeUnknownFormat, "record has the critical extension %d, which this version of belfry does not know: upgrade this node", e.Type)
		}
		e.Value = append([]byte(nil), value...)
		r.Ext = append(r.Ext, e)
	}
	return unknown
}

// readExtension decodes an extension into its field. It returns false for an extension that
// it does not know, that is malformed, or that the record has twice.
func (r *Record) readExtension(kind uint32, value []byte) (ok bool) {
	switch {
	case kind == extHistory && r.History == nil:
		r.History, ok = readHistory(value)
	case kind == extRetry && r.Retry == nil:
		r.Retry = readRetryPolicy(value)
		ok = r.Retry != nil
	case kind == extAttempts && r.Attempts == nil:
		r.Attempts, ok = readAttempts(value)
	case kind == extPause && r.PauseNote == "":
		r.PauseNote = string(value)
		ok = r.PauseNote != ""
	case kind == extFirst && r.FirstFiredMs == 0:
		r.FirstFiredMs, ok = readTime(value)
	case kind == extLatest && r.LatestDueMs == 0:
		r.LatestDueMs, ok = readTime(value)
	case kind == extReplayed && r.Replayed == 0:
		d := decoder{b: value}
		r.Replayed = d.uint32()
		if ok = r.Replayed != 0 && !d.bad && len(d.b) == 0; !ok {
			r.Replayed = 0
		}
	case kind == extUntaken && r.Unattempted == 0:
		d := decoder{b: value}
		if n, row := d.uint32(), d.uint32(); n != 0 && row <= n && !d.bad && len(d.b) == 0 {
			r.Unattempted, r.UnattemptedInRow, ok = n, row, true
		}
	case kind == extSchedule && r.Schedule == nil:
		r.Schedule = readSchedule(value)
		ok = r.Schedule != nil
	case kind == extOrigin && r.Origin == nil:
		r.Origin = readOrigin(value)
		ok = r.Origin != nil
	case kind == extDeferral && r.Deferral == nil:
		r.Deferral = readDeferral(value)
		ok = r.Deferral != nil
	case kind == extKey && r.Key == "":
		r.Key = string(value)
		ok = r.Key != ""
	}
	return ok
}

// readTime decodes an extension that is one time. It returns 0 for a value that is malformed.
func readTime(value []byte) (ms int64, ok bool) {
	d := decoder{b: value}
	if ms = d.varint(); ms == 0 || d.bad || len(d.b) > 0 {
		return 0, false
	}
	return ms, true
}

func (d *decoder) outcome() (o Outcome) {
	code := d.varint()
	if code < math.MinInt32 || code > math.MaxInt32 {
		d.bad = true
	}
	o.Code, o.Error = int32(code), string(d.bytes())
	if response := d.bytes(); len(response) > 0 {
		o.Response = append([]byte(nil), response...)
	}
	return o
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > maxField {
		d.b, d.bad = nil, true
		return nil
	}
	return d.take(int(n))
}

// strings decodes len(into) strings. The strings share one allocation, which reduces the
// work of the garbage collector.
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
