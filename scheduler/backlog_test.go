package scheduler

import (
	"slices"
	"strconv"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// inBacklog returns a core that shares a Backlog, and has loaded count timers that are due at once. It has
// at most 8 writes in flight.
func inBacklog(t *testing.T, b *Backlog, count int) (k *Core, ids []schemas.TimerID, now int64) {
	t.Helper()
	cfg := coreConfig
	cfg.MaxInflight, cfg.Backlog = 8, b
	k, now = loadedWith(t, cfg, 1)
	for i := range count {
		tm := pending(strconv.Itoa(i), uint64(7+i), now+10)
		k.Step(now, EvTail{Timer: tm})
		ids = append(ids, tm.ID)
	}
	now += 10
	k.Step(now, EvTick{})
	return k, ids, now
}

// finals returns the timers whose final records the actions write.
func finals(actions []Action) (ids []schemas.TimerID) {
	for _, a := range actions {
		if f, ok := a.(ActFinish); ok {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// fired gives a core the results of a timer's claim and publish.
func fired(k *Core, now int64, id schemas.TimerID, rev uint64) []Action {
	k.Step(now, EvClaimed{ID: id, Rev: rev})
	return k.Step(now, EvPublished{ID: id})
}

// TestFinalRecordsWaitForTheBacklog: a core whose timers have all fired writes their final records when no due
// timer of the node's other core waits: because they have fired, or because its term ends or is
// paused or handed over. While it waits, it looks again within completionPollMs.
func TestFinalRecordsWaitForTheBacklog(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(k *Core, ids []schemas.TimerID, now int64){
		"fired": func(k *Core, ids []schemas.TimerID, now int64) {
			for i, id := range ids {
				fired(k, now, id, uint64(100+i))
			}
		},
		"ended":  func(k *Core, _ []schemas.TimerID, _ int64) { k.End() },
		"paused": func(k *Core, _ []schemas.TimerID, now int64) { k.Pause(true); k.Step(now, EvTick{}) },
		"drains": func(k *Core, _ []schemas.TimerID, now int64) { k.Drain(now) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b Backlog
			busy, others, _ := inBacklog(t, &b, 9)
			k, ids, now := inBacklog(t, &b, 1)
			if got := finals(fired(k, now, ids[0], 100)); got != nil {
				t.Fatalf("final records %v are written while due timers of another shard wait", got)
			}
			next, ok := k.Next()
			if wait := next - now; !ok || wait <= 0 || wait > completionPollMs {
				t.Fatalf("looks again in %d ms, %t", wait, ok)
			}
			end(busy, others, now)
			if got := finals(k.Step(now, EvTick{})); !slices.Equal(got, ids) {
				t.Fatalf("final records %v, want %v", got, ids)
			}
			if next, ok := k.Next(); ok && next <= now+completionPollMs {
				t.Errorf("polls although no final record waits")
			}
		})
	}
}

// TestPatienceOfFinalRecords: a final record waits for others for a limited time, also if the cluster's
// clock is set back, and not at all while its shard is handed over.
func TestPatienceOfFinalRecords(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]func(k *Core, now int64) (before, after []Action){
		"age": func(k *Core, now int64) (before, after []Action) {
			before = slices.Clone(k.Step(now+completionPatienceMs-1, EvTick{}))
			return before, k.Step(now+completionPatienceMs, EvTick{})
		},
		"clock set back": func(k *Core, now int64) (before, after []Action) { return nil, k.Step(now-1, EvTick{}) },
		"hand-over":      func(k *Core, now int64) (before, after []Action) { return nil, k.Drain(now) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b Backlog
			inBacklog(t, &b, 9)
			k, ids, now := inBacklog(t, &b, 1)
			fired(k, now, ids[0], 100)
			before, after := until(k, now)
			if got := finals(before); got != nil {
				t.Errorf("final records %v are written too soon", got)
			}
			if got := finals(after); !slices.Equal(got, ids) {
				t.Errorf("final records %v, want %v", got, ids)
			}
		})
	}
}
