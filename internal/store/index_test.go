package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// entries are the index entries of a shard, and how many timers they name.
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
			t.Errorf("%s is there %d times", key, n)
		}
		m, err := stream.GetLastMsgForSubject(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get(jetstream.MsgTTLHeader) == "" {
			t.Errorf("%s stays for ever", key)
		}
		named += max(1, len(m.Data)/len(schemas.TimerID{}))
	}
	return len(info.State.Subjects), named
}

// TestSharedEntries: timers of one tick that are added together take an entry for
// 64 of them, those of different ticks one each; one entry lives as long as the
// last of its timers needs it.
func TestSharedEntries(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.IndexKeep = time.Hour })
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

// TestDamagedEntry: an entry that is no list of ids is skipped, and counted; those
// beside it are read.
func TestDamagedEntry(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	g := s.Geometry()
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
			// As long as another, in the same slot.
			if _, err := s.JetStream().Publish(t.Context(), key[:len(key)-1]+name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	load, err := s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, 0)
	if err != nil || len(load.Timers) != len(writes) {
		t.Fatalf("loaded %d: %v", len(load.Timers), err)
	}
	if n := s.Undecodable(); n != 2 {
		t.Errorf("%d counted", n)
	}
}
