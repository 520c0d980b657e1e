package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) {
	waittest.Parallel(8)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"))
}

// bound is the time limit of a wait in a test. Some tests also use it as their lease, so it is shorter than waittest.Bound.
const bound = 60 * time.Second

// node is a scheduler with a store and a clock of its own.
type node struct {
	store *store.Store
	sched *scheduler.Scheduler
	reg   *prometheus.Registry
	time  *clustertime.Service
	nc    *nats.Conn
}

func open(t *testing.T, nc *nats.Conn, name string, cfg store.Config) *store.Store {
	t.Helper()
	cfg.Node = name
	s, err := store.Open(t.Context(), nc, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func start(t *testing.T, srv *natstest.Server, name string, cfg store.Config, change func(*scheduler.Options)) *node {
	t.Helper()
	testsize.Brief(t, "a server for each test", "TestFiresOnTime", "TestOutageLongerThanTheIndex", "TestSweeperFindsAPlantedOrphan", "TestPendingAfterACrash")
	n := &node{nc: srv.Connect(), reg: prometheus.NewRegistry()}
	n.store = open(t, n.nc, name, cfg)
	n.time = clustertime.NewService(func(ctx context.Context) (clustertime.Reading, error) {
		st, err := n.store.Beat(ctx)
		return clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, err
	}, 200*time.Millisecond, zerolog.Nop())
	n.time.Start()
	t.Cleanup(n.time.Stop)
	o := scheduler.Options{Store: n.store, Time: n.time, Node: name, Lease: 900 * time.Millisecond, Heartbeat: 100 * time.Millisecond, Registerer: n.reg, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)}
	if change != nil {
		change(&o)
	}
	var err error
	if n.sched, err = scheduler.New(o); err != nil {
		t.Fatal(err)
	}
	if err := n.sched.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := n.sched.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return n
}

// nowMs is the clock of the server, which runs on this host.
func nowMs() int64 { return time.Now().UnixMilli() }

func timer(id string, due int64) store.Write {
	return store.Write{ID: schemas.NewTimerID("/test", id), Record: &schemas.Record{
		Definition: schemas.Definition{AddedMs: nowMs(), Service: "svc", Source: "/test", EventID: id, Type: "t", Body: schemas.Body{Mode: schemas.ModeStructured, Data: fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/test","type":"t","timerafter":"1s"}`, id)}},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: due, ScheduledMs: due},
	}}
}

// timers returns n timers, named by their numbers. due returns their due times in Unix
// milliseconds.
func timers(n int, due func(i int64) int64) []store.Write {
	ws := make([]store.Write, n)
	for i := range ws {
		ws[i] = timer(fmt.Sprint(i), due(int64(i)))
	}
	return ws
}

// create creates timers. It repeats those writes whose outcome is unknown; the timer may then exist.
func create(t *testing.T, s *store.Store, ws ...store.Write) {
	t.Helper()
	for left := range slices.Chunk(ws, 200) { // each call has a time limit
		repeated := false
		waittest.Available(t, fmt.Sprint("the creation of ", len(left), " timers"), func() bool {
			var unknown []store.Write
			for i, r := range s.Create(t.Context(), left) {
				switch {
				case r.Err == nil || repeated && errors.Is(r.Err, store.ErrRevision):
				case errors.Is(r.Err, schemas.ErrUnavailable):
					unknown = append(unknown, left[i])
				default:
					t.Fatal(r.Err)
				}
			}
			left, repeated = unknown, true
			return len(left) > 0
		})
	}
}

// fired reads n messages from TIMERS_FIRED, by message ID.
func fired(t *testing.T, nc *nats.Conn, n int) map[string][]jetstream.Msg {
	t.Helper()
	js := natstest.JetStream(t, nc)
	c, err := js.OrderedConsumer(t.Context(), schemas.StreamFired, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	it, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	got := map[string][]jetstream.Msg{}
	for i := 0; i < n; i++ {
		m, err := it.Next(jetstream.NextMaxWait(bound))
		if err != nil {
			t.Fatalf("after %d of %d events: %v", i, n, err)
		}
		id := m.Headers().Get(jetstream.MsgIDHeader)
		got[id] = append(got[id], m)
	}
	return got
}

// checkTimes checks that nothing was published early or twice.
func checkTimes(t *testing.T, got map[string][]jetstream.Msg) {
	t.Helper()
	for id, ms := range got {
		if len(ms) != 1 {
			t.Errorf("%s is in the stream %d times", id, len(ms))
		}
		for _, m := range ms {
			meta, err := m.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			_, spec, f, err := schemas.ParseFired(m.Headers(), m.Data())
			if err != nil {
				t.Fatal(err)
			}
			if meta.Timestamp.UnixMilli() < spec.DueMs || f.FiredMs < f.ScheduledMs {
				t.Errorf("%s due %d was published at %d", id, spec.DueMs, meta.Timestamp.UnixMilli())
			}
		}
	}
}

// await waits until a timer has a state.
func await(t *testing.T, s *store.Store, id schemas.TimerID, want schemas.State) store.Timer {
	t.Helper()
	var tm store.Timer
	var err error
	waittest.Until(t, "timer "+id.String()+" is "+want.String(), func() bool {
		tm, err = s.Get(t.Context(), id)
		return err == nil && tm.Record.State == want
	}, func() string { return fmt.Sprintf("it is %s (%v)", tm.Record.State, err) })
	return tm
}

// TestShardsShareABacklog: the shards of a node share one Backlog.
func TestShardsShareABacklog(t *testing.T) {
	t.Parallel()
	const shards = 4
	n := start(t, natstest.Run(t), "n1", store.Config{Geometry: schemas.Geometry{Shards: shards, SlotWidth: time.Second, WheelSize: 1000}}, nil)
	all := n.sched.Backlogs()
	for _, b := range all {
		if b == nil || b != all[0] {
			t.Fatalf("the shards have the backlogs %v", all)
		}
	}
	if len(all) != shards {
		t.Errorf("%d shards, want %d", len(all), shards)
	}
}

func TestFiresOnTime(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", store.Config{}, nil)
	// Overdue, due now, in the horizon, and beyond it.
	apart := int64(testsize.Choose(t, "ms between two timers", 6, 15, 15))
	ws := timers(500, func(i int64) int64 { return nowMs() - 500 + i*apart })
	create(t, n.store, ws...)
	got := fired(t, n.nc, len(ws))
	checkTimes(t, got)
	for _, w := range ws {
		await(t, n.store, w.ID, schemas.StateSuccess)
	}
	if v := metrictest.Sum(t, n.reg, "belfry_fired_total"); v != float64(len(ws)) {
		t.Errorf("belfry_fired_total is %v", v)
	}
}

func TestDueDuringDownTime(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits while no scheduler runs")
	srv := natstest.Run(t)
	setup := open(t, srv.Connect(), "setup", store.Config{})
	ws := timers(200, func(i int64) int64 { return nowMs() + i })
	create(t, setup, ws...)
	waitUntil(t, ws[len(ws)-1].Record.DueMs+1500)
	n := start(t, srv, "n1", store.Config{}, func(o *scheduler.Options) { o.SweepDelay = time.Hour; o.IndexKeep = 4 * time.Hour })
	checkTimes(t, fired(t, n.nc, len(ws)))
	if v := metrictest.Sum(t, n.reg, "belfry_missed_timers_total"); v != 0 {
		t.Errorf("the sweeper fired %v of them, want none: the low watermark includes them", v)
	}
}

// waitUntil waits until ms, Unix milliseconds.
func waitUntil(t *testing.T, ms int64) {
	t.Helper()
	select {
	case <-time.After(time.Until(time.UnixMilli(ms))):
	case <-t.Context().Done():
	}
}

func TestOutageLongerThanTheIndex(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	setup := open(t, srv.Connect(), "setup", store.Config{Geometry: schemas.Geometry{Shards: 2, SlotWidth: time.Second, WheelSize: 1000}})
	ws := timers(300, func(i int64) int64 { return nowMs() - 3_600_000 + i*1000 })
	for _, w := range ws {
		// A record without index entry, as after the entry's TTL.
		if err := updated(t, setup, w); err != nil {
			t.Fatal(err)
		}
	}
	for shard := range setup.Geometry().Shards {
		c, rev, err := setup.ReadClock(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		c.TimeMs = nowMs() - 7_200_000
		seq := uint64(1 << 40) // beyond the stream, so that the tail delivers nothing
		c.Tail, c.Seen = seq, seq
		if _, err := setup.WriteClock(t.Context(), shard, c, rev); err != nil {
			t.Fatal(err)
		}
	}
	n := start(t, srv, "n1", store.Config{}, nil)
	checkTimes(t, fired(t, n.nc, len(ws)))
}

// updated writes a record without an index entry.
func updated(t *testing.T, s *store.Store, w store.Write) error {
	t.Helper()
	ch := make(chan error, 1)
	s.UpdateAsync(w, func(r store.Result) { ch <- r.Err })
	return <-ch
}

func TestSweeperFindsAPlantedOrphan(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	setup := open(t, srv.Connect(), "setup", store.Config{})
	w := timer("orphan", nowMs()-30_000)
	create(t, setup, w)
	tm, err := setup.Get(t.Context(), w.ID)
	if err != nil {
		t.Fatal(err)
	}
	shard := setup.Geometry().Shard(w.ID)
	c, rev, err := setup.ReadClock(t.Context(), shard)
	if err != nil {
		t.Fatal(err)
	}
	// A wrong clock: the low watermark and the applied offset have passed the timer.
	c.TimeMs, c.Tail, c.SweptMs = nowMs()-5000, tm.Rev, nowMs()-60_000
	if _, err := setup.WriteClock(t.Context(), shard, c, rev); err != nil {
		t.Fatal(err)
	}
	n := start(t, srv, "n1", store.Config{}, func(o *scheduler.Options) { o.SweepDelay = 2 * time.Second })
	checkTimes(t, fired(t, n.nc, 1))
	await(t, n.store, w.ID, schemas.StateSuccess)
	if v := metrictest.Sum(t, n.reg, "belfry_missed_timers_total"); v != 1 {
		t.Errorf("%v missed timers are counted, want 1", v)
	}
}

// TestSweeperFiresAgainWhatLeftTheStream: an event that leaves TIMERS_FIRED before its
// callback has ended is published again with the same ID. An event that is still in the
// stream is not.
func TestSweeperFiresAgainWhatLeftTheStream(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	// The lease is long, so that a slow machine does not start a new term: its owner
	// might claim again, and a claim later than the oldest event in the stream is not
	// checked.
	n := start(t, srv, "n1", store.Config{DedupWindow: time.Second}, func(o *scheduler.Options) { o.SweepDelay, o.Lease = 2*time.Second, bound })
	lost, kept := timer("lost", nowMs()), timer("kept", nowMs())
	for _, w := range []store.Write{lost, kept} { // no functions run, so the callbacks never end
		w.Record.Callback = "http://127.0.0.1:9/"
	}
	create(t, n.store, lost, kept)
	first := fired(t, n.nc, 2)
	stream, err := natstest.JetStream(t, n.nc).Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	sequence := func(w store.Write) uint64 {
		meta, err := first[w.ID.MsgID(1)][0].Metadata()
		if err != nil {
			t.Fatal(err)
		}
		return meta.Sequence.Stream
	}
	if sequence(kept) < sequence(lost) { // the oldest event leaves first
		lost, kept = kept, lost
	}
	claimed := await(t, n.store, lost.ID, schemas.StateDelivered)
	if err := stream.DeleteMsg(t.Context(), sequence(lost)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the event that left the stream is fired again", func() bool {
		return metrictest.Sum(t, n.reg, "belfry_redispatched_total") > 0
	}, func() string {
		now, err := n.store.Get(t.Context(), lost.ID)
		b, err2 := n.store.FiredBacklog(t.Context(), lost.Record.Service)
		return fmt.Sprintf("claimed at %d, now %+v (%v); the oldest event is of %d (%v)", claimed.Record.FiredMs, now.Record, err, b.Oldest.UnixMilli(), err2)
	})
	again := fired(t, n.nc, 2)
	if len(again[lost.ID.MsgID(1)]) != 1 || len(again[kept.ID.MsgID(1)]) != 1 {
		t.Errorf("the stream holds %v", again)
	}
	now := await(t, n.store, lost.ID, schemas.StateDelivered)
	if now.Rev <= claimed.Rev || now.Record.Run != 1 || now.Record.FiredMs <= claimed.Record.FiredMs {
		t.Errorf("fired again without a new claim: %+v, before %+v", now.Record, claimed.Record)
	}
	if v := metrictest.Sum(t, n.reg, "belfry_missed_timers_total"); v != 0 {
		t.Errorf("%v missed timers are counted, want none", v)
	}
}

// TestSweeperKnowsDeferredEvents: the event of a timer that waited for its slot has a message id
// of its own. While it is in the stream, the sweeper does not fire it again.
func TestSweeperKnowsDeferredEvents(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", store.Config{DedupWindow: time.Second}, func(o *scheduler.Options) { o.SweepDelay, o.Lease = 2*time.Second, bound })
	w := timer("deferred", nowMs())
	w.Record.Callback, w.Record.MaxAttempt = "http://127.0.0.1:9/", 3 // no functions run, so the callback never ends
	w.Record.FiredMs = nowMs()
	w.Record.Defer("key", 1, nowMs(), true)
	create(t, n.store, w)
	want := w.Record.RunID(w.ID).RetryMsgIDAfter(1, 1)
	stream, err := natstest.JetStream(t, n.nc).Stream(t.Context(), schemas.StreamRetry)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the event "+want, func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), schemas.SubjectRetry("svc"))
		return err == nil && m.Header.Get(jetstream.MsgIDHeader) == want
	})
	audited := metrictest.Sum(t, n.reg, "belfry_swept_records_total")
	waittest.Until(t, "the sweeper has audited the record twice", func() bool {
		return metrictest.Sum(t, n.reg, "belfry_swept_records_total") >= audited+2
	})
	if v := metrictest.Sum(t, n.reg, "belfry_redispatched_total"); v != 0 {
		t.Errorf("%v events were fired again, want none: the event is in the stream", v)
	}
}

func TestCancelAgainstFiring(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", store.Config{}, nil)
	const count = 2000
	at := nowMs() + 700
	ws := timers(count, func(i int64) int64 { return at + i%200 })
	create(t, n.store, ws...)
	cancelled := 0
	won := map[schemas.TimerID]bool{}
	type res struct {
		id  schemas.TimerID
		err error
	}
	results := make(chan res, count)
	for _, w := range ws {
		waitUntil(t, w.Record.DueMs-1)
		r := *w.Record
		r.State, r.Queued, r.Body = schemas.StateCancelled, false, schemas.Body{}
		tm, err := n.store.Get(t.Context(), w.ID)
		if err != nil {
			t.Fatal(err)
		}
		if tm.Record.State != schemas.StatePending {
			results <- res{w.ID, store.ErrRevision}
			continue
		}
		n.store.UpdateAsync(store.Write{ID: w.ID, Rev: tm.Rev, Record: &r, TTL: time.Hour}, func(x store.Result) { results <- res{w.ID, x.Err} })
	}
	for range count {
		r := <-results
		switch {
		case r.err == nil:
			won[r.id] = true
			cancelled++
		case !errors.Is(r.err, store.ErrRevision):
			t.Fatal(r.err)
		}
	}
	got := fired(t, n.nc, count-cancelled)
	checkTimes(t, got)
	for id := range won {
		if len(got[id.MsgID(1)]) > 0 {
			t.Errorf("%s fired after its cancel was acknowledged", id)
		}
		await(t, n.store, id, schemas.StateCancelled)
	}
	t.Logf("%d cancels won, %d came too late", cancelled, count-cancelled)
}

// TestNodesShare: nodes share the shards equally. A node that stops releases its shards at
// once; a node that is cut off loses them when its lease ends. Every timer fires once, and
// only the timers of the node that is cut off are late.
func TestNodesShare(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 6, SlotWidth: time.Second, WheelSize: 1000}}
	const lease = 9 * time.Second // long, because a busy machine may stop a node for seconds
	var log logtest.Buffer
	long := func(o *scheduler.Options) {
		o.Lease, o.Heartbeat, o.Log = lease, lease/20, zerolog.New(&log).Level(zerolog.WarnLevel)
	}
	a := start(t, srv, "a", cfg, long)
	owns(t, 6, a)
	ws := timers(3000, func(i int64) int64 { return nowMs() + 500 + i*3 })
	create(t, a.store, ws...)
	b := start(t, srv, "b", cfg, long)
	owns(t, 3, a, b)
	c := start(t, srv, "c", cfg, long)
	owns(t, 2, a, b, c)
	if err := b.sched.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	owns(t, 3, a, c)
	handedOver := nowMs()
	// On a busy machine a node may fail to release a clock in time. The next owner then waits
	// for the lease, and the timers of that shard are late.
	graceful := log.Count("clock not released") == 0 && log.Count("lease expired") == 0
	if !graceful {
		t.Logf("lateness is not checked, because the machine was too busy for graceful hand-overs: %s", log.String())
	}
	// c loses its connection, so it cannot release its shards.
	c.nc.Close()
	owns(t, 6, a)
	got := fired(t, a.nc, len(ws))
	checkTimes(t, got)
	late := 0
	for _, ms := range got {
		for _, m := range ms {
			_, spec, f, err := schemas.ParseFired(m.Headers(), m.Data())
			if err != nil {
				t.Fatal(err)
			}
			// Two thirds of the lease is much longer than a hand-over, and shorter than the
			// wait for a lease that was not released.
			if f.FiredMs < handedOver && f.FiredMs-spec.DueMs > lease.Milliseconds()*2/3 {
				late++
			}
		}
	}
	if graceful && late > 0 {
		t.Errorf("%d timers fired more than %s late, though every hand-over was graceful", late, lease*2/3)
	}
}

func ownsAll(t *testing.T, n *node) {
	t.Helper()
	owns(t, n.store.Geometry().Shards, n)
}

// owns waits until each of the nodes owns the given number of shards.
func owns(t *testing.T, shards int, nodes ...*node) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("each of %d nodes owns %d shards", len(nodes), shards), func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool {
			own := 0
			for _, s := range n.sched.Status() {
				if s.State == "owner" {
					own++
				}
			}
			return own != shards
		})
	}, func() string {
		text := ""
		for _, n := range nodes {
			text += fmt.Sprintln(n.sched.Status())
		}
		return text
	})
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", store.Config{Timeout: time.Second}, nil)
	setup := open(t, srv.Connect(), "setup", store.Config{}) // with the default time limit
	ownsAll(t, n)
	ws := timers(1000, func(i int64) int64 { return nowMs() + 300 + i*3 })
	create(t, setup, ws...)
	waitUntil(t, ws[400].Record.DueMs)
	srv.Restart()
	checkTimes(t, fired(t, srv.Connect(), len(ws)))
	ownsAll(t, n)
}

// TestPendingAfterACrash: the clock of a dead owner has a wrong number of pending timers.
// The next owner reports no number until it has counted, and then the right one.
func TestPendingAfterACrash(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000}, Node: "dead"}
	s, err := store.Open(t.Context(), nc, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	const far, due = 300, 20
	create(t, s, timers(far, func(int64) int64 { return nowMs() + time.Hour.Milliseconds() })...)
	clock, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	clock.Owner, clock.Pending, clock.Epoch = "dead", 7, clock.Epoch+1
	if _, err := s.WriteClock(t.Context(), 0, clock, rev); err != nil {
		t.Fatal(err)
	}
	s.Close()
	n := start(t, srv, "n1", store.Config{}, nil)
	ws := make([]store.Write, due)
	for i := range ws {
		ws[i] = timer(fmt.Sprint("due ", i), nowMs()+int64(i)*100)
	}
	create(t, n.store, ws...)
	fired(t, n.nc, due)
	waittest.Until(t, "the waiting timers are counted", func() bool {
		pending := metrictest.Of(t, n.reg, "belfry_pending_timers")
		for _, v := range pending {
			if v != far {
				t.Fatalf("belfry_pending_timers is %v, want %d", v, far)
			}
		}
		if c, _, err := n.store.ReadClock(t.Context(), 0); err == nil && c.Owner == "n1" && !c.PendingUnknown && c.Pending != far {
			t.Fatalf("the clock is %+v, want %d pending timers", c, far)
		}
		return len(pending) > 0
	})
	await(t, n.store, ws[0].ID, schemas.StateSuccess)
}
