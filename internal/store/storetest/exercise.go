package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// Geometry is the geometry of the stores in the suite. Its wheel is so small that timers of
// several revolutions share a slot.
var Geometry = schemas.Geometry{Shards: 2, SlotWidth: 100 * time.Millisecond, WheelSize: 64}

// Exercise runs the suite. open must return an empty store of Geometry, with a configuration
// changed by change, and close it at the end of the test.
func Exercise(t *testing.T, open func(t *testing.T, change ...func(*store.Config)) Store) {
	for name, f := range map[string]func(*testing.T, Store){
		"CreateTwice":     createTwice,
		"GetAsOf":         getAsOf,
		"GetNewest":       getNewest,
		"CompareAndSet":   compareAndSet,
		"Race":            race,
		"UpdateAsync":     updateAsync,
		"Expiry":          expiry,
		"OnlyFinalExpire": onlyFinalExpire,
		"LargeAnswers":    largeAnswers,
		"Index":           index,
		"Revolutions":     revolutions,
		"LargeTick":       func(t *testing.T, s Store) { largeTick(t, s, 3500) },
		"LargeTickSingly": func(t *testing.T, s Store) { largeTick(t, s, 1) },
		"LargeTickMixed":  func(t *testing.T, s Store) { largeTick(t, s, 3) },
		"LargeTickRuns":   largeTickRuns,
		"SharedEntries":   sharedEntries,
		"FarTimers":       farTimers,
		"FarLargeTick":    farLargeTick,
		"ScanQueued":      scanQueued,
		"ScanSchedules":   scanSchedules,
		"EachSchedule":    eachSchedule,
		"Tail":            tail,
		"List":            list,
		"PublishTwice":    publishTwice,
		"Fired":           fired,
		"Clock":           clock,
		"DamagedClock":    damagedClock,
		"DamagedRecord":   damagedRecord,
		"DamageReport":    damageReport,
		"Beat":            beat,
		"Services":        services,
		"FlowStates":      flowStates,
		"DeadLetters":     deadLetters,
		"CancelledCalls":  cancelledCalls,
		"LastIsTheNewest": lastIsTheNewest,
		"Behind":          behind,
		"Cluster":         cluster,
		"Repeated":        repeated,
		"Stamps":          stamps,
		"Calendars":       calendars,
		"CalendarRace":    calendarRace,
		"CalendarLimits":  calendarLimits,
		"CalendarDamage":  calendarDamage,
		"CalendarInForce": calendarInForce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open(t))
		})
	}
	t.Run("DedupWindow", func(t *testing.T) {
		t.Parallel()
		dedupWindow(t, open(t, func(c *store.Config) { c.DedupWindow = time.Second }))
	})
	t.Run("Refusals", func(t *testing.T) {
		t.Parallel()
		refusals(t, open(t, func(c *store.Config) { c.MaxPayload = smallMessage }))
	})
	t.Run("Letters", func(t *testing.T) {
		t.Parallel()
		letters(t, open(t, func(c *store.Config) { c.MaxPayload = smallMessage }))
	})
	t.Run("IndexExpiry", func(t *testing.T) {
		t.Parallel()
		indexExpiry(t, open(t, func(c *store.Config) { c.IndexKeep = time.Second }))
	})
	t.Run("IndexOfAddAhead", func(t *testing.T) {
		t.Parallel()
		indexOfAddAhead(t, open(t, func(c *store.Config) { c.IndexKeep = time.Second }))
	})
	t.Run("FiredLeaves", func(t *testing.T) {
		t.Parallel()
		firedLeaves(t, open(t, func(c *store.Config) {
			c.FiredMaxAge, c.DedupWindow = 2*time.Second, time.Second
			c.Timeout = store.DefaultTimeout // a read waits that long for an event that leaves the stream meanwhile
		}))
	})
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func createTwice(t *testing.T, s Store) {
	due := NowMs(t, s) + 5000
	w := store.Write{ID: ID(1), Record: Pending(due)}
	rev := CreateAll(t, s, []store.Write{w})[0]
	if err := s.Create(t.Context(), []store.Write{w})[0].Err; !errors.Is(err, store.ErrRevision) {
		t.Fatalf("second create: %v; want ErrRevision", err)
	}
	got := must[store.Timer](t)(s.Get(t.Context(), ID(1)))
	if got.Rev != rev || got.ID != ID(1) || got.Record.DueMs != due || string(got.Record.Body.Data) != string(w.Record.Body.Data) {
		t.Fatalf("the stored record is %+v", got)
	}
	if got.StoredMs == 0 {
		t.Fatal("the leader's timestamp is missing")
	}
	if _, err := s.Get(t.Context(), ID(2)); !errors.Is(err, schemas.ErrNotFound) {
		t.Fatalf("get of an absent timer: %v; want ErrNotFound", err)
	}
}

// getAsOf: GetAsOf gives no answer that is older than the revision that the caller knows.
func getAsOf(t *testing.T, s Store) {
	g := s.Geometry()
	id, absent := IDOf(g, 0, 0), IDOf(g, 0, 1)
	r := Pending(NowMs(t, s) + 5000)
	first := CreateAll(t, s, []store.Write{{ID: id, Record: r}})[0]
	last := must[uint64](t)(s.Update(t.Context(), store.Write{ID: id, Rev: first, Record: Delivered(*r)}))
	const ahead = 1000
	for _, c := range []struct {
		id   schemas.TimerID
		rev  uint64
		want error
	}{
		{id, 0, nil}, {id, first, nil}, {id, last, nil}, {id, last + ahead, store.ErrBehind},
		{absent, 0, schemas.ErrNotFound}, {absent, last, schemas.ErrNotFound}, {absent, last + ahead, store.ErrBehind},
	} {
		got, err := s.GetAsOf(t.Context(), c.id, c.rev)
		if !errors.Is(err, c.want) || c.want == nil && (got.Rev != last || got.Record.State != schemas.StateDelivered) {
			t.Errorf("timer %s as of %d: %+v, %v; want error %v", c.id, c.rev, got, err, c.want)
		}
		if errors.Is(c.want, store.ErrBehind) && !errors.Is(err, schemas.ErrUnavailable) {
			t.Errorf("timer %s as of %d: %v; want ErrUnavailable", c.id, c.rev, err)
		}
	}
}

// getNewest: GetNewest sees every write that was acknowledged before the call, also if many calls read at the same time.
func getNewest(t *testing.T, s Store) {
	g := s.Geometry()
	absent := IDOf(g, 0, 100)
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			id := IDOf(g, 0, n)
			r := Pending(NowMs(t, s) + 5000)
			res := s.Create(t.Context(), []store.Write{{ID: id, Record: r}})[0]
			for range 3 {
				if res.Err != nil {
					t.Errorf("write of timer %s: %v", id, res.Err)
					return
				}
				if got, err := s.GetNewest(t.Context(), id); err != nil || got.Rev != res.Rev {
					t.Errorf("timer %s: revision %d, %v; want %d", id, got.Rev, err, res.Rev)
				}
				if _, err := s.GetNewest(t.Context(), absent); !errors.Is(err, schemas.ErrNotFound) {
					t.Errorf("an absent timer: %v", err)
				}
				res.Rev, res.Err = s.Update(t.Context(), store.Write{ID: id, Rev: res.Rev, Record: r})
			}
		})
	}
	wg.Wait()
}

func compareAndSet(t *testing.T, s Store) {
	r := Pending(NowMs(t, s) + 5000)
	rev := CreateAll(t, s, []store.Write{{ID: ID(1), Record: r}})[0]
	next := must[uint64](t)(s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Delivered(*r)}))
	if next <= rev {
		t.Fatalf("revision %d after %d", next, rev)
	}
	if _, err := s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Success(*r), TTL: time.Hour}); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("update of an old revision: %v; want ErrRevision", err)
	}
	if _, err := s.Update(t.Context(), store.Write{ID: ID(7), Rev: rev, Record: Success(*r), TTL: time.Hour}); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("update of an absent timer: %v; want ErrRevision", err)
	}
	got := must[store.Timer](t)(s.Get(t.Context(), ID(1)))
	if got.Rev != next || got.Record.State != schemas.StateDelivered {
		t.Fatalf("the stored record is %+v", got)
	}
}

// race: if 100 writers replace one revision, one succeeds.
func race(t *testing.T, s Store) {
	r := Pending(NowMs(t, s) + 5000)
	rev := CreateAll(t, s, []store.Write{{ID: ID(1), Record: r}})[0]
	for round := range 5 {
		var won atomic.Int64
		var winner atomic.Uint64
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				next, err := s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Delivered(*r)})
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(next)
				case !errors.Is(err, store.ErrRevision):
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d writers won", round, won.Load())
		}
		rev = winner.Load()
	}
}

func updateAsync(t *testing.T, s Store) {
	const n = 500
	r := Pending(NowMs(t, s) + 5000)
	writes := make([]store.Write, n)
	for i := range writes {
		writes[i] = store.Write{ID: ID(i), Record: r}
	}
	revs := CreateAll(t, s, writes)
	var calls [n]atomic.Int32
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		s.UpdateAsync(store.Write{ID: ID(i), Rev: revs[i], Record: Delivered(*r)}, func(res store.Result) {
			if res.Err != nil || res.Rev <= revs[i] {
				t.Errorf("update %d: %+v", i, res)
			}
			calls[i].Add(1)
			wg.Done()
		})
	}
	wg.Wait()
	for i := range calls {
		if c := calls[i].Load(); c != 1 {
			t.Fatalf("done of %d was called %d times", i, c)
		}
	}
}

func expiry(t *testing.T, s Store) {
	r := Pending(NowMs(t, s))
	w := store.Write{ID: ID(1), Record: r}
	rev := CreateAll(t, s, []store.Write{w})[0]
	rev = must[uint64](t)(s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Delivered(*r)}))
	must[uint64](t)(s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Success(*r), TTL: time.Second}))
	if got := must[store.Timer](t)(s.Get(t.Context(), ID(1))); got.Record.State != schemas.StateSuccess {
		t.Fatalf("the stored record is %+v", got)
	}
	waittest.Until(t, "the record to expire", func() bool {
		_, err := s.Get(t.Context(), ID(1))
		return errors.Is(err, schemas.ErrNotFound)
	})
	// After the expiry the timer can be added again.
	CreateAll(t, s, []store.Write{w})
}

// onlyFinalExpire: a write of a record that is not final with a TTL, or of a final record
// without one, is refused and changes nothing.
func onlyFinalExpire(t *testing.T, s Store) {
	due := NowMs(t, s) + 3_600_000
	r := Pending(due)
	rev := CreateAll(t, s, []store.Write{{ID: ID(1), Record: r}})[0]
	retrying, cancelled, paused := *Delivered(*r), *r, *r
	retrying.State = schemas.StateRetrying
	cancelled.State, cancelled.Queued, cancelled.Body = schemas.StateCancelled, false, schemas.Body{}
	paused.State = schemas.StatePaused
	moved := *r
	moved.DueMs, moved.Moves = due+1000, 1
	for _, c := range []struct {
		rec *schemas.Record
		ttl time.Duration
	}{{&moved, time.Hour}, {Delivered(*r), time.Hour}, {&retrying, time.Hour}, {&paused, time.Hour}, {Success(*r), 0}, {&cancelled, 0}} {
		if _, err := s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: c.rec, TTL: c.ttl}); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("update to %s with TTL %s: %v; want it refused", c.rec.State, c.ttl, err)
		}
	}
	if err := s.Create(t.Context(), []store.Write{{ID: ID(2), Record: r, TTL: time.Hour}})[0].Err; schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("create with a TTL: %v; want it refused", err)
	}
	if got := must[store.Timer](t)(s.Get(t.Context(), ID(1))); got.Rev != rev {
		t.Errorf("a refused write changed the record: %+v", got)
	}
}

// largeAnswers: a shard, and one of its ticks, has more bytes than one answer of the server
// may have. No record is missing where an answer ends.
func largeAnswers(t *testing.T, s Store) {
	const n, size = 40, 600_000 // 24 MB; an answer has 16 MiB
	g := s.Geometry()
	due := NowMs(t, s) + 60_000
	tick := g.Tick(due)
	data := make([]byte, size)
	var writes []store.Write
	for _, id := range IDsOf(g, 0, n) {
		r := Pending(g.TickStart(tick))
		r.Body = schemas.Body{Mode: schemas.ModeBinary, Data: data}
		writes = append(writes, store.Write{ID: id, Record: r})
	}
	for some := range slices.Chunk(writes, 10) { // records next to each other in the stream
		CreateAll(t, s, some)
	}
	found := map[schemas.TimerID]int{}
	all := func(what string) {
		t.Helper()
		for _, id := range IDsOf(g, 0, n) {
			if found[id] != 1 {
				t.Errorf("%s: timer %s was found %d times", what, id, found[id])
			}
		}
		clear(found)
	}
	for _, tm := range loadAll(t, s, 0, []int64{tick}, 0) {
		found[tm.ID]++
	}
	all("load of the tick")
	err := s.ScanQueued(t.Context(), 0, due+60_000, func(tm store.Timer) error {
		found[tm.ID]++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all("scan")
	for q := (store.ListQuery{Limit: 30}); ; {
		p := must[store.ListPage](t)(s.List(t.Context(), q))
		for _, tm := range p.Timers {
			found[tm.ID]++
		}
		if q.Cursor = p.Cursor; q.Cursor == "" {
			break
		}
	}
	all("list")
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan schemas.TimerID, n)
	tail := must[*store.Tail](t)(s.Tail(ctx, 0, 0, func(tm store.Timer) { seen <- tm.ID }))
	for range n {
		found[<-seen]++
	}
	stop()
	tail.Stop()
	all("tail")
	for i := range n {
		must[uint64](t)(publishes(t.Context(), s, store.Msg{Subject: schemas.SubjectDead("orders"), MsgID: IDsOf(g, 0, n)[i].String() + ".1.dead", Data: data}))
	}
	letters := 0
	for q := (store.DeadQuery{Limit: 35}); ; {
		p := must[store.DeadPage](t)(s.DeadList(t.Context(), q))
		letters += len(p.Letters)
		if q.Cursor = p.Cursor; q.Cursor == "" {
			break
		}
	}
	if letters != n {
		t.Errorf("%d of %d dead letters are listed", letters, n)
	}
}

func publishes(ctx context.Context, s Store, m store.Msg) (uint64, error) {
	seq, _, err := s.Publish(ctx, m)
	return seq, err
}

func loadAll(t *testing.T, s Store, shard int, ticks []int64, seen uint64) map[schemas.TimerID]store.Timer {
	t.Helper()
	got := map[schemas.TimerID]store.Timer{}
	load := must[store.Load](t)(s.LoadTicks(t.Context(), shard, ticks, 1000, 0, seen, nil))
	if !load.Complete {
		t.Fatal("the load is not complete")
	}
	for {
		for _, tm := range load.Timers {
			got[tm.ID] = tm
		}
		if load.Next == 0 {
			return got
		}
		load = must[store.Load](t)(s.LoadTicks(t.Context(), shard, ticks, 1000, load.Next, seen, nil))
	}
}

func index(t *testing.T, s Store) {
	g := s.Geometry()
	due := NowMs(t, s) + 3000
	id, other := IDOf(g, 0, 0), IDOf(g, 0, 1)
	r := Pending(due)
	rev := CreateAll(t, s, []store.Write{{ID: id, Record: r}})[0]
	tick := g.Tick(due)
	if got := loadAll(t, s, 0, []int64{tick - 1, tick, tick + 1}, rev); len(got) != 1 || got[id].Rev != rev {
		t.Fatalf("the tick's load has %+v; want only the stored timer", got)
	}
	if got := loadAll(t, s, 1, []int64{tick}, 0); len(got) != 0 {
		t.Fatalf("a load of the other shard has %+v; want nothing", got)
	}
	// LoadTicks ignores an index entry without a record.
	if err := s.PutIndex(t.Context(), other, tick); err != nil {
		t.Fatal(err)
	}
	if got := loadAll(t, s, 0, []int64{tick}, 0); len(got) != 1 {
		t.Fatalf("the tick's load has %+v; want only the stored timer", got)
	}
	// A moved timer is found in both ticks, with its present record.
	moved := *r
	moved.DueMs, moved.Moves = due+2000, 1
	rev = must[uint64](t)(s.Update(t.Context(), store.Write{ID: id, Rev: rev, Record: &moved}))
	for _, tk := range []int64{tick, g.Tick(moved.DueMs)} {
		if got := loadAll(t, s, 0, []int64{tk}, rev); len(got) != 1 || got[id].Rev != rev || got[id].Record.DueMs != moved.DueMs {
			t.Fatalf("tick %d: loaded %+v", tk, got)
		}
	}
	// More timers than one entry can name get entries in a tick other than that of their due
	// time. LoadTicks ignores an id without a record.
	ids := IDsOf(g, 1, 150)
	var writes []store.Write
	for _, id := range ids[1:] {
		writes = append(writes, store.Write{ID: id, Record: Pending(due)})
	}
	CreateAll(t, s, writes)
	for _, group := range [][]schemas.TimerID{ids, ids[1:2], nil} {
		if err := s.PutIndexes(t.Context(), tick+5, group); err != nil {
			t.Fatal(err)
		}
	}
	got := loadAll(t, s, 1, []int64{tick + 5}, 0)
	if len(got) != len(writes) {
		t.Fatalf("loaded %d timers of shared entries, want %d", len(got), len(writes))
	}
	for _, w := range writes {
		if got[w.ID].Record.DueMs != due {
			t.Fatalf("timer %s: loaded %+v, want the record due at %d", w.ID, got[w.ID], due)
		}
	}
}

// revolutions: a load of a tick returns the timers of all revolutions of the wheel that share
// its slot. The caller distinguishes them by their due time.
func revolutions(t *testing.T, s Store) {
	g := s.Geometry()
	now := NowMs(t, s)
	ids := IDsOf(g, 1, 4)
	var writes []store.Write
	for i, id := range ids {
		writes = append(writes, store.Write{ID: id, Record: Pending(now + 2000 + int64(i)*g.WheelSize*g.SlotWidth.Milliseconds())})
	}
	CreateAll(t, s, writes)
	tick := g.Tick(now + 2000)
	got := loadAll(t, s, 1, []int64{tick}, 0)
	if len(got) != len(ids) {
		t.Fatalf("loaded %d of %d timers that share the slot", len(got), len(ids))
	}
	due := 0
	for _, tm := range got {
		if g.Tick(tm.Record.DueMs) == tick {
			due++
		}
	}
	if due != 1 {
		t.Fatalf("%d of the loaded timers are due in the tick; want 1", due)
	}
}

// sharedEntries: timers that share index entries are found in their ticks, also after other
// timers of an entry were moved, and after timers were moved or added again.
func sharedEntries(t *testing.T, s Store) {
	g := s.Geometry()
	tick := g.Tick(NowMs(t, s) + 60_000)
	var writes []store.Write
	for n := range 300 { // of both shards and of three ticks, mixed
		writes = append(writes, store.Write{ID: ID(n), Record: Pending(g.TickStart(tick + int64(n/2%3)))})
	}
	CreateAll(t, s, writes)
	look := func(want map[int64]int) {
		t.Helper()
		for at, n := range want {
			got := 0
			for shard := range g.Shards {
				for _, tm := range loadAll(t, s, shard, []int64{at}, 0) {
					if g.Shard(tm.ID) != shard {
						t.Fatalf("timer %s found in shard %d", tm.ID, shard)
					}
					if g.Tick(tm.Record.DueMs) == at {
						got++
					}
				}
			}
			if got != n {
				t.Fatalf("tick %+d: found %d; want %d", at-tick, got, n)
			}
		}
	}
	look(map[int64]int{tick: 100, tick + 1: 100, tick + 2: 100})

	// Move one timer to another tick, and a second one to another tick and back.
	move := func(id schemas.TimerID, to int64) {
		t.Helper()
		tm := must[store.Timer](t)(s.Get(t.Context(), id))
		tm.Record.DueMs = g.TickStart(to)
		must[uint64](t)(s.Update(t.Context(), store.Write{ID: id, Rev: tm.Rev, Record: &tm.Record}))
	}
	move(ID(0), tick+2)
	move(ID(1), tick+2)
	move(ID(1), tick)
	look(map[int64]int{tick: 99, tick + 1: 100, tick + 2: 101})

	// Create the same timers again, with new ones: existing timers are refused, all others
	// are created.
	for n := 300; n < 320; n++ {
		writes = append(writes, store.Write{ID: ID(n), Record: Pending(g.TickStart(tick))})
	}
	for i, r := range s.Create(t.Context(), writes) {
		if (i < 300) != errors.Is(r.Err, store.ErrRevision) || i >= 300 && r.Err != nil {
			t.Fatalf("create of %d: %v", i, r.Err)
		}
	}
	look(map[int64]int{tick: 119, tick + 1: 100, tick + 2: 101})
}

// cancelledCalls: a call whose context has ended returns the context's error.
func cancelledCalls(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range map[string]func() error{
		"get":    func() error { _, err := s.Get(ctx, ID(1)); return err },
		"update": func() error { _, err := s.Update(ctx, store.Write{ID: ID(1), Record: Pending(1)}); return err },
		"create": func() error { return s.Create(ctx, []store.Write{{ID: ID(1), Record: Pending(1)}})[0].Err },
		"load":   func() error { _, err := s.LoadTicks(ctx, 0, []int64{1}, 10, 0, 0, nil); return err },
		"list":   func() error { _, err := s.List(ctx, store.ListQuery{}); return err },
		"clock":  func() error { _, _, err := s.ReadClock(ctx, 0); return err },
		"beat":   func() error { _, err := s.Beat(ctx); return err },
	} {
		if err := f(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v; want context.Canceled", name, err)
		}
	}
}

// lastIsTheNewest: after many changes of a record, every read returns its newest revision.
func lastIsTheNewest(t *testing.T, s Store) {
	g := s.Geometry()
	r := Pending(NowMs(t, s) + 3000)
	id := IDOf(g, 0, 0)
	rev := CreateAll(t, s, []store.Write{{ID: id, Record: r}})[0]
	for _, added := range []int64{r.AddedMs, 1} { // as for a young timer, and for an old one
		rec := Delivered(*r)
		rec.AddedMs = added
		for range 30 {
			rec.Attempt++
			rec.State = schemas.StateRetrying
			rev = must[uint64](t)(s.Update(t.Context(), store.Write{ID: id, Rev: rev, Record: rec}))
		}
	}
	if got := must[store.Timer](t)(s.Get(t.Context(), id)); got.Rev != rev {
		t.Fatalf("get: revision %d; want %d", got.Rev, rev)
	}
	if got := loadAll(t, s, 0, []int64{g.Tick(r.DueMs)}, rev); len(got) != 1 || got[id].Rev != rev {
		t.Fatalf("load: %+v", got)
	}
	waittest.Until(t, "the older revisions to go", func() bool {
		p := must[store.ListPage](t)(s.List(t.Context(), store.ListQuery{}))
		return len(p.Timers) == 1 && p.Timers[0].Rev == rev
	})
}
