package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Geometry is what the suite opens stores with: a wheel so small that timers of
// many revolutions share a slot.
var Geometry = schemas.Geometry{Shards: 2, SlotWidth: 100 * time.Millisecond, WheelSize: 64}

// Exercise runs the suite. open makes a store of Geometry that is empty, and ends
// with the test.
func Exercise(t *testing.T, open func(t *testing.T) Store) {
	for name, f := range map[string]func(*testing.T, Store){
		"CreateTwice":     createTwice,
		"CompareAndSet":   compareAndSet,
		"Race":            race,
		"UpdateAsync":     updateAsync,
		"Expiry":          expiry,
		"Index":           index,
		"Revolutions":     revolutions,
		"LargeTick":       largeTick,
		"ScanQueued":      scanQueued,
		"Tail":            tail,
		"List":            list,
		"PublishTwice":    publishTwice,
		"Fired":           fired,
		"Clock":           clock,
		"Beat":            beat,
		"Services":        services,
		"DeadLetters":     deadLetters,
		"CancelledCalls":  cancelledCalls,
		"LastIsTheNewest": lastIsTheNewest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open(t))
		})
	}
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
	many := must[[]store.Timer](t)(s.GetMany(t.Context(), []schemas.TimerID{ID(1), ID(2), ID(3)}))
	if len(many) != 1 || many[0].ID != ID(1) {
		t.Fatalf("get many: %+v", many)
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

// race has 100 writers replace one revision: one wins.
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
	// Nothing of it is left: it can be added again.
	CreateAll(t, s, []store.Write{w})
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
	// An entry without a record is noise.
	if err := s.PutIndex(t.Context(), other, tick); err != nil {
		t.Fatal(err)
	}
	if got := loadAll(t, s, 0, []int64{tick}, 0); len(got) != 1 {
		t.Fatalf("loaded %+v", got)
	}
	// A moved timer is found in both ticks, as what it is now.
	moved := *r
	moved.DueMs, moved.Moves = due+2000, 1
	rev = must[uint64](t)(s.Update(t.Context(), store.Write{ID: id, Rev: rev, Record: &moved}))
	for _, tk := range []int64{tick, g.Tick(moved.DueMs)} {
		if got := loadAll(t, s, 0, []int64{tk}, rev); len(got) != 1 || got[id].Rev != rev || got[id].Record.DueMs != moved.DueMs {
			t.Fatalf("tick %d: loaded %+v", tk, got)
		}
	}
}

// revolutions has timers of several revolutions of the wheel in one slot: a load
// finds all of them and the caller tells them apart by their due time.
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

func largeTick(t *testing.T, s Store) {
	const n = 3500
	g := s.Geometry()
	due := NowMs(t, s) + 10_000
	tick := g.Tick(due)
	var writes []store.Write
	for _, id := range IDsOf(g, 0, n) {
		writes = append(writes, store.Write{ID: id, Record: Pending(g.TickStart(tick))})
	}
	revs := CreateAll(t, s, writes)
	load := must[store.Load](t)(s.LoadTicks(t.Context(), 0, []int64{tick, tick + 1}, 1000, 0, 0))
	if load.Complete || len(load.Timers) != 0 {
		t.Fatalf("two ticks with too many timers: complete %v, %d timers", load.Complete, len(load.Timers))
	}
	if got := loadAll(t, s, 0, []int64{tick}, slices.Max(revs)); len(got) != n {
		t.Fatalf("loaded %d of %d", len(got), n)
	}
	if got := loadAll(t, s, 0, []int64{tick + 1}, 0); len(got) != 0 {
		t.Fatalf("next tick: loaded %d", len(got))
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
		CreateAll(t, s, []store.Write{{ID: ids[i], Record: r}})
	}
	retrying := *records[4]
	retrying.State, retrying.Queued = schemas.StateRetrying, false // a short retry is not the wheel's
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
	// The last is behind the clock's time, and not yet behind its tail.
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
		t.Fatalf("with the tail past all: found %v", found)
	}
	stop := errors.New("stop")
	if err := s.ScanQueued(t.Context(), 0, now+10_000, func(store.Timer) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("error of fn: %v", err)
	}
}

func tail(t *testing.T, s Store) {
	g := s.Geometry()
	due := NowMs(t, s) + 60_000
	ids := IDsOf(g, 0, 300)
	write := func(ids []schemas.TimerID) []uint64 {
		var writes []store.Write
		for _, id := range ids {
			writes = append(writes, store.Write{ID: id, Record: Pending(due)})
		}
		return CreateAll(t, s, writes)
	}
	revs := write(ids[:100])
	got := make(chan store.Timer, 1000)
	after := revs[49]
	tl := must[*store.Tail](t)(s.Tail(t.Context(), 0, after, func(tm store.Timer) { got <- tm }))
	revs = append(revs, write(ids[100:])...)
	last := must[uint64](t)(s.Update(t.Context(), store.Write{ID: ids[0], Rev: revs[0], Record: Delivered(*Pending(due))}))
	seq, n := after, 0
	for seq < last {
		select {
		case tm := <-got:
			if tm.Rev <= seq {
				t.Fatalf("revision %d after %d", tm.Rev, seq)
			}
			seq = tm.Rev
			n++
		case <-time.After(20 * time.Second):
			t.Fatalf("the tail stands at %d of %d", seq, last)
		}
	}
	if want := 300 - 50 + 1; n != want {
		t.Fatalf("%d records came; want %d", n, want)
	}
	tl.Stop()
	tl.Stop()
	write(IDsOf(g, 0, 301)[300:])
	if len(got) != 0 {
		t.Fatal("a stopped tail still delivers")
	}
}

func list(t *testing.T, s Store) {
	due := NowMs(t, s) + 60_000
	var writes []store.Write
	for i := range 250 {
		r := Pending(due)
		if i%5 == 0 {
			r.Service = "billing"
		}
		if i%50 == 0 {
			r.Group = "rare"
		}
		writes = append(writes, store.Write{ID: ID(i), Record: r})
	}
	revs := CreateAll(t, s, writes)
	for i := range 20 {
		must[uint64](t)(s.Update(t.Context(), store.Write{ID: ID(i), Rev: revs[i], Record: Success(*writes[i].Record), TTL: time.Hour}))
	}
	count := func(q store.ListQuery) int {
		t.Helper()
		seen := map[schemas.TimerID]bool{}
		for pages := 0; ; pages++ {
			p := must[store.ListPage](t)(s.List(t.Context(), q))
			for _, tm := range p.Timers {
				if seen[tm.ID] {
					t.Fatalf("%s twice", tm.ID)
				}
				seen[tm.ID] = true
			}
			if q.Limit > 0 && len(p.Timers) > q.Limit {
				t.Fatalf("a page of %d; the limit is %d", len(p.Timers), q.Limit)
			}
			if p.Cursor == "" {
				return len(seen)
			}
			if pages > 1000 {
				t.Fatal("the list does not end")
			}
			q.Cursor = p.Cursor
		}
	}
	for _, c := range []struct {
		q    store.ListQuery
		want int
	}{
		{store.ListQuery{}, 250},
		{store.ListQuery{Limit: 7}, 250},
		{store.ListQuery{Limit: 250}, 250},
		{store.ListQuery{States: []schemas.State{schemas.StateSuccess}}, 20},
		{store.ListQuery{States: []schemas.State{schemas.StateSuccess, schemas.StatePending}, Limit: 50}, 250},
		{store.ListQuery{Service: "billing", Limit: 3}, 50},
		{store.ListQuery{Group: "rare"}, 5},
		{store.ListQuery{Service: "billing", Group: "g", States: []schemas.State{schemas.StatePending}}, 42},
		{store.ListQuery{Service: "nobody"}, 0},
	} {
		if n := count(c.q); n != c.want {
			t.Errorf("%+v: %d; want %d", c.q, n, c.want)
		}
	}
	for _, q := range []store.ListQuery{{Limit: -1}, {Limit: store.MaxListLimit + 1}, {Cursor: "x"}, {Cursor: "99.1"}, {Cursor: "-1.1"}} {
		if _, err := s.List(t.Context(), q); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func publishTwice(t *testing.T, s Store) {
	m := func(id string) store.Msg {
		return store.Msg{Subject: schemas.SubjectFired("orders"), Header: nats.Header{"X": {"y"}}, Data: []byte("e"), MsgID: id}
	}
	seq, dup, err := s.Publish(t.Context(), m("a.1"))
	if err != nil || dup || seq == 0 {
		t.Fatalf("%d %v %v", seq, dup, err)
	}
	again, dup, err := s.Publish(t.Context(), m("a.1"))
	if err != nil || !dup || again != seq {
		t.Fatalf("again: %d %v %v", again, dup, err)
	}
	var wg sync.WaitGroup
	var stored atomic.Int64
	wg.Add(200)
	for i := range 200 {
		s.PublishAsync(m(fmt.Sprintf("b.%d", i/2)), func(_ uint64, dup bool, err error) {
			if err != nil {
				t.Error(err)
			}
			if !dup {
				stored.Add(1)
			}
			wg.Done()
		})
	}
	wg.Wait()
	if stored.Load() != 100 {
		t.Fatalf("%d were stored", stored.Load())
	}
	if _, _, err := s.Publish(t.Context(), store.Msg{Subject: "timers.nobody.listens"}); !errors.Is(err, schemas.ErrUnavailable) {
		t.Fatalf("publish without a stream: %v", err)
	}
}

func fired(t *testing.T, s Store) {
	first := must[time.Time](t)(s.FiredFirstTime(t.Context()))
	if !first.IsZero() {
		t.Fatalf("an empty stream's oldest event is of %s", first)
	}
	before := time.UnixMilli(NowMs(t, s) - 1)
	ids := map[string]struct{}{}
	for i := range 50 {
		for _, subject := range []string{schemas.SubjectFired("orders"), schemas.SubjectFired("billing"), schemas.SubjectRetry("orders")} {
			id := fmt.Sprintf("%s.%d", subject, i)
			if _, _, err := s.Publish(t.Context(), store.Msg{Subject: subject, MsgID: id, Data: []byte("e")}); err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				ids[id] = struct{}{}
			}
		}
	}
	ids["missing"] = struct{}{}
	if first = must[time.Time](t)(s.FiredFirstTime(t.Context())); first.Before(before) {
		t.Fatalf("oldest event of %s; published after %s", first, before)
	}
	subjects := []string{schemas.SubjectFired("orders"), schemas.SubjectRetry("orders")}
	start := time.Now()
	found := must[map[string]struct{}](t)(s.FiredSince(t.Context(), subjects, before, ids))
	if len(found) != 10 {
		t.Fatalf("found %d: %v", len(found), found)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Fatalf("took %s", took)
	}
	found = must[map[string]struct{}](t)(s.FiredSince(t.Context(), []string{schemas.SubjectFired("nobody")}, before, ids))
	if len(found) != 0 {
		t.Fatalf("found %v", found)
	}
}

func clock(t *testing.T, s Store) {
	now := NowMs(t, s)
	c, rev, err := s.ReadClock(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if c.Owner != "" || c.Epoch != 0 || c.Tail != 0 || c.TimeMs > now || c.TimeMs < now-60_000 {
		t.Fatalf("first clock: %+v at %d", c, now)
	}
	want := store.Clock{TimeMs: now, Owner: "a", Epoch: 1, Tail: 7, Seen: 8, SweptMs: 9, Pending: 10}
	next := must[uint64](t)(s.WriteClock(t.Context(), 1, want, rev))
	if _, err := s.WriteClock(t.Context(), 1, want, rev); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("stale write: %v", err)
	}
	got, rev, err := s.ReadClock(t.Context(), 1)
	want.Version = got.Version
	if err != nil || rev != next || got != want {
		t.Fatalf("%+v %d %v; want %+v %d", got, rev, err, want, next)
	}
	if other, _, err := s.ReadClock(t.Context(), 0); err != nil || other.Owner != "" {
		t.Fatalf("other shard: %+v %v", other, err)
	}
	if _, _, err := s.ReadClock(t.Context(), 99); !errors.Is(err, schemas.ErrNotFound) {
		t.Fatalf("clock of an absent shard: %v", err)
	}
}

func beat(t *testing.T, s Store) {
	var last store.Stamp
	for range 20 {
		st := must[store.Stamp](t)(s.Beat(t.Context()))
		if st.ServerNs < last.ServerNs || st.Received.Before(st.Sent) || st.Sent.Before(last.Received) {
			t.Fatalf("%+v after %+v", st, last)
		}
		last = st
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := s.Beat(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func services(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		if err := s.RegisterService(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	ch := must[<-chan string](t)(s.WatchServices(ctx))
	seen := map[string]bool{}
	wait := func(svc string) {
		t.Helper()
		for !seen[svc] {
			select {
			case got, ok := <-ch:
				if !ok {
					t.Fatal("the channel is closed")
				}
				seen[got] = true
			case <-time.After(20 * time.Second):
				t.Fatalf("service %s did not come", svc)
			}
		}
	}
	wait("a")
	if err := s.RegisterService(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	wait("b")
	for _, bad := range []string{"", "a.b", "*", ">", "ü", "a b"} {
		if err := s.RegisterService(ctx, bad); err == nil {
			t.Errorf("service %q was registered", bad)
		}
	}
	cancel()
	Eventually(t, "the channel to be closed", func() bool {
		select {
		case _, ok := <-ch:
			return !ok
		default:
			return false
		}
	})
}

func deadLetters(t *testing.T, s Store) {
	publish := func(subject, id string) uint64 {
		seq, _, err := s.Publish(t.Context(), store.Msg{Subject: subject, MsgID: id, Data: []byte(id)})
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	var seqs []uint64
	for i := range 30 {
		svc := []string{"orders", "billing", "mail"}[i%3]
		seqs = append(seqs, publish(schemas.SubjectDead(svc), ID(i).String()+".1.3.dead"))
	}
	publish(schemas.SubjectRejected, "add.1") // no dead letter
	count := func(q store.DeadQuery) (n int) {
		t.Helper()
		for {
			p := must[store.DeadPage](t)(s.DeadList(t.Context(), q))
			n += len(p.Letters)
			if p.Cursor == "" {
				return n
			}
			q.Cursor = p.Cursor
		}
	}
	for _, c := range []struct {
		q    store.DeadQuery
		want int
	}{
		{store.DeadQuery{}, 30}, {store.DeadQuery{Limit: 7}, 30}, {store.DeadQuery{Limit: 30}, 30}, {store.DeadQuery{Service: "mail", Limit: 4}, 10},
		{store.DeadQuery{TimerID: ID(4)}, 1}, {store.DeadQuery{Service: "orders", TimerID: ID(4)}, 0}, {store.DeadQuery{Service: "nobody"}, 0},
	} {
		if n := count(c.q); n != c.want {
			t.Errorf("%+v: %d; want %d", c.q, n, c.want)
		}
	}
	m, err := s.DeadGet(t.Context(), seqs[3])
	if err != nil || string(m.Data) != ID(3).String()+".1.3.dead" {
		t.Fatalf("%+v %v", m, err)
	}
	for range 2 {
		if err := s.DeadDelete(t.Context(), seqs[3]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.DeadGet(t.Context(), seqs[3]); !errors.Is(err, schemas.ErrNotFound) {
		t.Fatalf("get after delete: %v", err)
	}
	if n := count(store.DeadQuery{}); n != 29 {
		t.Fatalf("%d left", n)
	}
	for _, q := range []store.DeadQuery{{Limit: -1}, {Cursor: "x"}, {Service: "a.b"}} {
		if _, err := s.DeadList(t.Context(), q); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// cancelledCalls end with their context.
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

// lastIsTheNewest has a record change many times: whoever reads sees the newest
// revision and nothing older.
func lastIsTheNewest(t *testing.T, s Store) {
	g := s.Geometry()
	r := Pending(NowMs(t, s) + 3000)
	id := IDOf(g, 0, 0)
	rev := CreateAll(t, s, []store.Write{{ID: id, Record: r}})[0]
	for _, added := range []int64{r.AddedMs, 1} { // a young timer, and one of long ago
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
