package router

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestGatherer: while many adds arrive, adds of the stream that are due in a second or later wait for
// others, up to a whole group or gatherFor. Others do not wait, and nothing waits when few arrive.
func TestGatherer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var written []int
		g := &gatherer{permits: make(chan struct{}, 1), write: func(adds []*Add) {
			mu.Lock()
			defer mu.Unlock()
			written = append(written, len(adds))
		}}
		seq := uint64(0)
		const nowMs = 1_800_000_000_000
		pass := func(what string, n int, dueIn time.Duration, want int) {
			t.Helper()
			group := make([]*Add, n)
			for i := range group {
				seq++
				group[i] = &Add{Seq: seq}
				group[i].Record.DueMs = nowMs + dueIn.Milliseconds()
			}
			if got := len(g.pass(group, nowMs, time.Now())); got != want {
				t.Errorf("%s: %d of %d adds are written now, want %d", what, got, n, want)
			}
		}
		later := func(what string, want ...int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(written, want) {
				t.Errorf("%s: groups of %v, want %v", what, written, want)
			}
			written = nil
		}

		pass("few", gatherLeast-1, time.Hour, gatherLeast-1)
		time.Sleep(2 * gatherFor)
		pass("few again", 1, time.Hour, 1)
		pass("many", gatherLeast, time.Hour, 0)
		pass("due soon", 3, gatherLead-time.Millisecond, 3)
		pass("due a little later", 3, gatherLead, 0)
		if got := g.pass([]*Add{{Record: schemas.Record{RunState: schemas.RunState{DueMs: nowMs + 3_600_000}}}}, nowMs, time.Now()); len(got) != 1 {
			t.Error("an add whose caller waits is not written now")
		}
		later("before gatherFor has passed")
		time.Sleep(gatherFor)
		synctest.Wait()
		later("after it", gatherLeast+3)

		pass("a part of a group", MaxBatch-10, time.Hour, 0)
		pass("more than the rest of it", 20, time.Hour, MaxBatch)
		pass("few after many", 1, time.Hour, 0)
		g.permits <- struct{}{} // a group is being written
		time.Sleep(gatherFor)
		synctest.Wait()
		later("while no permit is free")
		<-g.permits
		synctest.Wait()
		later("then", 11)
		time.Sleep(gatherFor)
		pass("later", 1, time.Hour, 1)

		pass("many at the end", gatherLeast, time.Hour, 0)
		g.close()
		later("the end", gatherLeast)
	})
}

// TestNoGatherer: without the option nothing waits.
func TestNoGatherer(t *testing.T) {
	t.Parallel()
	var g *gatherer
	group := make([]*Add, MaxBatch)
	if got := g.pass(group, 0, time.Now()); len(got) != len(group) {
		t.Errorf("%d of %d adds are written now", len(got), len(group))
	}
	g.close()
}
