// Package gctune has Go's garbage collector run less often where there is memory
// for it. At Go's default the heap doubles between two collections; a busy node
// then spends a tenth of its CPU in them, and what is due while one runs is late.
// Here the heap may grow to four times what is alive, as long as that is below
// half of the machine's memory, or of the container's. The more is alive the less
// garbage is let lie, down to Go's default. A process that was busy and has become quiet
// returns the memory that it no longer needs (release.go).
//
// It is for the program, not for what is embedded in others: the setting is the
// process's. Whoever sets GOGC or GOMEMLIMIT has decided, and nothing is changed.
package gctune

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// The range of the percentage of garbage that may lie beside what is alive, see
// GOGC in package runtime.
const (
	leastPercent = 100 // Go's default
	mostPercent  = 300
	// share of the memory that the heap may take before the percentage is lowered.
	share = 2
	// step is the least change that is worth stopping the world for.
	step = 20
	// every is how often it is looked at; it takes microseconds.
	every = time.Second
)

// percent is the garbage to let lie beside so many bytes alive, with a budget for
// both.
func percent(live, budget uint64) int {
	if live == 0 {
		return leastPercent // nothing was collected yet, and nothing is known
	}
	return int(min(max(budget/(live/100+1), leastPercent+100)-100, mostPercent))
}

// Start tunes until stop is called.
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

// tune does so until ctx ends, and puts back what was there. It returns at once if
// the environment says how to collect, or if how much memory there is cannot be
// known.
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
		return // there is a limit, and it cannot be read
	}
	// What grows between two looks is collected before it is more than there is.
	before := debug.SetMemoryLimit(int64(memory / 10 * 9))
	defer debug.SetMemoryLimit(before)
	follow(ctx, memory/share)
}

func follow(ctx context.Context, budget uint64) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := percent(read(live), budget)
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
		release.look()
		want := percent(read(live), budget)
		if d := want - now; d >= step || -d >= step || d != 0 && (want == leastPercent || want == mostPercent) {
			debug.SetGCPercent(want)
			now = want
		}
	}
}

func read(live []metrics.Sample) uint64 {
	metrics.Read(live)
	if live[0].Value.Kind() != metrics.KindUint64 {
		return 0 // a runtime that does not tell
	}
	return live[0].Value.Uint64()
}
