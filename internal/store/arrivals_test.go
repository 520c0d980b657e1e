package store

import (
	"testing"
)

// TestArrivals: an inbox knows that adds are settled only if it has read all of them from the stream's first one on.
func TestArrivals(t *testing.T) {
	t.Parallel()
	var r arrivals
	adds := map[uint64]*Add{}
	deliver := func(deliveries uint64, seqs ...uint64) {
		group := make([]*Add, len(seqs))
		for i, seq := range seqs {
			group[i] = &Add{Seq: seq, Deliveries: deliveries}
			adds[seq] = group[i]
		}
		r.delivered(group)
	}
	settle := func(seqs ...uint64) {
		for _, seq := range seqs {
			adds[seq].arrival.settled.Store(true)
		}
	}
	want := func(what string, first, through uint64, want bool) {
		t.Helper()
		if got := r.settled(first, through); got != want {
			t.Errorf("%s: the adds %[3]d to %[4]d are settled: %[2]v, want %[5]v", what, got, first, through, want)
		}
	}

	want("nothing was read", 1, 1, false)
	deliver(1, 5, 6, 7)
	want("an earlier add was read by another", 4, 7, false)
	want("read", 5, 7, false)
	want("the next add is on its way", 5, 8, false)
	settle(5, 7)
	want("one is open", 5, 7, false)
	want("the first is settled", 5, 5, true)
	deliver(1, 8)
	settle(6)
	want("a later add is open", 5, 7, true)
	want("the later add", 5, 8, false)
	settle(8)
	want("all", 5, 8, true)
	deliver(2, 6)
	want("delivered again", 5, 8, false)
	settle(6)
	want("settled again", 5, 8, true)
	deliver(1, 10)
	settle(10)
	want("another router has one", 5, 10, false)
	want("that one is removed", 10, 10, true)
}

// TestArrivalsForget: settled groups are forgotten, also while an older one is open.
func TestArrivalsForget(t *testing.T) {
	t.Parallel()
	var r arrivals
	first := &Add{Seq: 1, Deliveries: 1}
	r.delivered([]*Add{first})
	const groups = 100_000
	for i := range uint64(groups) {
		a := &Add{Seq: i + 2, Deliveries: 1}
		r.delivered([]*Add{a})
		a.arrival.settled.Store(true)
	}
	if n := len(r.groups); n > 2*leastSweep {
		t.Errorf("%d of %d groups are kept", n, groups)
	}
	if r.settled(1, groups+1) {
		t.Error("all adds are settled, want that the first is open")
	}
	first.arrival.settled.Store(true)
	if !r.settled(1, groups+1) {
		t.Error("some adds are not settled")
	}
	r.delivered([]*Add{{Seq: groups + 2, Deliveries: 1}})
	if n := len(r.groups); n != 1 {
		t.Errorf("%d groups are kept after all but one are settled", n)
	}
}
