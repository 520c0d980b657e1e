package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// faulty is the real store with injected faults.
type faulty struct {
	*store.Store
	// create is called before each write; its error replaces the write.
	create func(store.Write) error
	// publish is called before each publish; its error replaces the publish.
	publish func(store.Msg) error
	// list is called before each page of a list.
	list func()
	// deadDelete is called before each removal of a dead letter.
	deadDelete func() error
	// change is called before each Update; its error replaces the write.
	change func(store.Write) error
	// peek receives each answer to PeekAsync, and update each answer to UpdateAsync. With peek, the
	// store has no records of new timers.
	peek   func(id schemas.TimerID, p store.Peek, done func(store.Peek))
	update func(store.Result, func(store.Result))
	hits   atomic.Int64 // of Cached
	// get is called with each answer to Get and returns another one; getAsOf is called before each GetAsOf, and its error replaces
	// the answer.
	get     func(store.Timer) store.Timer
	getAsOf func(rev uint64) error
	// missing is called before each Get; if it returns true, there is no record.
	missing func() bool
	// newest counts the calls of GetNewest; getNewest, unless nil, is the error of each.
	newest    atomic.Int64
	getNewest error
	// replicated is the answer to Replicated.
	replicated bool
}

func (f *faulty) Replicated() bool { return f.replicated }

func (f *faulty) Get(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
	if f.missing != nil && f.missing() {
		return store.Timer{}, schemas.ErrNotFound
	}
	t, err := f.Store.Get(ctx, id)
	if err == nil && f.get != nil {
		t = f.get(t)
	}
	return t, err
}

func (f *faulty) GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (store.Timer, error) {
	if f.getAsOf != nil {
		if err := f.getAsOf(rev); err != nil {
			return store.Timer{}, err
		}
	}
	return f.Store.GetAsOf(ctx, id, rev)
}

func (f *faulty) GetNewest(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
	f.newest.Add(1)
	if f.getNewest != nil {
		return store.Timer{}, f.getNewest
	}
	return f.Store.GetNewest(ctx, id)
}

func (f *faulty) PeekAsync(id schemas.TimerID, done func(store.Peek)) {
	if f.peek == nil {
		f.Store.PeekAsync(id, done)
		return
	}
	f.Store.PeekAsync(id, func(p store.Peek) { f.peek(id, p, done) })
}

func (f *faulty) Cached(id schemas.TimerID) (store.Timer, bool) {
	if f.peek != nil {
		return store.Timer{}, false
	}
	t, ok := f.Store.Cached(id)
	if ok {
		f.hits.Add(1)
	}
	return t, ok
}

func (f *faulty) UpdateAsync(w store.Write, done func(store.Result)) {
	if f.update == nil {
		f.Store.UpdateAsync(w, done)
		return
	}
	f.Store.UpdateAsync(w, func(res store.Result) { f.update(res, done) })
}

func (f *faulty) Update(ctx context.Context, w store.Write) (uint64, error) {
	if f.change != nil {
		if err := f.change(w); err != nil {
			return 0, err
		}
	}
	return f.Store.Update(ctx, w)
}

func (f *faulty) Create(ctx context.Context, writes []store.Write) []store.Result {
	results := make([]store.Result, len(writes))
	var through []store.Write
	var at []int
	for i, w := range writes {
		if f.create != nil {
			if results[i].Err = f.create(w); results[i].Err != nil {
				continue
			}
		}
		through, at = append(through, w), append(at, i)
	}
	for i, r := range f.Store.Create(ctx, through) {
		results[at[i]] = r
	}
	return results
}

func (f *faulty) PublishLetter(ctx context.Context, m store.Msg) (bool, error) {
	if f.publish != nil {
		if err := f.publish(m); err != nil {
			return false, err
		}
	}
	return f.Store.PublishLetter(ctx, m)
}

func (f *faulty) List(ctx context.Context, q store.ListQuery) (store.ListPage, error) {
	if f.list != nil {
		f.list()
		ctx = context.WithoutCancel(ctx)
	}
	return f.Store.List(ctx, q)
}

func (f *faulty) DeadDelete(ctx context.Context, seq uint64) error {
	if f.deadDelete != nil {
		if err := f.deadDelete(); err != nil {
			return err
		}
	}
	return f.Store.DeadDelete(ctx, seq)
}

// setupFaulty is setup with injected faults between router and store.
func setupFaulty(t *testing.T, fault *faulty) *fixture {
	t.Helper()
	f := newFixture(t, store.Config{})
	fault.Store = f.store
	f.r = f.startWith(router.Options{Store: fault, Time: f.clock, Log: zerolog.Nop()})
	return f
}

// waiting returns the number of adds in the stream.
func (f *fixture) waiting() uint64 {
	f.t.Helper()
	s, err := f.js.Stream(f.t.Context(), schemas.StreamAdd)
	if err != nil {
		f.t.Fatal(err)
	}
	info, err := s.Info(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return info.State.Msgs
}

func (f *fixture) publish(hdr nats.Header, data []byte) {
	f.t.Helper()
	if _, err := f.js.PublishMsg(f.t.Context(), &nats.Msg{Subject: schemas.SubjectAdd, Header: hdr, Data: data}); err != nil {
		f.t.Fatal(err)
	}
}

// publishAll publishes many adds and waits for the acknowledgements.
func (f *fixture) publishAll(n int, data func(i int) []byte) {
	f.t.Helper()
	for i := range n {
		if _, err := f.js.PublishAsync(schemas.SubjectAdd, data(i), jetstream.WithStallWait(bound)); err != nil {
			f.t.Fatal(err)
		}
	}
	waittest.Receive(f.t, "acknowledgements of all adds", f.js.PublishAsyncComplete())
}

// TestOneShardInTrouble: while one shard refuses every write, adds of other shards are
// stored at once, and API callers get the error at once. When the shard has recovered,
// its adds are stored, too.
func TestOneShardInTrouble(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
	}{{"full", schemas.Errorf(schemas.CodeStoreFull, "full")}, {"silent", schemas.Errorf(schemas.CodeUnavailable, "silent")}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var down atomic.Bool
			down.Store(true)
			fault := &faulty{}
			var geo schemas.Geometry
			fault.create = func(w store.Write) error {
				if down.Load() && geo.Shard(w.ID) == 0 {
					return c.err
				}
				return nil
			}
			f := newFixture(t, store.Config{Geometry: schemas.Geometry{Shards: 4, SlotWidth: time.Second, WheelSize: 1 << 20}})
			fault.Store, geo = f.store, f.store.Geometry()
			f.r = f.startWith(router.Options{Store: fault, Time: f.clock, Log: zerolog.Nop()})
			var sick, well []string
			for i := 0; len(sick) < 3000; i++ {
				id := fmt.Sprint(i)
				if geo.Shard(schemas.NewTimerID("/test", id)) == 0 {
					sick = append(sick, id)
				} else {
					well = append(well, id)
				}
			}
			// First more adds of the failing shard than the router holds at a time.
			for _, ids := range [][]string{sick, well[:100]} {
				f.publishAll(len(ids), func(i int) []byte { return add(ids[i], `"timerafter":"1h"`) })
			}
			for _, id := range well[:100] {
				f.await("/test", id)
			}
			// The answer has the error of the shard; a caller that waited would get a
			// time-out.
			if code, text := f.answer("add", add("api-"+sick[0], `"timerafter":"1h"`), &schemas.AddReply{}); code != "" && text != c.err.Error() {
				t.Errorf("an API add: %s %s", code, text)
			}
			for i, n := 0, 0; n < 5; i++ {
				if id := fmt.Sprint("fresh", i); geo.Shard(schemas.NewTimerID("/test", id)) == 0 {
					n++
					if code, text := f.answer("add", add(id, `"timerafter":"1h"`), &schemas.AddReply{}); code != string(schemas.CodeOf(c.err)) || text != c.err.Error() {
						t.Errorf("an API add to the failing shard: %q %s", code, text)
					}
				}
			}
			down.Store(false)
			for _, id := range sick {
				f.await("/test", id)
			}
			waittest.Until(f.t, "no add is left", func() bool { return f.waiting() == 0 })
		})
	}
}

// TestStopWhileNothingIsStored stops a router whose queues are full because the store
// refuses every write. The next router stores the adds.
func TestStopWhileNothingIsStored(t *testing.T) {
	t.Parallel()
	f := setupFaulty(t, &faulty{create: func(store.Write) error { return schemas.ErrUnavailable }})
	const n = 5000
	f.publishAll(n, func(i int) []byte { return add(fmt.Sprint(i), `"timerafter":"1h"`) })
	if err := f.r.Stop(t.Context()); err != nil { // it must end although nothing can be stored
		t.Fatal(err)
	}
	if left := f.waiting(); left != n {
		t.Errorf("%d of %d adds are still in the stream, and none was stored", left, n)
	}
	f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	waittest.Until(f.t, "all adds are stored", func() bool { return f.waiting() == 0 })
}

// TestRejectedStreamInTrouble: while timers.rejected refuses messages, invalid adds wait
// and valid adds do not.
func TestRejectedStreamInTrouble(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	f := setupFaulty(t, &faulty{publish: func(store.Msg) error {
		if down.Load() {
			return schemas.ErrUnavailable
		}
		return nil
	}})
	for i := range 20 {
		f.publish(nil, []byte("bad"))
		f.publish(nil, add(fmt.Sprint(i), `"timerafter":"1h"`))
	}
	for i := range 20 {
		f.await("/test", fmt.Sprint(i))
	}
	if n := f.waiting(); n < 20 {
		t.Errorf("%d adds are left in the stream, want the 20 that could not be rejected", n)
	}
	down.Store(false)
	if n := len(f.rejected(20)); n != 20 {
		t.Errorf("%d adds were rejected, want 20", n)
	}
	waittest.Until(f.t, "no add is left", func() bool { return f.waiting() == 0 })
}

// TestListOfLargeTimers: a page of a list never exceeds the largest message.
func TestListOfLargeTimers(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	const n = 700
	long := strings.Repeat("<", 1900) // six bytes each in JSON
	f.publishAll(n, func(i int) []byte {
		return fmt.Appendf(nil, `{"specversion":"1.0","id":"%d","source":"/test","type":%q,"timerafter":"1h"}`, i, long)
	})
	waittest.Until(f.t, "all are stored", func() bool { return f.waiting() == 0 })
	seen := map[schemas.TimerID]bool{}
	for cursor := ""; ; {
		var page schemas.ListReply
		if code := f.request("list", fmt.Appendf(nil, `{"limit":500,"cursor":%q}`, cursor), &page); code != "" {
			t.Fatal(code)
		}
		for _, i := range page.Timers {
			seen[i.Timer] = true
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d timers are listed", len(seen), n)
	}
}

// TestConsumerDeleted: adds continue after the routers' consumer was deleted.
func TestConsumerDeleted(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.publish(nil, add("before", `"timerafter":"1h"`))
	f.await("/test", "before")
	if err := f.js.DeleteConsumer(t.Context(), schemas.StreamAdd, store.RouterConsumer); err != nil {
		t.Fatal(err)
	}
	f.publish(nil, add("after", `"timerafter":"1h"`))
	f.await("/test", "after")
}

// TestAbruptRestart kills the server while adds are in flight. Every acknowledged add is
// stored once.
func TestAbruptRestart(t *testing.T) {
	t.Parallel()
	p := natstest.RunProcess(t, true)
	f := newFixtureOn(t, p.Connect(), store.Config{})
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	acked := map[string]bool{}
	for round := range 2 {
		for i := range 400 {
			id := fmt.Sprintf("%d-%d", round, i)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if i == 300 {
				p.Kill()
			}
			if _, err := f.js.Publish(ctx, schemas.SubjectAdd, add(id, `"timerafter":"1h"`)); err == nil {
				acked[id] = true
			} else if i >= 300 {
				cancel()
				break
			}
			cancel()
		}
		p.Start()
		waittest.Until(f.t, "connected again", f.nc.IsConnected)
	}
	if len(acked) < 400 {
		t.Errorf("only %d adds were acknowledged", len(acked))
	}
	for id := range acked {
		f.await("/test", id)
	}
	s, err := f.js.Stream(t.Context(), schemas.StreamRejected)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Info(t.Context()); err != nil || info.State.Msgs != 0 {
		t.Errorf("a redelivered add was rejected: %+v %v", info.State, err)
	}
}
