package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// entries returns the number of index entries of a shard, and of the timers that they name.
func entries(t *testing.T, s *store.Store, shard int) (keys, named int) {
	t.Helper()
	bucket := schemas.BucketTimers(shard)
	stream, err := s.JetStream().Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV."+bucket+".slot.>"))
	if err != nil {
		t.Fatal(err)
	}
	for key, n := range info.State.Subjects {
		if n != 1 {
			t.Errorf("key %s has %d revisions", key, n)
		}
		m, err := stream.GetLastMsgForSubject(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get(jetstream.MsgTTLHeader) == "" {
			t.Errorf("entry %s has no TTL", key)
		}
		named += max(1, len(m.Data)/len(schemas.TimerID{}))
	}
	return len(info.State.Subjects), named
}

// TestSharedEntries: 64 timers of one tick that are added together share an index entry, and
// timers of different ticks have one each. Every entry has a TTL.
func TestSharedEntries(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.IndexKeep = time.Hour })
	waittest.Until(t, "entries to be shared", s.SharesIndex)
	g := s.Geometry()
	start := g.TickStart(g.Tick(storetest.NowMs(t, s) + 60_000))
	ids := storetest.IDsOf(g, 0, 400)
	add := func(due func(i int) int64) {
		t.Helper()
		writes := make([]store.Write, 200)
		for i := range writes {
			writes[i] = store.Write{ID: ids[i], Record: storetest.Pending(due(i))}
		}
		ids = ids[200:]
		storetest.CreateAll(t, s, writes)
	}
	add(func(int) int64 { return start })
	if keys, named := entries(t, s, 0); keys != 4 || named != 200 {
		t.Errorf("one tick: %d entries name %d timers", keys, named)
	}
	add(func(i int) int64 { return start + int64(i+1)*g.SlotWidth.Milliseconds() })
	if keys, named := entries(t, s, 0); keys != 204 || named != 400 {
		t.Errorf("many ticks: %d entries name %d timers", keys, named)
	}
}

// TestDamagedEntry: an index entry that is not a list of ids is counted and skipped; the other
// entries of the slot are read.
func TestDamagedEntry(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	g := s.Geometry()
	waittest.Until(t, "entries to be shared", s.SharesIndex)
	due := storetest.NowMs(t, s) + 60_000
	var writes []store.Write
	for _, id := range storetest.IDsOf(g, 0, 10) {
		writes = append(writes, store.Write{ID: id, Record: storetest.Pending(due)})
	}
	storetest.CreateAll(t, s, writes)
	stream, err := s.JetStream().Stream(t.Context(), "KV_"+schemas.BucketTimers(0))
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.*.slot.>"))
	if err != nil || len(info.State.Subjects) != 1 {
		t.Fatalf("%v %v", info, err)
	}
	for key := range info.State.Subjects {
		for name, data := range map[string]string{"v": "x", "u": strings.Repeat("x", 17), "t": ""} {
			// Write a damaged entry of the same length in the same slot.
			if _, err := s.JetStream().Publish(t.Context(), key[:len(key)-1]+name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	load, err := s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, 0, nil)
	if err != nil || len(load.Timers) != len(writes) {
		t.Fatalf("loaded %d: %v", len(load.Timers), err)
	}
	if n := s.Undecodable(); n != 2 {
		t.Errorf("%d counted", n)
	}
}

// TestEntriesForOlderNodes: while a node is alive that does not read shared entries, each new
// timer has its own entry. After that node has left, timers share entries again.
func TestEntriesForOlderNodes(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	waittest.Until(t, "entries to be shared", s.SharesIndex)
	older := "$KV." + schemas.BucketClock + ".node.older"
	if _, err := s.JetStream().Publish(t.Context(), older, []byte(`{"v":1,"scheduler":"active"}`)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the older node to be seen", func() bool { return !s.SharesIndex() })
	g := s.Geometry()
	due := storetest.NowMs(t, s) + 60_000
	ids := storetest.IDsOf(g, 0, 20)
	add := func(ids []schemas.TimerID) {
		t.Helper()
		var writes []store.Write
		for _, id := range ids {
			writes = append(writes, store.Write{ID: id, Record: storetest.Pending(due)})
		}
		storetest.CreateAll(t, s, writes)
	}
	add(ids[:10])
	if keys, named := entries(t, s, 0); keys != 10 || named != 10 {
		t.Errorf("%d entries name %d timers", keys, named)
	}
	kv, err := s.JetStream().KeyValue(t.Context(), schemas.BucketClock)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), "node.older"); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "entries to be shared again", s.SharesIndex)
	add(ids[10:])
	if keys, named := entries(t, s, 0); keys != 11 || named != 20 {
		t.Errorf("%d entries name %d timers", keys, named)
	}
}

// TestEntryRefused: if the server refuses the index entry of a timer, the create fails, also
// if a KV client has left a delete marker under the record's key.
func TestEntryRefused(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "records", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$KV.*.slot.>"}}}},
		}
	})
	s := open(t, srv.Connect(nats.UserInfo("all", "p")))
	lame := open(t, srv.Connect(nats.UserInfo("records", "p")), func(c *store.Config) { c.Node, c.Timeout = "n2", 2*time.Second })
	w := store.Write{ID: storetest.IDsOf(s.Geometry(), 0, 1)[0], Record: storetest.Pending(storetest.NowMs(t, s) + 60_000)}
	fresh := w
	fresh.ID = storetest.IDsOf(s.Geometry(), 0, 2)[1]
	storetest.CreateAll(t, s, []store.Write{w})
	kv, err := s.JetStream().KeyValue(t.Context(), schemas.BucketTimers(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), "timer."+w.ID.String()); err != nil {
		t.Fatal(err)
	}
	for i, r := range lame.Create(t.Context(), []store.Write{w, fresh}) {
		if !errors.Is(r.Err, schemas.ErrUnavailable) {
			t.Errorf("timer %d: %v", i, r.Err)
		}
	}
}

// TestCreateEnds: after its context has ended, Create sends no more writes.
func TestCreateEnds(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	now := storetest.NowMs(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var writes []store.Write
	for n, id := range storetest.IDsOf(s.Geometry(), 0, 10) {
		writes = append(writes, store.Write{ID: id, Record: storetest.Pending(now + int64(n)*60_000)})
	}
	for i, r := range s.Create(ctx, writes) {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("timer %d: %v", i, r.Err)
		}
		if _, err := s.Get(t.Context(), writes[i].ID); !errors.Is(err, schemas.ErrNotFound) {
			t.Errorf("timer %d is stored: %v", i, err)
		}
	}
}
