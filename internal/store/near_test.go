package store

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// nearTimer returns a pending timer as the tail brings it, with data of a size.
func nearTimer(i int, rev uint64, data int) *Timer {
	t := &Timer{ID: benchID(i), Rev: rev, StoredMs: 1_800_000_000_000 + int64(rev), Record: *benchRecord(1_800_000_060_000, 1_800_000_000_000)}
	t.Record.Body.Data = bytes.Repeat([]byte{byte(i)}, data)
	return t
}

// TestNear: a Near returns the last revision that it has noted, once.
func TestNear(t *testing.T) {
	t.Parallel()
	n := NewNear(NewNearMemory(1 << 20))
	has := func(i int, rev uint64) {
		t.Helper()
		got, ok := n.Take(benchID(i))
		if ok != (rev != 0) || ok && got.Rev != rev {
			t.Errorf("timer %d: revision %d (%t), want %d", i, got.Rev, ok, rev)
		}
	}
	want := nearTimer(1, 10, 400)
	n.Note(want, true)
	got, ok := n.Take(want.ID)
	if !ok || got.ID != want.ID || got.Rev != want.Rev || got.StoredMs != want.StoredMs || !bytes.Equal(got.Record.Append(nil), want.Record.Append(nil)) {
		t.Errorf("%+v %t, want %+v", got, ok, want)
	}
	has(1, 0)

	n.Note(nearTimer(2, 11, 400), true)
	n.Note(nearTimer(2, 12, 300), true)
	n.Note(nearTimer(3, 13, 400), true)
	n.Note(nearTimer(3, 14, 400), false) // moved to a later time
	n.Note(nearTimer(4, 15, 400), true)
	cancelled := nearTimer(4, 16, 0)
	cancelled.Record.State = schemas.StateCancelled
	n.Note(cancelled, true)
	n.Note(nearTimer(5, 17, 400), true)
	n.Note(&Timer{ID: benchID(5), Rev: 18, Unread: UnreadOpen}, true)
	n.Note(nearTimer(6, 19, 400), true)
	n.Forget(benchID(6))
	has(2, 12)
	for i := 3; i <= 6; i++ {
		has(i, 0)
	}

	// A tail that begins again brings earlier revisions: a later one may still come.
	n.Note(nearTimer(7, 20, 400), true)
	n.Note(nearTimer(7, 15, 400), true)
	has(7, 0)
	n.Note(nearTimer(8, 21, 400), true)
	n.Clear()
	has(8, 0)
	n.Note(nearTimer(9, 5, 400), true) // the stream has lost its end, and numbers begin again
	has(9, 5)
}

// TestNearMemory: without a free block a Near keeps no further timers, and it gives blocks back.
func TestNearMemory(t *testing.T) {
	t.Parallel()
	m := NewNearMemory(3 * nearBlockBytes)
	n, other := NewNear(m), NewNear(m)
	const size, most = 10_000, 3 * (nearBlockBytes / 10_100)
	for i := range 2 * most {
		n.Note(nearTimer(i, uint64(i+1), size), true)
	}
	if n.Len() != most {
		t.Errorf("%d timers in three blocks, want %d", n.Len(), most)
	}
	if other.Note(nearTimer(1, 1, size), true); other.Len() != 0 {
		t.Error("a fourth block")
	}
	for i := range 2 * most {
		if got, ok := n.Take(benchID(i)); ok != (i < most) || ok && !bytes.Equal(got.Record.Body.Data, nearTimer(i, 1, size).Record.Body.Data) {
			t.Errorf("timer %d: %t, %.10x", i, ok, got.Record.Body.Data)
		}
	}
	for i := range 2 * most {
		other.Note(nearTimer(i, uint64(i+1), size), true)
	}
	if other.Len() != most {
		t.Errorf("%d timers after the other Near has given its blocks back, want %d", other.Len(), most)
	}
	other.Clear()
	for i, size := range []int{nearBlockBytes, nearBlockBytes - nearHead, nearBlockBytes - 200, 100} {
		n.Note(nearTimer(i, uint64(100+i), size), true)
	}
	for i, want := range []bool{false, false, true, true} {
		if got, ok := n.Take(benchID(i)); ok != want || ok && !bytes.Equal(got.Record.Append(nil), nearTimer(i, 1, len(got.Record.Body.Data)).Record.Append(nil)) {
			t.Errorf("record %d of large ones: %t", i, ok)
		}
	}
}

// TestNearRecordsStay: a record that was returned does not change when its block is given back.
func TestNearRecordsStay(t *testing.T) {
	t.Parallel()
	n := NewNear(NewNearMemory(nearBlockBytes))
	n.Note(nearTimer(1, 1, 400), true)
	got, _ := n.Take(benchID(1))
	for i := 2; i < 100; i++ {
		n.Note(nearTimer(i, uint64(i), 400), true)
	}
	if !bytes.Equal(got.Record.Body.Data, nearTimer(1, 1, 400).Record.Body.Data) {
		t.Error("the data of a returned record has changed")
	}
}

// TestLoadFromMemory: LoadTicks takes records from a Near, and reads the others from the stream.
func TestLoadFromMemory(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := openNode(t, nc, Config{Node: "n1"})
	js := natstest.JetStream(t, nc)
	now := time.Now().UnixMilli()
	due := now + time.Minute.Milliseconds()
	near := NewNear(NewNearMemory(1 << 20))
	g := s.Geometry()
	shard := g.Shard(benchID(1))
	var ids []schemas.TimerID
	for i := 1; len(ids) < 3; i++ {
		if id := benchID(i); g.Shard(id) == shard {
			ids = append(ids, id)
		}
	}
	for i, id := range ids {
		rec := benchRecord(due, now)
		rec.EventID = fmt.Sprint(i)
		res := s.Create(t.Context(), []Write{{ID: id, Record: rec}})
		if res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
		near.Note(&Timer{ID: id, Rev: res[0].Rev, Record: *rec}, i < 2)
	}
	// The record of the second timer is gone: only the Near has it.
	bucket := schemas.BucketTimers(shard)
	stream, err := js.Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+bucket+".timer."+ids[1].String())); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{3, 2} { // a record is taken once
		load, err := s.LoadTicks(t.Context(), shard, []int64{g.Tick(due)}, 100, 0, 0, near)
		if err != nil || !load.Complete || load.Named != 3 || len(load.Timers) != want {
			t.Fatalf("%+v, %v; want %d timers", load, err, want)
		}
		for _, tm := range load.Timers {
			if tm.Record.DueMs != due || ids[tm.Record.EventID[0]-'0'] != tm.ID {
				t.Errorf("%+v", tm)
			}
		}
	}
}

// TestLoadAfterReconnect: after a lost connection LoadTicks takes nothing from a Near. A server that has lost its power may have
// lost the revisions in it.
func TestLoadAfterReconnect(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect(nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1))
	s := openNode(t, nc, Config{Node: "n1"})
	now := time.Now().UnixMilli()
	due := now + time.Minute.Milliseconds()
	id, rec := benchID(1), benchRecord(due, now)
	res := s.Create(t.Context(), []Write{{ID: id, Record: rec}})[0]
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	memory := NewNearMemory(1 << 20)
	near, free := NewNear(memory), memory.free.Load()
	lost := res.Rev + 1000
	load := func(want uint64) {
		t.Helper()
		near.Note(&Timer{ID: id, Rev: lost, Record: *rec}, true)
		lost++
		g := s.Geometry()
		got, err := s.LoadTicks(t.Context(), g.Shard(id), []int64{g.Tick(due)}, 100, 0, 0, near)
		if err != nil || len(got.Timers) != 1 || got.Timers[0].Rev != want {
			t.Fatalf("%+v, %v; want revision %d", got.Timers, err, want)
		}
	}
	load(lost)
	load(lost)
	before := s.jet.Reconnects()
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the store reconnects", func() bool { return s.jet.Reconnects() > before && !s.jet.Down() })
	load(res.Rev)
	if got := memory.free.Load(); got != free {
		t.Errorf("%d free blocks, want %d", got, free)
	}
	load(lost)
}

// BenchmarkNear reads ticks of 500 timers with 400 bytes of data from the stream and from a Near. It includes Note, which the
// owner of a shard calls for each record of its tail.
func BenchmarkNear(b *testing.B) {
	const ticks, size = 20, 500
	s := benchStore(b, 1)
	now, err := s.nowMs(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	base := s.geo.Tick(now) + 100
	var timers []Timer
	for tick := range int64(ticks) {
		writes := make([]Write, size)
		for i := range writes {
			writes[i] = Write{ID: benchID(len(timers) + i), Record: benchRecord(s.geo.TickStart(base+tick), now)}
			writes[i].Record.Body.Data = make([]byte, 400)
		}
		for i, res := range s.Create(b.Context(), writes) {
			if res.Err != nil {
				b.Fatal(res.Err)
			}
			timers = append(timers, Timer{ID: writes[i].ID, Rev: res.Rev, Record: *writes[i].Record})
		}
	}
	for _, inMemory := range []bool{false, true} {
		b.Run(map[bool]string{false: "stream", true: "memory"}[inMemory], func(b *testing.B) {
			b.ReportAllocs()
			measure(b, func() {
				for i := range b.N {
					near := NewNear(NewNearMemory(1 << 20))
					at := i % ticks
					for j := range timers[at*size : (at+1)*size] {
						near.Note(&timers[at*size+j], inMemory)
					}
					load, err := s.LoadTicks(b.Context(), 0, []int64{base + int64(at)}, size, 0, 0, near)
					if err != nil || len(load.Timers) != size {
						b.Fatal(len(load.Timers), err)
					}
				}
			})
		})
	}
}
