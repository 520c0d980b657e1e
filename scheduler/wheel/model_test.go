package wheel

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

// model is the wheel as one would write it without a care for cost: a list that
// is searched.
type model struct {
	now     int64
	highest int64 // the latest now there was, since the wheel last went back
	added   int   // for the order within a millisecond
	timers  map[int]modelTimer
}

type modelTimer struct {
	due   int64
	added int
	// overdue says that it was due when it was added, and so comes first.
	overdue bool
}

func (m *model) add(id int, due int64) {
	m.added++
	m.timers[id] = modelTimer{due: due, added: m.added, overdue: due <= m.highest || due <= m.now}
}

// advance returns what must be handed out, in order.
func (m *model) advance(now int64) []int {
	m.now = max(now, 0)
	var ids []int
	back := false
	for id, t := range m.timers {
		if t.due <= m.now {
			ids = append(ids, id)
		} else if t.overdue {
			back = true
		}
	}
	slices.SortFunc(ids, func(a, b int) int {
		x, y := m.timers[a], m.timers[b]
		switch {
		case x.overdue && y.overdue:
			return cmp.Compare(x.added, y.added)
		case x.overdue != y.overdue:
			if x.overdue {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.due, y.due), cmp.Compare(x.added, y.added))
	})
	for _, id := range ids {
		delete(m.timers, id)
	}
	m.highest = max(m.highest, m.now)
	if back { // the wheel follows: nothing is overdue any more
		m.highest = m.now
		for id, t := range m.timers {
			t.overdue = false
			m.timers[id] = t
		}
	}
	return ids
}

func (m *model) next() (int64, bool) {
	first, ok := int64(0), false
	for _, t := range m.timers {
		if !ok || t.due < first {
			first, ok = t.due, true
		}
	}
	return first, ok
}

// world runs the same operations on both and compares.
type world struct {
	t      *testing.T
	w      *Wheel[int]
	m      model
	timers []Timer[int]
	now    int64
}

func newWorld(t *testing.T, start int64, n int) *world {
	x := &world{t: t, w: New[int](start), now: start, timers: make([]Timer[int], n)}
	x.m = model{now: start, highest: start, timers: map[int]modelTimer{}}
	for i := range x.timers {
		x.timers[i].Value = i
	}
	return x
}

func (x *world) add(id int, due int64) {
	x.w.Add(&x.timers[id], due)
	x.m.add(id, due)
}

func (x *world) remove(id int) {
	_, in := x.m.timers[id]
	delete(x.m.timers, id)
	if got := x.w.Remove(&x.timers[id]); got != in {
		x.t.Fatalf("Remove(%d) = %v, want %v", id, got, in)
	}
}

// advance also lets some callbacks add their timer again and remove another.
func (x *world) advance(now int64, readd func(id int) (due int64, yes bool), victim func(id int) (int, bool)) {
	x.now = max(now, 0)
	want := x.m.advance(now)
	i := 0
	x.w.Advance(now, func(t *Timer[int]) {
		if i >= len(want) || t.Value != want[i] {
			x.t.Fatalf("Advance(%d) hands out %d (due %d) at place %d; want %v", now, t.Value, t.Due(), i, want)
		}
		i++
		if due, yes := readd(t.Value); yes {
			x.add(t.Value, due)
		}
		if id, yes := victim(t.Value); yes {
			if k := slices.Index(want[i:], id); k >= 0 { // about to be handed out
				want = slices.Delete(want, i+k, i+k+1)
				if !x.w.Remove(&x.timers[id]) {
					x.t.Fatalf("Remove(%d) inside Advance", id)
				}
				return
			}
			x.remove(id)
		}
	})
	if i != len(want) {
		x.t.Fatalf("Advance(%d) handed out %d timers; want %v", now, i, want)
	}
}

func (x *world) check() {
	if x.w.Len() != len(x.m.timers) {
		x.t.Fatalf("Len = %d, want %d", x.w.Len(), len(x.m.timers))
	}
	first, some := x.m.next()
	next, ok := x.w.Next()
	switch {
	case ok != some:
		x.t.Fatalf("Next says %v with %d timers", ok, len(x.m.timers))
	case ok && next > max(first, x.now):
		x.t.Fatalf("Next = %d is after the first timer, %d", next, first)
	case ok && next < x.now:
		x.t.Fatalf("Next = %d is before now, %d", next, x.now)
	}
	for id := range x.timers {
		if _, in := x.m.timers[id]; in != x.timers[id].Scheduled() {
			x.t.Fatalf("timer %d: Scheduled = %v", id, !in)
		}
	}
}

func TestAgainstModel(t *testing.T) {
	t.Parallel()
	seeds, steps := testsize.Choose(t, "seeds", 50, 400, 400), 400
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 42))
		x := newWorld(t, rng.Int64N(1<<rng.IntN(45)), 64)
		goesBack := seed%3 == 0
		// distance prefers near times and the edges of slots.
		distance := func() int64 {
			d := rng.Int64N(int64(1) << (1 + rng.IntN(40)))
			if rng.IntN(4) == 0 {
				d = int64(1)<<rng.IntN(40) + rng.Int64N(3) - 1
			}
			return d
		}
		readd := func(int) (int64, bool) { return x.now + distance() - rng.Int64N(100), rng.IntN(3) == 0 }
		victim := func(int) (int, bool) { return rng.IntN(len(x.timers)), rng.IntN(4) == 0 }
		for range steps {
			id := rng.IntN(len(x.timers))
			switch rng.IntN(6) {
			case 0, 1, 2:
				x.add(id, x.now+distance()-rng.Int64N(3))
			case 3:
				x.remove(id)
			case 4:
				x.advance(x.now+distance(), readd, victim)
			case 5:
				if goesBack {
					x.advance(x.now-distance(), readd, victim)
				} else if next, ok := x.w.Next(); ok {
					x.advance(next, readd, victim)
				}
			}
			x.check()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// FuzzWheel reads operations from bytes: one of kind and timer, eight of time.
func FuzzWheel(f *testing.F) {
	op := func(kind, id byte, v int64) []byte {
		return binary.LittleEndian.AppendUint64([]byte{kind<<5 | id&31}, uint64(v))
	}
	f.Add(int64(0), slices.Concat(op(0, 1, 5), op(2, 0, 5)))
	f.Add(int64(1_790_000_000_000), slices.Concat(op(0, 1, 5000), op(0, 2, 4096), op(3, 0, 100), op(1, 2, 0), op(2, 0, 6000)))
	f.Add(int64(63), slices.Concat(op(0, 1, 1<<40), op(2, 0, 1<<40-1), op(3, 0, 1<<39), op(0, 3, 7), op(2, 0, 1<<41)))
	f.Fuzz(func(t *testing.T, start int64, ops []byte) {
		if start < 0 || start > 1<<60 {
			return
		}
		x := newWorld(t, start, 32)
		clamp := func(v int64) int64 { return min(max(v, -(1<<60)), 1<<60) }
		for ; len(ops) >= 9 && len(ops) < 9*500; ops = ops[9:] {
			id, v := int(ops[0]&31), int64(binary.LittleEndian.Uint64(ops[1:]))
			readd := func(got int) (int64, bool) { return clamp(x.now + v%1000), v&1 == 1 && got != id }
			victim := func(got int) (int, bool) { return id, v&2 == 2 && got != id }
			switch ops[0] >> 5 {
			case 0, 4, 5:
				x.add(id, clamp(x.now+clamp(v)))
			case 1:
				x.remove(id)
			case 2, 6:
				x.advance(clamp(x.now+clamp(v)), readd, victim)
			case 3:
				x.advance(clamp(x.now-clamp(v)), readd, victim)
			case 7:
				if next, ok := x.w.Next(); ok {
					x.advance(next, readd, victim)
				}
			}
			x.check()
		}
	})
}
