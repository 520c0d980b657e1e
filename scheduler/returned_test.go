package scheduler_test

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// listedEnded reports whether the list of shard 0 has a number of timers, in one chunk of a class.
func listedEnded(t *testing.T, n *node, class string, timers int) bool {
	t.Helper()
	js := natstest.JetStream(t, n.nc)
	s, err := js.Stream(t.Context(), "KV_timers_0")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(t.Context(), "$KV.timers_0.ended."+class+".0")
	return err == nil && len(m.Data) == 1+timers*48+4
}

// cancelLong cancels timers, and returns the last revision.
func cancelLong(t *testing.T, s *store.Store, retention time.Duration, ws []store.Write) (last uint64) {
	t.Helper()
	for _, w := range ws {
		tm, err := s.Get(t.Context(), w.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tm.Record.Cancel(nowMs(), schemas.Caller{}); err != nil {
			t.Fatal(err)
		}
		if last, err = s.Update(t.Context(), store.Write{ID: w.ID, Rev: tm.Rev, Record: &tm.Record, TTL: retention}); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// TestListOfEndedTimers: an owner lists timers that are cancelled hours before they are due. If it dies before that, the next
// owner does.
func TestListOfEndedTimers(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000}}
	soon := func(o *scheduler.Options) { o.Retention, o.SweepDelay = 4*time.Second, time.Second }
	n1 := start(t, srv, "n1", cfg, soon)
	ws := timers(6, func(int64) int64 { return nowMs() + 9*time.Hour.Milliseconds() })
	create(t, n1.store, ws...)
	last := cancelLong(t, n1.store, time.Hour, ws[:3])
	waittest.Until(t, "the list", func() bool {
		c, _, err := n1.store.ReadClock(t.Context(), 0)
		listed := listedEnded(t, n1, "0", 3)
		if err == nil && c.Ended >= last && !listed {
			t.Fatalf("the clock says that the list is complete up to %d, and it lacks the cancels up to %d", c.Ended, last)
		}
		return listed
	})

	// The next owner dies before its first write.
	ctx := t.Context()
	if err := n1.sched.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	n2 := start(t, srv, "n2", store.Config{}, nil) // writes after five minutes
	last = cancelLong(t, n2.store, time.Hour, ws[3:])
	waittest.Until(t, "the owner's tail to have read the cancels", func() bool {
		c, _, err := n2.store.ReadClock(ctx, 0)
		if err == nil && c.Owner == "n2" && c.Ended >= last {
			t.Fatalf("the clock says that the list is complete up to %d; the cancel %d is not listed", c.Ended, last)
		}
		return err == nil && c.Owner == "n2" && c.Tail >= last
	})
	n2.nc.Close()
	if err := n2.sched.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	n3 := start(t, srv, "n3", store.Config{}, nil)
	waittest.Until(t, "the list after the take-over", func() bool { return listedEnded(t, n3, "0", 6) })
	waittest.Until(t, "the clock to say so", func() bool {
		c, _, err := n3.store.ReadClock(ctx, 0)
		return err == nil && c.Owner == "n3" && c.Ended >= last
	})
}

// TestReturnedTimerDoesNotFire: after the death of an owner, the next one deletes pending records of ended timers, and goes
// on. Other timers fire.
func TestReturnedTimerDoesNotFire(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000}, Node: "dead"}
	s, err := store.Open(t.Context(), srv.Connect(), cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	due := nowMs() + 8000
	ws := timers(20, func(int64) int64 { return due })
	create(t, s, ws...)
	// The records are as after a kill: the final records, of later revisions, are gone.
	last, err := s.LastSeq(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var ended []store.EndedTimer
	for _, w := range ws[:10] {
		ended = append(ended, store.EndedTimer{ID: w.ID, Rev: last, StoredMs: nowMs() + 1000, AddedMs: w.Record.AddedMs, UntilMs: due})
	}
	if err := s.AddEnded(t.Context(), 0, nowMs(), 0, ended); err != nil {
		t.Fatal(err)
	}
	clock, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	clock.Owner, clock.Epoch, clock.PendingUnknown = "dead", clock.Epoch+1, true
	if _, err := s.WriteClock(t.Context(), 0, clock, rev); err != nil {
		t.Fatal(err)
	}
	s.Close()
	n := start(t, srv, "n1", store.Config{}, nil)
	waittest.Until(t, "the returned timers to be gone", func() bool {
		for _, w := range ws[:10] {
			if _, err := n.store.Get(t.Context(), w.ID); schemas.CodeOf(err) != schemas.CodeNotFound {
				return false
			}
		}
		return true
	})
	if nowMs() > due {
		t.Skip("the machine was too slow: the timers were due before the count")
	}
	got := fired(t, n.nc, 10)
	waittest.Until(t, "the low watermark to pass the due time", func() bool {
		c, _, err := n.store.ReadClock(t.Context(), 0)
		return err == nil && c.TimeMs > due && !c.PendingUnknown && c.Pending == 0
	})
	checkTimes(t, got)
	js := natstest.JetStream(t, n.nc)
	stream, err := js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	if msgs := stream.CachedInfo().State.Msgs; msgs != 10 {
		t.Errorf("%d events were published, want 10", msgs)
	}
	for _, w := range ws[:10] {
		if got[w.ID.String()+".1"] != nil {
			t.Errorf("the ended timer %s has fired", w.ID)
		}
	}
}
