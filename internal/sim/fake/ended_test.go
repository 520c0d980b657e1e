package fake_test

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestReturnRevision: a pending revision is the record again after the final record has expired. RemoveVoid deletes it if the list
// has the timer, and the timer can be added again.
func TestReturnRevision(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0).UnixNano()
	g := storetest.Geometry
	server := fake.NewServer(fake.Config{Geometry: g, IndexKeep: time.Hour, Retention: time.Minute}, func(string) (int64, int64) { return now, now })
	c := fake.NewClient(server, &local{server: server, changed: make(chan struct{})}, "n1", func() int64 { return now / int64(time.Millisecond) })
	ctx, nowMs := t.Context(), now/int64(time.Millisecond)
	id := storetest.IDsOf(g, 0, 1)[0]
	rec := storetest.Pending(nowMs + time.Hour.Milliseconds())
	add := func() uint64 {
		t.Helper()
		res := c.Create(ctx, []store.Write{{ID: id, Record: rec}})[0]
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		return res.Rev
	}
	first := add()
	pending, err := c.Get(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	final := pending.Record
	if _, err := final.Cancel(nowMs, schemas.Caller{}); err != nil {
		t.Fatal(err)
	}
	last, err := c.Update(ctx, store.Write{ID: id, Rev: first, Record: &final, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	every := func(store.Timer, store.Timer) bool { return true }
	if _, err := server.ReturnRevision(id, every); schemas.CodeOf(err) != schemas.CodeNotFound {
		t.Fatalf("a revision returned above a final record: %v", err)
	}
	now += int64(2 * time.Minute)
	back := func() {
		t.Helper()
		if _, err := server.ReturnRevision(id, every); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Get(ctx, id); err != nil || got.Rev != first || !got.Record.Pending() {
			t.Fatalf("got revision %d, %v, want %d", got.Rev, err, first)
		}
	}
	back()
	if removed, err := c.RemoveVoid(ctx, 0); err != nil || len(removed) > 0 {
		t.Fatalf("removed %v without a list: %v", removed, err)
	}
	ended := store.EndedTimer{ID: id, Rev: last, StoredMs: nowMs, AddedMs: rec.AddedMs, UntilMs: rec.DueMs}
	for range 2 { // a repeated timer is listed once
		if err := c.AddEnded(ctx, 0, nowMs, 0, []store.EndedTimer{ended}); err != nil || !server.Listed(id, last) {
			t.Fatalf("not listed: %v", err)
		}
	}
	for range 2 { // it may return more than once
		if removed, err := c.RemoveVoid(ctx, 0); err != nil || len(removed) != 1 || removed[0] != (store.VoidRecord{ID: id, Rev: first}) {
			t.Fatalf("removed %v, %v", removed, err)
		}
		if _, err := c.Get(ctx, id); schemas.CodeOf(err) != schemas.CodeNotFound {
			t.Fatalf("a void record is left: %v", err)
		}
		back()
	}
	if _, err := c.RemoveVoid(ctx, 0); err != nil {
		t.Fatal(err)
	}
	again := add()
	if removed, err := c.RemoveVoid(ctx, 0); err != nil || len(removed) > 0 {
		t.Fatalf("removed %v, %v; the record %d was added again", removed, err, again)
	}
}
