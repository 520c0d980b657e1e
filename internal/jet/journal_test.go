package jet_test

import (
	"testing"

	"github.com/belfryio/belfry/internal/jet"
)

// FuzzParseJournal: no input makes ParseJournal panic, and a journal that it accepts holds no more writes than its
// batch.
func FuzzParseJournal(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 1, 'w', 2, 1, 's', 5, 1, 'd'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if j, err := jet.ParseJournal(b); err == nil && len(j.RolledUp) > j.Writes {
			t.Errorf("%d writes of a batch of %d", len(j.RolledUp), j.Writes)
		}
	})
}
