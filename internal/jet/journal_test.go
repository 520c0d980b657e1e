package jet_test

import (
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/jet"
)

// TestParseJournal: both formats of a journal are read, a later one is not.
func TestParseJournal(t *testing.T) {
	t.Parallel()
	for format, want := range []*jet.JournalWrite{
		nil,
		{Subject: "s", TTL: 5 * time.Second, Data: []byte("d")},
		{Subject: "s", TTL: 5 * time.Second, Base: 300, Data: []byte("d")},
		nil,
	} {
		b := []byte{byte(format), 3, 'w', '.', '1', 2, 1, 's', 5}
		if format != 1 {
			b = binary.AppendUvarint(b, 300)
		}
		j, err := jet.ParseJournal(append(b, 1, 'd'))
		if want == nil {
			if err == nil {
				t.Errorf("format %d is read as %+v", format, j)
			}
			continue
		}
		if err != nil {
			t.Errorf("format %d: %v", format, err)
			continue
		}
		if j.Batch != "w.1" || j.Writes != 2 || len(j.RolledUp) != 1 || !reflect.DeepEqual(&j.RolledUp[0], want) {
			t.Errorf("format %d is read as %+v, want the write %+v", format, j, want)
		}
	}
}

// FuzzParseJournal: no input makes ParseJournal panic, and a journal that it accepts holds no more writes than its
// batch.
func FuzzParseJournal(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 1, 'w', 2, 1, 's', 5, 1, 'd'})
	f.Add([]byte{2, 1, 'w', 2, 1, 's', 5, 9, 1, 'd'})
	f.Add([]byte{2, 1, 'w', 2, 1, 's', 5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 'd'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if j, err := jet.ParseJournal(b); err == nil && len(j.RolledUp) > j.Writes {
			t.Errorf("%d writes of a batch of %d", len(j.RolledUp), j.Writes)
		}
	})
}
