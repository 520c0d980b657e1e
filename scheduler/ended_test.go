package scheduler

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestEndedRule: the list has a timer if an earlier revision could fire after the final record has expired.
func TestEndedRule(t *testing.T) {
	t.Parallel()
	const hour, minute, done = 3_600_000, 60_000, 1_700_000_000_000
	sweep := 10 * time.Minute
	for _, c := range []struct {
		name      string
		state     schemas.State
		retention time.Duration
		due       int64 // after done, and so is latest, if it is not 0
		latest    int64
		listed    bool
	}{
		{"fired on time", schemas.StateSuccess, time.Hour, -5, 0, false},
		{"fired on time, short retention", schemas.StateSuccess, 2 * time.Second, 0, 0, false},
		{"failed", schemas.StateFail, time.Hour, -hour, 0, false},
		{"cancelled within the retention", schemas.StateCancelled, time.Hour, 48 * minute, 0, false},
		{"cancelled so that the record may expire before the sweep", schemas.StateCancelled, time.Hour, 50 * minute, 0, true},
		{"cancelled long before", schemas.StateCancelled, time.Hour, 9 * hour, 0, true},
		{"cancelled, short retention", schemas.StateCancelled, 2 * time.Second, 1001, 0, true},
		{"moved to an earlier time", schemas.StateSuccess, time.Hour, 0, 9 * hour, true},
		{"moved to a later time by an older build", schemas.StateSuccess, time.Hour, 0, -hour, false},
		{"completed schedule", schemas.StateCompleted, time.Hour, 0, 0, false},
		{"pending", schemas.StatePending, time.Hour, 9 * hour, 0, false},
		{"delivered", schemas.StateDelivered, time.Hour, 9 * hour, 9 * hour, false},
		{"no retention", schemas.StateCancelled, 0, 9 * hour, 0, false},
	} {
		tm := store.Timer{ID: schemas.NewTimerID("/t", "1"), Rev: 7, Record: schemas.Record{
			Definition: schemas.Definition{AddedMs: done - 9},
			RunState:   schemas.RunState{State: c.state, DueMs: done + c.due, DoneMs: done},
		}}
		if c.latest != 0 {
			tm.Record.LatestDueMs = done + c.latest
		}
		rule := newEndedRule(c.retention, sweep.Milliseconds())
		for _, stored := range []int64{0, done + 3} {
			tm.StoredMs = stored
			e, listed := rule.of(&tm, done+1)
			if listed != c.listed {
				t.Errorf("%s: listed %v, want %v", c.name, listed, c.listed)
			}
			if !listed {
				continue
			}
			want := store.EndedTimer{ID: tm.ID, Rev: 7, StoredMs: stored, AddedMs: done - 9, UntilMs: max(tm.Record.DueMs, tm.Record.LatestDueMs) + 11*minute}
			if stored == 0 {
				want.StoredMs = done + 1001
			}
			if e != want {
				t.Errorf("%s: got %+v, want %+v", c.name, e, want)
			}
		}
	}
}

// endedHost runs functions when the test asks for it, and has a clock.
type endedHost struct {
	Host
	now  time.Duration
	runs []func(context.Context)
}

func (h *endedHost) Monotonic() time.Duration                        { return h.now }
func (h *endedHost) Go(f func(context.Context))                      { h.runs = append(h.runs, f) }
func (h *endedHost) Pause(ctx context.Context, _ time.Duration) bool { return ctx.Err() == nil }
func (h *endedHost) Wake()                                           {}

// run runs the functions that were begun.
func (h *endedHost) run(ctx context.Context) (n int) {
	runs := h.runs
	h.runs = nil
	for _, f := range runs {
		f(ctx)
	}
	return len(runs)
}

// endedStore has final records, and the timers that were listed.
type endedStore struct {
	TermStore
	final  []store.Timer
	listed []store.EndedTimer
	err    error
	// looks counts calls of RemoveVoid.
	looks         int
	interruptions uint64
}

func (s *endedStore) RemoveVoid(context.Context, int) ([]store.VoidRecord, error) {
	s.looks++
	return nil, s.err
}

func (s *endedStore) Interruptions() uint64 { return s.interruptions }

func (s *endedStore) AddEnded(_ context.Context, _ int, _, _ int64, timers []store.EndedTimer) error {
	if s.err == nil {
		s.listed = append(s.listed, timers...)
	}
	return s.err
}

func (s *endedStore) EachFinal(_ context.Context, _ int, after, through uint64, fn func(*store.Timer)) error {
	for i := range s.final {
		if f := &s.final[i]; f.Rev > after && f.Rev <= through {
			fn(f)
		}
	}
	return s.err
}

func (s *endedStore) revs() (revs []uint64) {
	for i := range s.listed {
		revs = append(revs, s.listed[i].Rev)
	}
	slices.Sort(revs)
	return revs
}

type fixedTime struct{ TermTime }

func (fixedTime) EarliestNs() int64 { return 1_700_000_000_000 * int64(time.Millisecond) }

// cancelled returns the record of a timer that was cancelled a day before it was due.
func cancelled(rev uint64) store.Timer {
	const now = 1_700_000_000_000
	return store.Timer{ID: schemas.NewTimerID("/t", "1"), Rev: rev, Record: schemas.Record{
		RunState: schemas.RunState{State: schemas.StateCancelled, DueMs: now + 24*3_600_000, DoneMs: now},
	}}
}

func endedTerm(t *testing.T, clock store.Clock, s *endedStore) (*Term, *endedHost) {
	t.Helper()
	h := &endedHost{}
	c := TermConfig{Store: s, Ended: s, Time: fixedTime{}, Core: coreConfig, Log: zerolog.Nop()}
	c.Core.Retention = time.Hour
	term := newTerm(c, newShardState(0, newMetrics(), zerolog.Nop()), NewLease(time.Second, time.Second, 0, clock, 1), h)
	term.tailRev = clock.Tail
	return term, h
}

// bring passes records to a term as its tail does.
func (t *Term) bring(rev uint64, timers ...store.Timer) {
	for i := range timers {
		t.ended.note(&timers[i], t.nowMs)
	}
	t.tailRev = rev
}

// wantEnded checks the revision that the next clock would state, and the revisions that are listed.
func wantEnded(t *testing.T, when string, term *Term, s *endedStore, upTo uint64, listed ...uint64) {
	t.Helper()
	if c, _ := term.checkpoint(); c.Ended != upTo {
		t.Errorf("%s: the clock says %d, want %d", when, c.Ended, upTo)
	}
	if got := s.revs(); !slices.Equal(got, listed) {
		t.Errorf("%s: %d are listed, want %d", when, got, listed)
	}
}

// TestEndedTerm: an owner writes the list at intervals, and its clock never says more than the list has.
func TestEndedTerm(t *testing.T) {
	t.Parallel()
	s := &endedStore{}
	term, h := endedTerm(t, store.Clock{}, s)
	turn := func() int { term.keepEnded(); return h.run(t.Context()) }
	wantEnded(t, "at the beginning", term, s, 0)
	if turn() != 1 || turn() != 0 || s.looks != 1 {
		t.Error("an owner of a new shard does more than one look for void records")
	}
	term.ended.voidAt = math.MaxInt64 // no further look
	pending := cancelled(3)
	pending.Record.State = schemas.StatePending
	term.bring(9, pending)
	wantEnded(t, "after records that need no entry", term, s, 9)

	term.bring(20, cancelled(12))
	turn()
	wantEnded(t, "before the write", term, s, 9)
	h.now += endedEvery
	term.keepEnded()
	wantEnded(t, "when the write has begun", term, s, 9)
	term.bring(30, cancelled(25)) // while the write is under way
	wantEnded(t, "while the write is under way", term, s, 9)
	h.run(t.Context())
	wantEnded(t, "before the next turn", term, s, 9, 12)
	turn()
	wantEnded(t, "after the write", term, s, 20, 12)

	s.err = errors.New("no space")
	h.now += endedEvery
	turn()
	turn()
	wantEnded(t, "after a failed write", term, s, 20, 12)
	term.bring(40)
	if turn() != 0 {
		t.Error("a failed write is repeated at once")
	}
	s.err = nil
	h.now += endedLeast
	turn()
	turn()
	wantEnded(t, "after the repeated write", term, s, 40, 12, 25)
	term.bring(50)
	wantEnded(t, "later", term, s, 50, 12, 25)
	h.now += 2 * endedEvery
	if turn() != 0 {
		t.Error("a list without changes is written")
	}
	many := make([]store.Timer, endedMost)
	for i := range many {
		many[i] = cancelled(60)
	}
	term.bring(60, many...)
	if turn() != 0 || turn() != 1 { // the first turn after a note only sets the time of the write
		t.Error("many timers are not written early")
	}
}

// TestEndedTakeOver: a new owner lists the final records that the previous one had not listed.
func TestEndedTakeOver(t *testing.T) {
	t.Parallel()
	final := []store.Timer{cancelled(5), cancelled(10), cancelled(11), cancelled(15), cancelled(16)}
	for _, c := range []struct {
		name   string
		clock  store.Clock
		listed []uint64
		before uint64 // the clock's revision before the scan has ended
	}{
		{"the list is behind", store.Clock{Ended: 10, Tail: 15, Seen: 15}, []uint64{11, 15}, 10},
		{"no list", store.Clock{Tail: 15, Seen: 15}, []uint64{5, 10, 11, 15}, 0},
		{"complete", store.Clock{Ended: 15, Tail: 15, Seen: 15}, nil, 15},
		{"ahead of the tail", store.Clock{Ended: 16, Tail: 15, Seen: 16}, nil, 15},
	} {
		s := &endedStore{final: final, err: schemas.ErrUnavailable}
		term, h := endedTerm(t, c.clock, s)
		for range 3 {
			term.keepEnded()
			h.run(t.Context())
			wantEnded(t, c.name+", while the store does not answer", term, s, c.before)
		}
		s.err = nil
		term.keepEnded()
		wantEnded(t, c.name+", before the scan", term, s, c.before)
		h.run(t.Context())
		term.keepEnded()
		wantEnded(t, c.name+", after the scan", term, s, 15, c.listed...)
	}
	// The stream has lost messages: the tail begins before the end of the list.
	s := &endedStore{}
	term, _ := endedTerm(t, store.Clock{Ended: 16, Tail: 12, Seen: 12}, s)
	term.bring(15, cancelled(15))
	wantEnded(t, "after a loss", term, s, 12)
}

// TestEndedBound: an owner that cannot write its list forgets timers, and reads their records later.
func TestEndedBound(t *testing.T) {
	t.Parallel()
	s := &endedStore{final: []store.Timer{cancelled(5), cancelled(6)}, err: schemas.ErrUnavailable}
	term, h := endedTerm(t, store.Clock{}, s)
	term.bring(7, cancelled(5))
	for range endedBound {
		term.ended.add(store.EndedTimer{Rev: 6})
	}
	if len(term.ended.noted) > endedBound {
		t.Errorf("%d timers are noted", len(term.ended.noted))
	}
	term.ended.noted = nil // the first one after the bound
	s.err = nil
	term.keepEnded()
	wantEnded(t, "before the scan", term, s, 0)
	h.run(t.Context())
	term.keepEnded()
	wantEnded(t, "after the scan", term, s, 7, 5, 6)
}

// TestRemovesVoid: an owner looks for void revisions after a take-over and after each lost connection, until it succeeds,
// and at intervals.
func TestRemovesVoid(t *testing.T) {
	t.Parallel()
	s := &endedStore{interruptions: 7}
	term, h := endedTerm(t, store.Clock{}, s)
	for _, c := range []struct {
		name          string
		interruptions uint64
		err           error
		looks         int
	}{
		{"after the take-over", 7, nil, 1},
		{"later", 7, nil, 0},
		{"after a lost connection", 8, nil, 1},
		{"while the store does not answer", 9, schemas.ErrUnavailable, 3},
		{"when it answers", 9, nil, 1},
		{"then", 9, nil, 0},
	} {
		s.interruptions, s.err, s.looks = c.interruptions, c.err, 0
		for range 3 {
			term.keepEnded()
			h.run(t.Context())
			h.now += interruptedEvery
		}
		if s.looks != c.looks {
			t.Errorf("%s: %d looks in 3 turns, want %d", c.name, s.looks, c.looks)
		}
	}
	s.looks = 0
	for range 3 {
		h.now += voidEvery
		term.keepEnded()
		h.run(t.Context())
	}
	if s.looks != 3 {
		t.Errorf("%d looks in 3 intervals", s.looks)
	}
}

// TestVoidIsForgotten: the core drops a void record that it has loaded, and does not count it.
func TestVoidIsForgotten(t *testing.T) {
	t.Parallel()
	for _, rev := range []uint64{7, 8} { // of the void record, and of a record that was added again
		k, now := loaded(t, 1)
		k.Step(now, EvRecount{})
		tm := store.Timer{ID: schemas.NewTimerID("/t", "void"), Rev: rev, Record: schemas.Record{
			RunState: schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now + 1000},
		}}
		k.Step(now, EvTail{Timer: tm})
		before := k.Loaded()
		k.Step(now, EvVoid{ID: tm.ID, Rev: 7})
		k.Step(now, EvCounted{Round: k.pending.round, Last: rev})
		left := 0
		if rev > 7 {
			left = 1
		}
		if n, known := k.Pending(); !known || n != int64(left) || k.Loaded() != before-1+left {
			t.Errorf("revision %d: %d timers are pending (%v), %d of %d are loaded, want %d", rev, n, known, k.Loaded(), before, left)
		}
	}
}

// TestVoidBeforeTheTail: the tail may bring a record after it was deleted as void. The core does not count it, and does not load it.
func TestVoidBeforeTheTail(t *testing.T) {
	t.Parallel()
	for _, counting := range []bool{true, false} {
		k, now := loaded(t, 1)
		if counting {
			k.Step(now, EvRecount{})
		}
		loaded := k.Loaded()
		record := func(rev uint64) EvTail {
			return EvTail{Timer: store.Timer{ID: schemas.NewTimerID("/t", "void"), Rev: rev, Record: schemas.Record{
				RunState: schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now + 1000},
			}}}
		}
		void, again := record(7), record(9)
		k.Step(now, EvVoid{ID: void.Timer.ID, Rev: 7})
		k.Step(now, EvVoid{ID: schemas.NewTimerID("/t", "later"), Rev: 20}) // the core waits for more of them
		k.Step(now, void)
		k.Step(now, EvCounted{Round: k.pending.round, Last: 6})
		if n, known := k.Pending(); !known || n != 0 || k.Loaded() != loaded {
			t.Errorf("a count runs: %t: %d timers are pending (%t), and %d are loaded, want 0 and %d", counting, n, known, k.Loaded(), loaded)
		}
		k.Step(now, again)
		if n, _ := k.Pending(); n != 1 || k.Loaded() != loaded+1 {
			t.Errorf("a count ran: %t: after an add of the same timer %d are pending and %d loaded, want 1 and %d", counting, n, k.Loaded(), loaded+1)
		}
	}
}

// TestReleaseDuringALook: an owner that releases the shard while it looks for void records does not pass its count on, because the
// look may delete a record that the count has read.
func TestReleaseDuringALook(t *testing.T) {
	t.Parallel()
	term, h := endedTerm(t, store.Clock{}, &endedStore{})
	release := func() store.Clock {
		c := store.Clock{Owner: "n1", Pending: 1, Counted: true}
		term.withdraw(&c)
		return c
	}
	term.keepEnded()
	if c := release(); c.Owner != "" || !c.PendingUnknown || c.Counted {
		t.Errorf("during the look: %+v", c)
	}
	h.run(t.Context())
	term.keepEnded()
	if c := release(); c.Owner != "" || !c.Counted {
		t.Errorf("after the look: %+v", c)
	}
}
