package schemas_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// TestFormerRecords reads the adds, hashes and records of format 1 in
// testdata/records-v1.json. A changed hash would make a repeated add a conflict.
func TestFormerRecords(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/records-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var former []struct {
		Name, Data, Hash, Timer, Record string
		Header                          nats.Header
	}
	if err := json.Unmarshal(raw, &former); err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{"empty subject": true} // accepted once, no longer
	for _, f := range former {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			written, err := hex.DecodeString(f.Record)
			if err != nil {
				t.Fatal(err)
			}
			rec, err := schemas.DecodeRecord(written)
			if err != nil {
				t.Fatal(err)
			}
			if again := rec.AppendFormat(nil, schemas.RecordFormat1); !bytes.Equal(again, written) {
				t.Errorf("the record is encoded again as\n%x, want\n%x", again, written)
			}
			hdr, data := rec.Body.Message(schemas.Fired{ScheduledMs: rec.ScheduledMs, FiredMs: added, Run: 1, Attempt: 1})
			_, spec, _, err := schemas.ParseFired(hdr, data)
			if err != nil {
				t.Fatalf("ParseFired cannot read the event of the record: %v", err)
			}
			if spec.Timer.String() != f.Timer || spec.Hash != rec.Hash || spec.Service != rec.Service || spec.Callback != rec.Callback {
				t.Errorf("the record fires the timer %+v, want %s with the record's hash, service and callback", spec, f.Timer)
			}
			_, spec, err = schemas.ParseAdd(f.Header, []byte(f.Data), added, schemas.Limits{})
			switch {
			case refused[f.Name]:
				if schemas.CodeOf(err) != schemas.CodeInvalidEvent {
					t.Errorf("ParseAdd: got error %v, want code invalid_event", err)
				}
			case err != nil:
				t.Error(err)
			case hex.EncodeToString(spec.Hash[:]) != f.Hash || spec.Timer.String() != f.Timer:
				t.Errorf("ParseAdd of the same add: got timer %s with hash %x, want %s with %s", spec.Timer, spec.Hash, f.Timer, f.Hash)
			}
		})
	}
}

// seal replaces the checksum of a modified record by a correct one.
func seal(b []byte) []byte {
	n := len(b) - 4
	binary.LittleEndian.PutUint32(b[n:], crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestDamagedOrNewer checks that a decoder distinguishes damaged records, which belfry
// repair replaces, from records of a newer version, which nothing may change.
func TestDamagedOrNewer(t *testing.T) {
	t.Parallel()
	r := schemas.Record{
		Definition: schemas.Definition{Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte("{}")}},
		RunState:   schemas.RunState{State: schemas.StatePending},
	}
	critical := r
	critical.Ext = []schemas.Extension{{Type: 1000, Value: []byte("x")}, {Type: 1001}}
	first := r.AppendFormat(nil, schemas.RecordFormat1)
	second := r.AppendFormat(nil, schemas.RecordFormat2)
	for _, c := range []struct {
		name string
		b    []byte
		do   func(b []byte) []byte
		want error
	}{
		{"format 1", first, func(b []byte) []byte { return b }, nil},
		{"format 2", second, func(b []byte) []byte { return b }, nil},
		{"format 1: version 0", first, func(b []byte) []byte { b[0] = 0; return b }, schemas.ErrDamaged},
		{"format 1: version 2", first, func(b []byte) []byte { b[0]++; return b }, schemas.ErrDamaged},
		{"format 1: an unknown flag", first, func(b []byte) []byte { b[2] |= 2; return b }, schemas.ErrDamaged},
		{"format 1: an unknown state", first, func(b []byte) []byte { b[1] = 99; return b }, schemas.ErrDamaged},
		{"format 1: cut off", first, func(b []byte) []byte { return b[:20] }, schemas.ErrDamaged},
		{"format 1: a PubAck", first, func([]byte) []byte { return []byte(`{"stream":"TIMERS_ADD","seq":7}`) }, schemas.ErrDamaged},
		{"format 1: nothing", first, func([]byte) []byte { return nil }, schemas.ErrDamaged},
		{"format 2: cut off", second, func(b []byte) []byte { return b[:len(b)-1] }, schemas.ErrDamaged},
		{"format 2: only the version", second, func(b []byte) []byte { return b[:3] }, schemas.ErrDamaged},
		{"format 2: one byte more", second, func(b []byte) []byte { return append(b, 0) }, schemas.ErrDamaged},
		{"format 2: an unknown flag", second, func(b []byte) []byte { b[2] |= 2; return b }, schemas.ErrDamaged},
		{"format 2: an unknown flag, written so", second, func(b []byte) []byte { b[2] |= 2; return seal(b) }, schemas.ErrNewer},
		{"format 2: an unknown state, written so", second, func(b []byte) []byte { b[1] = 99; return seal(b) }, schemas.ErrNewer},
		{"format 2: a critical extension", critical.Append(nil), func(b []byte) []byte { return b }, schemas.ErrNewer},
		{"format 3", second, func(b []byte) []byte { b[0] = 3; return seal(b) }, schemas.ErrNewer},
		{"format 31", second, func(b []byte) []byte { b[0] = 31; return seal(b) }, schemas.ErrNewer},
		{"format 3, damaged", second, func(b []byte) []byte { b[0] = 3; return b }, schemas.ErrDamaged},
		{"format 32", second, func(b []byte) []byte { b[0] = 32; return seal(b) }, schemas.ErrDamaged},
		{"format 1, made of format 2", second, func(b []byte) []byte { b[0] = 1; return b }, schemas.ErrDamaged},
	} {
		if _, err := schemas.DecodeRecord(c.do(bytes.Clone(c.b))); !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
	}
}

// TestFlippedBits: format 2 finds each single flipped bit and each truncation of a
// record; format 1 finds few.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	r := full()
	for _, mode := range []schemas.Mode{schemas.ModeNone, schemas.ModeStructured, schemas.ModeBinary} {
		r.Body.Mode = mode
		if mode == schemas.ModeNone {
			r.Body = schemas.Body{}
		}
		good := r.AppendFormat(nil, schemas.RecordFormat2)
		for i := range len(good) * 8 {
			bad := bytes.Clone(good)
			bad[i/8] ^= 1 << (i % 8)
			if _, err := schemas.DecodeRecord(bad); !errors.Is(err, schemas.ErrDamaged) {
				t.Fatalf("with bit %d of %d flipped: got error %v, want ErrDamaged", i, len(good)*8, err)
			}
		}
		for n := range len(good) {
			if _, err := schemas.DecodeRecord(good[:n]); !errors.Is(err, schemas.ErrDamaged) {
				t.Fatalf("cut to %d of %d bytes: got error %v, want ErrDamaged", n, len(good), err)
			}
		}
	}
}

// full is a record with a value in every field.
func full() schemas.Record {
	r := schemas.Record{
		Definition: schemas.Definition{AddedMs: added + 2, Hash: [16]byte{7}, Service: "svc", Group: "g", Callback: "nats:x", Source: "/s", EventID: "1", Type: "t", Body: schemas.Body{Mode: schemas.ModeBinary, Headers: []schemas.HeaderField{{Name: "ce-id", Value: "1"}}, Data: []byte("data")}},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Queued: true, Run: 1, Attempt: 2, MaxAttempt: 3, DueMs: added, ScheduledMs: added + 1, FiredMs: added + 3, DoneMs: added + 4, NextMs: added + 5, Epoch: 6, Outcome: schemas.Outcome{Code: 500, Error: "e", Response: []byte("r")}},
		Moves:      4,
		Ext:        []schemas.Extension{{Type: 1000, Value: []byte("of a later version")}, {Type: 1 << 30}},
	}
	r.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: added, Caller: schemas.Caller{By: "ann@desk", Account: "ORDERS", User: "orders"}})
	r.Note(schemas.Operation{Kind: schemas.OperationReplay, AtMs: added + 9})
	r.Retry = &schemas.RetryPolicy{MaxAttempts: 3, BackoffFirst: time.Second, BackoffTo: time.Minute, Timeout: 5 * time.Second}
	r.Attempts = []schemas.Attempt{
		{Number: 1, AtMs: added + 3, TookMs: 15, Outcome: schemas.Outcome{Code: 503, Error: "busy", Response: []byte("later")}},
		{Number: 2, AtMs: added + 1003, TookMs: 300},
	}
	return r
}

// TestFirstFired: format 2 stores the time of the first firing, and an event without it is
// marked as one whose record has more.
func TestFirstFired(t *testing.T) {
	t.Parallel()
	r := full()
	r.Attempts, r.History, r.Ext, r.DueMs = nil, nil, nil, r.ScheduledMs
	if r.Extended() || r.FirstMs() != r.FiredMs {
		t.Errorf("extended %v, first fired at %d", r.Extended(), r.FirstMs())
	}
	for _, first := range []int64{added, -1, math.MinInt64} {
		r.FirstFiredMs = first
		got, err := schemas.DecodeRecord(r.Append(nil))
		if err != nil || !reflect.DeepEqual(got, r) || !r.Extended() || r.FirstMs() != first {
			t.Errorf("%v: got\n%+v, want\n%+v", err, got, r)
		}
	}
}

// TestLatestDue: format 2 stores the latest due time of a timer that was moved to an earlier one, and an event without it
// is marked as one whose record has more. A build that does not know the field keeps it.
func TestLatestDue(t *testing.T) {
	t.Parallel()
	r := full()
	r.Attempts, r.History, r.Ext, r.DueMs = nil, nil, nil, r.ScheduledMs
	r.State, r.Queued = schemas.StatePending, true
	due := r.DueMs
	for _, step := range []struct{ dueMs, latest, last int64 }{
		{due + 9000, 0, due + 9000},            // later
		{due + 2000, due + 9000, due + 9000},   // earlier
		{due + 5000, due + 9000, due + 9000},   // later, but not the latest
		{due + 9000, 0, due + 9000},            // the latest again
		{due + 1000, due + 9000, due + 9000},   // earlier
		{due + 12000, 0, due + 12000},          // later than ever
		{due - 1000, due + 12000, due + 12000}, // earlier than ever
	} {
		if err := r.Reschedule(step.dueMs, added, schemas.Caller{}); err != nil {
			t.Fatal(err)
		}
		if r.History = nil; r.LatestDueMs != step.latest || r.LastWaitMs() != step.last {
			t.Errorf("moved to %d: latest due time %d, last wait %d; want %+v", step.dueMs, r.LatestDueMs, r.LastWaitMs(), step)
		}
		got, err := schemas.DecodeRecord(r.Append(nil))
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%v: got\n%+v, want\n%+v", err, got, r)
		}
	}
	if r.DueMs = r.ScheduledMs; !r.Extended() {
		t.Error("the record does not count as extended")
	}
	if r.LatestDueMs = due - 5000; r.LastWaitMs() != r.DueMs { // an older build moved it later
		t.Errorf("last wait %d, want the due time %d", r.LastWaitMs(), r.DueMs)
	}
}

// TestRecordFormats checks that each format decodes to the encoded record. Format 1 drops
// history and extensions.
func TestRecordFormats(t *testing.T) {
	t.Parallel()
	want := full()
	for _, format := range []schemas.RecordFormat{schemas.RecordFormat1, schemas.RecordFormat2} {
		before := []byte("before")
		b := want.AppendFormat(bytes.Clone(before), format)
		got, err := schemas.DecodeRecord(bytes.TrimPrefix(b, before))
		if err != nil {
			t.Fatalf("format %d cannot be decoded: %v", format, err)
		}
		want := want
		if format == schemas.RecordFormat1 {
			want.History, want.Ext, want.Retry, want.Attempts = nil, nil, nil, nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("format %d: got\n%+v, want\n%+v", format, got, want)
		}
		if again := got.AppendFormat(nil, format); !bytes.Equal(again, b[len(before):]) {
			t.Errorf("format %d: got\n%x when encoded again, want\n%x", format, again, b[len(before):])
		}
	}
	// The bytes are a contract with other versions.
	got := hex.EncodeToString(want.Append(nil))
	if got != goldenFormat2 {
		t.Errorf("format 2 is encoded as\n%s, want\n%s", got, goldenFormat2)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var r schemas.Record
	r.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: 1, Caller: schemas.Caller{By: strings.Repeat("b", 1000), Account: strings.Repeat("\n", 1000), User: strings.Repeat("u", 1000)}})
	other := r
	for i := range 20 {
		r.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: int64(i + 2), Caller: schemas.Caller{By: strings.Repeat("b", 1000), Account: strings.Repeat("a", 1000), User: strings.Repeat("u", 1000)}})
	}
	if len(r.History) != schemas.MaxHistory || r.History[0].AtMs != 14 || r.History[schemas.MaxHistory-1].AtMs != 21 {
		t.Errorf("got %d operations, want %d, with the times 14 to 21: %+v", len(r.History), schemas.MaxHistory, r.History)
	}
	if len(other.History) != 1 || other.History[0].AtMs != 1 || strings.Contains(other.History[0].Account, "\n") {
		t.Errorf("a change of a record also changed its copy: got history %+v, want one operation", other.History)
	}
	other.Note(schemas.Operation{Kind: schemas.OperationCancel, AtMs: 99})
	if r.History[0].AtMs != 14 {
		t.Errorf("a change of the copy also changed the record: its first operation has time %d, want 14", r.History[0].AtMs)
	}
	if n := len(r.Append(nil)); n > 2600 {
		t.Errorf("a record with a full history has %d bytes, want at most 2,600", n)
	}
}

// goldenFormat2 is the encoding of full in format 2.
const goldenFormat2 = "0203010102030480c0e285e36882c0e285e36884c0e285e36886c0e285e36888c0e285e3688ac0e285e3680607000000000000000000000000000000037376630167066e6174733a78022f7301310174e807016501727a02280280c0e285e36808616e6e406465736b064f5244455253066f72646572730392c0e285e3680000000411038094ebdc0380b09dc2df0180e497d01206200186c0e285e3680f01ee070462757379056c6174657202d6cfe285e368ac0200e807126f662061206c617465722076657273696f6e80808080040002010563652d6964013164617461c7f409d5"

// TestUnattemptedIsKept: format 2 stores the requests that no worker took, and an event without them is marked as one
// whose record has more. A malformed value stays an unknown extension. A replay begins them at 0.
func TestUnattemptedIsKept(t *testing.T) {
	t.Parallel()
	r := full()
	r.Attempts, r.History, r.Ext, r.DueMs = nil, nil, nil, r.ScheduledMs
	for _, n := range [][2]uint32{{1, 1}, {300, 0}, {300, 299}, {math.MaxUint32, math.MaxUint32}} {
		r.Unattempted, r.UnattemptedInRow = n[0], n[1]
		got, err := schemas.DecodeRecord(r.Append(nil))
		if err != nil || !reflect.DeepEqual(got, r) || !r.Extended() {
			t.Errorf("%v: got\n%+v, want\n%+v", err, got, r)
		}
	}
	again := r
	if again.Replay(schemas.Body{}, 3, true, 1, schemas.Caller{}); again.Unattempted != 0 || again.UnattemptedInRow != 0 {
		t.Errorf("after a replay: %d, and %d in a row", again.Unattempted, again.UnattemptedInRow)
	}
	for _, value := range [][]byte{{}, {0, 0}, {1}, {1, 2}, {1, 1, 1}, {0xff}} {
		r.Unattempted, r.UnattemptedInRow, r.Ext = 0, 0, []schemas.Extension{{Type: 16, Value: append([]byte(nil), value...)}}
		got, err := schemas.DecodeRecord(r.Append(nil))
		if err != nil || got.Unattempted != 0 || len(got.Ext) != 1 {
			t.Errorf("value %v: got %d and %+v (%v), want an unknown extension", value, got.Unattempted, got.Ext, err)
		}
	}
}

// TestReplayedIsKept: format 2 stores the attempts before the last replay, and an event without them is marked as one
// whose record has more. A malformed value stays an unknown extension.
func TestReplayedIsKept(t *testing.T) {
	t.Parallel()
	r := full()
	r.Attempts, r.History, r.Ext, r.DueMs = nil, nil, nil, r.ScheduledMs
	for _, n := range []uint32{1, 300, math.MaxUint32} {
		r.Replayed = n
		got, err := schemas.DecodeRecord(r.Append(nil))
		if err != nil || !reflect.DeepEqual(got, r) || !r.Extended() {
			t.Errorf("%v: got\n%+v, want\n%+v", err, got, r)
		}
	}
	for _, value := range [][]byte{{}, {0}, {1, 2}, {0xff}} {
		r.Replayed, r.Ext = 0, []schemas.Extension{{Type: 14, Value: append([]byte(nil), value...)}}
		got, err := schemas.DecodeRecord(r.Append(nil))
		if err != nil || got.Replayed != 0 || len(got.Ext) != 1 {
			t.Errorf("value %v: got %d and %+v (%v), want an unknown extension", value, got.Replayed, got.Ext, err)
		}
	}
}
