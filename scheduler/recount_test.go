package scheduler

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestCountAfterACrash: after an owner that did not release the shard, the number of
// pending timers is unknown until they are counted. A timer that changes during the count
// is counted once, in whatever order scan, tail and claim report it.
func TestCountAfterACrash(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 6, Seen: 6, Pending: 99, PendingUnknown: true}, 2)
	count := one[ActCount](t, k.Step(now, EvTick{}))
	if count.Through != 6 || count.Delay == 0 {
		t.Fatalf("got %+v", count)
	}
	k.Step(now, EvLoaded{Load: store.Load{Complete: true}})
	unknown := func(after string) {
		t.Helper()
		var c store.Clock
		k.Checkpoint(&c)
		if n, known := k.Pending(); known || !c.PendingUnknown {
			t.Fatalf("%s: the number of pending timers is known to be %d, want unknown", after, n)
		}
	}
	id := func(name string) schemas.TimerID { return schemas.NewTimerID("/t", name) }
	tail := func(name string, rev uint64, state schemas.State, dueMs int64) []Action {
		return k.Step(now, EvTail{Timer: store.Timer{ID: id(name), Rev: rev, Record: schemas.Record{
			Definition: schemas.Definition{Service: "s", Callback: "nats:x", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{}`)}},
			RunState:   schemas.RunState{State: state, Queued: state == schemas.StatePending, Run: 1, DueMs: dueMs, Epoch: 1},
		}}})
	}
	const far = 3_600_000
	unknown("begun")
	tail("read, then cancelled", 7, schemas.StateCancelled, now+far)
	tail("cancelled, not read", 8, schemas.StateCancelled, now+far)
	tail("new", 9, schemas.StatePending, now+far)
	tail("moved", 10, schemas.StatePending, now+far)
	claim := one[ActClaim](t, tail("due", 11, schemas.StatePending, now))
	k.Step(now, EvClaimed{ID: claim.ID, Rev: 12})
	answerLate := one[ActClaim](t, tail("due, answered late", 13, schemas.StatePending, now))
	waiting := []uint64{store.CountKey(id("old")), store.CountKey(id("read, then cancelled")), store.CountKey(id("moved"))}
	slices.Sort(waiting)
	k.Step(now, EvCounted{Waiting: waiting, Last: 14})
	unknown("the tail is behind the reading")
	// The tail delivers the revision of a claim before its answer arrives.
	k.Step(now, EvTail{Timer: store.Timer{ID: answerLate.ID, Rev: 14, Record: schemas.Record{Definition: schemas.Definition{Service: "s"}, RunState: schemas.RunState{State: schemas.StateDelivered, Run: 1, DueMs: now, Epoch: 2}}}})
	want := func(n int64, after string) {
		t.Helper()
		if got, known := k.Pending(); !known || got != n {
			t.Errorf("%s: %d are pending (%t), want %d", after, got, known, n)
		}
	}
	want(3, "counted") // old, new, moved
	k.Step(now, EvClaimed{ID: answerLate.ID, Rev: 14})
	want(3, "the late answer")
	tail("new", 15, schemas.StateCancelled, now+far)
	want(2, "cancelled later")
	var c store.Clock
	k.Checkpoint(&c)
	if c.Pending != 2 || c.PendingUnknown {
		t.Errorf("the clock is %+v", c)
	}
	// The next owner continues with the count of a released clock.
	if n, known := NewCore(coreConfig, c, 3).Pending(); !known || n != 2 {
		t.Errorf("after a release: %d %t", n, known)
	}
}

// TestCheckpointCountsSeenClaims: the clock counts a claim once its applied offset
// includes the claim's revision, even if the answer is lost. So the next owner's count is
// complete.
func TestCheckpointCountsSeenClaims(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 6, Seen: 6, Counted: true}, 2)
	k.Step(now, EvTick{})
	k.Step(now, EvLoaded{Load: store.Load{Complete: true}})
	due := store.Timer{ID: schemas.NewTimerID("/t", "due"), Rev: 7, Record: schemas.Record{Definition: schemas.Definition{Service: "s"}, RunState: schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now}}}
	claim := one[ActClaim](t, k.Step(now, EvTail{Timer: due}))
	k.Step(now, EvTail{Timer: store.Timer{ID: claim.ID, Rev: 8, Record: *claim.Record}})
	var c store.Clock
	if k.Checkpoint(&c); c.Seen != 8 || c.Pending != 0 {
		t.Errorf("the clock counts %d timers at %d, want 0 at 8", c.Pending, c.Seen)
	}
	k.Step(now, EvClaimed{ID: claim.ID, Rev: 8})
	if n, known := k.Pending(); n != 0 || !known {
		t.Errorf("after the answer: %d %t", n, known)
	}
}

// TestCountThatFails: a failed count is repeated after a pause.
func TestCountThatFails(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 6, Seen: 6, PendingUnknown: true}, 2)
	first := one[ActCount](t, k.Step(now, EvTick{}))
	again := one[ActCount](t, k.Step(now, EvCounted{Err: schemas.ErrUnavailable}))
	if first.Delay != countAfter || again.Delay != countAgain {
		t.Errorf("%s, then %s", first.Delay, again.Delay)
	}
	k.Step(now, EvCounted{Last: 6})
	if n, known := k.Pending(); !known || n != 0 {
		t.Errorf("%d %t", n, known)
	}
}

// TestCountFindsMissing: a count reports the timers that a previous owner counted and
// that are gone. It does not report timers that have changed, cannot be read, or may have
// expired.
func TestCountFindsMissing(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	cfg := coreConfig
	cfg.Retention = time.Hour
	id := func(name string) schemas.TimerID { return schemas.NewTimerID("/t", name) }
	waiting := []uint64{store.CountKey(id("a")), store.CountKey(id("b"))}
	slices.Sort(waiting)
	for _, c := range []struct {
		name    string
		clock   store.Clock
		unread  int64
		laterMs int64
		missing int64
	}{
		{"lost", store.Clock{Pending: 6, Counted: true}, 0, 0, 3},
		{"one cannot be read", store.Clock{Pending: 6, Counted: true}, 1, 0, 2},
		{"none lost", store.Clock{Pending: 3, Counted: true}, 0, 0, 0},
		{"the count may have drifted", store.Clock{Pending: 6}, 0, 0, 0},
		{"records may have expired", store.Clock{Pending: 6, Counted: true}, 0, time.Hour.Milliseconds(), 0},
	} {
		c.clock.TimeMs, c.clock.Tail, c.clock.Seen, c.clock.PendingUnknown = now, 6, 6, true
		at := now + c.laterMs
		k := NewCore(cfg, c.clock, 2)
		k.Step(at, EvTick{})
		k.Step(at, EvLoaded{Load: store.Load{Complete: true}})
		for i, r := range []struct {
			name  string
			state schemas.State
		}{{"cancelled since", schemas.StateCancelled}, {"added since", schemas.StatePending}} {
			k.Step(at, EvTail{Timer: store.Timer{ID: id(r.name), Rev: uint64(7 + i), Record: schemas.Record{Definition: schemas.Definition{Service: "s"}, RunState: schemas.RunState{State: r.state, DueMs: at + 3_600_000}}}})
		}
		var missing int64
		for _, a := range k.Step(at, EvCounted{Waiting: waiting, Unread: c.unread, Last: 8}) {
			if m, ok := a.(ActMissing); ok {
				missing = m.Missing
			}
		}
		if missing != c.missing {
			t.Errorf("%s: %d are missing, want %d", c.name, missing, c.missing)
		}
		// After a loss the timers are counted again, and nothing is reported twice.
		again := one[ActCount](t, k.Step(at, EvRecount{}))
		if n, known := k.Pending(); known {
			t.Errorf("%s: the number of pending timers is known to be %d, want unknown", c.name, n)
		}
		k.Step(at, EvCounted{Waiting: waiting, Last: 8}) // the answer to the first count
		if _, known := k.Pending(); known {
			t.Errorf("%s: the answer to an earlier count was accepted", c.name)
		}
		for _, a := range k.Step(at, EvCounted{Round: again.Round, Waiting: waiting, Last: 8}) {
			if m, ok := a.(ActMissing); ok {
				t.Errorf("%s: %+v after the audit", c.name, m)
			}
		}
		if n, known := k.Pending(); !known || n != 2 {
			t.Errorf("%s: %d are pending (%t)", c.name, n, known)
		}
	}
}

// TestCountKnowsLaterRevisions: the tail passes a revision that has been replaced. If the count
// has read a later one of the same record, that revision counts.
func TestCountKnowsLaterRevisions(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 6, Seen: 6, PendingUnknown: true}, 2)
	k.Step(now, EvTick{})
	k.Step(now, EvLoaded{Load: store.Load{Complete: true}})
	id := schemas.NewTimerID("/t", "a")
	tail := func(name string, rev uint64, state schemas.State) {
		k.Step(now, EvTail{Timer: store.Timer{ID: schemas.NewTimerID("/t", name), Rev: rev, Record: schemas.Record{Definition: schemas.Definition{Service: "s"}, RunState: schemas.RunState{State: state, DueMs: now + 3_600_000}}}})
	}
	tail("a", 7, schemas.StatePending)
	k.Step(now, EvCounted{Late: map[uint64]store.LateRecord{store.CountKey(id): {Rev: 8}}, Last: 9})
	tail("b", 9, schemas.StateCancelled) // the tail has passed revision 8
	if n, known := k.Pending(); !known || n != 0 {
		t.Errorf("%d timers are pending (%t), want 0: the count has read that the timer was cancelled", n, known)
	}
}

// claimedBefore returns the revision in which the owner of epoch 1 has claimed a timer.
func claimedBefore(tm store.Timer, rev uint64) store.Timer {
	tm.Rev, tm.Record.State, tm.Record.Queued, tm.Record.Epoch = rev, schemas.StateDelivered, false, 1
	return tm
}

// TestCountForgetsClaimsBehindTheTail: a count that ends forgets the claims of an earlier owner that a reread
// brought first and that the tail has passed. It keeps the claims that the tail has yet to bring, which do not
// count again.
func TestCountForgetsClaimsBehindTheTail(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 20, Seen: 20, PendingUnknown: true}, 2)
	k.Step(now, EvTick{})
	a, b := pending("a", 10, now+10), pending("b", 11, now+10)
	k.Step(now, EvLoaded{Load: store.Load{Complete: true, Timers: []store.Timer{a, b}}})
	waiting := []uint64{store.CountKey(a.ID), store.CountKey(b.ID)}
	slices.Sort(waiting)
	k.Step(now, EvCounted{Waiting: waiting, Last: 20})
	again := one[ActCount](t, k.Step(now, EvRecount{}))
	k.Step(now+10, EvTick{})
	for _, tm := range []store.Timer{claimedBefore(a, 21), claimedBefore(b, 25)} {
		k.Step(now+10, EvClaimed{ID: tm.ID, Err: store.ErrRevision})
		k.Step(now+10, EvReread{ID: tm.ID, Timer: tm})
	}
	// The count has read b before its claim. The tail passes revision 21, which has been replaced.
	k.Step(now+10, EvCounted{Round: again.Round, Waiting: []uint64{store.CountKey(b.ID)}, Late: map[uint64]store.LateRecord{store.CountKey(a.ID): {Rev: 21}}, Last: 21})
	k.Step(now+10, EvTail{Timer: pending("c", 22, now+3_600_000)})
	want := func(n int64, ahead map[schemas.TimerID]uint64, after string) {
		t.Helper()
		if got, known := k.Pending(); !known || got != n || !maps.Equal(k.pending.ahead, ahead) {
			t.Errorf("%s: %d are pending (%t), claims before the tail %v; want %d, %v", after, got, known, k.pending.ahead, n, ahead)
		}
	}
	want(1, map[schemas.TimerID]uint64{b.ID: 25}, "counted")
	k.Step(now+10, EvTail{Timer: claimedBefore(b, 25)})
	want(1, nil, "the tail has brought the claim")
}

// TestCountAfterAFailedCount: the first count that succeeds accounts for timers that have ended during failed counts.
func TestCountAfterAFailedCount(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 6, Seen: 6, Pending: 1, Counted: true, PendingUnknown: true}, 2)
	k.Step(now, EvTick{})
	k.Step(now, EvTail{Timer: store.Timer{ID: schemas.NewTimerID("/t", "ended"), Rev: 7, Record: schemas.Record{RunState: schemas.RunState{State: schemas.StateCancelled, Run: 1, DueMs: now + 1000}}}})
	k.Step(now, EvCounted{Err: schemas.ErrUnavailable})
	for _, a := range k.Step(now, EvCounted{Last: 7}) {
		if missing, ok := a.(ActMissing); ok {
			t.Errorf("%d timers are missing", missing.Missing)
		}
	}
	if n, known := k.Pending(); !known || n != 0 {
		t.Errorf("%d timers are pending (%t), want 0", n, known)
	}
}

// TestVoidAfterTheCount: a count may have read a record that is deleted as void later. The owner counts the shard again, and the next
// owner does not miss the timer.
func TestVoidAfterTheCount(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	id := schemas.NewTimerID("/t", "void")
	waiting := []uint64{store.CountKey(id)}
	clock := store.Clock{TimeMs: now, Tail: 6, Seen: 6, Pending: 1, Counted: true, PendingUnknown: true}
	k := NewCore(coreConfig, clock, 2)
	k.Step(now, EvTick{})
	k.Step(now, EvCounted{Waiting: waiting, Last: 6})
	one[ActCount](t, k.Step(now, EvVoid{ID: id, Rev: 3}))
	if n, known := k.Pending(); known {
		t.Errorf("%d timers are pending before the second count", n)
	}
	k.Step(now, EvCounted{Last: 6})
	if n, known := k.Pending(); !known || n != 0 {
		t.Errorf("%d timers are pending (%t), want 0", n, known)
	}
	// The next owner deletes the record before it counts, or during the count.
	for _, read := range [][]uint64{nil, waiting} {
		k = NewCore(coreConfig, clock, 3)
		k.Step(now, EvTick{})
		k.Step(now, EvVoid{ID: id, Rev: 3})
		for _, a := range k.Step(now, EvCounted{Waiting: read, Last: 6}) {
			if missing, ok := a.(ActMissing); ok {
				t.Errorf("%d timers are missing", missing.Missing)
			}
		}
		if n, known := k.Pending(); !known || n != 0 {
			t.Errorf("%d timers are pending (%t) after the take-over, want 0", n, known)
		}
	}
}

// TestLoadedClaim: a load finds a claim of an earlier owner that the tail has yet to bring. The count that runs has read the
// timer before its claim, or the count has ended. The timer leaves the number once: also if the tail brings the claim, and if
// the final record of this term has replaced it.
func TestLoadedClaim(t *testing.T) {
	t.Parallel()
	for _, counted := range []bool{false, true} {
		for _, replaced := range []bool{false, true} {
			now := int64(1_800_000_000_000)
			k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 20, Seen: 20, PendingUnknown: true}, 2)
			k.Step(now, EvTick{})
			claimed := claimedBefore(pending("a", 10, now+10), 25)
			count := func() { k.Step(now, EvCounted{Waiting: []uint64{store.CountKey(claimed.ID)}, Last: 20}) }
			if counted {
				count()
			}
			k.Step(now, EvLoaded{Load: store.Load{Complete: true, Timers: []store.Timer{claimed}}})
			if !counted {
				count()
			}
			if n, known := k.Pending(); !known || n != 0 {
				t.Errorf("counted %t: after the load %d timers wait (%t)", counted, n, known)
			}
			last := claimed
			if replaced {
				last.Rev, last.Record.State = 30, schemas.StateSuccess
			}
			k.Step(now, EvTail{Timer: last})
			k.Step(now, EvTail{Timer: pending("b", 31, now+3_600_000)})
			if n, known := k.Pending(); !known || n != 1 {
				t.Errorf("counted %t, replaced %t: after the tail %d timers wait (%t), want 1", counted, replaced, n, known)
			}
		}
	}
}

// TestLoadedLastClaim: a load finds the last claim of a schedule by an earlier owner, which was stored after the count. The tail
// brings it, or only this term's final record.
func TestLoadedLastClaim(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		now := int64(1_800_000_000_000)
		k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 20, Seen: 20, PendingUnknown: true}, 2)
		k.Step(now, EvTick{})
		s := pending("s", 10, now+10)
		s.Record.Moves = 1
		s.Record.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Every: "1m", Limit: 1}}
		s.Record.Schedule.AnchorMs, s.Record.Schedule.NextMs, s.Record.Schedule.NextDueMs = now-59_990, now+10, now+10
		k.Step(now, EvCounted{Waiting: []uint64{store.CountKey(s.ID)}, Last: 20})
		claimed := s
		claimed.Rev = 25
		claimed.Record.State, claimed.Record.Queued, claimed.Record.Epoch, claimed.Record.FiredMs, claimed.Record.Run = schemas.StateDelivered, false, 1, now+10, 2
		claimed.Record.Schedule = s.Record.Schedule.Clone()
		claimed.Record.Schedule.Last = schemas.LastRun{Run: 1, NominalMs: now + 10, DueMs: now + 10, ClaimedMs: now + 10, Epoch: 1, Before: 10}
		claimed.Record.Schedule.NextMs = 0
		k.Step(now, EvLoaded{Load: store.Load{Complete: true, Timers: []store.Timer{s, claimed}}})
		last := claimed
		if replaced {
			last.Rev, last.Record.State = 30, schemas.StateCompleted
		}
		k.Step(now, EvTail{Timer: last})
		k.Step(now, EvTail{Timer: pending("b", 31, now+3_600_000)})
		if n, known := k.Pending(); !known || n != 1 {
			t.Errorf("replaced %t: %d timers wait (%t), want 1", replaced, n, known)
		}
	}
}

// TestLoadedRetry: a load finds the claim of a retry by an earlier owner, or an old claim that was written again. The timer did
// not wait when it was counted.
func TestLoadedRetry(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*schemas.Record){
		"retry":         func(r *schemas.Record) { r.Attempt = 1 },
		"written again": func(r *schemas.Record) { r.Moves = 1 },
	} {
		now := int64(1_800_000_000_000)
		k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 20, Seen: 20, PendingUnknown: true}, 2)
		k.Step(now, EvTick{})
		k.Step(now, EvCounted{Last: 20})
		claimed := claimedBefore(pending("a", 10, now+10), 25)
		change(&claimed.Record)
		k.Step(now, EvLoaded{Load: store.Load{Complete: true, Timers: []store.Timer{claimed}}})
		k.Step(now, EvTail{Timer: pending("b", 31, now+3_600_000)})
		if n, known := k.Pending(); !known || n != 1 {
			t.Errorf("%s: %d timers wait (%t), want 1", name, n, known)
		}
	}
}

// TestRepeatedAddOfClaimedSchedule: repeated adds write the record of a schedule again whose last run was claimed before the
// count. The number does not include it, and stays.
func TestRepeatedAddOfClaimedSchedule(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000)
	k := NewCore(coreConfig, store.Clock{TimeMs: now, Tail: 20, Seen: 20, PendingUnknown: true}, 2)
	k.Step(now, EvTick{})
	k.Step(now, EvCounted{Waiting: []uint64{1, 2, 3}, Last: 20})
	s := claimedBefore(pending("s", 10, now-10), 21)
	s.Record.Moves = 1
	s.Record.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Every: "1m", Limit: 1}}
	s.Record.Schedule.Last = schemas.LastRun{Run: 1, NominalMs: now - 10, DueMs: now - 10, ClaimedMs: now - 10, Epoch: 1, Before: 10}
	for range 3 {
		k.Step(now, EvTail{Timer: s})
		s.Rev++
	}
	if n, known := k.Pending(); !known || n != 3 {
		t.Errorf("%d timers wait (%t), want 3", n, known)
	}
}
