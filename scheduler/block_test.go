package scheduler_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// TestDamagedBlock: bytes of a shard's file are changed or cut off while the server is
// down, or the file is removed. All intact timers fire, and the report names the missing
// ones.
func TestDamagedBlock(t *testing.T) {
	t.Parallel()
	flip := func(at float64) func([]byte) []byte {
		return func(b []byte) []byte {
			for i := range 40 {
				b[int(float64(len(b))*at)+i] ^= 0xff
			}
			return b
		}
	}
	cut := func(b []byte) []byte { return b[:len(b)*2/3] }
	remove := func([]byte) []byte { return nil }
	cases := []struct {
		name    string
		damage  func([]byte) []byte
		rebuilt bool // the server rebuilds its index of the file
		lost    bool
	}{
		{"nothing, after a kill", func(b []byte) []byte { return b }, true, false},
		{"flipped", flip(0.5), false, true},
		{"cut off, after a kill", cut, true, true},
		{"removed", remove, false, true},
		{"nothing", func(b []byte) []byte { return b }, false, false},
		{"flipped, after a kill", flip(0.5), true, true},
		{"cut off", cut, false, true},
		{"removed, after a kill", remove, true, true},
	}
	for _, c := range cases[:testsize.Choose(t, "kinds of damage", 4, 4, len(cases))] {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 100 * time.Millisecond, WheelSize: 1024}}
			n := start(t, srv, "n1", cfg, nil)
			healthy(t, n.store)
			const all = 116
			first := nowMs() + 8_000 // after the node stops, also on a busy machine
			ws := timers(all, func(i int64) int64 { return first + 20*i })
			create(t, n.store, ws...)
			last, err := n.store.LastSeq(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			waittest.Until(t, "the clock to say what was seen", func() bool {
				clock, _, err := n.store.ReadClock(t.Context(), 0)
				return err == nil && clock.Seen >= last
			})
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			if err := n.sched.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			n.time.Stop()
			n.store.Close()
			n.nc.Close()
			srv.Stop()
			harm(t, filepath.Join(srv.StoreDir(), "jetstream", "$G", "streams", "KV_timers_0", "msgs"), c.damage, c.rebuilt)
			srv.Start()

			again := start(t, srv, "n2", store.Config{}, func(o *scheduler.Options) { o.InspectInterval = 2 * time.Second })
			var gone []string
			intact := 0
			for _, w := range ws {
				switch _, err := again.store.Get(t.Context(), w.ID); schemas.CodeOf(err) {
				case "":
					intact++
				case schemas.CodeNotFound:
					gone = append(gone, w.ID.String())
				default:
					t.Fatal(err)
				}
			}
			if (len(gone) > 0) != c.lost {
				t.Fatalf("%d of %d timers are gone", len(gone), all)
			}
			t.Logf("%d of %d timers are intact", intact, all)
			if got := fired(t, again.nc, intact); len(got) != intact {
				t.Fatalf("%d of %d intact timers fired", len(got), intact)
			}
			var report []store.ShardDamage
			look := func() bool {
				if report, err = again.store.ReadDamage(t.Context()); err != nil {
					t.Fatal(err)
				}
				return len(report) == 1 && report[0].Loss != nil
			}
			if !c.lost {
				if look() || len(report) > 0 {
					t.Fatalf("a loss is reported, but nothing was lost: %+v", report[0].Loss)
				}
				return
			}
			waittest.Until(t, "the loss to be on record", look)
			t.Logf("%+v", report[0].Loss)
			if report[0].Loss.Messages == 0 {
				t.Error("the report has no missing messages")
			}
			for _, id := range report[0].Loss.Timers {
				if !slices.Contains(gone, id) {
					t.Errorf("timer %s is reported as missing, but it is stored", id)
				}
			}
			// Without its index entry, the name of a lost timer is unknown.
			if n := len(report[0].Loss.Timers) + report[0].Loss.TimersMore; n == 0 && report[0].Loss.Expected-report[0].Loss.Waiting < int64(len(gone)) {
				t.Errorf("%d timers are gone, but the report is %+v", len(gone), report[0].Loss)
			}
			// Timers that are added now fire.
			more := timer("after", nowMs()+500)
			create(t, again.store, more)
			fired(t, again.nc, intact+1)
		})
	}
}

// harm changes the first block of a stream's file, or removes the block if change returns
// nil.
func harm(t *testing.T, dir string, change func([]byte) []byte, rebuilt bool) {
	t.Helper()
	path := filepath.Join(dir, "1.blk")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b = change(b); b != nil {
		err = os.WriteFile(path, b, 0o600)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	if rebuilt { // as after SIGKILL: there is no index of the file
		if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
			t.Fatal(err)
		}
	}
}
