package router_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// repeating stores the first change, and answers as if the answer had been lost and the
// repeated write refused.
type repeating struct {
	router.Records
	done atomic.Bool
}

func (r *repeating) Update(ctx context.Context, w store.Write) (uint64, error) {
	rev, err := r.Records.Update(ctx, w)
	if err == nil && r.done.CompareAndSwap(false, true) {
		return 0, store.ErrRevision
	}
	return rev, err
}

// TestStoredWithoutAnswer: an operation whose write was stored although the
// store answered with another revision is applied once.
func TestStoredWithoutAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	for _, c := range []struct {
		name  string
		apply func(*router.Operations, schemas.TimerID) error
		count func(*schemas.Schedule) int
	}{
		{"trigger", func(o *router.Operations, id schemas.TimerID) error {
			_, err := o.Trigger(t.Context(), id, 1, false, schemas.Caller{By: "me"})
			return err
		}, func(s *schemas.Schedule) int { return len(s.Manual) }},
		{"pause", func(o *router.Operations, id schemas.TimerID) error {
			_, err := o.Pause(t.Context(), id, "", schemas.Caller{By: "me"})
			return err
		}, func(*schemas.Schedule) int { return 1 }},
	} {
		was := f.scheduled(c.name, schemas.Recurrence{Cron: "0 0 1 1 *"}, nil)
		records := &repeating{Records: f.store}
		o := &router.Operations{Records: records, Adds: f.store, NowMs: func() int64 { return time.Now().UnixMilli() }, Retention: time.Hour}
		if err := c.apply(o, was.ID); err != nil {
			t.Errorf("%s: error %v, want none", c.name, err)
		}
		got, err := f.store.Get(t.Context(), was.ID)
		if err != nil {
			t.Fatal(err)
		}
		if n := c.count(got.Record.Schedule); n != 1 || len(got.Record.History) != 1 {
			t.Errorf("%s: applied %d times with %d operations in the history, want once", c.name, n, len(got.Record.History))
		}
	}
}

// between runs a function before or after the first change.
type between struct {
	router.Records
	before, after func()
	done          atomic.Bool
}

func (r *between) Update(ctx context.Context, w store.Write) (uint64, error) {
	first := r.done.CompareAndSwap(false, true)
	if first && r.before != nil {
		r.before()
	}
	rev, err := r.Records.Update(ctx, w)
	if first && r.after != nil && err == nil {
		r.after()
		return 0, store.ErrRevision
	}
	return rev, err
}

// TestTriggerOnce: each trigger is one run, also if two that look alike come in the same
// millisecond, and if a write that was stored is refused when it is repeated, with other
// changes in between.
func TestTriggerOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	now := time.Now().UnixMilli()
	by := schemas.Caller{By: "me"}
	operations := func(r router.Records) *router.Operations {
		return &router.Operations{Records: r, Adds: f.store, NowMs: func() int64 { return now }, Retention: time.Hour}
	}
	other := operations(f.store)
	for _, c := range []struct {
		name    string
		records func(schemas.TimerID) *between
		want    int
	}{
		{"two at once", func(id schemas.TimerID) *between {
			return &between{Records: f.store, before: func() {
				if _, err := other.Trigger(t.Context(), id, 2, false, by); err != nil {
					t.Error(err)
				}
			}}
		}, 2},
		{"paused in between", func(id schemas.TimerID) *between {
			return &between{Records: f.store, after: func() {
				if _, err := other.Pause(t.Context(), id, "", by); err != nil {
					t.Error(err)
				}
			}}
		}, 1},
	} {
		was := f.scheduled(c.name, schemas.Recurrence{Cron: "0 0 1 1 *"}, nil)
		if _, err := operations(c.records(was.ID)).Trigger(t.Context(), was.ID, 1, false, by); err != nil {
			t.Errorf("%s: error %v, want none", c.name, err)
		}
		got, err := f.store.Get(t.Context(), was.ID)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.Record.Schedule.Manual); n != c.want {
			t.Errorf("%s: %d runs, want %d", c.name, n, c.want)
		}
	}
}

// TestBackfillOnce: a backfill whose write was stored is not stored again, although its answer was lost and all its runs
// have fired before the write was repeated.
func TestBackfillOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	was := f.scheduled("backfill", schemas.Recurrence{Cron: "0 12 * * *"}, nil)
	p, err := recurrence.Compile(was.ID, &was.Record.Schedule.Recurrence, was.Record.Schedule.AnchorMs, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMilli()
	fire := func() {
		tm, err := f.store.Get(t.Context(), was.ID)
		if err != nil {
			t.Error(err)
			return
		}
		turn := p.Turn(&tm.Record, now, false, recurrence.Claim{Epoch: 1, Before: tm.Rev})
		if turn.Run == nil || turn.Record.Schedule.Backfill != nil {
			t.Errorf("the turn: %+v", turn)
		}
		if _, err := f.store.Update(t.Context(), store.Write{ID: tm.ID, Rev: tm.Rev, Record: &turn.Record}); err != nil {
			t.Error(err)
		}
	}
	o := &router.Operations{Records: &between{Records: f.store, after: fire}, Adds: f.store, NowMs: func() int64 { return now }, Retention: time.Hour}
	q := recurrence.BackfillRequest{FromMs: now - (36 * time.Hour).Milliseconds(), ToMs: now - (12 * time.Hour).Milliseconds(), Again: true, Request: 7}
	_, times, err := o.Backfill(t.Context(), was.ID, q, schemas.Caller{By: "me"})
	if err != nil || len(times) != 1 {
		t.Fatalf("%d nominal times, error %v", len(times), err)
	}
	got, err := f.store.Get(t.Context(), was.ID)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Record.Schedule; s.Backfill != nil || s.Last.Run != 1 || len(got.Record.History) != 1 {
		t.Errorf("stored again: %+v, history %v", s.Progress, got.Record.History)
	}
}
