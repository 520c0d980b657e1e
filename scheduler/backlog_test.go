package scheduler

import (
	"slices"
	"strconv"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// inBacklog returns a core that shares a Backlog, and has loaded count timers that are due at once. It has
// at most 8 writes in flight.
func inBacklog(t *testing.T, b *Backlog, count int) (k *Core, ids []schemas.TimerID, now int64) {
	t.Helper()
	return inBacklogWith(t, coreConfig, b, count)
}

func inBacklogWith(t *testing.T, cfg CoreConfig, b *Backlog, count int) (k *Core, ids []schemas.TimerID, now int64) {
	t.Helper()
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
// timer of the node's other core waits: because they have fired, or because its term ends, is
// paused or handed over, or stores no claims. While it waits, it looks again within completionPollMs.
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
		"stalls": func(k *Core, _ []schemas.TimerID, now int64) { k.Step(now+backlogStallMs, EvTick{}) },
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

// TestStalledShard: a shard leaves the Backlog after backlogStallMs without a stored claim, and returns with the next one.
func TestStalledShard(t *testing.T) {
	t.Parallel()
	var b Backlog
	k, ids, now := inBacklog(t, &b, 20)
	counts := func(atMs int64, ev Event, want int64) {
		t.Helper()
		k.Step(now+atMs, ev)
		if got := b.Shards(); got != want {
			t.Errorf("after %d ms %d shards count, want %d", atMs, got, want)
		}
	}
	counts(backlogStallMs-1, EvTick{}, 1)
	counts(backlogStallMs-1, EvClaimed{ID: ids[0], Rev: 100}, 1)
	counts(2*backlogStallMs-2, EvClaimed{ID: ids[1], Err: schemas.ErrUnavailable}, 1)
	counts(2*backlogStallMs-1, EvTick{}, 0)
	counts(3*backlogStallMs, EvClaimed{ID: ids[2], Rev: 101}, 1)
}

// TestEndOfTerm: a term that ends while due timers wait takes its shard out of the Backlog.
func TestEndOfTerm(t *testing.T) {
	t.Parallel()
	var b Backlog
	k, _, _ := inBacklog(t, &b, 9)
	term := &Term{shardState: newShardState(0, newMetrics(), zerolog.Nop()), core: k}
	if n := b.Shards(); n != 1 {
		t.Fatalf("%d shards count", n)
	}
	if term.End(); b.Shards() != 0 {
		t.Errorf("%d shards count after the end", b.Shards())
	}
}

// TestPatienceOfFinalRecords: a final record waits for others for a limited time, also if the cluster's
// clock is set back, and not at all while its shard is handed over.
func TestPatienceOfFinalRecords(t *testing.T) {
	t.Parallel()
	// age returns the actions one millisecond before patienceMs, and at patienceMs.
	age := func(patienceMs int64) func(k *Core, now int64) (before, after []Action) {
		return func(k *Core, now int64) (before, after []Action) {
			before = slices.Clone(k.Step(now+patienceMs-1, EvTick{}))
			return before, k.Step(now+patienceMs, EvTick{})
		}
	}
	for name, c := range map[string]struct {
		sweepMs int64
		until   func(k *Core, now int64) (before, after []Action)
	}{
		"age":                    {2 * completionPatienceMs, age(completionPatienceMs)},
		"age, with a soon sweep": {5000, age(2500)},
		"clock set back":         {60_000, func(k *Core, now int64) (before, after []Action) { return nil, k.Step(now-1, EvTick{}) }},
		"hand-over":              {60_000, func(k *Core, now int64) (before, after []Action) { return nil, k.Drain(now) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b Backlog
			inBacklog(t, &b, 9)
			cfg := coreConfig
			cfg.SweepMs = c.sweepMs
			k, ids, now := inBacklogWith(t, cfg, &b, 1)
			fired(k, now, ids[0], 100)
			before, after := c.until(k, now)
			if got := finals(before); got != nil {
				t.Errorf("final records %v are written too soon", got)
			}
			if got := finals(after); !slices.Equal(got, ids) {
				t.Errorf("final records %v, want %v", got, ids)
			}
		})
	}
}
