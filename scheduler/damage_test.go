package scheduler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

var twoShards = store.Config{Geometry: schemas.Geometry{Shards: 2, SlotWidth: 100 * time.Millisecond, WheelSize: 1024}}

// healthy waits until every clock can be decoded and has an owner.
func healthy(t *testing.T, s *store.Store) {
	t.Helper()
	waittest.Until(t, "clocks with owners", func() bool {
		c, err := s.ReadCluster(t.Context())
		if err != nil || len(c.Clocks) != s.Geometry().Shards {
			return false
		}
		for _, at := range c.Clocks {
			if at.Err != nil || at.Clock.Owner == "" {
				return false
			}
		}
		return true
	})
}

// TestClockDamaged: the owner of a shard writes its clock again after another client has
// overwritten or removed it. All timers fire.
func TestClockDamaged(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", twoShards, nil)
	healthy(t, n.store)
	ws := timers(40, func(i int64) int64 { return nowMs() + 1000 + 50*i })
	create(t, n.store, ws...)
	kv, err := natstest.JetStream(t, n.nc).KeyValue(t.Context(), schemas.BucketClock)
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error { _, err := kv.PutString(t.Context(), "clock.0", storetest.PubAck); return err },
		func() error { _, err := kv.PutString(t.Context(), "clock.1", ""); return err },
		func() error { return kv.Delete(t.Context(), "clock.0") },
		func() error { return kv.Purge(t.Context(), "clock.1") },
		func() error { _, err := kv.PutString(t.Context(), "clock.stranger", "x"); return err },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		healthy(t, n.store)
	}
	if got := fired(t, n.nc, len(ws)); len(got) != len(ws) {
		t.Fatalf("%d of %d timers fired", len(got), len(ws))
	}
}

// TestStartWithDamagedClock: a node that starts resumes a shard whose clock is damaged or
// missing, from the clock's copy or without it, and misses no timer.
func TestStartWithDamagedClock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		damage []string // keys to overwrite
		gone   []string // keys to purge
	}{
		{"from the copy", []string{"clock.0"}, []string{"clock.1"}},
		{"copies are damaged, too", []string{"clock.0", "clock.1", "copy.0", "copy.1"}, nil},
		{"nothing is left", []string{"clock.0"}, []string{"clock.1", "copy.0", "copy.1"}},
		{"the layout is damaged, too", []string{"meta", "clock.0", "clock.1"}, nil},
		{"the layout is gone", nil, []string{"meta", "clock.0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			n := start(t, srv, "n1", twoShards, nil)
			healthy(t, n.store)
			ws := timers(40, func(i int64) int64 { return nowMs() + 500 + 100*i })
			create(t, n.store, ws...)
			fired(t, n.nc, 5)
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			if err := n.sched.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			n.time.Stop()
			before := map[int]uint64{}
			for shard := range 2 {
				clock, _, err := n.store.ReadClock(t.Context(), shard)
				if err != nil {
					t.Fatal(err)
				}
				before[shard] = clock.Epoch
			}
			kv, err := natstest.JetStream(t, n.nc).KeyValue(t.Context(), schemas.BucketClock)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range c.damage {
				if _, err := kv.PutString(t.Context(), key, storetest.PubAck); err != nil {
					t.Fatal(err)
				}
			}
			s, err := natstest.JetStream(t, n.nc).Stream(t.Context(), "KV_clock")
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range c.gone {
				if err := s.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.clock."+key)); err != nil {
					t.Fatal(err)
				}
			}
			again := start(t, srv, "n2", store.Config{}, nil)
			healthy(t, again.store)
			got := fired(t, again.nc, len(ws))
			for id, msgs := range got {
				if len(msgs) != 1 {
					t.Errorf("%s fired %d times", id, len(msgs))
				}
			}
			for shard := range 2 {
				clock, _, err := again.store.ReadClock(t.Context(), shard)
				if err != nil || clock.Epoch <= before[shard] {
					t.Errorf("shard %d: epoch %d after %d, %v", shard, clock.Epoch, before[shard], err)
				}
			}
		})
	}
}

// TestNewerClock: a node does not take a shard whose clock has a newer version.
func TestNewerClock(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", twoShards, nil)
	healthy(t, n.store)
	const newer = `{"v":99,"owner":"n9"}`
	storetest.Overwrite(t, n.store, "KV_clock", "clock.0", []byte(newer))
	waittest.Until(t, "the shard to be given up", func() bool { return n.sched.Status()[0].State == "standby" })
	start(t, srv, "n2", store.Config{}, nil)
	ws := timers(20, func(i int64) int64 { return nowMs() + 1000 })
	create(t, n.store, ws...)
	mine := 0
	for _, w := range ws {
		if n.store.Geometry().Shard(w.ID) == 1 {
			mine++
		}
	}
	fired(t, n.nc, mine)
	if _, _, err := n.store.ReadClock(t.Context(), 0); !errors.Is(err, schemas.ErrNewer) {
		t.Fatalf("the newer clock was overwritten: %v", err)
	}
}
