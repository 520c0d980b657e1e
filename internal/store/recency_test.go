package store

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

// TestRecencyFilter: no add is recent until recencyAdds adds were stored. Then the adds after
// these are recent, for three quarters of the retention.
func TestRecencyFilter(t *testing.T) {
	t.Parallel()
	const keepMs = 16_000
	f := &recencyFilter{keepMs: keepMs}
	is := func(nowMs int64, want uint64, known bool) {
		t.Helper()
		if seq, ok := f.limit(nowMs); seq != want || ok != known {
			t.Errorf("at %d: after %d, %v; want %d, %v", nowMs, seq, ok, want, known)
		}
	}
	is(0, 0, false)
	seq := uint64(0)
	for range RouterMaxAckPending - 1 {
		seq++
		f.stored(int64(seq/20), seq) // 1,000 ms in all
	}
	is(1000, 0, false)
	f.stored(1000, seq+1)
	is(1000, seq+1, true)
	is(12_000-1, seq+1, true)
	is(12_000, 0, false) // the first adds were stored too long ago
	// A period counts only its first recencyAdds adds; later adds do not raise the limit.
	for range 3 * RouterMaxAckPending {
		seq++
		f.stored(20_000, seq)
	}
	is(20_000, 2*RouterMaxAckPending-1, true)
	is(40_000, 0, false)
}

// TestRecencyFilterIsNeverWrong simulates a work queue whose routers die, whose oldest adds are
// stuck for a while, and whose server forgets which adds it has delivered. No recent add may
// have been stored longer than the retention ago.
func TestRecencyFilterIsNeverWrong(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "a long simulation")
	testsize.NotRace(t, "the model runs on one goroutine")
	for seed := range uint64(4) {
		q := &queue{rnd: rand.New(rand.NewPCG(seed, 1)), nowMs: 1, next: 1, f: &recencyFilter{keepMs: queueKeepMs}}
		for q.next <= queueAdds || len(q.pending)+len(q.lost) > 0 {
			q.step()
		}
		if q.wrong > 0 || q.recent == 0 {
			t.Errorf("seed %d: %d adds were recent, %d of them wrongly", seed, q.recent, q.wrong)
		}
	}
}

const queueKeepMs, queueAdds = 4000, 30 * RouterMaxAckPending

type queue struct {
	rnd           *rand.Rand
	f             *recencyFilter
	nowMs, turnMs int64
	stuck         bool // routers do not process the oldest pending adds
	next          int
	pending       []int // delivered to routers
	lost          []int // stored by routers that died before they acknowledged
	acked         [queueAdds + 1]bool
	storedMs      [queueAdds + 1]int64 // 0 if not stored
	recent        int                  // adds that were recent
	wrong         int
}

func (q *queue) step() {
	if q.nowMs += int64(q.rnd.IntN(40)); q.nowMs >= q.turnMs {
		q.turnMs = q.nowMs + int64(q.rnd.IntN(3*queueKeepMs))
		q.stuck = !q.stuck
		q.pending, q.lost = append(q.pending, q.lost...), nil
		slices.Sort(q.pending)
		if q.rnd.IntN(4) == 0 { // the server was killed
			q.next, q.pending = 1, nil
		}
		if q.rnd.IntN(4) == 0 { // this router was killed
			q.f = &recencyFilter{keepMs: queueKeepMs}
		}
	}
	for n := q.rnd.IntN(500); n > 0 && q.next <= queueAdds && len(q.pending)+len(q.lost) < RouterMaxAckPending; n-- {
		if !q.acked[q.next] {
			q.pending = append(q.pending, q.next)
		}
		q.next++
	}
	first, last := 0, min(len(q.pending), 2000)
	if q.stuck {
		first, last = len(q.pending)*99/100, len(q.pending)
	}
	limit, known := q.f.limit(q.nowMs)
	for _, seq := range q.pending[first:last] {
		q.take(seq, known && uint64(seq) > limit)
	}
	q.pending = slices.Concat(q.pending[:first], q.pending[last:])
}

// take stores one add, by this router or another, and usually acknowledges it. recent is the
// result of the filter.
func (q *queue) take(seq int, recent bool) {
	at := q.storedMs[seq]
	if recent {
		q.recent++
		if at != 0 && at+queueKeepMs <= q.nowMs {
			q.wrong++
		}
	}
	if at == 0 {
		q.storedMs[seq] = q.nowMs
		if q.rnd.IntN(20) > 0 {
			q.f.stored(q.nowMs, uint64(seq))
		}
	}
	if q.acked[seq] = q.rnd.IntN(50) > 0; !q.acked[seq] {
		q.lost = append(q.lost, seq)
	}
}
