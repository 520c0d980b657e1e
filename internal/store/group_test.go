package store_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

func grouped(t *testing.T) *store.Store {
	return open(t, natstest.Run(t, natstest.SyncAlways).InProcess(), func(c *store.Config) { c.GroupCommit = true })
}

// groupOf creates n timers that are due in an hour, and returns their writes and revisions.
func groupOf(t *testing.T, s *store.Store, n int) (writes []store.Write, revs []uint64) {
	t.Helper()
	writes = make([]store.Write, n)
	due := storetest.NowMs(t, s) + 3600_000
	for i := range writes {
		writes[i] = store.Write{ID: schemas.NewTimerID("/group", strconv.Itoa(i)), Record: storetest.Pending(due)}
	}
	return writes, storetest.CreateAll(t, s, writes)
}

// TestGroupFindsTheLoser: in batches of hundreds of writes, only writes with a stale revision
// are refused, and each result has the stored revision.
func TestGroupFindsTheLoser(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	const n = 3000
	writes, created := groupOf(t, s, n)
	results := make([]store.Result, n)
	var wg sync.WaitGroup
	wg.Add(n)
	loses := func(i int) bool { return i%271 == 7 }
	for i := range n {
		r := *writes[i].Record
		r.State, r.Queued = schemas.StateDelivered, false
		w := store.Write{ID: writes[i].ID, Rev: created[i], Record: &r}
		if loses(i) {
			w.Rev--
		}
		s.UpdateAsync(w, func(res store.Result) {
			results[i] = res
			wg.Done()
		})
	}
	wg.Wait()
	for i, res := range results {
		tm, err := s.Get(t.Context(), writes[i].ID)
		switch {
		case err != nil:
			t.Fatal(err)
		case loses(i) && !errors.Is(res.Err, store.ErrRevision):
			t.Errorf("%d: %v of a write that lost", i, res.Err)
		case loses(i) && (tm.Rev != created[i] || tm.Record.State != schemas.StatePending):
			t.Errorf("%d: a write that lost took effect", i)
		case !loses(i) && (res.Err != nil || res.Rev != tm.Rev || tm.Record.State != schemas.StateDelivered):
			t.Errorf("%d: %v, revision %d; stored is %d, %s", i, res.Err, res.Rev, tm.Rev, tm.Record.State)
		}
	}
}

// TestGroupDuplicates: repeated events in batches are stored once, and reported as
// duplicates.
func TestGroupDuplicates(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	const n, distinct = 2000, 1900
	var wg sync.WaitGroup
	wg.Add(n)
	var duplicates, failed atomic.Int32
	for i := range n {
		m := store.Msg{Subject: schemas.SubjectFired("group"), Data: []byte("{}"), MsgID: fmt.Sprint(i % distinct)}
		s.PublishAsync(m, func(seq uint64, duplicate bool, err error) {
			defer wg.Done()
			if err != nil || seq == 0 {
				failed.Add(1)
			}
			if duplicate {
				duplicates.Add(1)
			}
		})
	}
	wg.Wait()
	if failed.Load() != 0 || duplicates.Load() != n-distinct {
		t.Errorf("%d failed; %d of %d were duplicates", failed.Load(), duplicates.Load(), n-distinct)
	}
	stream, err := s.JetStream().Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != distinct {
		t.Errorf("%d events are stored, not %d", got, distinct)
	}
}

// TestGroupClose: Close completes each queued publish, and each publish in flight, once.
func TestGroupClose(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	const n = 5000
	answered := make([]atomic.Int32, n)
	var wg sync.WaitGroup
	wg.Add(n)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range n {
			s.PublishAsync(store.Msg{Subject: schemas.SubjectFired("close"), MsgID: fmt.Sprint(i)}, func(uint64, bool, error) {
				answered[i].Add(1)
				wg.Done() // panics when called once too often
			})
			if i == n/2 {
				go s.Close()
			}
		}
	}()
	<-sent
	s.Close()
	wg.Wait()
	for i := range answered {
		if answered[i].Load() != 1 {
			t.Fatalf("%d was answered %d times", i, answered[i].Load())
		}
	}
}
