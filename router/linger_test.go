package router

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestLingerer: while many adds arrive, an add of the stream that is due in a second or later waits for a
// full group or for lingerFor. Adds that are due sooner and adds whose callers wait are written now. While few
// arrive, no add waits.
func TestLingerer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var written []int
		var onWrite func() // called by the next write
		l := &lingerer{permits: make(chan struct{}, 1), write: func(adds []*Add) {
			mu.Lock()
			defer mu.Unlock()
			written = append(written, len(adds))
			if f := onWrite; f != nil {
				onWrite = nil
				f()
			}
		}}
		seq := uint64(0)
		const nowMs = 1_800_000_000_000
		pass := func(what string, n int, dueIn time.Duration, want int) {
			t.Helper()
			group := make([]*Add, n)
			for i := range group {
				seq++
				group[i] = &Add{Seq: seq}
				group[i].Spec.Timer = schemas.NewTimerID("/test", fmt.Sprint(seq))
				group[i].Record.DueMs = nowMs + dueIn.Milliseconds()
			}
			ready := l.pass(group, nowMs, time.Now())
			if got := len(ready); got != want {
				t.Errorf("%s: %d of %d adds are written now, want %d", what, got, n, want)
			}
			l.written(ready)
		}
		writtenLater := func(what string, want ...int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(written, want) {
				t.Errorf("%s: groups of %v, want %v", what, written, want)
			}
			written = nil
		}

		pass("few", lingerLeast-1, time.Hour, lingerLeast-1)
		time.Sleep(2 * lingerFor)
		pass("few again", 1, time.Hour, 1)
		pass("many", lingerLeast, time.Hour, 0)
		pass("due soon", 3, lingerLead-time.Millisecond, 3)
		pass("due a little later", 3, lingerLead, 0)
		if got := l.pass([]*Add{{Record: schemas.Record{RunState: schemas.RunState{DueMs: nowMs + 3_600_000}}}}, nowMs, time.Now()); len(got) != 1 {
			t.Error("an add whose caller waits is not written now")
		}
		writtenLater("before lingerFor has passed")
		time.Sleep(lingerFor)
		synctest.Wait()
		writtenLater("after lingerFor", lingerLeast+3)

		pass("many again", lingerLeast, time.Hour, 0)
		id := schemas.NewTimerID("/test", fmt.Sprint(seq))
		again := func() int { // adds the last timer again, due now, and returns 1 if the add is written now
			a := &Add{Seq: seq}
			a.Spec.Timer = id
			return len(l.pass([]*Add{a}, nowMs, time.Now()))
		}
		if again() != 0 {
			t.Error("an add that is due now is written before an earlier add of its timer")
		}
		whileWritten := -1
		mu.Lock()
		onWrite = func() { whileWritten = again() }
		mu.Unlock()
		time.Sleep(lingerFor)
		synctest.Wait()
		writtenLater("two adds of one timer", lingerLeast+1)
		if whileWritten != 0 {
			t.Error("an add that is due now is written while an earlier add of its timer is being written")
		}
		time.Sleep(4 * lingerFor) // few arrive now
		synctest.Wait()
		writtenLater("a third add of the timer", 1)
		if again() != 1 {
			t.Error("an add that is due now waits for adds that were written before")
		}

		pass("many once more", lingerLeast, time.Hour, 0)
		time.Sleep(lingerFor)
		synctest.Wait()
		writtenLater("many once more", lingerLeast)

		pass("a part of a group", MaxBatch-10, time.Hour, 0)
		pass("more than the rest of it", 20, time.Hour, MaxBatch)
		pass("few after many", 1, time.Hour, 0)
		l.permits <- struct{}{} // a group is being written
		time.Sleep(lingerFor)
		synctest.Wait()
		writtenLater("while no permit is free")
		<-l.permits
		synctest.Wait()
		writtenLater("when a permit is free", 11)
		time.Sleep(lingerFor)
		pass("when few arrive again", 1, time.Hour, 1)

		pass("many at the end", lingerLeast, time.Hour, 0)
		l.close()
		writtenLater("after close", lingerLeast)
	})
}

// TestNoLingerer: without the option nothing waits.
func TestNoLingerer(t *testing.T) {
	t.Parallel()
	var l *lingerer
	group := make([]*Add, MaxBatch)
	if got := l.pass(group, 0, time.Now()); len(got) != len(group) {
		t.Errorf("%d of %d adds are written now", len(got), len(group))
	}
	l.close()
}
