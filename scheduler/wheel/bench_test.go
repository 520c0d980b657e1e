package wheel

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// The three ways to keep timers: this wheel, a binary heap, Go's own runtime
// timers. Each benchmark holds the given number pending over an hour and measures
// one insert, one cancel, or one expiry. Run all in one go:
//
//	go test -run '^$' -bench . -benchtime 200000x ./scheduler/wheel
//
// -short leaves out ten million, which take gigabytes and minutes.

func pendings() []int {
	if testing.Short() {
		return []int{1_000, 100_000, 1_000_000}
	}
	return []int{1_000, 100_000, 1_000_000, 10_000_000}
}

const spanMs = int64(time.Hour / time.Millisecond)

func benchRand() *rand.Rand { return rand.New(rand.NewPCG(7, 11)) }

func forEach(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range pendings() {
		b.Run(fmt.Sprintf("pending=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			f(b, n)
		})
	}
}

func fullWheel(n int, rng *rand.Rand) (*Wheel[int], []Timer[int]) {
	w := New[int](0)
	timers := make([]Timer[int], n)
	for i := range timers {
		w.Add(&timers[i], 1+rng.Int64N(spanMs))
	}
	return w, timers
}

func BenchmarkInsertWheel(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		w, _ := fullWheel(n, rng)
		fresh := make([]Timer[int], b.N)
		b.ResetTimer()
		for i := range fresh {
			w.Add(&fresh[i], 1+rng.Int64N(spanMs))
		}
	})
}

func BenchmarkInsertHeap(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		h := fullHeap(n, rng)
		fresh := make([]heapTimer, b.N)
		b.ResetTimer()
		for i := range fresh {
			fresh[i].due = 1 + rng.Int64N(spanMs)
			heap.Push(h, &fresh[i])
		}
	})
}

func BenchmarkInsertAfterFunc(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		held := fullRuntime(n, rng)
		fresh := make([]*time.Timer, b.N)
		b.ResetTimer()
		for i := range fresh {
			fresh[i] = time.AfterFunc(time.Hour+time.Duration(rng.Int64N(spanMs))*time.Millisecond, func() {})
		}
		b.StopTimer()
		stopAll(held)
		stopAll(fresh)
	})
}

func BenchmarkCancelWheel(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		w, _ := fullWheel(n, rng)
		fresh := make([]Timer[int], b.N)
		for i := range fresh {
			w.Add(&fresh[i], 1+rng.Int64N(spanMs))
		}
		b.ResetTimer()
		for i := range fresh {
			w.Remove(&fresh[i])
		}
	})
}

func BenchmarkCancelHeap(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		h := fullHeap(n, rng)
		fresh := make([]heapTimer, b.N)
		for i := range fresh {
			fresh[i].due = 1 + rng.Int64N(spanMs)
			heap.Push(h, &fresh[i])
		}
		b.ResetTimer()
		for i := range fresh {
			heap.Remove(h, fresh[i].index)
		}
	})
}

func BenchmarkCancelAfterFunc(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		held := fullRuntime(n, rng)
		fresh := make([]*time.Timer, b.N)
		for i := range fresh {
			fresh[i] = time.AfterFunc(time.Hour+time.Duration(rng.Int64N(spanMs))*time.Millisecond, func() {})
		}
		b.ResetTimer()
		stopAll(fresh)
		b.StopTimer()
		stopAll(held)
	})
}

// BenchmarkExpireWheel goes from Next to Next, as the wheel's user does, and adds
// every timer again within two hours, so that all cascades are paid for and the
// number pending stays. One operation is an expiry and an insert.
func BenchmarkExpireWheel(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		w, _ := fullWheel(n, rng)
		expired, now := 0, int64(0)
		again := func(t *Timer[int]) {
			expired++
			w.Add(t, now+1+rng.Int64N(2*spanMs))
		}
		b.ResetTimer()
		for expired < b.N {
			now, _ = w.Next()
			w.Advance(now, again)
		}
	})
}

func BenchmarkExpireHeap(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		h := fullHeap(n, rng)
		expired := 0
		b.ResetTimer()
		for expired < b.N {
			now := (*h)[0].due
			for (*h)[0].due <= now {
				expired++
				(*h)[0].due = now + 1 + rng.Int64N(2*spanMs)
				heap.Fix(h, 0)
			}
		}
	})
}

// BenchmarkExpireAfterFunc has b.N timers due at once among the pending ones:
// runtime timers cannot be moved through time faster than it passes. Each runs
// its function in a goroutine of its own, as AfterFunc does.
func BenchmarkExpireAfterFunc(b *testing.B) {
	forEach(b, func(b *testing.B, n int) {
		rng := benchRand()
		held := fullRuntime(n, rng)
		fresh := make([]*time.Timer, b.N)
		var left atomic.Int64
		left.Store(int64(b.N))
		done := make(chan struct{})
		for i := range fresh {
			fresh[i] = time.AfterFunc(3*time.Hour, func() {
				if left.Add(-1) == 0 {
					close(done)
				}
			})
		}
		b.ResetTimer()
		for _, t := range fresh {
			t.Reset(0)
		}
		<-done
		b.StopTimer()
		stopAll(held)
	})
}

// BenchmarkAdvanceEmptyYear is the price of time in which nothing is due.
func BenchmarkAdvanceEmptyYear(b *testing.B) {
	w := New[int](0)
	far := Timer[int]{}
	now := int64(0)
	for range b.N {
		now += 365 * 24 * spanMs
		w.Add(&far, now+spanMs)
		w.Advance(now, func(*Timer[int]) {})
	}
}

type heapTimer struct {
	due   int64
	index int
}

type timerHeap []*heapTimer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*heapTimer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}

func fullHeap(n int, rng *rand.Rand) *timerHeap {
	h := make(timerHeap, 0, n)
	timers := make([]heapTimer, n)
	for i := range timers {
		timers[i].due = 1 + rng.Int64N(spanMs)
		heap.Push(&h, &timers[i])
	}
	return &h
}

// fullRuntime starts n runtime timers that do not fire during the benchmark.
func fullRuntime(n int, rng *rand.Rand) []*time.Timer {
	timers := make([]*time.Timer, n)
	for i := range timers {
		timers[i] = time.AfterFunc(time.Hour+time.Duration(rng.Int64N(spanMs))*time.Millisecond, func() {})
	}
	return timers
}

func stopAll(timers []*time.Timer) {
	for _, t := range timers {
		t.Stop()
	}
}
