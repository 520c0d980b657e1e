package router_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// results has the outcomes of adds.
type results struct {
	mu  sync.Mutex
	got []router.Result
}

func (r *results) add(got router.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, got)
}

func (r *results) Store(_ *router.Add, got router.Result, _ *schemas.Record) { r.add(got) }
func (r *results) Reject(*router.Add, error)                                 { r.add(router.Rejected) }
func (r *results) Delay(*router.Add, error)                                  { r.add(router.Delayed) }

// writer returns a writer of records.
func (f *fixture) writer(records router.Records, sink router.Sink) *router.Writer {
	return &router.Writer{
		Records: records, Services: f.store, Dedup: f.store.NewDedupCheck(), Sink: sink, Geometry: f.store.Geometry(), Log: zerolog.Nop(),
		Breakers: router.NewBreakers(f.store.Geometry().Shards, time.Now, zerolog.Nop()), NowMs: func() int64 { return time.Now().UnixMilli() },
	}
}

// TestEqualAddsRepairOnce: an add whose record exists repairs it. Of equal adds at the same time, only one does.
func TestEqualAddsRepairOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	due := time.Now().Add(time.Hour).UnixMilli()
	// rewrite writes the record of a timer as it is, but for change.
	rewrite := func(id schemas.TimerID, change func(*schemas.Record)) {
		old, err := f.store.Get(t.Context(), id)
		if err != nil {
			t.Error(err)
			return
		}
		change(&old.Record)
		if _, err := f.store.Update(t.Context(), store.Write{ID: id, Rev: old.Rev, Record: &old.Record}); err != nil {
			t.Error(err)
		}
	}
	repair := func(r *schemas.Record) { r.Moves = max(r.Moves, 1) }
	move := func(r *schemas.Record) {
		if err := r.Reschedule(due+1000, time.Now().UnixMilli(), schemas.Caller{}); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		name string
		// adds is the number of equal adds in each call of Write.
		adds []int
		// between is the write of another process that comes between the first read and the first repair; nil for none.
		between func(*schemas.Record)
		// refused is the number of the try that is refused although nobody has written the record; 0 for none.
		refused int
		// stale makes the second read after the first call answer with the record as it was before a move.
		stale bool
		// repairs is the number of tries to write the record again.
		repairs int
	}{
		{name: "one add", adds: []int{1}},
		{name: "many adds", adds: []int{50}},
		{name: "one add after the other", adds: []int{1, 1, 1}, repairs: 2},
		{name: "one is refused and nobody has written", adds: []int{1, 1, 1}, refused: 2, repairs: 3},
		{name: "many adds after one", adds: []int{1, 50}, repairs: 1},
		{name: "another add at the same time", adds: []int{1, 1}, between: repair, repairs: 1},
		{name: "the timer is moved at the same time", adds: []int{1, 1}, between: move, repairs: 1},
		{name: "the record is written at the same time, not by a repair", adds: []int{1, 1}, between: func(*schemas.Record) {}, repairs: 2},
		{name: "the event is called at the same time", adds: []int{1, 1}, repairs: 2, between: func(r *schemas.Record) {
			repair(r)
			r.State, r.Queued, r.FiredMs = schemas.StateDelivered, false, time.Now().UnixMilli()
		}},
		{name: "a former leader refuses, and then answers with an older record", adds: []int{1, 1}, stale: true, refused: 1, repairs: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, tries, reads := schemas.NewTimerID("/test", c.name), 0, 0
			var older store.Timer
			get := func(read store.Timer) store.Timer {
				if reads++; c.stale && reads == 2 {
					return older
				}
				return read
			}
			fault := &faulty{Store: f.store, get: get, change: func(store.Write) error {
				tries++
				switch {
				case tries == c.refused:
					return store.ErrRevision // a server that was the leader before
				case tries == 1 && c.between != nil:
					rewrite(id, c.between)
				}
				return nil
			}}
			var got results
			w := f.writer(fault, &got)
			spec := schemas.Spec{Timer: id, Service: "s", Source: "/test", EventID: c.name, DueMs: due}
			for n, adds := range c.adds {
				var group []*router.Add
				for range adds {
					a := &router.Add{Spec: spec, AddedMs: due - 1000}
					a.Record = schemas.NewRecord(&a.Spec, schemas.Body{}, a.AddedMs)
					group = append(group, a)
				}
				if n == 1 && c.stale {
					var err error
					if older, err = f.store.Get(t.Context(), id); err != nil {
						t.Fatal(err)
					}
					rewrite(id, move)
				}
				got.got, reads = nil, 0
				w.Write(context.WithoutCancel(t.Context()), group)
				want := slices.Repeat([]router.Result{router.Duplicate}, adds)
				if n == 0 {
					want[0] = router.Stored
				}
				if !slices.Equal(got.got, want) {
					t.Errorf("call %d: got the results %v, want %v", n, got.got, want)
				}
			}
			if tries != c.repairs {
				t.Errorf("the record was written again %d times, want %d", tries, c.repairs)
			}
		})
	}
}
