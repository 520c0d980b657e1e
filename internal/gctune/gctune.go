// Package gctune makes Go's garbage collector run less often if the machine has memory to
// spare. With Go's default (GOGC=100) the heap doubles between two collections: a busy node
// then spends a tenth of its CPU in collections, and timers that are due during one are late.
// gctune lets the heap grow to four times the live memory. In a busy process it allows garbage of a
// thirty-second of the memory of the machine or the container, if that is more. Both hold up to a heap of
// half of that memory. With more live memory gctune lowers the factor, down to Go's default. When a busy process becomes quiet,
// gctune returns the free memory to the system (release.go).
//
// gctune does not request huge pages for the heap. They save CPU while a heap grows for the first time,
// but each first use of one stops a goroutine until the kernel has cleared 2 MB: with them the 99.9th
// percentile of lateness at 1,000 timers a second was twice as high.
//
// The settings belong to the whole process, so only the program uses gctune, not a node that
// is embedded in another program. gctune changes nothing if GOGC or GOMEMLIMIT is set.
package gctune

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// leastPercent and mostPercent bound the setting GOGC: garbage as a percentage of the live
// memory.
const (
	leastPercent = 100 // Go's default
	mostPercent  = 300
	// share is the divisor of the memory that gives the budget of the heap.
	share = 2
	// floorShare is the divisor of that budget that gives the garbage for which a busy process always has
	// room: the heap of a node with few timers is small, and would be collected every few seconds.
	floorShare = 16
	// step is the minimum change of GOGC, or an eighth of it, because each change stops all goroutines.
	step = 20
	// every is the interval between two adjustments; one takes microseconds.
	every = time.Second
)

// percent returns the GOGC with which live bytes and their garbage stay within a budget: garbage of
// mostPercent of the live bytes, or in a steadily busy process of the budget divided by floorShare if that is
// more.
func percent(live, budget uint64, busy bool) int {
	if live == 0 {
		return leastPercent // unknown until the first collection
	}
	unit, most := live/100+1, uint64(mostPercent)
	if busy {
		most = max(most, budget/floorShare/unit)
	}
	return int(min(max(budget/unit, leastPercent+100)-100, most))
}

// Start adjusts the garbage collector until stop is called, which restores the previous
// settings.
func Start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tune(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// tune adjusts the garbage collector until ctx ends, and then restores the previous settings.
// It returns at once if GOGC or GOMEMLIMIT is set, or if the size of the memory is unknown.
func tune(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	memory, err := memlimit.FromSystem()
	if err != nil {
		return
	}
	switch limit, err := memlimit.FromCgroup(); {
	case err == nil:
		memory = min(memory, limit)
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported), errors.Is(err, os.ErrNotExist):
	default:
		return // the container's limit cannot be read
	}
	// The limit bounds the growth of the heap between two adjustments.
	before := debug.SetMemoryLimit(int64(memory / 10 * 9))
	defer debug.SetMemoryLimit(before)
	follow(ctx, memory/share)
}

// follow adjusts GOGC to the live memory until ctx ends.
func follow(ctx context.Context, budget uint64) {
	now := percent(readHeap().live, budget, false)
	before := debug.SetGCPercent(now)
	defer debug.SetGCPercent(before)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var release releaser
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		want := percent(release.look(), budget, release.busy >= steadyLooks)
		if d, least := want-now, max(step, now/8); d >= least || -d >= least || d != 0 && (want == leastPercent || want == mostPercent) {
			debug.SetGCPercent(want)
			now = want
		}
	}
}
