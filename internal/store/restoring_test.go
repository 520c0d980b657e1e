package store_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestIndexRestored: the open records of a restored store, and no others, get index entries that they share, that last for days,
// and that are where the sweeper looks first.
func TestIndexRestored(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc, func(c *store.Config) { c.IndexKeep = time.Second })
	waittest.Until(t, "entries to be shared", s.SharesIndex)
	g, now := s.Geometry(), storetest.NowMs(t, s)
	ids := storetest.IDsOf(g, 0, 200)
	retrying := func(r schemas.Record) *schemas.Record {
		r = *storetest.Delivered(r)
		r.State, r.Attempt = schemas.StateRetrying, 1
		return &r
	}
	want := map[schemas.TimerID]bool{}
	create := func(n int, isOpen bool, later ...func(schemas.Record) *schemas.Record) {
		t.Helper()
		for _, id := range ids[:n] {
			w := store.Write{ID: id, Record: storetest.Pending(now - 60_000)}
			rev := storetest.CreateAll(t, s, []store.Write{w})[0]
			for _, change := range later {
				next := change(*w.Record)
				w = store.Write{ID: id, Rev: rev, Record: next}
				if next.State.Final() {
					w.TTL = time.Hour
				}
				var err error
				if rev, err = s.Update(t.Context(), w); err != nil {
					t.Fatal(err)
				}
			}
			if isOpen {
				want[id] = true
			}
		}
		ids = ids[n:]
	}
	create(70, true, storetest.Delivered)
	create(3, true, storetest.Delivered, retrying)
	create(2, false)
	create(2, false, storetest.Delivered, func(r schemas.Record) *schemas.Record {
		n := retrying(r)
		n.Queued = true
		return n
	})
	create(2, false, storetest.Delivered, storetest.Success)
	create(2, false, func(r schemas.Record) *schemas.Record {
		r.State, r.Queued = schemas.StatePaused, false
		return &r
	})
	stream, err := s.JetStream().Stream(t.Context(), "KV_timers_0")
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the entries to expire", func() bool {
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.timers_0.slot.>"))
		return err == nil && len(info.State.Subjects) == 0
	})

	clock := func(c store.Clock) {
		t.Helper()
		_, rev, err := s.ReadClock(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.WriteClock(t.Context(), 0, c, rev); err != nil {
			t.Fatal(err)
		}
	}
	look, err := store.Look(nc, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(look.Close)
	check := func(what string, tick int64, keys int) {
		t.Helper()
		if err := look.IndexRestored(t.Context()); err != nil {
			t.Fatal(err)
		}
		load, err := s.LoadTicks(t.Context(), 0, []int64{tick}, 1000, 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		found := map[schemas.TimerID]bool{}
		for _, tm := range load.Timers {
			if found[tm.ID] = true; !want[tm.ID] {
				t.Errorf("%s: a %s timer has an entry", what, tm.Record.State)
			}
		}
		if n, _ := entries(t, s, 0); n != keys || len(found) != len(want) {
			t.Errorf("%s: %d entries in all, and %d timers in the tick; want %d and %d", what, n, len(found), keys, len(want))
		}
	}
	// The tick before the low watermark, of which the sweeper is a minute behind.
	watermark := g.Tick(now)
	clock(store.Clock{TimeMs: g.TickStart(watermark), SweptMs: now - 60_000})
	check("the sweeper is behind the low watermark", watermark-1, 2)
	clock(store.Clock{TimeMs: g.TickStart(watermark), SweptMs: g.TickStart(watermark + 20)})
	check("the sweeper is ahead of the low watermark", watermark+20, 4)
	// Nobody knows where the owner was: the records get entries in some tick.
	storetest.Overwrite(t, s, "KV_clock", "clock.0", []byte("damaged"))
	if err := look.IndexRestored(t.Context()); err != nil {
		t.Errorf("with a damaged clock: %v", err)
	}
	if _, named := entries(t, s, 0); named != 3*len(want) {
		t.Errorf("with a damaged clock: entries name %d timers in all, want %d", named, 3*len(want))
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), "$KV.timers_0.slot.>")
	if err != nil {
		t.Fatal(err)
	}
	if ttl, err := time.ParseDuration(m.Header.Get(jetstream.MsgTTLHeader)); err != nil || ttl < 6*24*time.Hour || ttl > 8*24*time.Hour {
		t.Errorf("an entry lasts for %s (%v), want a week", ttl, err)
	}
}
