package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestCached: the store returns the records of timers that it has created, once, until it
// writes them again, they are due, or the connection breaks.
func TestCached(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := openNode(t, nc, Config{Node: "n1"})
	now := time.Now().UnixMilli()
	later := now + time.Hour.Milliseconds()
	create := func(i int, due int64) (schemas.TimerID, Timer) {
		t.Helper()
		id := benchID(i)
		if res := s.Create(t.Context(), []Write{{ID: id, Record: benchRecord(due, now)}}); res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
		got, err := s.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return id, got
	}
	id, want := create(1, later)
	got, ok := s.Cached(id)
	want.Record.Body = schemas.Body{}
	if !ok || got.ID != id || got.Rev != want.Rev || string(got.Record.Append(nil)) != string(want.Record.Append(nil)) {
		t.Errorf("%+v %v, want %+v", got, ok, want)
	}
	if _, ok := s.Cached(id); ok {
		t.Error("returned twice")
	}
	if res := s.Create(t.Context(), []Write{{ID: id, Record: benchRecord(later, now)}}); res[0].Err == nil {
		t.Error("created twice")
	} else if _, ok := s.Cached(id); ok {
		t.Error("returned after a create that was refused")
	}
	if id, _ := create(2, now-1); true {
		if _, ok := s.Cached(id); ok {
			t.Error("returned although it is due")
		}
	}
	id, tm := create(3, later)
	if _, err := s.Update(t.Context(), Write{ID: id, Rev: tm.Rev, Record: &tm.Record}); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Cached(id); ok {
		t.Error("returned after an update")
	}
	id, _ = create(4, later)
	nc.Close()
	for range time.Tick(time.Millisecond) {
		if s.jet.Down() {
			break
		}
	}
	s.jet.Close() // ends the goroutine that reports the break
	if _, ok := s.Cached(id); ok {
		t.Error("returned after the connection broke")
	}
}

// TestRecordCacheBounds: the cache forgets the oldest records when it is full, and keeps none
// that is large.
func TestRecordCacheBounds(t *testing.T) {
	t.Parallel()
	c := newCacheWithoutBreaks()
	put := func(i int, rec *schemas.Record) {
		c.put([]Write{{ID: benchID(i), Record: rec}}, []Result{{Rev: uint64(i)}}, schemas.NewestRecordFormat)
	}
	has := func(i int) bool {
		tm, ok := c.take(benchID(i), 0)
		if ok && (tm.Rev != uint64(i) || tm.Record.Group != fmt.Sprint(i)) {
			t.Fatalf("record %d: %+v", i, tm)
		}
		return ok
	}
	record := func(i int) *schemas.Record {
		rec := benchRecord(1, 1)
		rec.Group = fmt.Sprint(i)
		return rec
	}
	large := record(1)
	large.Callback = string(make([]byte, cacheMaxRecord))
	put(1, large)
	if has(1) {
		t.Error("a large record is kept")
	}
	const many = 400_000
	for i := range many {
		put(i, record(i))
	}
	if len(c.blocks) != cacheBlocks {
		t.Errorf("%d blocks, want %d", len(c.blocks), cacheBlocks)
	}
	kept := len(c.at)
	if kept > cacheBlocks*cacheBlockBytes/cacheHead || has(0) || has(many-kept-1) {
		t.Errorf("%d records are kept, or the oldest", kept)
	}
	for i := many - kept; i < many; i++ {
		if !has(i) {
			t.Fatalf("record %d of the last %d is gone", i, kept)
		}
	}
	put(2, record(2))
	c.close()
	put(3, record(3))
	if has(2) || has(3) {
		t.Error("a closed cache has records")
	}
}

func newCacheWithoutBreaks() *recordCache {
	return &recordCache{onBreak: func(func()) (func(), bool) { return func() {}, true }, at: map[schemas.TimerID]cachePlace{}}
}
