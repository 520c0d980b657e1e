package store_test

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestReindex: an owner writes index entries for the timers whose entries, far entries or marks expire
// before or soon after the timers are due, and for no others.
func TestReindex(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	// A store that keeps entries for a second stands for writers whose clock was ahead.
	short := open(t, nc, func(c *store.Config) { c.Node, c.IndexKeep = "n2", time.Second })
	waittest.Until(t, "far entries to be written", func() bool { return s.SharesFar() && short.SharesFar() })
	g, now := s.Geometry(), storetest.NowMs(t, s)
	ids := storetest.IDsOf(g, 0, 300)
	soon := g.Tick(now + time.Hour.Milliseconds())
	far := storetest.FarPeriod(g, now)
	create := func(s *store.Store, n int, tick, step int64) {
		t.Helper()
		var writes []store.Write
		for i, id := range ids[:n] {
			writes = append(writes, storetest.Far(g, id, tick+int64(i)*step, now))
		}
		ids = ids[n:]
		storetest.CreateAll(t, s, writes)
	}
	hour := int64(time.Hour / g.SlotWidth)
	create(s, 20, soon, 0)
	create(s, 5, far, 1)
	create(s, 5, far+hour-20, 1)
	if n, err := s.Reindex(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("entries that last long enough: %d written, %v", n, err)
	}
	create(short, 10, soon, 0)
	create(short, 10, far+2*hour-20, 1)
	if n, err := s.Reindex(t.Context(), 0); n != 20 || err != nil {
		t.Errorf("20 timers whose entries expire early: %d written, %v", n, err)
	}
	if n, err := s.Reindex(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("again: %d written, %v", n, err)
	}
	create(short, 10, far, 1) // lasts until the end of the period, as the mark does now
	if n, err := s.Reindex(t.Context(), 0); n != 5 || err != nil {
		t.Errorf("5 timers of the last ticks of a period whose mark expires early: %d written, %v", n, err)
	}
}
