package router_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestAddIsKeptUntilStored: an add stays in its stream until it is stored, however often
// the store refuses it.
func TestAddIsKeptUntilStored(t *testing.T) {
	t.Parallel()
	const refusals = 6
	var tries, missing atomic.Int64
	var f *fixture
	started := make(chan struct{})
	fault := &faulty{}
	fault.create = func(store.Write) error {
		<-started
		n := tries.Add(1)
		if n > 1 && f.waiting() != 1 {
			missing.Add(1)
		}
		if n <= refusals {
			return schemas.ErrUnavailable
		}
		return nil
	}
	f = setupFaulty(t, fault)
	close(started)
	f.publish(nil, add("late", `"timerafter":"1h"`))
	f.await("/test", "late")
	waittest.Until(f.t, "the add leaves its stream", func() bool { return f.waiting() == 0 })
	if missing.Load() > 0 || tries.Load() <= refusals {
		t.Errorf("in %d of %d tries to store the add, it had left the stream", missing.Load(), tries.Load())
	}
}

// TestDuplicateOfDamagedRecord: an add whose timer exists with a damaged record is rejected
// with its bytes. It does not stay in the stream, where it would be delivered for ever.
func TestDuplicateOfDamagedRecord(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	event := add("damaged", `"timerafter":"1h"`)
	f.publish(nil, event)
	id := f.await("/test", "damaged").ID
	waittest.Until(f.t, "the add leaves its stream", func() bool { return f.waiting() == 0 })
	storetest.Overwrite(t, f.store, fmt.Sprint("KV_timers_", f.store.Geometry().Shard(id)), "timer."+id.String(), []byte(storetest.PubAck))
	f.publish(nil, event)
	waittest.Until(f.t, "the repeated add leaves its stream", func() bool { return f.waiting() == 0 })
	page, err := f.store.RejectedList(t.Context(), store.RejectedQuery{})
	if err != nil || len(page.Adds) != 1 {
		t.Fatalf("%d rejected adds, %v", len(page.Adds), err)
	}
	if m := page.Adds[0]; !slices.Equal(m.Header[schemas.HeaderErrorCode], []string{string(schemas.CodeDamaged)}) || !bytes.Equal(m.Data, event) {
		t.Errorf("rejected: %v %.200s", m.Header, m.Data)
	}
}

// TestDuplicateRepairsTheIndex: the first delivery of an add stored its record but lost
// its index entry. The next delivery restores the entry and writes the record again, so
// that an owner that has already read the tick sees it.
func TestDuplicateRepairsTheIndex(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	id := schemas.NewTimerID("/test", "half")
	due := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	event := add("half", `"timerat":"`+due.Format(time.RFC3339Nano)+`"`)
	f.publish(nil, event)
	first := f.await("/test", "half")
	g := f.store.Geometry()
	tick := g.Tick(due.UnixMilli())
	found := func() bool {
		load, err := f.store.LoadTicks(t.Context(), g.Shard(id), []int64{tick}, 10, 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(load.Timers) == 1
	}
	if !found() {
		t.Fatal("the timer is not indexed")
	}
	s, err := f.js.Stream(t.Context(), "KV_"+schemas.BucketTimers(g.Shard(id)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(t.Context(), first.Rev-1); err != nil { // the index entry precedes its record
		t.Fatal(err)
	}
	if found() {
		t.Fatal("the index entry is still there")
	}
	f.publish(nil, event)
	waittest.Until(f.t, "the duplicate has the timer indexed again", found)
	waittest.Until(f.t, "the record is written again", func() bool { return f.await("/test", "half").Rev > first.Rev })
	if again := f.await("/test", "half"); again.Record.Hash != first.Record.Hash || again.Record.DueMs != first.Record.DueMs {
		t.Errorf("the record changed: %+v, was %+v", again.Record, first.Record)
	}
}

// TestDuplicateRepairsAClaimedTimer: a timer was claimed and has no index entry. The next delivery of its add writes two. With that
// of the due time the shard's next owner finds the claim, if its event was not published; the other one is for the sweeper.
func TestDuplicateRepairsAClaimedTimer(t *testing.T) {
	t.Parallel()
	var repeated atomic.Bool
	f := setupFaulty(t, &faulty{create: func(store.Write) error {
		if repeated.Load() {
			return store.ErrRevision // and the index entry is not stored
		}
		return nil
	}})
	due := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	event := add("claimed", `"timerat":"`+due.Format(time.RFC3339Nano)+`"`)
	f.publish(nil, event)
	id := f.await("/test", "claimed").ID
	f.update("claimed", func(r *schemas.Record) {
		r.State, r.Queued, r.FiredMs, r.Epoch = schemas.StateDelivered, false, r.DueMs, 1
	})
	g := f.store.Geometry()
	bucket := schemas.BucketTimers(g.Shard(id))
	s, err := f.js.Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+bucket+".slot.>")); err != nil {
		t.Fatal(err)
	}
	first := g.Tick(time.Now().UnixMilli())
	found := func(ticks ...int64) bool {
		load, err := f.store.LoadTicks(t.Context(), g.Shard(id), ticks, 10, 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(load.Timers) == 1
	}
	if found(g.Tick(due.UnixMilli())) {
		t.Fatal("the timer is still indexed")
	}
	repeated.Store(true)
	f.publish(nil, event)
	waittest.Until(f.t, "the repeated add leaves its stream", func() bool { return f.waiting() == 0 })
	if !found(g.Tick(due.UnixMilli())) {
		t.Error("the tick of the due time has no entry")
	}
	var since []int64
	for tick := first; tick <= g.Tick(time.Now().UnixMilli()); tick++ {
		since = append(since, tick)
	}
	if !found(since...) {
		t.Error("there is no entry for the sweeper")
	}
}

// TestTooLargeDuplicate: an add was stored, and then the server's max_payload was lowered. Another delivery of the add is a
// duplicate, and its index entry is written again. An add that was not stored is rejected.
func TestTooLargeDuplicate(t *testing.T) {
	t.Parallel()
	var lowered atomic.Bool
	var repaired atomic.Int64
	tooLarge := schemas.Errorf(schemas.CodeTooLarge, "100081 bytes; the limit is 80000")
	fault := &faulty{}
	fault.create = func(store.Write) error {
		if lowered.Load() {
			return tooLarge
		}
		return nil
	}
	fault.change = func(store.Write) error {
		repaired.Add(1)
		return tooLarge
	}
	f := setupFaulty(t, fault)
	event := add("stored", `"timerafter":"1h"`)
	f.publish(nil, event)
	f.await("/test", "stored")
	waittest.Until(f.t, "the add leaves its stream", func() bool { return f.waiting() == 0 })
	lowered.Store(true)
	f.publish(nil, event)
	f.publish(nil, add("new", `"timerafter":"1h"`))
	waittest.Until(f.t, "the adds leave their stream", func() bool { return f.waiting() == 0 })
	page, err := f.store.RejectedList(t.Context(), store.RejectedQuery{})
	if err != nil || len(page.Adds) != 1 || !bytes.Contains(page.Adds[0].Data, []byte(`"new"`)) || repaired.Load() != 1 {
		t.Errorf("rejected: %v, %v; %d repairs", page.Adds, err, repaired.Load())
	}
}
