package store

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestArrivalsThrough: a wait counts its adds that are delivered for the first time since it began, and no others. So later
// adds do not look like progress, and earlier ones do, however many spans there are after them.
func TestArrivalsThrough(t *testing.T) {
	t.Parallel()
	var r arrivals
	deliver := func(seq uint64) { r.deliver([]*Add{{Seq: seq}}) }
	deliver(1)
	w, later := r.join(6), r.join(9)
	for _, step := range []struct {
		deliver, want, later uint64 // what is delivered, and how many up to 6 and up to 9 are then
	}{{3, 1, 1}, {9, 1, 2}, {4, 2, 3}, {10, 2, 3}, {6, 3, 4}, {7, 3, 5}, {5, 4, 6}} {
		deliver(step.deliver)
		_, got := r.progress(1, w)
		if _, also := r.progress(1, later); got != step.want || also != step.later {
			t.Errorf("after %d: %d adds up to 6 and %d up to 9 were delivered, want %d and %d", step.deliver, got, also, step.want, step.later)
		}
	}
	r.deliver([]*Add{{Seq: 4, Deliveries: 2}})
	if _, got := r.progress(1, w); got != 4 {
		t.Errorf("after a redelivery %d adds were delivered, want 4", got)
	}
	r.leave(w)
	if deliver(2); w.delivered != 4 || len(r.waits) != 1 {
		t.Errorf("a wait that has ended counts on: %d deliveries; %d waits", w.delivered, len(r.waits))
	}
	r.leave(later)
	// More spans than are kept are beyond the wait.
	w = r.join(100)
	for n := range uint64(3 * maxSpans) {
		deliver(2*n + 1000)
	}
	for n := range uint64(50) {
		deliver(2*n + 1)
		if _, got := r.progress(1, w); got != n+1 {
			t.Fatalf("%d adds were delivered, want %d", got, n+1)
		}
	}
}

// TestArrivals: adds count as settled only if all from the stream's first one on were delivered here.
func TestArrivals(t *testing.T) {
	t.Parallel()
	var r arrivals
	adds := map[uint64]*Add{}
	deliver := func(seqs ...uint64) {
		group := make([]*Add, len(seqs))
		for i, seq := range seqs {
			group[i] = &Add{Seq: seq}
			adds[seq] = group[i]
		}
		r.deliver(group)
	}
	settle := func(seqs ...uint64) {
		for _, seq := range seqs {
			adds[seq].settle()
		}
	}
	want := func(when string, first, through uint64, want addsProgress) {
		t.Helper()
		if got, _ := r.progress(first, &arrivalWait{through: through}); got != want {
			t.Errorf("%s: progress %d of the adds %d to %d, want %d", when, got, first, through, want)
		}
	}

	want("nothing was delivered", 1, 1, addsComing)
	deliver(5, 6, 7)
	want("delivered", 5, 7, addsOpen)
	settle(5, 7)
	want("one is open", 5, 7, addsOpen)
	want("the first is settled", 5, 5, allSettled)
	deliver(8)
	settle(6)
	want("a later add is open", 5, 7, allSettled)
	want("the later add", 5, 8, addsOpen)
	settle(8)
	want("all", 5, 8, allSettled)
	want("the next add is on its way", 5, 9, addsComing)
	want("an earlier add was not delivered here", 4, 8, addsMissing)
	deliver(6)
	want("delivered again", 5, 8, addsOpen)
	settle(6)
	want("settled again", 5, 8, allSettled)
	deliver(10)
	settle(10)
	want("one between was not delivered here", 5, 10, addsMissing)
	want("the missing add is removed, and those before", 10, 10, allSettled)
	deliver(9)
	want("the missing add is delivered", 5, 10, addsOpen)
	settle(9)
	want("… and settled", 5, 10, allSettled)
	deliver(3, 4)
	settle(3, 4)
	want("adds of the process before are delivered last", 3, 10, allSettled)
	made := time.Unix(1000, 0)
	r.compare(made, 10, 10)
	want("the first comparison", 3, 10, allSettled)
	made = made.Add(time.Second)
	r.compare(made, 10, 10)
	want("the stream is another", 3, 10, addsComing)
	deliver(11)
	settle(11)
	r.compare(made, 12, 11)
	want("the stream is the same", 11, 11, allSettled)
	want("the next one is not read", 11, 12, addsComing)
	r.giveUp(12)
	want("a call has waited for it", 11, 12, addsMissing)
	want("a later one", 11, 13, addsComing)
	deliver(12)
	settle(12)
	want("it is read after all", 11, 12, allSettled)
	r.compare(made, 11, 12)
	want("the stream has lost its last add", 11, 11, addsComing)
}

// TestArrivalsExtend: the spans have all sequences, whatever their order, or the last maxSpans spans.
func TestArrivalsExtend(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var r arrivals
		var seqs []uint64
		for i := range uint64(60) {
			if rnd.IntN(3) > 0 {
				seqs = append(seqs, i+1)
			}
		}
		rnd.Shuffle(len(seqs), func(i, j int) { seqs[i], seqs[j] = seqs[j], seqs[i] })
		for _, seq := range append(seqs, seqs[:len(seqs)/2]...) {
			r.extend(seq)
		}
		var got []uint64
		for i, s := range r.delivered {
			if i > 0 && s.first <= r.delivered[i-1].last+1 {
				t.Fatalf("the spans %v are not apart", r.delivered)
			}
			for seq := s.first; seq <= s.last; seq++ {
				got = append(got, seq)
			}
		}
		if slices.Sort(seqs); !slices.Equal(got, seqs) {
			t.Fatalf("the spans have %v, want %v", got, seqs)
		}
	}
	var r arrivals
	const seqs = 4 * maxSpans
	for i := range uint64(seqs) {
		r.extend(2 * i)
	}
	if n := len(r.delivered); n != maxSpans || r.last() != 2*(seqs-1) {
		t.Errorf("%d spans up to %d, want %d up to %d", n, r.last(), maxSpans, 2*(seqs-1))
	}
}

// TestArrivalsSweep: settled groups are removed, also while an older one is open.
func TestArrivalsSweep(t *testing.T) {
	t.Parallel()
	var r arrivals
	first := &Add{Seq: 1}
	r.deliver([]*Add{first})
	const groups = 100_000
	for i := range uint64(groups) {
		a := &Add{Seq: i + 2}
		r.deliver([]*Add{a})
		a.settle()
	}
	if n := len(r.groups); n > 2*leastSweep {
		t.Errorf("%d of %d groups are kept", n, groups)
	}
	if got, _ := r.progress(1, &arrivalWait{through: groups + 1}); got != addsOpen {
		t.Errorf("progress %d, want that the first add is open", got)
	}
	first.settle()
	if got, _ := r.progress(1, &arrivalWait{through: groups + 1}); got != allSettled {
		t.Errorf("progress %d, want that all are settled", got)
	}
	if n := len(r.groups); n != 0 {
		t.Errorf("%d groups are kept after all are settled", n)
	}
}
