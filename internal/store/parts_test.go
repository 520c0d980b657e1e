package store

import (
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestParts: the filters of any range cover each of its parts once, and no other.
func TestParts(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]uint64{{0, slotParts}, {0, 1}, {5, 5}, {31, 33}, {0, 1024}, {1000, 3000}, {slotParts - 1, slotParts}, {1, slotParts}} {
		covered := make([]int, slotParts)
		for _, f := range partFilters("p.", r[0], r[1]) {
			tokens := strings.Split(strings.TrimSuffix(strings.TrimPrefix(f, "p."), ".>"), ".")
			first, width := uint64(0), uint64(slotParts)
			for _, tok := range tokens {
				width /= 32
				first += uint64(strings.Index(idAlphabet, tok)) * width
			}
			for p := first; p < first+width; p++ {
				covered[p]++
			}
		}
		for p, n := range covered {
			want := 0
			if uint64(p) >= r[0] && uint64(p) < r[1] {
				want = 1
			}
			if n != want {
				t.Fatalf("%v: part %d is covered %d times", r, p, n)
			}
		}
	}
}

func TestSlotSubject(t *testing.T) {
	t.Parallel()
	s := newShards(nil, schemas.DefaultGeometry())
	for i := range 1000 {
		id := benchID(i)
		subject := s.slotSubject(s.geo.Shard(id), id, int64(i))
		if got := timerOfSlot(subject); got != id.String() {
			t.Fatalf("%s: %s; want %s", subject, got, id)
		}
	}
	if timerOfSlot("short") != "" {
		t.Error("timerOfSlot found an id in a key that is not an index entry")
	}
}
