package scheduler

import (
	"strconv"
	"testing"
	"unsafe"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestAllocations: a timer that is due within the horizon costs the core one allocation, its
// entry. It must not run beside other tests: AllocsPerRun counts those of all goroutines.
func TestAllocations(t *testing.T) {
	const runs = 900 // below coreConfig.MaxLoaded
	k, now := loaded(t, 1)
	events := make([]Event, runs+1) // AllocsPerRun calls once more
	for i := range events {
		events[i] = EvTail{Timer: store.Timer{ID: schemas.NewTimerID("/t", strconv.Itoa(i)), Rev: uint64(7 + i), Record: schemas.Record{
			RunState: schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now + 1000},
		}}}
	}
	next := 0
	if got := testing.AllocsPerRun(runs, func() { k.Step(now, events[next]); next++ }); got > 1 {
		t.Errorf("%.0f allocations a timer", got)
	}
	if k.Loaded() != len(events) {
		t.Errorf("%d timers are loaded; want %d", k.Loaded(), len(events))
	}
	// Go allocates in classes; this is one of them, and the next has 640.
	if size := unsafe.Sizeof(entry{}); size > 576 {
		t.Errorf("an entry has %d bytes", size)
	}
}
