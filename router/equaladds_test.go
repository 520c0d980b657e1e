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
	for _, c := range []struct {
		name string
		// adds is the number of equal adds in each call of Write.
		adds []int
		// between is the write of another process that comes between the first read and the first repair; nil for none.
		between func(*schemas.Record)
		// refused is the number of the try that is refused although nobody has written the record; 0 for none.
		refused int
		// repairs is the number of tries to write the record again.
		repairs int
	}{
		{"one add", []int{1}, nil, 0, 0},
		{"many adds", []int{50}, nil, 0, 0},
		{"one add after the other", []int{1, 1, 1}, nil, 0, 2},
		{"one is refused and nobody has written", []int{1, 1, 1}, nil, 2, 3},
		{"many adds after one", []int{1, 50}, nil, 0, 1},
		{"another add at the same time", []int{1, 1}, repair, 0, 1},
		{"the timer is moved at the same time", []int{1, 1}, func(r *schemas.Record) {
			if err := r.Reschedule(due+1000, time.Now().UnixMilli(), schemas.Caller{}); err != nil {
				t.Error(err)
			}
		}, 0, 1},
		{"the record is written at the same time, not by a repair", []int{1, 1}, func(*schemas.Record) {}, 0, 2},
		{"the event is called at the same time", []int{1, 1}, func(r *schemas.Record) {
			repair(r)
			r.State, r.Queued, r.FiredMs = schemas.StateDelivered, false, time.Now().UnixMilli()
		}, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, tries := schemas.NewTimerID("/test", c.name), 0
			fault := &faulty{Store: f.store, change: func(store.Write) error {
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
			w := router.Writer{
				Records: fault, Services: f.store, Dedup: f.store.NewDedupCheck(), Sink: &got, Geometry: f.store.Geometry(), Log: zerolog.Nop(),
				Breakers: router.NewBreakers(f.store.Geometry().Shards, time.Now, zerolog.Nop()), NowMs: func() int64 { return time.Now().UnixMilli() },
			}
			spec := schemas.Spec{Timer: id, Service: "s", Source: "/test", EventID: c.name, DueMs: due}
			for n, adds := range c.adds {
				var group []*router.Add
				for range adds {
					a := &router.Add{Spec: spec, AddedMs: due - 1000}
					a.Record = schemas.NewRecord(&a.Spec, schemas.Body{}, a.AddedMs)
					group = append(group, a)
				}
				got.got = nil
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
