package router_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// old stores a timer with an old add, which is known to have left the stream.
func (f *fixture) old(id string, change func(*schemas.Record)) store.Timer {
	f.t.Helper()
	due := time.Now().Add(time.Hour).UnixMilli()
	rec := &schemas.Record{
		Definition: schemas.Definition{Service: "s", Source: "/test", EventID: id, Type: "t", AddedMs: time.Now().Add(-time.Hour).UnixMilli()},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: due, ScheduledMs: due},
	}
	t := store.Timer{ID: schemas.NewTimerID("/test", id), Record: *rec}
	res := f.store.Create(f.t.Context(), []store.Write{{ID: t.ID, Record: rec}})
	if res[0].Err != nil {
		f.t.Fatal(res[0].Err)
	}
	t.Rev = res[0].Rev
	if change != nil {
		change(&t.Record)
		rev, err := f.store.Update(f.t.Context(), final(store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record}))
		if err != nil {
			f.t.Fatal(err)
		}
		t.Rev = rev
	}
	return t
}

// cancelAll sends many cancels at once and returns the codes of the answers.
func (f *fixture) cancelAll(ids []string) []string {
	f.t.Helper()
	codes := make([]string, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			m, err := f.nc.Request(schemas.SubjectAPIPrefix+"cancel", fmt.Appendf(nil, `{"timer":%q}`, schemas.NewTimerID("/test", id)), bound)
			if err != nil {
				f.t.Error(err)
				return
			}
			if codes[i] = m.Header.Get(micro.ErrorCodeHeader); codes[i] != "" {
				return
			}
			var info schemas.TimerInfo
			if err := json.Unmarshal(m.Data, &info); err != nil || info.State != schemas.StateCancelled || info.ID != id || info.Done.IsZero() {
				f.t.Errorf("%s: %s %v", id, m.Data, err)
			}
			if tm, err := f.store.Get(f.t.Context(), info.Timer); err != nil || tm.Rev != info.Revision || tm.Record.State != schemas.StateCancelled {
				f.t.Errorf("%s: answered %+v, stored %+v %v", id, info, tm, err)
			}
			if ttl := f.ttl(info.Timer); ttl != "86400s" && ttl != "3600s" { // the retention, or the TTL that old set
				f.t.Errorf("%s: the cancelled record expires after %q", id, ttl)
			}
		})
	}
	wg.Wait()
	return codes
}

// ttl returns the TTL of a timer's record.
func (f *fixture) ttl(id schemas.TimerID) string {
	f.t.Helper()
	bucket := schemas.BucketTimers(f.store.Geometry().Shard(id))
	s, err := f.js.Stream(f.t.Context(), "KV_"+bucket)
	if err != nil {
		f.t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(f.t.Context(), "$KV."+bucket+".timer."+id.String())
	if err != nil {
		f.t.Fatal(err)
	}
	return m.Header.Get("Nats-TTL")
}

func (f *fixture) check(ids, codes, want []string) {
	f.t.Helper()
	for i := range ids {
		if codes[i] != want[i] {
			f.t.Errorf("cancel of %s: %q, want %q", ids[i], codes[i], want[i])
		}
	}
}

// TestManyCancels: concurrent cancels, which share writes, have the same results as
// single ones.
func TestManyCancels(t *testing.T) {
	t.Parallel()
	var peeks atomic.Int64
	f := setupFaulty(t, &faulty{peek: func(_ schemas.TimerID, p store.Peek, done func(store.Peek)) { peeks.Add(1); done(p) }})
	var ids, want []string
	for i := range 200 {
		id, code := fmt.Sprint(i), ""
		switch i % 5 {
		case 0, 1:
			f.old(id, nil)
		case 2:
			f.old(id, func(r *schemas.Record) { r.State, r.Queued = schemas.StateDelivered, false })
			code = "already_fired"
		case 3:
			f.old(id, func(r *schemas.Record) { r.State, r.Queued, r.DoneMs = schemas.StateCancelled, false, 1 })
		default:
			code = "not_found"
		}
		ids, want = append(ids, id), append(want, code)
	}
	f.old("first", nil)
	f.check([]string{"first"}, f.cancelAll([]string{"first"}), []string{""})
	if n := peeks.Load(); n != 0 {
		t.Errorf("one cancel alone peeked %d times", n)
	}
	f.check(ids, f.cancelAll(ids), want)
	if n := peeks.Load(); n < 20 {
		t.Errorf("%d of 200 cancels at once took the fast path", n)
	}
}

// TestCancelCached: cancels of timers that this process has created read nothing, also one alone.
// If another process has changed a record since, the record in the cache decides nothing.
func TestCancelCached(t *testing.T) {
	t.Parallel()
	faults := &faulty{}
	f := setupFaulty(t, faults)
	f.old("first", nil)
	f.check([]string{"first"}, f.cancelAll([]string{"first"}), []string{""}) // learns that old adds have left the stream
	var ids, want []string
	for i := range 100 {
		id, code := fmt.Sprint(i), ""
		tm := f.old(id, nil)
		if i%4 == 0 { // it has fired since
			tm.Record.State, tm.Record.Queued = schemas.StateDelivered, false
			subject := fmt.Sprintf("$KV.%s.timer.%s", schemas.BucketTimers(f.store.Geometry().Shard(tm.ID)), tm.ID)
			if _, err := f.js.Publish(t.Context(), subject, tm.Record.Append(nil)); err != nil {
				t.Fatal(err)
			}
			code = "already_fired"
		}
		ids, want = append(ids, id), append(want, code)
	}
	before := faults.hits.Load()
	f.check(ids[1:2], f.cancelAll(ids[1:2]), want[1:2])
	f.check(ids, f.cancelAll(ids), want)
	if n := faults.hits.Load() - before; n != int64(len(ids)) {
		t.Errorf("%d of %d records were in the cache", n, len(ids))
	}
}

// TestCancelWithOldPeeks: the replica that answers the peek is behind, and returns older
// states. They decide nothing.
func TestCancelWithOldPeeks(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	known := map[schemas.TimerID]store.Peek{}
	var old atomic.Int64
	f := setupFaulty(t, &faulty{peek: func(id schemas.TimerID, p store.Peek, done func(store.Peek)) {
		mu.Lock()
		was, ok := known[id]
		mu.Unlock()
		if ok {
			old.Add(1)
			p = was
		}
		done(p)
	}})
	remember := func(id schemas.TimerID) {
		t.Helper()
		got := make(chan store.Peek, 1)
		f.store.PeekAsync(id, func(p store.Peek) { got <- p })
		mu.Lock()
		defer mu.Unlock()
		known[id] = <-got
	}
	var ids, want []string
	for i := range 120 {
		id, code := fmt.Sprint(i), ""
		var tm store.Timer
		switch i % 3 {
		case 0: // the replica has no record; the timer is pending
			remember(schemas.NewTimerID("/test", id))
			f.old(id, nil)
		case 1: // pending in the replica; it has fired since
			tm = f.old(id, nil)
			remember(tm.ID)
			tm.Record.State, tm.Record.Queued = schemas.StateDelivered, false
			code = "already_fired"
		default: // fired in the replica; it waits for a retry since
			tm = f.old(id, func(r *schemas.Record) { r.State, r.Queued = schemas.StateDelivered, false })
			remember(tm.ID)
			tm.Record.State, tm.Record.Queued = schemas.StateRetrying, true
		}
		if tm.Rev > 0 {
			if _, err := f.store.Update(t.Context(), store.Write{ID: tm.ID, Rev: tm.Rev, Record: &tm.Record}); err != nil {
				t.Fatal(err)
			}
		}
		ids, want = append(ids, id), append(want, code)
	}
	f.check(ids, f.cancelAll(ids), want)
	if old.Load() < 20 {
		t.Errorf("%d peeks returned older states, want more", old.Load())
	}
}

// TestCancelWithoutPeek: a read without an answer delays neither its cancel nor others,
// and keeps no permit.
func TestCancelWithoutPeek(t *testing.T) {
	t.Parallel()
	var lost atomic.Int64
	f := setupFaulty(t, &faulty{peek: func(_ schemas.TimerID, p store.Peek, done func(store.Peek)) {
		if lost.Add(1)%2 == 0 {
			done(p)
		}
	}})
	for round := range 4 { // together more than there are permits
		var ids, want []string
		for i := range 200 {
			id := fmt.Sprint(round, "-", i)
			f.old(id, nil)
			ids, want = append(ids, id), append(want, "")
		}
		f.check(ids, f.cancelAll(ids), want)
	}
	if lost.Load() < 20 {
		t.Errorf("%d cancels took the fast path", lost.Load())
	}
}

// TestCancelNotStored: if a write is not answered, the caller gets an error in time. When
// the answer arrives, the permit is free, and the log has the cancel.
func TestCancelNotStored(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	var held atomic.Int64
	f := newFixture(t, store.Config{})
	var log logtest.Buffer
	f.r = f.startWith(router.Options{Time: f.clock, Log: zerolog.New(&log), Store: &faulty{Store: f.store, update: func(res store.Result, done func(store.Result)) {
		held.Add(1)
		go func() { <-free; done(res) }()
	}}})
	f.old("first", nil) // this cancel learns that old adds have left the stream
	f.check([]string{"first"}, f.cancelAll([]string{"first"}), []string{""})
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint(i))
		f.old(ids[i], nil)
	}
	unavailable := 0
	for _, code := range f.cancelAll(ids) {
		if code == "unavailable" {
			unavailable++
		}
	}
	if unavailable < int(held.Load()) || held.Load() < 20 {
		t.Errorf("%d of %d held cancels were answered with unavailable", unavailable, held.Load())
	}
	close(free)
	want := make([]string, len(ids))
	f.check(ids, f.cancelAll(ids), want) // as the error says, it may have taken effect
	if err := f.r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if n := log.Count("timer cancelled"); n != len(ids)+1 {
		t.Errorf("the log has %d cancels of %d", n, len(ids)+1)
	}
}
