package scheduler

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// one returns the only action of a type, and fails if there is not exactly one.
func one[A Action](t *testing.T, actions []Action) A {
	t.Helper()
	var found []A
	for _, a := range actions {
		if x, ok := a.(A); ok {
			found = append(found, x)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d actions of the type wanted in %+v", len(found), actions)
	}
	return found[0]
}

var coreConfig = CoreConfig{
	Geometry:  schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000},
	HorizonMs: 5000, ScanBehindMs: 3_600_000, MaxLoaded: 1000, MaxInflight: 16, SweepMs: 60_000,
}

// loaded returns a core that has read everything due within its horizon, which is
// nothing.
func loaded(t *testing.T, epoch uint64) (k *Core, now int64) {
	t.Helper()
	return loadedWith(t, coreConfig, epoch)
}

func loadedWith(t *testing.T, cfg CoreConfig, epoch uint64) (k *Core, now int64) {
	t.Helper()
	now = 1_800_000_000_000
	k = NewCore(cfg, store.Clock{TimeMs: now, Tail: 6, Seen: 6}, epoch)
	one[ActLoad](t, k.Step(now, EvTick{}))
	k.Step(now, EvLoaded{Load: store.Load{Complete: true}})
	return k, now
}

// pending returns a timer without a callback.
func pending(name string, rev uint64, dueMs int64) store.Timer {
	return store.Timer{ID: schemas.NewTimerID("/t", name), Rev: rev, Record: schemas.Record{
		Definition: schemas.Definition{Service: "s", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{}`)}},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: dueMs, ScheduledMs: dueMs},
	}}
}

// claiming returns a core that claims a timer.
func claiming(t *testing.T) (*Core, store.Timer, int64) {
	t.Helper()
	k, now := loaded(t, 1)
	tm := pending("1", 7, now+10)
	k.Step(now, EvTail{Timer: tm})
	now += 10
	claim := one[ActClaim](t, k.Step(now, EvTick{}))
	if claim.Rev != tm.Rev {
		t.Fatalf("claims revision %d", claim.Rev)
	}
	return k, tm, now
}

// lost returns a core whose claim has lost and that reads the record again.
func lost(t *testing.T) (*Core, store.Timer, int64) {
	t.Helper()
	k, tm, now := claiming(t)
	one[ActReread](t, k.Step(now, EvClaimed{ID: tm.ID, Err: store.ErrRevision}))
	return k, tm, now
}

// TestLeaderBehindTheTail: the tail was served by a replica that is ahead of the leader,
// so the leader does not have the timer yet, or has an older revision. The core does not
// give the timer up, and the low watermark does not pass it.
func TestLeaderBehindTheTail(t *testing.T) {
	t.Parallel()
	k, tm, now := lost(t)
	for i := range 3 {
		now += 3000
		ev := EvReread{ID: tm.ID, Err: schemas.ErrNotFound}
		if i == 1 {
			older := tm
			older.Rev--
			ev = EvReread{ID: tm.ID, Timer: older}
		}
		if a := one[ActReread](t, k.Step(now, ev)); a.Delay == 0 {
			t.Error("reads the record again without a pause")
		}
		if k.ProgressMs() > tm.Record.DueMs {
			t.Fatalf("the low watermark %d has passed the timer due %d", k.ProgressMs(), tm.Record.DueMs)
		}
	}
	claim := one[ActClaim](t, k.Step(now, EvReread{ID: tm.ID, Timer: tm}))
	one[ActPublish](t, k.Step(now, EvClaimed{ID: tm.ID, Rev: claim.Rev + 1}))
}

// TestRecordGone: the core gives up a timer whose record stays missing.
func TestRecordGone(t *testing.T) {
	t.Parallel()
	k, tm, now := lost(t)
	for range maxStaleRereads {
		one[ActReread](t, k.Step(now, EvReread{ID: tm.ID, Err: schemas.ErrNotFound}))
	}
	for _, a := range k.Step(now, EvReread{ID: tm.ID, Err: schemas.ErrNotFound}) {
		if _, again := a.(ActReread); again {
			t.Error("still reads the missing record")
		}
	}
	if k.Loaded() != 0 || !k.Idle() {
		t.Errorf("%d entries are left, idle %v", k.Loaded(), k.Idle())
	}
}
