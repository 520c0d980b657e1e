package schemas

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
)

// Record is the stored state of a timer, the value of its key in the shard's KV bucket. It
// is authoritative: streams, indexes and caches follow it. Every change is a
// compare-and-set on the key's revision. Times are Unix milliseconds of the cluster's
// clock; 0 means that the event has not happened yet.
//
// A one-shot timer has one run, and both are in one record: a change of either is one
// message.
type Record struct {
	Definition
	RunState
	// Moves counts reschedules, pauses and resumes; it is 0 in the record that created the
	// timer.
	Moves uint32
	// History holds the last control operations, oldest first, at most MaxHistory.
	// Record.Note adds to it. Format 1 does not store it.
	History []Operation
	// PauseNote says why a one-shot timer is paused, at most MaxPauseNote bytes. A schedule
	// has its note in Progress. Format 1 does not store it.
	PauseNote string
	// Schedule makes the timer recur; nil for a one-shot timer.
	Schedule *Schedule
	// Origin names the schedule whose run the record describes; nil for all other records.
	Origin *Origin
	// Ext holds the extensions that this version does not interpret. They are
	// written back unchanged. Format 1 does not store them.
	Ext []Extension
}

// NewRecord returns the first record of a timer, in state pending. addedMs is the time of
// the add, body the event as the user sent it. The first run of a schedule is set by package
// internal/recurrence.
func NewRecord(spec *Spec, body Body, addedMs int64) Record {
	r := Record{
		Definition: spec.definition(addedMs, spec.Hash),
		RunState:   RunState{State: StatePending, Queued: true, Run: 1, MaxAttempt: spec.MaxAttempts, DueMs: spec.DueMs, ScheduledMs: spec.DueMs},
	}
	r.Body = body
	if spec.Callback != "" {
		r.Retry = spec.Shared()
	}
	if spec.Recurrence != nil {
		r.Schedule = &Schedule{Recurrence: *spec.Recurrence, Progress: Progress{AnchorMs: cmp.Or(spec.Recurrence.StartMs, addedMs)}}
	}
	return r
}

// definition returns the definition of an event, without Retry and Body.
func (s *Spec) definition(addedMs int64, hash [16]byte) Definition {
	return Definition{
		AddedMs: addedMs, Hash: hash, Service: s.Service, Group: s.Group, Callback: s.Callback,
		Source: s.Source, EventID: s.EventID, Type: s.Type, Key: s.Key,
	}
}

// Definition is what the user asked for. Neither firing nor calling changes it; only the
// end of the timer removes its Body.
type Definition struct {
	// AddedMs is the time at which the add's stream stored the event.
	AddedMs int64
	// Hash is the hash of the event: equal for a repeated add, different for a conflicting
	// one.
	Hash     [16]byte
	Service  string
	Group    string
	Callback string
	Source   string
	EventID  string
	Type     string
	// Key is the ordering key; "" for none. Format 1 does not store it.
	Key string
	// Retry is the retry policy of a timer with a callback, nil if the record does not have
	// it: see RetryPolicy. Records share policies; never change one.
	Retry *RetryPolicy
	// Body is the event; empty in a final state.
	Body Body
}

// TimerID returns the id of the timer, or of the schedule whose run has this definition.
func (d *Definition) TimerID() TimerID {
	return NewTenantTimerID(TenantOf(d.Service), d.Source, d.EventID)
}

// RunState is one occurrence of a timer and what became of it.
type RunState struct {
	State State
	// Queued is true while the record waits in the wheel, with an index entry for DueMs:
	// in state pending, in state retrying if the delay is long, and in state paused if a run
	// of the paused schedule was asked for.
	Queued bool
	// Run is the number of the occurrence, from 1.
	Run uint32
	// Attempt counts finished callback attempts of this run.
	Attempt uint32
	// MaxAttempt is the attempt after which the run is dead-lettered; a replay
	// raises it.
	MaxAttempt uint32
	// DueMs is the time at which the wheel acts on the record next.
	DueMs int64
	// ScheduledMs is the due time that the user asked for, the attribute timerscheduled.
	ScheduledMs int64
	// FiredMs is the time of the last claim, DoneMs that of the final state.
	FiredMs int64
	DoneMs  int64
	// FirstFiredMs is the time of the claim that first published the run, if FiredMs is that
	// of a later claim, such as of a retry that waited in the wheel; otherwise 0. Format 1 does
	// not store it.
	FirstFiredMs int64
	// NextMs is the time of the next callback attempt in state retrying.
	NextMs int64
	// Epoch is the clock epoch of the owner that claimed the run.
	Epoch uint64
	// Outcome is the result of the last attempt.
	Outcome Outcome
	// Attempts holds the last attempts of the run, oldest first, at most MaxKeptAttempts.
	// AddAttempt adds to it. Format 1 does not store it.
	Attempts []Attempt
	// Deferral is the wait for a slot of the flow key, and what remains of it after the call;
	// nil for a run that never waited, and in a final state. Format 1 does not store it.
	Deferral *Deferral
}

// Outcome is the result of a callback attempt.
type Outcome struct {
	// Code is the HTTP status, or 0 without one.
	Code int32
	// Error is the reason of a failure, at most MaxOutcomeError bytes.
	Error string
	// Response is the start of the answer's body, at most MaxOutcomeResponse bytes.
	Response []byte
}

// Limits of an Outcome, in bytes.
const (
	MaxOutcomeError    = 512
	MaxOutcomeResponse = 1024
)

// Pending reports whether the run waits in the wheel.
func (r *RunState) Pending() bool {
	return r.State == StatePending || (r.State == StateRetrying || r.State == StatePaused) && r.Queued
}

// Reclaim stores the time of the last claim as that of the first firing, unless the record has
// one. Call it before a claim changes FiredMs. Of a run that was never published, a replay sets
// FiredMs; it is not a time of firing.
func (r *RunState) Reclaim() {
	published := r.State != StateRetrying || r.Attempt > 0
	if r.FirstFiredMs == 0 && published {
		r.FirstFiredMs = r.FiredMs
	}
}

// FirstMs returns the time at which the run fired first, 0 if it has not fired. Retries do not
// change it.
func (r *RunState) FirstMs() int64 { return cmp.Or(r.FirstFiredMs, r.FiredMs) }

// LateFromMs returns the time from which the lateness of the record's run counts, in Unix
// milliseconds: the due time or, if that was in the past, the time of the add, reschedule
// or resume.
func (r *Record) LateFromMs() int64 {
	from := max(r.DueMs, r.AddedMs)
	for i := range r.History {
		if op := &r.History[i]; op.Kind == OperationReschedule || op.Kind == OperationResume {
			from = max(from, op.AtMs)
		}
	}
	return from
}

// Fired returns the attributes that Belfry adds to the event of the record's run. attempt
// is the number of finished or, for an event that is about to be called back, begun
// attempts. noCallback is Fired.NoCallback.
func (r *Record) Fired(attempt uint32, noCallback bool) Fired {
	f := Fired{ScheduledMs: r.ScheduledMs, FiredMs: r.FiredMs, Run: max(r.Run, 1), Attempt: attempt, NoCallback: noCallback}
	if o := r.Origin; o != nil {
		f.Missed, f.Trigger = min(o.Missed, math.MaxInt32), o.Trigger // an integer of CloudEvents
	}
	return f
}

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
// RecordFormatTest. Format 1 omits Retry, Attempts, History, FirstFiredMs and Ext; a record with a
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
// history, an earlier firing, extensions, a deferral, an ordering key, or a due time that is not the nominal time, such
// as that of a run with jitter. The origin of a run is in the message's claim. HeaderRetry or the
// event has the retry policy, and a record in a final state does not need it.
func (r *Record) Extended() bool {
	return len(r.Attempts) > 0 || len(r.History) > 0 || r.FirstFiredMs != 0 || len(r.Ext) > 0 || r.Deferral != nil || r.Key != "" || r.DueMs != r.ScheduledMs
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
		d := decoder{b: value}
		first := d.varint()
		if ok = first != 0 && !d.bad && len(d.b) == 0; ok {
			r.FirstFiredMs = first
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
