package store_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// keys returns the number of keys of shard 0 that match a filter. It checks their TTLs.
func keys(t *testing.T, s *store.Store, filter string) int {
	t.Helper()
	bucket := schemas.BucketTimers(0)
	stream, err := s.JetStream().Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV."+bucket+"."+filter))
	if err != nil {
		t.Fatal(err)
	}
	for key := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if ttl, err := time.ParseDuration(m.Header.Get(jetstream.MsgTTLHeader)); err != nil || ttl < 2*time.Hour+store.DefaultIndexKeep || ttl > 6*time.Hour {
			t.Errorf("key %s: TTL %v, %v", key, ttl, err)
		}
	}
	return len(info.State.Subjects)
}

// farWrites returns writes of n new timers of shard 0, one in each tick.
func farWrites(t *testing.T, s *store.Store, skip, n int) (writes []store.Write, first int64) {
	t.Helper()
	g, now := s.Geometry(), storetest.NowMs(t, s)
	first = storetest.FarPeriod(g, now)
	for i, id := range storetest.IDsOf(g, 0, skip+n)[skip:] {
		writes = append(writes, storetest.Far(g, id, first+int64(i), now))
	}
	return writes, first
}

// TestFarEntries: timers of different ticks of an hour share an index entry if they are due in hours, in calls
// with few of them and where an older node lives each has an entry of its own.
func TestFarEntries(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	waittest.Until(t, "far entries to be written", s.SharesFar)
	writes, _ := farWrites(t, s, 0, 200)
	storetest.CreateAll(t, s, writes)
	storetest.CreateAll(t, s, must(farWrites(t, s, 200, 100)))
	if slots, far, marks := keys(t, s, "slot.>"), keys(t, s, "far.*.>"), keys(t, s, "far.*"); slots != 0 || far != 3 || marks != 1 {
		t.Errorf("300 timers: %d entries of ticks, %d far entries and %d marks", slots, far, marks)
	}
	storetest.CreateAll(t, s, must(farWrites(t, s, 300, 3)))
	if slots, far := keys(t, s, "slot.>"), keys(t, s, "far.*.>"); slots != 3 || far != 3 {
		t.Errorf("three more: %d entries of ticks, %d far entries", slots, far)
	}
	c, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteClock(t.Context(), 0, c, rev); err != nil {
		t.Fatal(err)
	}
	needsFar := func(when string) {
		t.Helper()
		if c, _, err := s.ReadClock(t.Context(), 0); err != nil || c.Needs != store.LevelFarIndex {
			t.Errorf("%s: the clock needs level %d, %v", when, c.Needs, err)
		}
	}
	needsFar("with far entries")

	older := open(t, nc, func(c *store.Config) { c.Node, c.Level = "n2", store.LevelTenantFlow })
	if _, err := older.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the level to fall", func() bool { return !s.SharesFar() })
	// An owner whose term began before far entries were written renews its clock.
	if _, rev, err = s.ReadClock(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteClock(t.Context(), 0, c, rev); err != nil {
		t.Fatal(err)
	}
	needsFar("beside an older node")
	writes, first := farWrites(t, s, 303, 20)
	storetest.CreateAll(t, s, writes)
	if slots, far := keys(t, s, "slot.>"), keys(t, s, "far.*.>"); slots != 23 || far != 3 {
		t.Errorf("beside an older node: %d entries of ticks, %d far entries", slots, far)
	}
	load, err := older.LoadTicks(t.Context(), 0, []int64{first}, 1000, 0, 0, nil)
	if err != nil || !slices.ContainsFunc(load.Timers, func(tm store.Timer) bool { return tm.ID == writes[0].ID }) {
		t.Errorf("the older node loads %d timers, %v", len(load.Timers), err)
	}
}

func must(writes []store.Write, _ int64) []store.Write { return writes }

// TestManyFarEntries: the far entries of an hour are more than one answer holds.
func TestManyFarEntries(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	waittest.Until(t, "far entries to be written", s.SharesFar)
	writes, first := farWrites(t, s, 0, 5000)
	for part := range slices.Chunk(writes, 4) {
		storetest.CreateAll(t, s, part)
	}
	if far := keys(t, s, "far.*.>"); far != 1250 {
		t.Fatalf("%d far entries", far)
	}
	for n := 0; n < len(writes); n += 500 {
		var ticks []int64
		for i := range int64(500) {
			ticks = append(ticks, first+int64(n)+i)
		}
		load, err := s.LoadTicks(t.Context(), 0, ticks, 1000, 0, 0, nil)
		if err != nil || !load.Complete || len(load.Timers) != 500 {
			t.Fatalf("500 ticks: %d timers, complete %v, %v", len(load.Timers), load.Complete, err)
		}
	}
}

// TestFarReadAhead: in the last minutes of an hour a load has the far entries of the next hour read in the
// background, so that the first load of that hour reads none.
func TestFarReadAhead(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.InProcess())
	waittest.Until(t, "far entries to be written", s.SharesFar)
	writes, first := farWrites(t, s, 0, 1500)
	for part := range slices.Chunk(writes, 4) {
		storetest.CreateAll(t, s, part)
	}
	var reads atomic.Int64
	entries := fmt.Sprintf(".far.%d.", first/int64(time.Hour/s.Geometry().SlotWidth))
	nc := srv.InProcess()
	if _, err := nc.Subscribe("$JS.API.DIRECT.GET.KV_timers_0", func(m *nats.Msg) {
		if strings.Contains(string(m.Data), entries) {
			reads.Add(1)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	load := func(tick int64) int {
		t.Helper()
		load, err := s.LoadTicks(t.Context(), 0, []int64{tick}, 1000, 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(load.Timers)
	}
	if n := load(first - 3000); n != 0 || s.FarInMemory(0, first) {
		t.Errorf("fifty minutes before: %d timers", n)
	}
	load(first - 60)
	waittest.Until(t, "the far entries to be read ahead", func() bool { return s.FarInMemory(0, first) })
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ahead := reads.Load()
	if n := load(first + 700); n != 1 {
		t.Errorf("a tick of the hour: %d timers", n)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := reads.Load(); ahead == 0 || n != ahead {
		t.Errorf("%d requests for far entries ahead, %d in all", ahead, n)
	}
}
