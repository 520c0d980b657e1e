package router_test

import (
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

// TestReplayFromDeposedLeader: a dead letter is not taken for replayed because of a record from before its claim.
func TestReplayFromDeposedLeader(t *testing.T) {
	t.Parallel()
	var behind atomic.Int32
	f := setupFaulty(t, &faulty{getAsOf: func(uint64) error {
		if behind.Add(-1) >= 0 {
			return schemas.Errorf(schemas.CodeUnavailable, "%w", store.ErrBehind)
		}
		return nil
	}})
	f.dead("1", 2, true)
	behind.Store(1)
	request := []byte(`{"id":"1","source":"/test"}`)
	if code := f.request("dead.replay", request, nil); code != "unavailable" || f.letters() != 1 {
		t.Errorf("a replay by an earlier record: %q, and %d letters are left", code, f.letters())
	}
	if code := f.request("dead.replay", request, &schemas.ReplayReply{}); code != "" || f.letters() != 0 || f.stored("1").State != schemas.StateRetrying {
		t.Errorf("a replay by the newest record: %q, %d letters are left, the record is %s", code, f.letters(), f.stored("1").State)
	}
}
