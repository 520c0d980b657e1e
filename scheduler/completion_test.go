package scheduler

import (
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// finishing returns a core that writes the final record of a timer in place of revision 8.
func finishing(t *testing.T) (*Core, ActFinish, int64) {
	t.Helper()
	k, tm, now := claiming(t)
	one[ActPublish](t, k.Step(now, EvClaimed{ID: tm.ID, Rev: 8}))
	return k, one[ActFinish](t, k.Step(now, EvPublished{ID: tm.ID})), now
}

// TestFinishAgain: a final record that could not be written is written again after a
// pause, a few times. TestCoreScripts has the case that another writer has changed it.
func TestFinishAgain(t *testing.T) {
	t.Parallel()
	k, a, now := finishing(t)
	id := a.ID
	none := func(ev Event) {
		t.Helper()
		if got := finals(k.Step(now, ev)); got != nil {
			t.Errorf("final records %v are written", got)
		}
	}
	for range maxCompletionRetries {
		if k.Idle() {
			t.Fatal("idle while a record is being written")
		}
		none(EvFinished{Finish: a, Err: schemas.ErrUnavailable})
		if !k.Idle() {
			t.Fatal("the shard waits for a record that the sweeper would repair")
		}
		now += completionRetryDelayMs - 1
		none(EvTick{})
		now++
		again := one[ActFinish](t, k.Step(now, EvTick{}))
		if again.ID != id || again.Rev != 8 || again.Record != a.Record {
			t.Fatalf("%+v after %+v", again, a)
		}
		a = again
	}
	none(EvFinished{Finish: a, Err: schemas.ErrUnavailable})
	now += 10 * completionRetryDelayMs
	none(EvTick{})

	for _, err := range []error{nil, schemas.ErrNotFound} {
		k.completions.writing++
		none(EvFinished{Finish: ActFinish{ID: id, Rev: 8}, Err: err})
		now += 10 * completionRetryDelayMs
		none(EvTick{})
	}
}

// TestFinalRecordsBesideClaims: while claims are in flight, few final records are. TestCoreScripts has the case that claims
// are stored slowly.
func TestFinalRecordsBesideClaims(t *testing.T) {
	t.Parallel()
	const n = 2 * maxCompletingBeside
	for _, c := range []struct {
		name    string
		sweepMs int64
		ageMs   int64
		firing  firing
		want    int
	}{
		{"nothing in flight", 60_000, 0, firing{}, n},
		{"claims in flight", 60_000, 0, firing{writes: true}, maxCompletingBeside},
		{"nearly old", 60_000, slowPatienceMs - 1, firing{writes: true}, maxCompletingBeside},
		{"old", 60_000, slowPatienceMs, firing{writes: true}, n},
		{"the clock was set back", 60_000, -1, firing{writes: true}, n},
		{"slow claims", 60_000, slowPatienceMs - 1, firing{writes: true, slow: true}, 0},
		{"slow claims, old", 60_000, slowPatienceMs, firing{writes: true, slow: true}, n},
		{"slow claims, with a soon sweep", 100, 50, firing{writes: true, slow: true}, n},
	} {
		cs := newCompletions(c.sweepMs)
		for range n {
			cs.queue = append(cs.queue, ActFinish{Record: &schemas.Record{RunState: schemas.RunState{DoneMs: 1000}}})
		}
		got := 0
		for _, ok := cs.next(1000+c.ageMs, c.firing); ok; _, ok = cs.next(1000+c.ageMs, c.firing) {
			got++
		}
		if got != c.want || cs.held != (c.want < n) {
			t.Errorf("%s: %d final records are written, want %d; held: %t", c.name, got, c.want, cs.held)
		}
	}
}

// TestClaimTime: the time of a claim counts for a second.
func TestClaimTime(t *testing.T) {
	t.Parallel()
	slow := claimTime{tookMs: slowClaimMs, atMs: 5000}
	if !slow.slow(5000) || !slow.slow(5000+claimTimeMs-1) || slow.slow(5000+claimTimeMs) || slow.slow(4999) {
		t.Error("a slow claim counts for another time")
	}
	if (claimTime{tookMs: slowClaimMs - 1, atMs: 5000}).slow(5000) {
		t.Error("a fast claim is slow")
	}
}

// TestDrainWithSlowClaims: a shard that is handed over writes its final records at once, also while a slow claim is in flight.
func TestDrainWithSlowClaims(t *testing.T) {
	t.Parallel()
	k, ids, now := inBacklog(t, &Backlog{}, 2)
	now += slowClaimMs
	if got := finals(fired(k, now, ids[0], 100)); got != nil {
		t.Fatalf("final records %v are written while claims are slow", got)
	}
	next, ok := k.Next()
	if wait := next - now; !ok || wait <= 0 || wait > completionPollMs {
		t.Fatalf("looks again in %d ms, %t", wait, ok)
	}
	if got := finals(k.Drain(now)); !slices.Equal(got, ids[:1]) {
		t.Errorf("final records %v are written, want %v", got, ids[:1])
	}
}

// TestFinishConflictsEnd: if other writers change the record before each write, the core stops after maxCompletionRetries
// attempts, and the sweeper finishes the record. A shard that is handed over waits for the rereads.
func TestFinishConflictsEnd(t *testing.T) {
	t.Parallel()
	k, a, now := finishing(t)
	claimed := *a.Record
	claimed.State = schemas.StateDelivered
	for range maxCompletionRetries {
		rev := a.Rev + 1
		one[ActReread](t, k.Step(now, EvFinished{Finish: a, Err: store.ErrRevision}))
		if k.Idle() {
			t.Fatal("idle while the record is read")
		}
		a = one[ActFinish](t, k.Step(now, EvReread{ID: a.ID, Timer: store.Timer{ID: a.ID, Rev: rev, Record: claimed}}))
		if a.Rev != rev {
			t.Fatalf("replaces revision %d, not %d", a.Rev, rev)
		}
	}
	if got := k.Step(now, EvFinished{Finish: a, Err: store.ErrRevision}); len(got) != 0 || !k.Idle() {
		t.Errorf("%v after %d attempts; idle: %t", got, a.Fails, k.Idle())
	}
}

// TestFinishedTwice: a new owner queues two final records of one timer, because a repeated add has written the claim
// of the earlier owner again. Both writes conflict. The core rereads the record for the first and repeats the second later.
func TestFinishedTwice(t *testing.T) {
	t.Parallel()
	k, a, now := finishing(t)
	b := a
	b.Rev++
	k.completions.writing++
	one[ActReread](t, k.Step(now, EvFinished{Finish: a, Err: store.ErrRevision}))
	if got := k.Step(now, EvFinished{Finish: b, Err: store.ErrRevision}); len(got) != 0 {
		t.Fatalf("the second conflict causes %v", got)
	}
	claimed := *a.Record
	claimed.State = schemas.StateDelivered
	final := one[ActFinish](t, k.Step(now, EvReread{ID: a.ID, Timer: store.Timer{ID: a.ID, Rev: b.Rev + 1, Record: claimed}}))
	if final.Rev != b.Rev+1 {
		t.Errorf("replaces revision %d, not %d", final.Rev, b.Rev+1)
	}
	k.Step(now, EvFinished{Finish: final})
	if k.inflight != 0 || !k.Idle() {
		t.Errorf("%d writes in flight, idle: %t", k.inflight, k.Idle())
	}
	if again := one[ActFinish](t, k.Step(now+completionRetryDelayMs, EvTick{})); again.Rev != b.Rev || again.Fails != b.Fails+1 {
		t.Errorf("%+v is written after a pause, want the second final record", again)
	}
}

// TestFinishAndClaimReread: a timer was replayed while its final record was in flight, and the claim of the
// replay conflicts, too. Of the two reads of the record one is for the final record, the other for the claim.
func TestFinishAndClaimReread(t *testing.T) {
	t.Parallel()
	k, a, now := finishing(t)
	one[ActReread](t, k.Step(now, EvFinished{Finish: a, Err: store.ErrRevision}))
	now++
	again := pending("1", 9, now)
	one[ActClaim](t, k.Step(now, EvTail{Timer: again}))
	one[ActReread](t, k.Step(now, EvClaimed{ID: a.ID, Err: store.ErrRevision}))
	again.Rev++
	if got := k.Step(now, EvReread{ID: a.ID, Timer: again}); len(got) != 0 {
		t.Fatalf("the read for the final record causes %v", got)
	}
	if c := one[ActClaim](t, k.Step(now+minRetryDelay.Milliseconds(), EvReread{ID: a.ID, Timer: again})); c.Rev != again.Rev {
		t.Errorf("claims revision %d, not %d", c.Rev, again.Rev)
	}
	if k.inflight != 1 {
		t.Errorf("%d writes in flight", k.inflight)
	}
}

// TestSweptFirst: a claim behind the low watermark that the sweeper finds before the tail
// delivers it keeps the applied offset before it until its event is published.
func TestSweptFirst(t *testing.T) {
	t.Parallel()
	k, now := loaded(t, 2)
	tm := store.Timer{ID: schemas.NewTimerID("/t", "1"), Rev: 7, Record: schemas.Record{
		Definition: schemas.Definition{Service: "s", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{}`)}},
		RunState:   schemas.RunState{State: schemas.StateDelivered, Run: 1, DueMs: now - 5000, ScheduledMs: now - 5000, FiredMs: now - 10, Epoch: 1},
	}}
	tail := func() uint64 {
		var c store.Clock
		k.Checkpoint(&c)
		return c.Tail
	}
	confirm := one[ActDedupCheck](t, k.Step(now, EvSwept{Timer: tm}))
	k.Step(now, EvTail{Timer: tm})
	if got := tail(); got != 6 {
		t.Errorf("the applied offset is %d and has passed a claim that may not be published", got)
	}
	found := map[string]struct{}{}
	for id := range confirm.IDs {
		found[id] = struct{}{}
	}
	k.Step(now, EvDedupChecked{Found: found})
	if got := tail(); got != 7 {
		t.Errorf("the applied offset is %d", got)
	}
}

// TestOldClaimOfOurs: a claim that conflicts with an earlier claim of the same owner,
// whose event may have been published before the dedup window, causes a dedup check.
func TestOldClaimOfOurs(t *testing.T) {
	t.Parallel()
	for age, old := range map[time.Duration]bool{time.Second: false, 20 * time.Second: true} {
		k, tm, now := lost(t)
		tm.Rev++
		tm.Record.State, tm.Record.Queued, tm.Record.Epoch, tm.Record.FiredMs = schemas.StateDelivered, false, 1, now-age.Milliseconds()
		actions := k.Step(now, EvReread{ID: tm.ID, Timer: tm})
		if old {
			one[ActDedupCheck](t, actions)
		} else {
			one[ActPublish](t, actions)
		}
	}
}

// TestLatenessOfPastDueTimers: the lateness of a timer that was due before it was added
// counts from the add.
func TestLatenessOfPastDueTimers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ dueAgo, addedAgo, want int64 }{{10, 5000, 10}, {3_600_000, 20, 20}, {3_600_000, -5, 0}} {
		k, now := loaded(t, 1)
		id := schemas.NewTimerID("/t", "1")
		actions := k.Step(now, EvTail{Timer: store.Timer{ID: id, Rev: 7, Record: schemas.Record{
			Definition: schemas.Definition{AddedMs: now - c.addedAgo, Service: "s", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{}`)}},
			RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now - c.dueAgo, ScheduledMs: now - c.dueAgo},
		}}})
		one[ActClaim](t, actions)
		if p := one[ActPublish](t, k.Step(now, EvClaimed{ID: id, Rev: 8})); p.LateMs != c.want {
			t.Errorf("due %d ms ago, added %d ms ago: %d ms late, want %d", c.dueAgo, c.addedAgo, p.LateMs, c.want)
		}
	}
}
