package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// overwriteNewer writes a waiting timer's record in the format of the next build.
func overwriteNewer(t *testing.T, s *store.Store, w store.Write) {
	t.Helper()
	key := fmt.Sprintf("KV_%s", schemas.BucketTimers(s.Geometry().Shard(w.ID)))
	storetest.Overwrite(t, s, key, "timer."+w.ID.String(), w.Record.AppendFormat(nil, schemas.RecordFormatTest))
}

// TestNewerRecords: a node that cannot read some records fires all others on time, and
// keeps the low watermark and the applied offset before these records. When a node that
// reads them joins, it receives their shards and fires them.
func TestNewerRecords(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	old := start(t, srv, "old", twoShards, nil)
	healthy(t, old.store)
	ws := timers(60, func(i int64) int64 { return nowMs() + 1500 + 20*i })
	create(t, old.store, ws...)
	newer := map[schemas.TimerID]int64{} // due times
	for i, w := range ws {
		if i%3 == 0 {
			newer[w.ID] = w.Record.DueMs
			overwriteNewer(t, old.store, w)
		}
	}
	got := fired(t, old.nc, len(ws)-len(newer))
	for id := range newer {
		if len(got[id.MsgID(1)]) > 0 {
			t.Errorf("timer %s fired, though the node cannot read its record", id)
		}
	}
	checkTimes(t, got)
	// More timers fire although the low watermark is held.
	more := []store.Write{timer("more1", nowMs()+200), timer("more2", nowMs()+400)}
	create(t, old.store, more...)
	fired(t, old.nc, len(ws)-len(newer)+len(more))
	shards := map[int]bool{}
	for id := range newer {
		shards[old.store.Geometry().Shard(id)] = true
	}
	passed := func() string {
		for id, due := range newer {
			c, _, err := old.store.ReadClock(t.Context(), old.store.Geometry().Shard(id))
			if err != nil {
				return err.Error()
			}
			timer, err := raw(t, old, id)
			if err != nil {
				return err.Error()
			}
			if c.TimeMs > due && c.Tail >= timer.Revision() {
				return fmt.Sprintf("shard's clock %+v has passed timer %s, due %d, revision %d", c, id, due, timer.Revision())
			}
		}
		return ""
	}
	waittest.Until(t, "the shards to state what they need", func() bool {
		for shard := range shards {
			c, _, err := old.store.ReadClock(t.Context(), shard)
			if err != nil || c.Needs != store.LevelTest {
				return false
			}
		}
		return true
	})
	if text := passed(); text != "" {
		t.Error(text)
	}
	reported := int64(0)
	for _, st := range old.sched.Status() {
		reported += st.NewerRecords
	}
	if reported != int64(len(newer)) {
		t.Errorf("status reports %d records of a newer format, want %d", reported, len(newer))
	}
	if n := metrictest.Sum(t, old.reg, "belfry_newer_records"); n != float64(len(newer)) {
		t.Errorf("belfry_newer_records is %v, want %d", n, len(newer))
	}

	other := start(t, srv, "other", store.Config{}, nil) // does not read them either
	waittest.Until(t, "the other node to own a shard", func() bool {
		for _, st := range other.sched.Status() {
			if st.State == "owner" {
				return true
			}
		}
		return false
	})
	if text := passed(); text != "" {
		t.Error(text)
	}
	next := start(t, srv, "next", store.Config{Level: store.LevelTest}, nil)
	got = fired(t, next.nc, len(ws)+len(more))
	checkTimes(t, got)
	for shard := range shards {
		c, _, err := next.store.ReadClock(t.Context(), shard)
		if err != nil || c.Owner != "next" {
			t.Errorf("shard %d: owner %q, %v", shard, c.Owner, err)
		}
	}
	waittest.Until(t, "the low watermark to pass the records", func() bool {
		for id, due := range newer {
			c, _, err := next.store.ReadClock(t.Context(), next.store.Geometry().Shard(id))
			if err != nil || c.TimeMs <= due {
				return false
			}
		}
		return true
	})
}

// raw reads a record without decoding it.
func raw(t *testing.T, n *node, id schemas.TimerID) (jetstream.KeyValueEntry, error) {
	t.Helper()
	kv, err := natstest.JetStream(t, n.nc).KeyValue(t.Context(), schemas.BucketTimers(n.store.Geometry().Shard(id)))
	if err != nil {
		return nil, err
	}
	return kv.Get(t.Context(), "timer."+id.String())
}

// TestNewerRecordsAfterAScan: an owner that has to read a whole shard, because its low
// watermark is older than the index, keeps the low watermark before records that it
// cannot read.
func TestNewerRecordsAfterAScan(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.Connect(), "maker", twoShards)
	ws := timers(20, func(i int64) int64 { return nowMs() - 1000 })
	create(t, s, ws...)
	for _, w := range ws[:5] {
		overwriteNewer(t, s, w)
	}
	// After an outage longer than half of the index's TTL, with the applied offset at the
	// end of the stream.
	before := nowMs() - (20 * time.Minute).Milliseconds()
	for shard := range 2 {
		c, rev, err := s.ReadClock(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		if c.Tail, err = s.LastSeq(t.Context(), shard); err != nil {
			t.Fatal(err)
		}
		c.TimeMs, c.Seen = before, c.Tail
		if _, err := s.WriteClock(t.Context(), shard, c, rev); err != nil {
			t.Fatal(err)
		}
	}
	old := start(t, srv, "old", store.Config{}, nil)
	fired(t, old.nc, 15)
	waittest.Until(t, "5 records that are held", func() bool { return metrictest.Sum(t, old.reg, "belfry_newer_records") == 5 })
	for _, w := range ws[:5] {
		if c, _, err := old.store.ReadClock(t.Context(), old.store.Geometry().Shard(w.ID)); err != nil || c.TimeMs > w.Record.DueMs {
			t.Errorf("the low watermark %d has passed a record due %d, %v", c.TimeMs, w.Record.DueMs, err)
		}
	}
	next := start(t, srv, "next", store.Config{Level: store.LevelTest}, nil)
	checkTimes(t, fired(t, next.nc, len(ws)))
}
