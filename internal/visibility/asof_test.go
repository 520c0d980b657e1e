package visibility

import (
	"testing"

	"github.com/belfryio/belfry/internal/store"
)

// TestAsOf: the as-of time becomes a recorded time once the offset has reached its end, or now if no record follows. It never
// goes back.
func TestAsOf(t *testing.T) {
	t.Parallel()
	const kept = 5000
	var a asOf
	for _, step := range []struct {
		offset, last uint64
		atMs         int64
		more         bool
		want         int64
		compare      bool
	}{
		{0, 10, 1000, true, 0, false},
		{8, 20, 2000, true, 0, false}, // not up to 10
		{10, 30, 3000, true, 1000, false},
		{29, 40, 4000, true, 1000, false},
		{35, 50, 5000, true, 3000, false}, // past 30
		{49, 51, 6000, true, 3000, false},
		{51, 52, 7000, true, 5000, false},
		{52, 53, 8000, false, 8000, false}, // 53 is no record
		{60, 70, 9000, true, 8000, false},
		{70, 71, 9500, true, 9000, false},
		{71, 71, 8900, false, 9000, false}, // the clock was set back

		{71, 80, 20_000, true, 9000, false}, // away for too long
		{79, 90, 20_200, true, 9000, false},
		{80, 90, 20_500, true, 9000, false},  // as far as when it returned
		{89, 99, 21_000, true, 9000, false},  // not up to 90
		{90, 99, 22_000, true, 20_500, true}, // compared
		{91, 99, 23_000, true, 20_500, false},
		{99, 105, 24_000, true, 23_000, false},

		{105, 105, 30_000, false, 30_000, true}, // away for too long, and up to date at once
		{105, 105, 32_000, false, 32_000, false},
	} {
		compare := a.look(step.offset, store.Newest{LastSeq: step.last, AtMs: step.atMs}, step.more, kept)
		if compare {
			a.compared()
		}
		if a.ms != step.want || compare != step.compare {
			t.Errorf("offset %d of %d: %d, and compare is %t; want %d, %t", step.offset, step.last, a.ms, compare, step.want, step.compare)
		}
	}
}

// TestAsOfFirst: a first read counts from its beginning, however old the records are.
func TestAsOfFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took    int64
		compare bool
	}{{4000, false}, {6000, true}} {
		a := asOf{sinceMs: 100_000}
		a.look(0, store.Newest{LastSeq: 10, AtMs: 100_000}, true, 5000)
		if compare := a.look(10, store.Newest{LastSeq: 10, AtMs: 100_000 + c.took}, false, 5000); compare != c.compare {
			t.Errorf("after a first read of %d ms: compare is %t, want %t", c.took, compare, c.compare)
		}
	}
}
