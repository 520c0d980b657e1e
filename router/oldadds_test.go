package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestOldAdds: an old add makes no record. It is a duplicate of an equal record, conflicts with a different one, and is
// rejected if there is none. The other adds of its group are stored.
func TestOldAdds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	fault := &faulty{Store: f.store}
	var got results
	w := f.writer(fault, &got)
	const hour = 3_600_000
	nowMs := time.Now().UnixMilli()
	one := func(name string, afterMs int64, old bool) *router.Add {
		spec := schemas.Spec{Timer: schemas.NewTimerID("/test", name), Service: "s", Source: "/test", EventID: name, DueMs: nowMs + afterMs}
		a := &router.Add{Spec: spec, AddedMs: nowMs, Old: old}
		a.Record = schemas.NewRecord(&a.Spec, schemas.Body{}, a.AddedMs)
		a.Record.Hash[0] = byte(afterMs / hour)
		return a
	}
	write := func(when string, adds []*router.Add, want ...router.Result) {
		t.Helper()
		got.got = nil
		w.Write(context.WithoutCancel(t.Context()), adds)
		slices.Sort(got.got)
		if slices.Sort(want); !slices.Equal(got.got, want) {
			t.Errorf("%s: the results are %v, want %v", when, got.got, want)
		}
	}
	write("an old add alone", []*router.Add{one("none", hour, true)}, router.Rejected)
	write("an old add beside a new one", []*router.Add{one("none", hour, true), one("kept", hour, false)}, router.Rejected, router.Stored)
	before, err := f.store.Get(t.Context(), schemas.NewTimerID("/test", "kept"))
	if err != nil {
		t.Fatal(err)
	}
	write("a record exists", []*router.Add{one("kept", hour, true), one("kept", 2*hour, true)}, router.Duplicate, router.Rejected)
	// The record may be a revision that the server has brought back, which must not fire.
	if after, err := f.store.Get(t.Context(), before.ID); err != nil || after.Rev != before.Rev {
		t.Errorf("an old add wrote revision %d over %d (error %v)", after.Rev, before.Rev, err)
	}
	fault.missing = func() bool { return true }
	write("a former leader has no record", []*router.Add{one("kept", hour, true)}, router.Duplicate)
	fault.getNewest = schemas.ErrUnavailable
	write("the shard has no leader", []*router.Add{one("kept", hour, true), one("none", hour, true)}, router.Delayed, router.Delayed)
	fault.missing, fault.getNewest = nil, nil
	write("the rejected timer", []*router.Add{one("none", hour, false)}, router.Stored)
}

// outcomesOf receives outcomes.
type outcomesOf chan router.Outcome

func (c outcomesOf) Settle(o router.Outcome) { c <- o }

// TestOldAddIsNotLimited: an old add does not wait for a limit of adds, because it stores nothing.
func TestOldAddIsNotLimited(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	f.limitAdds(`{"key":"adds:s","rate":"1/h","burst":1}`)
	n := 0
	waittest.Until(t, "the limit is used up", func() bool {
		n++
		_, err := f.r.Add(t.Context(), nil, add(fmt.Sprint("new", n), `"timerafter":"1h","timersvc":"s"`))
		return errors.Is(err, schemas.ErrLimited)
	})
	got := make(outcomesOf, 1)
	f.r.AddAll(t.Context(), []*router.Add{{
		Data: add("none", `"timerafter":"1h","timersvc":"s"`), AddedMs: time.Now().UnixMilli(), Seq: 7, Returned: true, Old: true, Receiver: got,
	}})
	if o := <-got; o.Result != router.Rejected || schemas.CodeOf(o.Err) != schemas.CodeNotFound {
		t.Errorf("the outcome is %s, %v; want rejected with %s", o.Result, o.Err, schemas.CodeNotFound)
	}
}
