package scheduler

import "testing"

// TestSetBack: one step of the clock by more than the bound is reported once, and so are several smaller ones
// that exceed it together.
func TestSetBack(t *testing.T) {
	t.Parallel()
	const bound = 100
	var b setBack
	for i, c := range []struct {
		aheadMs int64
		want    bool
	}{
		{-5, false}, {90, false}, {101, true}, {101, false}, {60, false}, {150, false}, {161, true},
		{-1000, false}, {50, false}, {120, true}, {120, false}, {10, false}, {110, false}, {111, true},
	} {
		if got := b.note(c.aheadMs, bound); got != c.want {
			t.Errorf("step %d: %d ms ahead: %t", i, c.aheadMs, got)
		}
	}
}
