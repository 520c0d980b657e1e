package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// FarPeriod returns the first tick of an hour that begins in three to four hours.
func FarPeriod(g schemas.Geometry, nowMs int64) int64 {
	hour := int64(time.Hour / g.SlotWidth)
	return (g.Tick(nowMs)/hour + 4) * hour
}

// Far returns the write of a new timer that is due at the beginning of a tick.
func Far(g schemas.Geometry, id schemas.TimerID, tick, nowMs int64) store.Write {
	r := Pending(g.TickStart(tick))
	r.AddedMs = nowMs
	return store.Write{ID: id, Record: r}
}

// farTimers: timers of many ticks of one hour, which are due in hours, are loaded with their ticks. So are timers
// added after the first load of a tick of that hour.
func farTimers(t *testing.T, s Store) {
	if s, ok := s.(interface{ SharesFar() bool }); ok {
		waittest.Until(t, "far entries to be written", s.SharesFar)
	}
	g, now := s.Geometry(), NowMs(t, s)
	first := FarPeriod(g, now)
	want := map[int64]map[schemas.TimerID]bool{}
	ids, next := IDsOf(g, 0, 600), 0
	add := func(n int, tickOf func(i int) int64) (last uint64) {
		t.Helper()
		var writes []store.Write
		for i := range n {
			id, tick := ids[next], tickOf(i)
			next++
			writes = append(writes, Far(g, id, tick, now))
			if want[tick] == nil {
				want[tick] = map[schemas.TimerID]bool{}
			}
			want[tick][id] = true
		}
		return slices.Max(CreateAll(t, s, writes))
	}
	check := func(seen uint64, ticks ...int64) {
		t.Helper()
		got := loadAll(t, s, 0, ticks, seen)
		n := 0
		for _, tick := range ticks {
			for id := range want[tick] {
				if tm, ok := got[id]; !ok || g.Tick(tm.Record.DueMs) != tick {
					t.Fatalf("tick %+d: timer %s is not loaded", tick-first, id)
				}
				n++
			}
		}
		if len(got) != n {
			t.Fatalf("loaded %d timers of ticks %v; want %d", len(got), ticks, n)
		}
	}
	last := add(300, func(i int) int64 { return first - 25 + int64(i%50) }) // of two hours
	check(last, first-1, first, first+1)
	check(last, first-40, first+40)
	last = add(200, func(i int) int64 { return first + int64(i%20) })
	check(last, first-1, first, first+1)
	last = add(3, func(i int) int64 { return first + int64(i) })
	check(last, first, first+1, first+2)

	// A moved timer is found in its new tick. Its far entry still names it.
	var id schemas.TimerID
	for id = range want[first] {
		break
	}
	tm := must[store.Timer](t)(s.Get(t.Context(), id))
	tm.Record.DueMs = g.TickStart(first + 100)
	rev := must[uint64](t)(s.Update(t.Context(), store.Write{ID: id, Rev: tm.Rev, Record: &tm.Record}))
	delete(want[first], id)
	if got := loadAll(t, s, 0, []int64{first}, rev); len(got) != len(want[first])+1 {
		t.Errorf("loaded %d timers of a tick with %d and a moved timer", len(got), len(want[first]))
	}
	want[first+100] = map[schemas.TimerID]bool{id: true}
	check(rev, first+100)
}

// farLargeTick: a tick has more timers in far entries than one answer holds.
func farLargeTick(t *testing.T, s Store) {
	const n = 2600
	if s, ok := s.(interface{ SharesFar() bool }); ok {
		waittest.Until(t, "far entries to be written", s.SharesFar)
	}
	g, now := s.Geometry(), NowMs(t, s)
	tick := FarPeriod(g, now) + 7
	var writes []store.Write
	for i, id := range IDsOf(g, 0, n) {
		// Every tenth is due in another tick.
		writes = append(writes, Far(g, id, tick+int64(i%10/9), now))
	}
	var last uint64
	for part := range slices.Chunk(writes, 200) {
		last = slices.Max(CreateAll(t, s, part))
	}
	if got := loadAll(t, s, 0, []int64{tick}, last); len(got) != n*9/10 {
		t.Fatalf("loaded %d of %d timers", len(got), n*9/10)
	}
	if got := loadAll(t, s, 0, []int64{tick + 1}, last); len(got) != n/10 {
		t.Fatalf("loaded %d of %d timers of the next tick", len(got), n/10)
	}
}
