package router_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestConfirm: with replicas, an operation that by the record changes nothing is not answered by a record that is not the
// newest: a server that led the stream before may have read it. Such an operation does not count as a change.
func TestConfirm(t *testing.T) {
	t.Parallel()
	var stale atomic.Int32
	var earlier store.Timer
	f := setupFaulty(t, &faulty{replicated: true, get: func(t store.Timer) store.Timer {
		if stale.Add(-1) >= 0 {
			return earlier
		}
		return t
	}})
	earlier = f.old("one", nil)
	f.op("schedule.pause", "one", "")
	stale.Store(2) // by these reads the timer is not paused, so that there is nothing to resume
	if got := f.op("schedule.resume", "one", ""); got.State != schemas.StatePending || f.stored("one").State != schemas.StatePending {
		t.Errorf("after a resume: answered %s, stored %s", got.State, f.stored("one").State)
	}
	before := f.await("/test", "one")
	got := f.op("schedule.resume", "one", "")
	after := f.await("/test", "one")
	if after.Rev == before.Rev || got.Revision != after.Rev {
		t.Errorf("a resume that changes nothing: revision %d became %d, the answer has %d", before.Rev, after.Rev, got.Revision)
	}
	if len(after.Record.History) != len(before.Record.History) || after.Record.State != before.Record.State || after.Record.DueMs != before.Record.DueMs {
		t.Errorf("a resume that changes nothing has changed %+v to %+v", before.Record, after.Record)
	}
}

// TestReplayFromDeposedLeader: a dead letter is not deleted because of a record from before its claim, by which it seems to
// be replayed, however old it is. If that record is the newest one, the letter is.
func TestReplayFromDeposedLeader(t *testing.T) {
	t.Parallel()
	var stale atomic.Bool
	f := setupFaulty(t, &faulty{
		getAsOf: func(uint64) error {
			if stale.Load() {
				return schemas.Errorf(schemas.CodeUnavailable, "%w", store.ErrBehind)
			}
			return nil
		},
		get: func(t store.Timer) store.Timer {
			if stale.Load() && t.Record.State == schemas.StateFail {
				t.Rev, t.Record.State = t.Rev-1, schemas.StatePending
			}
			return t
		},
	})
	replay := func(id, code string, left int, want schemas.State) {
		t.Helper()
		got := f.request("dead.replay", fmt.Appendf(nil, `{"id":%q,"source":"/test"}`, id), &schemas.ReplayReply{})
		if got != code || f.letters() != left || f.stored(id).State != want {
			t.Errorf("replay of %s: %q, %d letters are left, the record is %s; want %q, %d, %s", id, got, f.letters(), f.stored(id).State, code, left, want)
		}
	}
	f.dead("1", 2, true)
	stale.Store(true)
	replay("1", "unavailable", 1, schemas.StateFail)
	stale.Store(false)
	replay("1", "", 0, schemas.StateRetrying)

	f.dead("2", 2, true)
	f.update("2", func(r *schemas.Record) { r.State, r.Queued, r.DoneMs = schemas.StatePending, true, 0 })
	stale.Store(true) // the stream has lost the claim, and the timer is pending again
	replay("2", "", 0, schemas.StatePending)
}
