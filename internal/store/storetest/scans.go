package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// This file exercises readings of a whole shard, and of ticks with many timers.

// largeTick: a tick has more timers than one answer holds. together is the number of timers
// that are added with one call.
func largeTick(t *testing.T, s Store, together int) {
	const n = 3500
	g := s.Geometry()
	due := NowMs(t, s) + 10_000
	tick := g.Tick(due)
	var writes []store.Write
	for _, id := range IDsOf(g, 0, n) {
		writes = append(writes, store.Write{ID: id, Record: Pending(g.TickStart(tick))})
	}
	var last uint64
	for part := range slices.Chunk(writes, together) {
		last = slices.Max(CreateAll(t, s, part))
	}
	load := must[store.Load](t)(s.LoadTicks(t.Context(), 0, []int64{tick, tick + 1}, 1000, 0, 0, nil))
	if load.Complete || len(load.Timers) != 0 {
		t.Fatalf("two ticks with too many timers: complete %v, %d timers", load.Complete, len(load.Timers))
	}
	if got := loadAll(t, s, 0, []int64{tick}, last); len(got) != n {
		t.Fatalf("loaded %d of %d timers", len(got), n)
	}
	if got := loadAll(t, s, 0, []int64{tick + 1}, 0); len(got) != 0 {
		t.Fatalf("loaded %d timers of the next tick, which has none", len(got))
	}
}

// largeTickRuns: a tick has more runs of one schedule than one answer holds. Their ids have
// the first half in common.
func largeTickRuns(t *testing.T, s Store) {
	const n = 1100
	if s, ok := s.(interface{ SharesIndex() bool }); ok {
		waittest.Until(t, "entries to be shared", s.SharesIndex)
	}
	g := s.Geometry()
	schedule := IDOf(g, 0, 1)
	tick := g.Tick(NowMs(t, s) + 10_000)
	write := func(run uint32, due int64) store.Write {
		rec := Delivered(*Pending(g.TickStart(due)))
		rec.Callback, rec.Origin = "nats:x", &schemas.Origin{Schedule: schedule}
		return store.Write{ID: schemas.RunTimer(schedule, run), Record: rec}
	}
	for run := range uint32(n / 2) {
		CreateAll(t, s, []store.Write{write(run, tick)})
	}
	// Each of the others is created in another tick, and gets an entry of its own in this one.
	var others []store.Write
	for run := range uint32(n - n/2) {
		others = append(others, write(n/2+run, tick+1))
	}
	CreateAll(t, s, others)
	for _, w := range others {
		if err := s.PutIndex(t.Context(), w.ID, tick); err != nil {
			t.Fatal(err)
		}
	}
	if got := loadAll(t, s, 0, []int64{tick}, 0); len(got) != n {
		t.Errorf("loaded %d of %d runs", len(got), n)
	}
}

func scanQueued(t *testing.T, s Store) {
	g := s.Geometry()
	now := NowMs(t, s)
	ids := IDsOf(g, 0, 6)
	records := []*schemas.Record{
		Pending(now + 1000), Pending(now + 90_000), Delivered(*Pending(now + 1000)), Success(*Pending(now + 1000)),
		Pending(now + 2000), Pending(now - 5000),
	}
	for i, r := range records {
		w := store.Write{ID: ids[i], Record: r}
		if r.State.Final() {
			w.TTL = time.Hour
		}
		CreateAll(t, s, []store.Write{w})
	}
	retrying := *records[4]
	retrying.State, retrying.Queued = schemas.StateRetrying, false // a short retry does not wait in the wheel
	got := must[store.Timer](t)(s.Get(t.Context(), ids[4]))
	must[uint64](t)(s.Update(t.Context(), store.Write{ID: ids[4], Rev: got.Rev, Record: &retrying}))
	found := map[schemas.TimerID]bool{}
	scan := func() {
		t.Helper()
		clear(found)
		err := s.ScanQueued(t.Context(), 0, now+10_000, func(tm store.Timer) error {
			found[tm.ID] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	scan()
	// The last timer is due before the low watermark, but its revision is after the applied
	// offset.
	if len(found) != 3 || !found[ids[0]] || !found[ids[2]] || !found[ids[5]] {
		t.Fatalf("the scan found %v; want timers 0, 2 and 5", found)
	}
	c, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Tail = must[uint64](t)(s.LastSeq(t.Context(), 0))
	must[uint64](t)(s.WriteClock(t.Context(), 0, c, rev))
	scan()
	if len(found) != 2 || found[ids[5]] {
		t.Fatalf("with all records up to the applied offset: found %v", found)
	}
	stop := errors.New("stop")
	if err := s.ScanQueued(t.Context(), 0, now+10_000, func(store.Timer) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("%v; want the error of the function", err)
	}
}

// scanSchedules: a scan returns each schedule whose last run was claimed after the shard's
// clock was written, whatever its state is and whenever it is due.
func scanSchedules(t *testing.T, s Store) {
	g := s.Geometry()
	now := NowMs(t, s)
	const far = 3_600_000
	schedule := func(last schemas.LastRun, state schemas.State) *schemas.Record {
		r := Pending(now + far)
		r.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Every: "1h"}}
		r.Schedule.Last = last
		r.State, r.Queued = state, state == schemas.StatePending
		return r
	}
	const applied = 1000 // after all revisions
	past, later := now-60_000, now+5000
	tests := []struct {
		name  string
		last  schemas.LastRun
		state schemas.State
		found bool
	}{
		{"never fired", schemas.LastRun{}, schemas.StatePending, false},
		{"fired before the clock", schemas.LastRun{Run: 7, DueMs: past, Before: applied}, schemas.StatePending, false},
		{"due tick after the clock", schemas.LastRun{Run: 7, DueMs: later, Before: 1}, schemas.StatePending, true},
		{"claim after the applied offset", schemas.LastRun{Run: 7, DueMs: past, Before: applied + 1}, schemas.StatePending, true},
		{"paused since", schemas.LastRun{Run: 7, DueMs: later, Before: 1}, schemas.StatePaused, true},
		{"cancelled since", schemas.LastRun{Run: 7, DueMs: later, Before: 1}, schemas.StateCancelled, true},
		{"last run", schemas.LastRun{Run: 7, DueMs: later, Before: 1}, schemas.StateDelivered, true},
		{"last run before the clock", schemas.LastRun{Run: 7, DueMs: past, Before: 1}, schemas.StateCompleted, false},
	}
	ids := IDsOf(g, 0, len(tests))
	for i, test := range tests {
		w := store.Write{ID: ids[i], Record: schedule(test.last, test.state)}
		if test.state.Final() {
			w.TTL = time.Hour
		}
		CreateAll(t, s, []store.Write{w})
	}
	c, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Tail = applied
	must[uint64](t)(s.WriteClock(t.Context(), 0, c, rev))
	found := map[schemas.TimerID]schemas.LastRun{}
	if err := s.ScanQueued(t.Context(), 0, now+10_000, func(tm store.Timer) error {
		found[tm.ID] = tm.Record.Schedule.Last
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, test := range tests {
		if last, ok := found[ids[i]]; ok != test.found || ok && last != test.last {
			t.Errorf("%s: found %v, claim %+v", test.name, ok, last)
		}
	}
}

// eachSchedule: EachSchedule finds the schedules of a shard that are pending or paused, in
// stream order, from a sequence on, until its caller has enough.
func eachSchedule(t *testing.T, s Store) {
	g := s.Geometry()
	now := NowMs(t, s)
	const far = 3_600_000
	states := []schemas.State{schemas.StatePending, schemas.StatePaused, schemas.StateDelivered, schemas.StateCompleted, schemas.StatePending, schemas.StatePending}
	ids := IDsOf(g, 0, len(states)+1)
	var want []schemas.TimerID
	for i, state := range states {
		r := Pending(now + far)
		r.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Every: "1h"}}
		r.State, r.Queued = state, state == schemas.StatePending
		w := store.Write{ID: ids[i], Record: r}
		if state.Final() {
			w.TTL = time.Hour
		}
		CreateAll(t, s, []store.Write{w})
		if state == schemas.StatePending || state == schemas.StatePaused {
			want = append(want, ids[i])
		}
	}
	CreateAll(t, s, []store.Write{{ID: ids[len(states)], Record: Pending(now + far)}}) // no schedule
	var all []store.Timer
	each := func(after uint64, limit int) (found []schemas.TimerID) {
		t.Helper()
		err := s.EachSchedule(t.Context(), 0, after, func(tm store.Timer) (bool, error) {
			found, all = append(found, tm.ID), append(all, tm)
			return len(found) < limit, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if got := each(0, 100); !slices.Equal(got, want) {
		t.Fatalf("found %v; want %v", got, want)
	}
	if got := each(all[0].Rev, 2); !slices.Equal(got, want[1:3]) {
		t.Errorf("two after the first: %v; want %v", got, want[1:3])
	}
	// A record that changes moves to the end.
	all[0].Record.Schedule = all[0].Record.Schedule.Clone()
	all[0].Record.Schedule.Fired = 1
	must[uint64](t)(s.Update(t.Context(), store.Write{ID: want[0], Rev: all[0].Rev, Record: &all[0].Record}))
	if got := each(0, 100); !slices.Equal(got, append(slices.Clone(want[1:]), want[0])) {
		t.Errorf("after a change: %v", got)
	}
	stop := errors.New("stop")
	if err := s.EachSchedule(t.Context(), 0, 0, func(store.Timer) (bool, error) { return false, stop }); !errors.Is(err, stop) {
		t.Errorf("%v; want the error of the function", err)
	}
}
