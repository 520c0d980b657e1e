package visibility

import (
	"testing"

	"github.com/belfryio/belfry/internal/store"
)

// TestAsOf: the as-of time becomes a recorded time once the offset has reached its end, or now if no record follows. It never
// goes back.
func TestAsOf(t *testing.T) {
	t.Parallel()
	var a asOf
	for _, step := range []struct {
		offset, last uint64
		atMs         int64
		more         bool
		want         int64
	}{
		{0, 10, 1000, true, 0},
		{8, 20, 2000, true, 0}, // not up to 10
		{10, 30, 3000, true, 1000},
		{29, 40, 4000, true, 1000},
		{35, 50, 5000, true, 3000}, // past 30
		{49, 51, 6000, true, 3000},
		{51, 52, 7000, true, 5000},
		{52, 53, 8000, false, 8000}, // 53 is no record
		{60, 70, 9000, true, 8000},
		{70, 71, 9500, true, 9000},
		{71, 71, 8900, false, 9000}, // the clock was set back
	} {
		a.look(step.offset, store.Newest{LastSeq: step.last, AtMs: step.atMs}, step.more)
		if a.ms != step.want {
			t.Errorf("offset %d of %d: %d, want %d", step.offset, step.last, a.ms, step.want)
		}
	}
}
