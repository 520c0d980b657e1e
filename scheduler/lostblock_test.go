package scheduler_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// TestLostMiddleBlock: a block in the middle of a shard's file is removed while the
// server is down. The next owner reports how many timers are gone and which of them the
// index names, restores the index of the others, and counts the waiting timers again.
func TestLostMiddleBlock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		died bool // the owner died, so the clock is not released
		// rebuilt: the server rebuilds its index of the file, as after SIGKILL.
		rebuilt bool
		moved   bool // timers were rescheduled before
		// at is the position of the removed block in the file; -1 removes none.
		at int
		// lost is true if timers are gone, index if only index entries are.
		lost, index bool
	}{
		{"released", false, false, false, 1, true, false},
		{"released, after a kill of the server", false, true, false, 1, true, false},
		{"owner died", true, false, false, 1, true, false},
		{"owner died, after a kill of the server", true, true, false, 1, true, false},
		{"index of moved timers", false, true, true, 2, false, true},
		{"older index of moved timers", false, true, true, 1, false, true},
		{"nothing", false, true, true, -1, false, false},
		{"nothing, owner died", true, true, true, -1, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			// With this limit a block has 32 kB.
			cfg := store.Config{ShardMaxBytes: 127_000, Geometry: schemas.Geometry{Shards: 1, SlotWidth: 100 * time.Millisecond, WheelSize: 1024}}
			n := start(t, srv, "n1", cfg, func(o *scheduler.Options) { o.InspectInterval = time.Second })
			healthy(t, n.store)
			const all = 150
			due := nowMs() + 3_600_000
			ws := timers(all, func(int64) int64 { return due })
			for _, w := range ws { // one at a time, so that each has its own index entry
				create(t, n.store, w)
			}
			g := n.store.Geometry()
			later := due + 10*g.SlotWidth.Milliseconds()
			for _, w := range ws { // fills a third block with index entries
				if err := n.store.PutIndex(t.Context(), w.ID, g.Tick(later)); err != nil {
					t.Fatal(err)
				}
			}
			if c.moved {
				// The owner does not count a timer that is rescheduled before its tail has read
				// the add.
				added := lastRecord(t, n.store, ws)
				waittest.Until(t, "the owner to have read the adds", func() bool {
					clock, _, err := n.store.ReadClock(t.Context(), 0)
					return err == nil && clock.Seen >= added
				})
				for _, w := range ws {
					tm, err := n.store.Get(t.Context(), w.ID)
					if err != nil {
						t.Fatal(err)
					}
					rec := tm.Record
					rec.DueMs, rec.Moves = later, 1
					done := make(chan store.Result, 1)
					n.store.UpdateAsync(store.Write{ID: w.ID, Rev: tm.Rev, Record: &rec}, func(r store.Result) { done <- r })
					if r := <-done; r.Err != nil {
						t.Fatal(r.Err)
					}
				}
			}
			js := natstest.JetStream(t, n.nc)
			state := func() jetstream.StreamState {
				s, err := js.Stream(t.Context(), "KV_timers_0")
				if err != nil {
					t.Fatal(err)
				}
				return s.CachedInfo().State
			}
			var clock store.Clock
			defer func() {
				if t.Failed() {
					t.Logf("clock of the first owner: %+v; the last record is %d", clock, lastRecord(t, n.store, ws))
				}
			}()
			waittest.Until(t, "the clock to say what was seen and counted", func() bool {
				var err error
				clock, _, err = n.store.ReadClock(t.Context(), 0)
				return err == nil && clock.Seen >= lastRecord(t, n.store, ws) && clock.Pending == all && clock.Msgs > 0
			})
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			if !c.died {
				if err := n.sched.Stop(ctx); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%+v", state())
			n.nc.Close()
			if c.died {
				if err := n.sched.Stop(ctx); err != nil {
					t.Fatal(err)
				}
			}
			n.time.Stop()
			n.store.Close()
			srv.Stop()
			dir := filepath.Join(srv.StoreDir(), "jetstream", "$G", "streams", "KV_timers_0", "msgs")
			if c.at >= 0 {
				removeBlock(t, dir, c.at)
			}
			if c.rebuilt {
				if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
					t.Fatal(err)
				}
			}
			srv.Start()

			again := start(t, srv, "n2", store.Config{}, nil)
			var gone []string
			waiting := map[int64]int{} // by tick; a rescheduled timer may have lost its last revision
			for _, w := range ws {
				if tm, err := again.store.Get(t.Context(), w.ID); schemas.CodeOf(err) == schemas.CodeNotFound {
					gone = append(gone, w.ID.String())
				} else if err != nil {
					t.Fatal(err)
				} else {
					waiting[g.Tick(tm.Record.DueMs)]++
				}
			}
			if (len(gone) > 0) != c.lost {
				t.Fatalf("%d of %d timers are gone", len(gone), all)
			}
			t.Logf("%d of %d timers are gone", len(gone), all)
			waittest.Until(t, "a right count of waiting timers", func() bool {
				clock, _, err := again.store.ReadClock(t.Context(), 0)
				return err == nil && clock.Owner == "n2" && !clock.PendingUnknown && clock.Counted && clock.Pending == int64(all-len(gone)) && clock.Msgs > 0
			})
			var report []store.ShardDamage
			look := func() bool {
				var err error
				if report, err = again.store.ReadDamage(t.Context()); err != nil {
					t.Fatal(err)
				}
				return len(report) == 1 && report[0].Loss != nil
			}
			if !c.lost && !c.index {
				if look() || len(report) > 0 {
					t.Fatalf("a loss is reported, but nothing was lost: %+v", report[0].Loss)
				}
				return
			}
			waittest.Until(t, "the loss to be on record", look)
			for tick, n := range waiting {
				indexed(t, again.store, tick, n)
			}
			loss := report[0].Loss
			t.Logf("%s", loss.Summary())
			if loss.Missing != int64(len(gone)) {
				t.Errorf("%d timers are gone, and %d are reported", len(gone), loss.Missing)
			}
			if loss.Gap == nil {
				t.Error("no gap is reported")
			}
			for _, id := range loss.Timers {
				if !slices.Contains(gone, id) {
					t.Errorf("timer %s is reported as missing, but it is stored", id)
				}
			}
			if c.index && loss.Reindexed == 0 {
				t.Error("no index entry was restored")
			}
			if len(loss.Timers)+loss.TimersMore != len(gone) {
				t.Errorf("the index names %d timers without a record, but %d are reported", len(gone), len(loss.Timers)+loss.TimersMore)
			}
		})
	}
}

// lastRecord returns the newest revision of the timers' records.
func lastRecord(t *testing.T, s *store.Store, ws []store.Write) (last uint64) {
	t.Helper()
	tm, err := s.Get(t.Context(), ws[len(ws)-1].ID)
	if err != nil {
		t.Fatal(err)
	}
	return tm.Rev
}

// removeBlock removes the block with the given position from a stream's file.
func removeBlock(t *testing.T, dir string, at int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.blk"))
	if err != nil {
		t.Fatal(err)
	}
	number := func(path string) int {
		n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	if len(files) < at+2 {
		t.Fatalf("%d blocks: none is in the middle", len(files))
	}
	if err := os.Remove(files[at]); err != nil {
		t.Fatal(err)
	}
}

// indexed waits until the index names the wanted number of timers for a tick.
func indexed(t *testing.T, s *store.Store, tick int64, want int) {
	t.Helper()
	waittest.Until(t, "an index of all timers", func() bool {
		load, err := s.LoadTicks(t.Context(), 0, []int64{tick}, 1000, 0, 0, nil)
		n := 0
		for _, tm := range load.Timers {
			if s.Geometry().Tick(tm.Record.DueMs) == tick {
				n++
			}
		}
		return err == nil && n == want
	})
}
