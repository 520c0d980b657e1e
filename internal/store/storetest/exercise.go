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
		"DeadLetters":     deadLetters,
		"CancelledCalls":  cancelledCalls,
		"LastIsTheNewest": lastIsTheNewest,
		"Behind":          behind,
		"Cluster":         cluster,
		"Repeated":        repeated,
		"Stamps":          stamps,
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
	t.Run("FiredLeaves", func(t *testing.T) {
		t.Parallel()
		firedLeaves(t, open(t, func(c *store.Config) { c.FiredMaxAge, c.DedupWindow = 2*time.Second, time.Second }))
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
		t.Fatalf("got %+v", got)
	}
	if got.StoredMs == 0 {
		t.Fatal("the leader's timestamp is missing")
	}
	if _, err := s.Get(t.Context(), ID(2)); !errors.Is(err, schemas.ErrNotFound) {
		t.Fatalf("get of an absent timer: %v", err)
	}
}

func compareAndSet(t *testing.T, s Store) {
	r := Pending(NowMs(t, s) + 5000)
	rev := CreateAll(t, s, []store.Write{{ID: ID(1), Record: r}})[0]
	next := must[uint64](t)(s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Delivered(*r)}))
	if next <= rev {
		t.Fatalf("revision %d after %d", next, rev)
	}
	if _, err := s.Update(t.Context(), store.Write{ID: ID(1), Rev: rev, Record: Success(*r), TTL: time.Hour}); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("stale update: %v", err)
	}
	if _, err := s.Update(t.Context(), store.Write{ID: ID(7), Rev: rev, Record: Success(*r), TTL: time.Hour}); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("update of an absent timer: %v", err)
	}
	got := must[store.Timer](t)(s.Get(t.Context(), ID(1)))
	if got.Rev != next || got.Record.State != schemas.StateDelivered {
		t.Fatalf("got %+v", got)
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
		t.Fatalf("got %+v", got)
	}
	Eventually(t, "the record to expire", func() bool {
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
	load := must[store.Load](t)(s.LoadTicks(t.Context(), shard, ticks, 1000, 0, seen))
	if !load.Complete {
		t.Fatal("incomplete")
	}
	for {
		for _, tm := range load.Timers {
			got[tm.ID] = tm
		}
		if load.Next == 0 {
			return got
		}
		load = must[store.Load](t)(s.LoadTicks(t.Context(), shard, ticks, 1000, load.Next, seen))
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
		t.Fatalf("loaded %+v", got)
	}
	if got := loadAll(t, s, 1, []int64{tick}, 0); len(got) != 0 {
		t.Fatalf("other shard: %+v", got)
	}
	// LoadTicks ignores an index entry without a record.
	if err := s.PutIndex(t.Context(), other, tick); err != nil {
		t.Fatal(err)
	}
	if got := loadAll(t, s, 0, []int64{tick}, 0); len(got) != 1 {
		t.Fatalf("loaded %+v", got)
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
		t.Fatalf("loaded %d of %d", len(got), len(ids))
	}
	due := 0
	for _, tm := range got {
		if g.Tick(tm.Record.DueMs) == tick {
			due++
		}
	}
	if due != 1 {
		t.Fatalf("%d are due in the tick", due)
	}
}

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
	load := must[store.Load](t)(s.LoadTicks(t.Context(), 0, []int64{tick, tick + 1}, 1000, 0, 0))
	if load.Complete || len(load.Timers) != 0 {
		t.Fatalf("two ticks with too many timers: complete %v, %d timers", load.Complete, len(load.Timers))
	}
	if got := loadAll(t, s, 0, []int64{tick}, last); len(got) != n {
		t.Fatalf("loaded %d of %d", len(got), n)
	}
	if got := loadAll(t, s, 0, []int64{tick + 1}, 0); len(got) != 0 {
		t.Fatalf("next tick: loaded %d", len(got))
	}
}

// largeTickRuns: a tick has more runs of one schedule than one answer holds. Their ids have
// the first half in common.
func largeTickRuns(t *testing.T, s Store) {
	const n = 1100
	if s, ok := s.(interface{ SharesIndex() bool }); ok {
		Eventually(t, "entries to be shared", s.SharesIndex)
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
		t.Errorf("loaded %d of %d", len(got), n)
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
		t.Fatalf("found %v", found)
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
		t.Fatalf("error of fn: %v", err)
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

// cancelledCalls: a call whose context has ended returns the context's error.
func cancelledCalls(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range map[string]func() error{
		"get":    func() error { _, err := s.Get(ctx, ID(1)); return err },
		"update": func() error { _, err := s.Update(ctx, store.Write{ID: ID(1), Record: Pending(1)}); return err },
		"create": func() error { return s.Create(ctx, []store.Write{{ID: ID(1), Record: Pending(1)}})[0].Err },
		"load":   func() error { _, err := s.LoadTicks(ctx, 0, []int64{1}, 10, 0, 0); return err },
		"list":   func() error { _, err := s.List(ctx, store.ListQuery{}); return err },
		"clock":  func() error { _, _, err := s.ReadClock(ctx, 0); return err },
		"beat":   func() error { _, err := s.Beat(ctx); return err },
	} {
		if err := f(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
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
	Eventually(t, "the older revisions to go", func() bool {
		p := must[store.ListPage](t)(s.List(t.Context(), store.ListQuery{}))
		return len(p.Timers) == 1 && p.Timers[0].Rev == rev
	})
}
