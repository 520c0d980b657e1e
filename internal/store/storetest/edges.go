package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// behind: a load as of a sequence that no replica has reached is refused.
func behind(t *testing.T, s Store) {
	g := s.Geometry()
	due := NowMs(t, s) + 3000
	rev := CreateAll(t, s, []store.Write{{ID: IDOf(g, 0, 0), Record: Pending(due)}})[0]
	if _, err := s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, rev+1, nil); !errors.Is(err, schemas.ErrUnavailable) {
		t.Fatalf("load as of a future sequence: %v", err)
	}
	if last := must[uint64](t)(s.LastSeq(t.Context(), 0)); last != rev {
		t.Fatalf("the stream ends at %d; the record is %d", last, rev)
	}
}

// repeated: a compare-and-set that is sent twice, because its answer was lost, is refused the
// second time and changes nothing.
func repeated(t *testing.T, s Store) {
	r := Pending(NowMs(t, s) + 5000)
	rev := CreateAll(t, s, []store.Write{{ID: ID(1), Record: r}})[0]
	w := store.Write{ID: ID(1), Rev: rev, Record: Delivered(*r)}
	next := must[uint64](t)(s.Update(t.Context(), w))
	if _, err := s.Update(t.Context(), w); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("the same write again: %v; want ErrRevision", err)
	}
	if got := must[store.Timer](t)(s.Get(t.Context(), ID(1))); got.Rev != next {
		t.Fatalf("the record has revision %d after a refused write; want %d", got.Rev, next)
	}
}

// stamps: a record's timestamp is the leader's, and lies between the heartbeats before and
// after the write.
func stamps(t *testing.T, s Store) {
	before := NowMs(t, s)
	CreateAll(t, s, []store.Write{{ID: ID(1), Record: Pending(before + 5000)}})
	after := NowMs(t, s)
	if got := must[store.Timer](t)(s.Get(t.Context(), ID(1))); got.StoredMs < before || got.StoredMs > after {
		t.Fatalf("stored at %d; the heartbeats before and after it at %d and %d", got.StoredMs, before, after)
	}
}

// dedupWindow: after the dedup window a message id is not a duplicate any more.
func dedupWindow(t *testing.T, s Store) {
	m := store.Msg{Subject: schemas.SubjectFired("orders"), Data: []byte("e"), MsgID: "a.1"}
	first, _, err := s.Publish(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the window to pass", func() bool {
		seq, duplicate, err := s.Publish(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if duplicate != (seq == first) {
			t.Fatalf("sequence %d, duplicate %v; the first was %d", seq, duplicate, first)
		}
		return !duplicate
	})
}

// indexExpiry: an index entry expires IndexKeep after its tick is due. The record stays.
func indexExpiry(t *testing.T, s Store) {
	g := s.Geometry()
	due := NowMs(t, s)
	id := IDOf(g, 0, 0)
	CreateAll(t, s, []store.Write{{ID: id, Record: Pending(due)}})
	if got := loadAll(t, s, 0, []int64{g.Tick(due)}, 0); len(got) != 1 {
		t.Fatalf("loaded %d timers before the index entry expired; want 1", len(got))
	}
	waittest.Until(t, "the index entry to expire", func() bool { return len(loadAll(t, s, 0, []int64{g.Tick(due)}, 0)) == 0 })
	must[store.Timer](t)(s.Get(t.Context(), id))
	// The entry can be written again.
	if err := s.PutIndex(t.Context(), id, g.Tick(due)+1000); err != nil {
		t.Fatal(err)
	}
	if got := loadAll(t, s, 0, []int64{g.Tick(due) + 1000}, 0); len(got) != 1 {
		t.Fatalf("loaded %d after the entry was written again", len(got))
	}
}

// indexOfAddAhead: the index entry of a timer whose add has a time ahead of the store's clock does not
// expire before the timer is due.
func indexOfAddAhead(t *testing.T, s Store) {
	g, now := s.Geometry(), NowMs(t, s)
	write := func(n int, dueMs, addedMs int64) store.Write {
		w := store.Write{ID: IDOf(g, 0, n), Record: Pending(dueMs)}
		w.Record.AddedMs = addedMs
		return w
	}
	due := now + time.Minute.Milliseconds()
	ahead, dueNow := write(0, due, due), write(1, now, now)
	CreateAll(t, s, []store.Write{ahead, dueNow})
	waittest.Until(t, "an entry without a time ahead to expire", func() bool { return len(loadAll(t, s, 0, []int64{g.Tick(now)}, 0)) == 0 })
	// The server expires messages within a second or so of their TTL.
	waittest.Until(t, "a second", func() bool { return NowMs(t, s) > now+3000 })
	if got := loadAll(t, s, 0, []int64{g.Tick(due)}, 0); len(got) != 1 {
		t.Fatalf("loaded %d timers a minute before the timer is due; want 1", len(got))
	}
}

// firedLeaves: an event that is older than FiredMaxAge is not found.
func firedLeaves(t *testing.T, s Store) {
	since := time.UnixMilli(NowMs(t, s) - 1)
	ids := map[string]struct{}{"a.1": {}}
	if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("orders"), MsgID: "a.1"}); err != nil {
		t.Fatal(err)
	}
	find := func() int {
		return len(must[map[string]struct{}](t)(s.FiredSince(t.Context(), []string{schemas.SubjectFired("orders")}, since, ids)))
	}
	if n := find(); n != 1 {
		t.Fatalf("found %d events right after the publish; want 1", n)
	}
	waittest.Until(t, "the event to leave", func() bool { return find() == 0 })
	if first := must[store.FiredBacklog](t)(s.FiredBacklog(t.Context(), "orders")).Oldest; !first.IsZero() {
		t.Fatalf("the oldest event is of %s", first)
	}
}

// cluster: ReadCluster returns all clocks, and all nodes with their last presences.
func cluster(t *testing.T, s Store) {
	s.Announce(func(p *store.Presence) { p.Release, p.Scheduler = "v1", store.SchedulerActive })
	first := NowMs(t, s)
	look := func() store.Cluster { return must[store.Cluster](t)(s.ReadCluster(t.Context())) }
	got := look()
	if len(got.Clocks) != s.Geometry().Shards || len(got.Nodes) != 1 {
		t.Fatalf("cluster %+v; want all clocks and one node", got)
	}
	for n, c := range got.Clocks {
		want, rev, err := s.ReadClock(t.Context(), n)
		if err != nil || c.Shard != n || c.Rev != rev || c.Clock != want {
			t.Fatalf("clock %d: %+v; want %+v %d %v", n, c, want, rev, err)
		}
	}
	was := got.Nodes[0]
	if was.Node == "" || was.StoredMs != first || was.Presence.Release != "v1" || was.Presence.Scheduler != store.SchedulerActive {
		t.Fatalf("presence %+v; want the announced one, stored at %d", was, first)
	}
	s.Announce(func(p *store.Presence) { p.Scheduler = store.SchedulerLeaving })
	NowMs(t, s)
	if now := look().Nodes[0]; now.Rev <= was.Rev || now.Presence.Scheduler != store.SchedulerLeaving {
		t.Fatalf("presence %+v after %+v; want a later revision in state leaving", now, was)
	}
	c, rev, err := s.ReadClock(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Owner, c.Epoch = "a", 1
	rev = must[uint64](t)(s.WriteClock(t.Context(), 1, c, rev))
	if now := look().Clocks[1]; now.Rev != rev || now.Clock.Owner != "a" {
		t.Fatalf("clock %+v; want revision %d with owner a", now, rev)
	}
}
