package wheel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

// TestAdvanceSome: a bounded advance expires as many timers as it may, in order, and the next ones
// continue. Next returns the wheel's time until all that is due has expired.
func TestAdvanceSome(t *testing.T) {
	t.Parallel()
	const start = 1_000_000
	w := New[int](start)
	add(w, 0, start-5) // overdue
	add(w, 1, start-9)
	for i := range 10 {
		add(w, 2+i, start+64)         // the start of a slot of the second level
		add(w, 12+i, start+70)        // due together
		add(w, 22+i, start+5_000_000) // not due
	}
	var got []int
	for calls := 1; ; calls++ {
		before := len(got)
		more := w.AdvanceSome(start+100, 3, func(t *Timer[int]) { got = append(got, t.Value) })
		next, ok := w.Next()
		if n := len(got) - before; more && n != 3 || n > 3 {
			t.Fatalf("call %d expires %d timers, more: %v", calls, n, more)
		}
		if !ok || (next == start+100) != more {
			t.Fatalf("call %d: more is %v, and Next %d, %v", calls, more, next, ok)
		}
		if !more {
			break
		}
	}
	want := make([]int, 22)
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if w.Len() != 10 {
		t.Errorf("%d timers are left, want the 10 that are not due", w.Len())
	}
}

// TestAdvanceSomeRandom mixes bounded advances with adds, removals and time that is set back. No timer
// expires early or twice, a bounded advance expires as many timers as are due or as it may, and Next
// is never later than the first due time.
func TestAdvanceSomeRandom(t *testing.T) {
	t.Parallel()
	seeds := testsize.Choose(t, "seeds", 50, 400, 400)
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 43))
		now := rng.Int64N(1 << rng.IntN(45))
		w := New[int](now)
		timers := make([]Timer[int], 64)
		waiting := map[int]int64{} // the due time of each timer in the wheel
		dueBy := func(at int64) (n int) {
			for _, due := range waiting {
				if due <= at {
					n++
				}
			}
			return n
		}
		for range 500 {
			id := rng.IntN(len(timers))
			switch rng.IntN(6) {
			case 0, 1, 2:
				due := now + rng.Int64N(int64(1)<<(1+rng.IntN(20))) - rng.Int64N(200)
				timers[id].Value = id
				w.Add(&timers[id], due)
				waiting[id] = due
			case 3:
				_, in := waiting[id]
				if w.Remove(&timers[id]) != in {
					t.Fatalf("seed %d: Remove of a timer in the wheel: %v", seed, in)
				}
				delete(waiting, id)
			default:
				move := rng.Int64N(int64(1) << (1 + rng.IntN(20)))
				switch rng.IntN(4) {
				case 0:
					move = 0
				case 1:
					if seed%2 == 0 {
						move = -move
					}
				}
				now = max(now+move, 0)
				most := 1 + rng.IntN(8)
				due, fired := dueBy(now), 0
				more := w.AdvanceSome(now, most, func(tm *Timer[int]) {
					at, in := waiting[tm.Value]
					if !in || at > now || at != tm.Due() {
						t.Fatalf("seed %d: at %d timer %d expires, due %d; in the wheel: %v", seed, now, tm.Value, tm.Due(), in)
					}
					delete(waiting, tm.Value)
					fired++
				})
				if fired != min(due, most) || more != (due > most) {
					t.Fatalf("seed %d: %d of %d due timers expire with a bound of %d, more: %v", seed, fired, due, most, more)
				}
			}
			first, some := int64(0), false
			for _, due := range waiting {
				if !some || due < first {
					first, some = due, true
				}
			}
			if next, ok := w.Next(); ok != some || ok && (next > max(first, now) || next < now) {
				t.Fatalf("seed %d: Next is %d, %v at %d; the first timer is due at %d, %v", seed, next, ok, now, first, some)
			}
			if w.Len() != len(waiting) {
				t.Fatalf("seed %d: the wheel has %d timers, want %d", seed, w.Len(), len(waiting))
			}
		}
	}
}
