package schemas_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// TestFormerRecords reads what the first version of the format wrote, before
// events were read by a scanner: testdata/records-v1.json holds its adds, their
// hashes and its records. A hash that changes makes conflicts of repeated adds.
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
			if again := rec.Append(nil); !bytes.Equal(again, written) {
				t.Errorf("it is written anew as\n%x, was\n%x", again, written)
			}
			hdr, data := rec.Body.Message(schemas.Fired{ScheduledMs: rec.ScheduledMs, FiredMs: added, Run: 1, Attempt: 1})
			_, spec, _, err := schemas.ParseFired(hdr, data)
			if err != nil {
				t.Fatalf("what it fires cannot be read: %v", err)
			}
			if spec.Timer.String() != f.Timer || spec.Hash != rec.Hash || spec.Service != rec.Service || spec.Callback != rec.Callback {
				t.Errorf("it fires as another timer: %+v", spec)
			}
			_, spec, err = schemas.ParseAdd(f.Header, []byte(f.Data), added, schemas.Limits{})
			switch {
			case refused[f.Name]:
				if schemas.CodeOf(err) != schemas.CodeInvalidEvent {
					t.Errorf("%v", err)
				}
			case err != nil:
				t.Error(err)
			case hex.EncodeToString(spec.Hash[:]) != f.Hash || spec.Timer.String() != f.Timer:
				t.Errorf("the same add has hash %x, had %s", spec.Hash, f.Hash)
			}
		})
	}
}

func TestUnknownRecordVersion(t *testing.T) {
	t.Parallel()
	r := schemas.Record{State: schemas.StatePending, Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte("{}")}}
	good := r.Append(nil)
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		want   error
	}{
		{"the next version", func(b []byte) []byte { b[0]++; return b }, schemas.ErrNewer},
		{"version 31", func(b []byte) []byte { b[0] = 31; return b }, schemas.ErrNewer},
		{"version 0", func(b []byte) []byte { b[0] = 0; return b }, schemas.ErrDamaged},
		{"a PubAck", func([]byte) []byte { return []byte(`{"stream":"TIMERS_ADD","seq":7}`) }, schemas.ErrDamaged},
		{"an unknown flag", func(b []byte) []byte { b[2] |= 2; return b }, schemas.ErrDamaged},
		{"an unknown state", func(b []byte) []byte { b[1] = 99; return b }, schemas.ErrDamaged},
		{"nothing", func([]byte) []byte { return nil }, schemas.ErrDamaged},
		{"cut off", func(b []byte) []byte { return b[:20] }, schemas.ErrDamaged},
	} {
		if _, err := schemas.DecodeRecord(c.change(bytes.Clone(good))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := schemas.DecodeRecord(good); err != nil {
		t.Error(err)
	}
}
