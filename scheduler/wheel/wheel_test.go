package wheel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// advance returns the values handed out.
func advance(w *Wheel[int], nowMs int64) []int {
	var got []int
	w.Advance(nowMs, func(t *Timer[int]) { got = append(got, t.Value) })
	return got
}

func add(w *Wheel[int], value int, dueMs int64) *Timer[int] {
	t := &Timer[int]{Value: value}
	w.Add(t, dueMs)
	return t
}

// TestDeadline holds every timer to the millisecond: nothing the instant before,
// the timer at the deadline, nothing after, wherever the deadline is.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, start := range []int64{0, 1, 63, 64, 4095, 1_790_000_000_000, 1_790_000_000_063} {
		for _, after := range []int64{1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 1 << 18, 1<<18 + 1, 1 << 24, 3_600_000, 86_400_000, 1 << 36, 1 << 42, 1<<42 - 1, 1 << 61, math.MaxInt64 - start} {
			due := start + after
			t.Run(fmt.Sprintf("%d+%d", start, after), func(t *testing.T) {
				t.Parallel()
				w := New[int](start)
				tm := add(w, 7, due)
				if next, ok := w.Next(); !ok || next != due {
					t.Errorf("Next = %d, %v; want %d of the only timer", next, ok, due)
				}
				if got := advance(w, due-1); len(got) != 0 || w.Len() != 1 || !tm.Scheduled() {
					t.Fatalf("the instant before: %v, Len %d", got, w.Len())
				}
				if next, ok := w.Next(); !ok || next != due {
					t.Errorf("Next the instant before = %d, %v; want %d", next, ok, due)
				}
				if got := advance(w, due); !slices.Equal(got, []int{7}) || w.Len() != 0 || tm.Scheduled() {
					t.Fatalf("at the deadline: %v, Len %d", got, w.Len())
				}
				if _, ok := w.Next(); ok {
					t.Error("Next of an empty wheel")
				}
				if got := advance(w, math.MaxInt64); len(got) != 0 {
					t.Fatalf("after: %v", got)
				}
			})
		}
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	const start = 1_000_000
	w := New[int](start)
	// 1 and 2 are due at the same time, added from different distances.
	add(w, 1, start+5000)
	add(w, 0, start+4999)
	if got := advance(w, start+4990); len(got) != 0 {
		t.Fatal(got)
	}
	add(w, 2, start+5000)
	add(w, -1, start) // overdue: first, in the order of adding
	add(w, -2, -100)  // before any epoch
	add(w, 3, start+1e9)
	if next, ok := w.Next(); !ok || next != w.Now() {
		t.Errorf("Next with an overdue timer = %d, %v; want now, %d", next, ok, w.Now())
	}
	if got, want := advance(w, start+2e9), []int{-1, -2, 0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRemoveAndMove(t *testing.T) {
	t.Parallel()
	w := New[int](100)
	a, b, c := add(w, 1, 200), add(w, 2, 200), add(w, 3, 200)
	if !w.Remove(b) || w.Remove(b) || w.Remove(&Timer[int]{}) || w.Len() != 2 {
		t.Fatal("Remove must report whether it took the timer out")
	}
	w.Add(a, 300) // moved
	if a.Due() != 300 || w.Len() != 2 {
		t.Fatalf("moved: due %d, Len %d", a.Due(), w.Len())
	}
	if got := advance(w, 299); !slices.Equal(got, []int{3}) {
		t.Fatalf("got %v", got)
	}
	if !w.Remove(a) || w.Len() != 0 {
		t.Fatal("a was scheduled")
	}
	if _, ok := w.Next(); ok {
		t.Fatal("Next must not find the slot of a removed timer")
	}
	w.Add(c, 0) // used again, overdue
	if !w.Remove(c) {
		t.Fatal("an overdue timer can be removed")
	}
	if got := advance(w, 1000); len(got) != 0 {
		t.Fatalf("got %v", got)
	}
}

// TestInsideCallback does to the wheel whatever a callback may.
func TestInsideCallback(t *testing.T) {
	t.Parallel()
	w := New[int](0)
	const span = 10_000
	var fired []int64
	var later, neighbour, far *Timer[int]
	again := 0
	first := &Timer[int]{}
	w.Add(first, 100)
	neighbour = add(w, 1, 100) // same slot, must not be handed out
	later = add(w, 2, 5000)
	far = add(w, 3, span*2)
	w.Advance(span, func(tm *Timer[int]) {
		fired = append(fired, tm.Due())
		if tm != first {
			t.Errorf("timer %d was handed out", tm.Value)
		}
		if tm.Scheduled() {
			t.Error("a timer must be out of the wheel in its callback")
		}
		if w.Now() != span {
			t.Errorf("Now inside Advance = %d", w.Now())
		}
		w.Remove(neighbour)
		w.Remove(later)
		w.Add(far, span+1)
		w.Add(first, span) // due now, but not again in this Advance
		again++
	})
	if again != 1 || w.Len() != 2 {
		t.Fatalf("callback ran %d times, Len %d", again, w.Len())
	}
	if got := advance(w, span); !slices.Equal(got, []int{0}) {
		t.Fatalf("what a callback adds at now expires at the next Advance: %v", got)
	}
	if got := advance(w, span+1); !slices.Equal(got, []int{3}) {
		t.Fatalf("a timer moved by a callback: %v", got)
	}
	if len(fired) != 1 {
		t.Fatalf("fired %v", fired)
	}
}

// TestTimeSetBack: nothing is early by the time that Advance was given.
func TestTimeSetBack(t *testing.T) {
	t.Parallel()
	w := New[int](1_000_000)
	add(w, 9, 2_000_000)
	if got := advance(w, 1_000_001); len(got) != 0 {
		t.Fatal(got)
	}
	if got := advance(w, 500_000); len(got) != 0 {
		t.Fatal(got)
	}
	add(w, 2, 800_000)
	add(w, 3, 800_000)
	add(w, 1, 700_000)
	add(w, 0, 400_000)
	if next, ok := w.Next(); !ok || next > 500_000 {
		t.Errorf("Next = %d, %v", next, ok)
	}
	for _, step := range []struct {
		now  int64
		want []int
	}{{500_000, []int{0}}, {699_999, nil}, {700_000, []int{1}}, {600_000, nil}, {799_999, nil}, {800_000, []int{2, 3}}, {-5, nil}, {1_999_999, nil}, {2_000_000, []int{9}}} {
		if got := advance(w, step.now); !slices.Equal(got, step.want) {
			t.Fatalf("Advance(%d): got %v, want %v", step.now, got, step.want)
		}
	}
}

// TestSleepingByNext drives the wheel as its user does, sleeping from Next to
// Next: every timer is handed out exactly when due, in few wake-ups.
func TestSleepingByNext(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 20_000
	now := int64(1_790_000_000_000)
	w := New[int](now)
	for i := range n {
		add(w, i, now+rng.Int64N(1<<rng.IntN(36)))
	}
	wakes, distinct := 0, map[int64]struct{}{}
	for {
		next, ok := w.Next()
		if !ok {
			break
		}
		if next < now {
			t.Fatalf("Next %d is before now, %d", next, now)
		}
		now = next
		wakes++
		w.Advance(now, func(tm *Timer[int]) {
			if tm.Due() != now && wakes > 1 {
				t.Fatalf("due %d, handed out at %d", tm.Due(), now)
			}
			distinct[tm.Due()] = struct{}{}
		})
	}
	if wakes > 2*len(distinct) {
		t.Errorf("%d wake-ups for %d instants", wakes, len(distinct))
	}
}

// TestSteadyStateAllocatesNothing covers insert, move, cancel, cascade, expiry,
// overdue timers, and time set back.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	now := int64(1_790_000_000_000)
	w := New[int](now)
	timers := make([]Timer[int], 1000)
	for i := range timers {
		w.Add(&timers[i], now+rng.Int64N(1<<20))
	}
	again := func(tm *Timer[int]) { w.Add(tm, w.Now()-10+rng.Int64N(1<<20)) }
	allocs := testing.AllocsPerRun(1000, func() {
		t := &timers[rng.IntN(len(timers))]
		w.Remove(t)
		w.Add(t, now-20)
		w.Add(&timers[rng.IntN(len(timers))], now+rng.Int64N(1<<20))
		now += 5000
		w.Advance(now, again)
		w.Advance(now-10, again)
		w.Next()
	})
	if allocs != 0 {
		t.Errorf("%v allocations a step", allocs)
	}
	if w.Len() != len(timers) {
		t.Errorf("Len %d, want %d", w.Len(), len(timers))
	}
}
