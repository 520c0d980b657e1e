package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestReplicas: with three replicas, conflicts have another error code, direct gets may come
// from a replica that is behind, and the leader may stop.
func TestReplicas(t *testing.T) {
	t.Parallel()
	c := natstest.Cluster3(t)
	s := open(t, c.Connect(), func(c *store.Config) { c.Replicas = 3 })
	g := s.Geometry()
	due := storetest.NowMs(t, s) + 60_000
	ids := storetest.IDsOf(g, 0, 300)
	writes := make([]store.Write, len(ids))
	for i, id := range ids {
		writes[i] = store.Write{ID: id, Record: storetest.Pending(due)}
	}
	revs := storetest.CreateAll(t, s, writes[:200])
	if err := s.Create(t.Context(), writes[:1])[0].Err; !errors.Is(err, store.ErrRevision) {
		t.Fatalf("create twice: %v", err)
	}
	var won, lost int
	var mu sync.Mutex
	each(100, func(int) {
		_, err := s.Update(t.Context(), store.Write{ID: ids[0], Rev: revs[0], Record: storetest.Delivered(*writes[0].Record)})
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			won++
		case errors.Is(err, store.ErrRevision):
			lost++
		default:
			t.Error(err)
		}
	})
	if won != 1 || lost != 99 {
		t.Fatalf("%d won, %d lost", won, lost)
	}

	// LoadTicks refuses answers of replicas that have not reached a sequence. Here none has.
	tick := g.Tick(due)
	last, err := s.LastSeq(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	ahead := last + 50
	for range 20 {
		if _, err := s.LoadTicks(t.Context(), 0, []int64{tick}, 1000, 0, ahead, nil); !errors.Is(err, schemas.ErrUnavailable) {
			t.Fatalf("load from a replica that is behind: %v", err)
		}
		if _, err := s.LoadTicks(t.Context(), 1, []int64{tick + 9}, 1000, 0, 1000, nil); !errors.Is(err, schemas.ErrUnavailable) {
			t.Fatalf("empty load from a replica that is behind: %v", err)
		}
	}
	storetest.CreateAll(t, s, writes[200:])
	if last, err = s.LastSeq(t.Context(), 0); err != nil || last < ahead {
		t.Fatalf("%d %v", last, err)
	}
	var load store.Load
	for range 50 { // so that each replica answers
		waittest.Until(t, "a load as of the last write", func() bool {
			load, err = s.LoadTicks(t.Context(), 0, []int64{tick}, 1000, 0, last, nil)
			if err != nil && !errors.Is(err, schemas.ErrUnavailable) {
				t.Fatal(err)
			}
			return err == nil
		})
		if len(load.Timers) != len(ids) {
			t.Fatalf("loaded %d of %d", len(load.Timers), len(ids))
		}
	}

	// The leader of the shard's stream stops; a tail continues without a gap.
	got := make(chan uint64, 1000)
	tail, err := s.Tail(t.Context(), 0, last, func(tm store.Timer) { got <- tm.Rev })
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	leader := c.WaitStreamLeader("KV_" + schemas.BucketTimers(0))
	leader.Stop()
	var rev uint64
	start := time.Now()
	waittest.Until(t, "a compare-and-set to succeed", func() bool {
		rev, err = s.Update(t.Context(), store.Write{ID: ids[1], Rev: revs[1], Record: storetest.Delivered(*writes[1].Record)})
		if errors.Is(err, store.ErrRevision) { // an earlier try took effect
			cur, gerr := s.Get(t.Context(), ids[1])
			rev, err = cur.Rev, gerr
		}
		return err == nil
	})
	t.Logf("compare-and-set again %s after its leader stopped", time.Since(start))
	for seq := uint64(0); seq != rev; {
		select {
		case seq = <-got:
		case <-time.After(60 * time.Second):
			t.Fatalf("the tail stands at %d of %d", seq, rev)
		}
	}
	leader.Start()
	waittest.Until(t, "a beat", func() bool { _, err := s.Beat(t.Context()); return err == nil })
}

// TestListAfterWrite: a list has every record that was stored before, whichever replica answers. A
// follower applies a write later than the leader acknowledges it. On a machine with nothing else to do it is
// hardly ever late enough; with 8 of these tests at a time, each fails without shardEnd.
func TestListAfterWrite(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Cluster3(t).Connect(), func(c *store.Config) { c.Replicas = 3 })
	rec := storetest.Pending(storetest.NowMs(t, s) + 3_600_000)
	// Several shards, because the server that answers may be the leader of one of them.
	shards := s.Geometry().Shards
	var writers sync.WaitGroup
	for w := range 4 * shards {
		writers.Go(func() {
			shard := w % shards
			id := storetest.IDsOf(s.Geometry(), shard, w/shards+1)[w/shards]
			rev := storetest.CreateAll(t, s, []store.Write{{ID: id, Record: rec}})[0]
			for i := range 100 {
				next := *rec
				next.Group = fmt.Sprintf("%d.%d", w, i)
				var err error
				if rev, err = s.Update(t.Context(), store.Write{ID: id, Rev: rev, Record: &next}); err != nil {
					t.Error(err)
					return
				}
				found := 0
				for q := (store.ListQuery{Group: next.Group}); ; {
					page, err := s.List(t.Context(), q)
					if err != nil {
						t.Error(err)
						return
					}
					found += len(page.Timers)
					if q.Cursor = page.Cursor; q.Cursor == "" {
						break
					}
				}
				if found != 1 {
					t.Errorf("update %d of shard %d: the list of its group has %d timers", i, shard, found)
					return
				}
			}
		})
	}
	writers.Wait()
}
