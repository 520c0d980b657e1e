package scheduler

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/hrtimer"
)

// waiter waits for the next due timer of a shard. On Linux a Go timer expires up to a millisecond late, and then one
// turn of the owner often fires the timers of two milliseconds. While the machine has CPU time to spare, the owner
// waits with a kernel timer. Timers then fire 0.4 ms earlier in the median. Each millisecond with due timers
// takes a turn of its own, which costs a fifth more CPU at 1,000 timers a second. On a busy machine the owner waits with
// a Go timer, because CPU time is worth more there.
type waiter struct {
	precision *precision
	exact     *hrtimer.Timer
	coarse    *time.Timer
}

func newWaiter(p *precision) *waiter {
	coarse := time.NewTimer(time.Hour)
	coarse.Stop()
	return &waiter{precision: p, exact: hrtimer.New(), coarse: coarse}
}

// set replaces the duration after which exact.C or coarse.C receives. Either may also receive for no reason.
func (w *waiter) set(d time.Duration) {
	if w.precision.high() {
		w.exact.Set(d)
		d += backstop
	}
	w.coarse.Reset(d)
}

// stop ends the waiter.
func (w *waiter) stop() {
	w.exact.Stop()
	w.coarse.Stop()
}

const (
	// lookSpare is the least time between two looks at the CPU time that the machine has to spare.
	lookSpare = time.Second
	// highFrom and lowBelow are parts of the cores that the process may use. With more than highFrom of them to spare the
	// precision becomes high, with less than lowBelow it becomes low. High precision itself takes a tenth of two cores at
	// 1,000 timers a second. It takes more of a single core, where the precision may change with each look.
	highFrom, lowBelow = 0.4, 0.2
	// backstop is how long after the kernel timer the Go timer ends a wait. While all processors of the runtime have
	// goroutines to run, the kernel timer may be ten milliseconds late.
	backstop = 2 * time.Millisecond
)

// precision says how exactly the owners of a node's shards wait. Safe for concurrent use.
type precision struct {
	// spare returns the cores that are not used; false if unknown. nil: unknown.
	spare func() (cores float64, ok bool)
	low   atomic.Bool

	mu   sync.Mutex
	next time.Time // of the next look
}

// high reports whether the owners should wait exactly. It looks at the spare CPU time at most once in lookSpare.
func (p *precision) high() bool {
	if p.spare != nil && p.mu.TryLock() {
		if now := time.Now(); !now.Before(p.next) {
			p.next = now.Add(lookSpare)
			p.look()
		}
		p.mu.Unlock()
	}
	return !p.low.Load()
}

// look adapts the precision. Without a measurement it is high.
func (p *precision) look() {
	cores, ok := p.spare()
	part := cores / float64(runtime.GOMAXPROCS(0))
	switch {
	case !ok || part > highFrom:
		p.low.Store(false)
	case part < lowBelow:
		p.low.Store(true)
	}
}
