package router_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestConfirm: with replicas, no operation is refused, or answered without a change, by a record that is not the newest: a
// server that led the stream before may have answered the first read.
func TestConfirm(t *testing.T) {
	t.Parallel()
	same := func(*schemas.Record) {}
	pending := func(r *schemas.Record) { r.State, r.Queued = schemas.StatePending, true }
	fired := func(r *schemas.Record) {
		r.State, r.Queued, r.Callback, r.FiredMs = schemas.StateDelivered, false, "nats:x", r.DueMs
	}
	success := func(r *schemas.Record) { fired(r); r.State, r.DoneMs = schemas.StateSuccess, r.DueMs }
	unavailable := schemas.Errorf(schemas.CodeUnavailable, "no leader")
	for name, c := range map[string]struct {
		verb, more string
		stored     func(*schemas.Record) // what has become of the pending timer; nil: it has no record
		paused     bool                  // it was paused afterwards
		read       func(*schemas.Record) // the record that the first read returns; nil: there is none
		alone      bool                  // without replicas
		newestErr  error                 // of GetNewest

		code   string
		state  schemas.State
		newest int64 // calls of GetNewest
	}{
		"a resume of a timer whose pause was not read": {verb: "schedule.resume", stored: same, paused: true, read: pending, state: schemas.StatePending, newest: 1},
		"a resume of a timer that is not paused":       {verb: "schedule.resume", stored: same, read: same, state: schemas.StatePending, newest: 1},
		"a cancel of a timer that seems to have fired": {verb: "cancel", stored: same, read: fired, state: schemas.StateCancelled, newest: 1},
		"a cancel of a timer that seems to be missing": {verb: "cancel", stored: same, state: schemas.StateCancelled, newest: 1},
		"a cancel of a timer that has fired":           {verb: "cancel", stored: fired, read: fired, code: "already_fired", newest: 1},
		"a cancel of a timer that is done":             {verb: "cancel", stored: success, read: success, code: "already_fired"},
		"a cancel without replicas":                    {verb: "cancel", stored: fired, read: fired, alone: true, code: "already_fired"},
		"a cancel without a leader":                    {verb: "cancel", stored: same, read: fired, newestErr: unavailable, code: "unavailable", newest: 1},
		"a move of a timer that seems to have fired":   {verb: "reschedule", more: `,"after":"2h"`, stored: same, read: fired, state: schemas.StatePending, newest: 1},
		"a timer that seems to be missing":             {verb: "get", stored: same, state: schemas.StatePending, newest: 1},
		// Before and after a wait for adds on their way.
		"a timer that is missing":          {verb: "get", code: "not_found", newest: 2},
		"a missing timer without replicas": {verb: "get", alone: true, code: "not_found"},
		"a timer":                          {verb: "get", stored: same, read: same, state: schemas.StatePending},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stale atomic.Bool
			fault := &faulty{replicated: !c.alone}
			fault.missing = func() bool { return c.read == nil && stale.Swap(false) }
			fault.get = func(got store.Timer) store.Timer {
				if c.read != nil && stale.Swap(false) {
					c.read(&got.Record)
					got.Rev--
				}
				return got
			}
			fault.getNewest = c.newestErr
			f := setupFaulty(t, fault)
			if c.stored != nil {
				f.old("one", c.stored)
			}
			if c.paused {
				f.op("schedule.pause", "one", "")
			}
			stale.Store(true)
			before := fault.newest.Load()
			var got schemas.TimerInfo
			code, text := f.answer(c.verb, fmt.Appendf(nil, `{"id":"one","source":"/test"%s}`, c.more), &got)
			if code != c.code || code == "" && got.State != c.state {
				t.Errorf("%s: %q (%s), %s; want %q, %s", c.verb, code, text, got.State, c.code, c.state)
			}
			if code == "" && f.stored("one").State != c.state {
				t.Errorf("the record is %s; want %s", f.stored("one").State, c.state)
			}
			if n := fault.newest.Load() - before; n != c.newest {
				t.Errorf("the newest record was read %d times; want %d", n, c.newest)
			}
		})
	}
}

// TestConfirmRevision: an operation at a revision is not refused because of an earlier one.
func TestConfirmRevision(t *testing.T) {
	t.Parallel()
	var stale atomic.Bool
	fault := &faulty{replicated: true, get: func(got store.Timer) store.Timer {
		if stale.Swap(false) {
			got.Rev--
		}
		return got
	}}
	f := setupFaulty(t, fault)
	one := f.old("one", func(*schemas.Record) {})
	stale.Store(true)
	if got := f.op("cancel", "one", fmt.Sprintf(`,"revision":%d`, one.Rev)); got.State != schemas.StateCancelled || fault.newest.Load() != 1 {
		t.Errorf("a cancel at the newest revision: %s after %d reads of the newest record", got.State, fault.newest.Load())
	}
}

// TestRefusedWrite: a server that led the stream before may have refused a write that the leader has stored. The operation is
// not carried out twice, although that server also answers the next read.
func TestRefusedWrite(t *testing.T) {
	t.Parallel()
	var stale atomic.Bool
	var before store.Timer
	fault := &faulty{replicated: true, get: func(got store.Timer) store.Timer {
		if stale.Swap(false) {
			return before
		}
		return got
	}}
	var refuse atomic.Bool
	fault.change = func(w store.Write) error {
		if !refuse.Swap(false) {
			return nil
		}
		if _, err := fault.Store.Update(t.Context(), w); err != nil {
			return err
		}
		stale.Store(true)
		return store.ErrRevision
	}
	f := setupFaulty(t, fault)
	before = f.old("one", func(*schemas.Record) {})
	refuse.Store(true)
	f.op("reschedule", "one", `,"after":"2h"`)
	if r := f.stored("one"); r.Moves != before.Record.Moves+1 || len(r.History) != 1 {
		t.Errorf("after one move: %d moves, history %+v", r.Moves, r.History)
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
