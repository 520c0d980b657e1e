package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

var errTooLarge = schemas.Errorf(schemas.CodeTooLarge, "over the limit of 65535 bytes of headers")

// refusedOnce returns a core with the dead letter of a timer whose publish was refused.
func refusedOnce(t *testing.T) (*Core, store.Timer, int64, ActDeadLetter) {
	t.Helper()
	k, tm, now := claiming(t)
	one[ActPublish](t, k.Step(now, EvClaimed{ID: tm.ID, Rev: tm.Rev + 1}))
	return k, tm, now, one[ActDeadLetter](t, k.Step(now, EvPublished{ID: tm.ID, Err: errTooLarge}))
}

// TestRefusedForGood: a timer whose publish is refused permanently holds the low
// watermark until its dead letter and its final record are stored, and no longer.
func TestRefusedForGood(t *testing.T) {
	k, tm, now, letter := refusedOnce(t)
	m := letter.Msg
	if m.Subject != schemas.SubjectDead(tm.Record.Service) || m.MsgID == "" || fmt.Sprint(m.Header[schemas.HeaderErrorCode]) != "["+schemas.ReasonUndeliverable+"]" || !strings.Contains(fmt.Sprint(m.Header[schemas.HeaderError]), "65535") {
		t.Fatalf("dead letter %q %q %v", m.Subject, m.MsgID, m.Header)
	}
	// A write that is not acknowledged is repeated with the same message ID.
	if got := k.Step(now, EvDeadLettered{ID: tm.ID, Err: schemas.ErrUnavailable}); len(got) != 0 {
		t.Fatalf("repeated without a pause: %v", got)
	}
	now += maxRetryDelay.Milliseconds()
	if again := one[ActDeadLetter](t, k.Step(now, EvTick{})); again.Msg.MsgID != m.MsgID {
		t.Fatalf("another id: %q, was %q", again.Msg.MsgID, m.MsgID)
	}
	fail := one[ActFail](t, k.Step(now, EvDeadLettered{ID: tm.ID}))
	r := fail.Record
	if fail.Rev != tm.Rev+1 || r.State != schemas.StateFail || r.Queued || r.Body.Mode != schemas.ModeNone || r.Attempt != 0 || r.DoneMs == 0 || r.FiredMs == 0 || !strings.Contains(r.Outcome.Error, "65535") {
		t.Fatalf("final record of revision %d: %+v", fail.Rev, r)
	}
	k.Step(now, EvFailed{ID: tm.ID, Err: schemas.ErrStoreFull})
	now += maxRetryDelay.Milliseconds()
	one[ActFail](t, k.Step(now, EvTick{}))
	if k.ProgressMs() > tm.Record.DueMs {
		t.Fatalf("the low watermark %d passed a timer, due %d, that has not ended", k.ProgressMs(), tm.Record.DueMs)
	}
	k.Step(now, EvFailed{ID: tm.ID})
	if k.Loaded() != 0 || !k.Idle() {
		t.Fatalf("%d entries are left", k.Loaded())
	}
	if k.Step(now, EvTick{}); k.ProgressMs() <= tm.Record.DueMs {
		t.Fatalf("the low watermark %d does not advance", k.ProgressMs())
	}
}

// TestRefusedByTheNextOwner: an owner that finds the claim of a predecessor creates the
// same dead letter, and looks for it in the stream if the message ID may be older than
// the dedup window.
func TestRefusedByTheNextOwner(t *testing.T) {
	k, tm, now, letter := refusedOnce(t)
	claimed := tm
	claimed.Rev++
	claimed.Record.State, claimed.Record.Queued, claimed.Record.FiredMs, claimed.Record.Epoch = schemas.StateDelivered, false, now, k.epoch
	for _, late := range []bool{false, true} {
		for _, there := range []bool{false, true} {
			next := NewCore(k.cfg, store.Clock{TimeMs: k.ProgressMs()}, k.epoch+1)
			at := now
			if late {
				at += dedupCheckAfterMs + 1
			}
			next.Step(at, EvTick{})
			ask := one[ActDedupCheck](t, next.Step(at, EvTail{Timer: claimed}))
			if ask.Subjects[0] != schemas.SubjectFired(tm.Record.Service) {
				t.Fatalf("requests %v", ask.Subjects)
			}
			one[ActPublish](t, next.Step(at, EvDedupChecked{}))
			actions := next.Step(at, EvPublished{ID: tm.ID, Err: errTooLarge})
			if late {
				ask = one[ActDedupCheck](t, actions)
				if ask.Subjects[0] != schemas.SubjectDead(tm.Record.Service) {
					t.Fatalf("requests %v", ask.Subjects)
				}
				found := map[string]struct{}{}
				if there {
					found[letter.Msg.MsgID] = struct{}{}
				}
				actions = next.Step(at, EvDedupChecked{Found: found})
				if there {
					one[ActFail](t, actions)
					continue
				}
			}
			if again := one[ActDeadLetter](t, actions); again.Msg.MsgID != letter.Msg.MsgID {
				t.Fatalf("the next owner's letter is %q, was %q", again.Msg.MsgID, letter.Msg.MsgID)
			}
		}
	}
}

// TestRefusedClaim: a timer whose record became too large to be claimed ends as a dead
// letter, too.
func TestRefusedClaim(t *testing.T) {
	k, tm, now := claiming(t)
	letter := one[ActDeadLetter](t, k.Step(now, EvClaimed{ID: tm.ID, Err: errTooLarge}))
	if letter.Msg.MsgID == "" {
		t.Fatal("no message id")
	}
	fail := one[ActFail](t, k.Step(now, EvDeadLettered{ID: tm.ID}))
	if fail.Rev != tm.Rev || fail.Record.State != schemas.StateFail || fail.Record.FiredMs == 0 {
		t.Fatalf("revision %d: %+v", fail.Rev, fail.Record)
	}
	// A cancel came first: the core reads the record again and forgets the timer.
	one[ActReread](t, k.Step(now, EvFailed{ID: tm.ID, Err: store.ErrRevision}))
	cancelled := tm
	cancelled.Rev++
	cancelled.Record.State, cancelled.Record.Queued = schemas.StateCancelled, false
	k.Step(now, EvReread{ID: tm.ID, Timer: cancelled})
	if k.Loaded() != 0 {
		t.Fatalf("%d entries are left", k.Loaded())
	}
}

// TestRefusedClaimIsCountedOnce: a timer whose claim is refused no longer counts as
// waiting once its final record is stored, even if the answer to that write is lost.
func TestRefusedClaimIsCountedOnce(t *testing.T) {
	for _, lost := range []bool{false, true} {
		k, tm, now := claiming(t)
		before, _ := k.Pending()
		one[ActDeadLetter](t, k.Step(now, EvClaimed{ID: tm.ID, Err: errTooLarge}))
		fail := one[ActFail](t, k.Step(now, EvDeadLettered{ID: tm.ID}))
		if lost {
			one[ActReread](t, k.Step(now, EvFailed{ID: tm.ID, Err: schemas.ErrUnavailable}))
			k.Step(now, EvReread{ID: tm.ID, Timer: store.Timer{ID: tm.ID, Rev: tm.Rev + 1, Record: *fail.Record}})
		} else {
			k.Step(now, EvFailed{ID: tm.ID})
		}
		if after, _ := k.Pending(); before != 1 || after != 0 {
			t.Errorf("answer lost: %t: %d timers wait, then %d", lost, before, after)
		}
	}
}

// failUnanswered returns a core that rereads a timer whose claim was refused: the write of the final record, stored, had no
// answer.
func failUnanswered(t *testing.T) (k *Core, tm store.Timer, now int64, stored store.Timer) {
	t.Helper()
	k, tm, now = claiming(t)
	one[ActDeadLetter](t, k.Step(now, EvClaimed{ID: tm.ID, Err: errTooLarge}))
	fail := one[ActFail](t, k.Step(now, EvDeadLettered{ID: tm.ID}))
	one[ActReread](t, k.Step(now, EvFailed{ID: tm.ID, Err: schemas.ErrUnavailable}))
	return k, tm, now, store.Timer{ID: tm.ID, Rev: tm.Rev + 1, Record: *fail.Record}
}

// TestRefusedClaimWithALateRecord: the final record of a refused claim is stored after its answer was lost and a reread
// has found the revision before it. Until then the shard is not handed over with the number of pending timers. The tail
// then brings the record, and the timer no longer counts.
func TestRefusedClaimWithALateRecord(t *testing.T) {
	t.Parallel()
	k, tm, now, stored := failUnanswered(t)
	k.Pause(true) // otherwise the timer is claimed again
	k.Step(now, EvReread{ID: tm.ID, Timer: tm})
	if n, _ := k.Pending(); n != 1 || !k.hasUnclear() {
		t.Fatalf("before the record: %d timers wait, a write may still be stored: %t", n, k.hasUnclear())
	}
	k.Step(now, EvTail{Timer: stored})
	if n, _ := k.Pending(); n != 0 || k.hasUnclear() || k.Loaded() != 0 {
		t.Errorf("after it: %d timers wait, a write may still be stored: %t, %d entries", n, k.hasUnclear(), k.Loaded())
	}
}

// TestRefusedClaimReadBefore: the tail brings the late final record of a refused claim before the answer to a reread,
// which found the revision before it. The timer is counted once.
func TestRefusedClaimReadBefore(t *testing.T) {
	t.Parallel()
	k, tm, now, stored := failUnanswered(t)
	k.Step(now, EvTail{Timer: stored})
	one[ActClaim](t, k.Step(now, EvReread{ID: tm.ID, Timer: tm}))
	one[ActReread](t, k.Step(now, EvClaimed{ID: tm.ID, Err: store.ErrRevision}))
	k.Step(now, EvReread{ID: tm.ID, Timer: stored})
	if n := k.pending.n; n != 0 || k.Loaded() != 0 {
		t.Errorf("%d timers wait, %d entries", n, k.Loaded())
	}
}

// TestRefusedClaimTwice: two final records of the same refused claim were sent. The first one is stored, after the
// second was sent.
func TestRefusedClaimTwice(t *testing.T) {
	t.Parallel()
	k, tm, now, first := failUnanswered(t)
	now++
	one[ActClaim](t, k.Step(now, EvReread{ID: tm.ID, Timer: tm}))
	if second := one[ActFail](t, k.Step(now, EvClaimed{ID: tm.ID, Err: errTooLarge})); second.Record.DoneMs == first.Record.DoneMs {
		t.Fatalf("both records end at %d", first.Record.DoneMs)
	}
	k.Step(now, EvTail{Timer: first})
	one[ActReread](t, k.Step(now, EvFailed{ID: tm.ID, Err: store.ErrRevision}))
	k.Step(now, EvReread{ID: tm.ID, Timer: first})
	if n := k.pending.n; n != 0 || k.Loaded() != 0 {
		t.Errorf("%d timers wait, %d entries", n, k.Loaded())
	}
}

// TestNotRefusedForGood: a publish that may succeed later is repeated.
func TestNotRefusedForGood(t *testing.T) {
	for _, err := range []error{schemas.ErrUnavailable, schemas.ErrStoreFull, errSuspended, errors.New("any")} {
		k, tm, now := claiming(t)
		one[ActPublish](t, k.Step(now, EvClaimed{ID: tm.ID, Rev: tm.Rev + 1}))
		k.Step(now, EvPublished{ID: tm.ID, Err: err})
		one[ActPublish](t, k.Step(now+maxRetryDelay.Milliseconds(), EvTick{}))
	}
}

// TestRefusedClaimIsForgotten: after the tail has brought the final record of a refused claim, the number of pending timers
// needs no memory for it.
func TestRefusedClaimIsForgotten(t *testing.T) {
	t.Parallel()
	k, tm, now := claiming(t)
	one[ActDeadLetter](t, k.Step(now, EvClaimed{ID: tm.ID, Err: errTooLarge}))
	fail := one[ActFail](t, k.Step(now, EvDeadLettered{ID: tm.ID}))
	k.Step(now, EvFailed{ID: tm.ID, Rev: tm.Rev + 1})
	if len(k.pending.ahead) != 1 {
		t.Fatalf("before the tail brings it: %d revisions", len(k.pending.ahead))
	}
	k.Step(now, EvTail{Timer: store.Timer{ID: tm.ID, Rev: tm.Rev + 1, Record: *fail.Record}})
	if n, _ := k.Pending(); len(k.pending.ahead) != 0 || n != 0 {
		t.Errorf("%d revisions, %d timers wait", len(k.pending.ahead), n)
	}
}

// TestDamagedScheduleIsNoClaim: a schedule that is read because its run has ended, and is damaged, is not taken for a
// damaged claim: the number of pending timers includes it.
func TestDamagedScheduleIsNoClaim(t *testing.T) {
	t.Parallel()
	d := damagedClaims{}
	d.add(&entry{id: schemas.TimerID{1}})
	if len(d) != 0 {
		t.Errorf("claims: %v", d)
	}
}
