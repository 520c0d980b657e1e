package functions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// lossy is the real store, which can lose Updates or their answers.
type lossy struct {
	*store.Store
	before, after atomic.Int32 // number of calls to lose before or after they take effect
}

func (l *lossy) Update(ctx context.Context, w store.Write) (uint64, error) {
	if l.before.Add(-1) >= 0 {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "lost before")
	}
	rev, err := l.Store.Update(ctx, w)
	if l.after.Add(-1) >= 0 {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "lost after")
	}
	return rev, err
}

func TestLostAnswersOfTheStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := &lossy{Store: r.store}
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%3 != 0 {
			w.WriteHeader(500)
		}
	})
	r.start(func(o *Options) { o.Store = l })
	for _, n := range [][2]int32{{1, 0}, {0, 1}, {2, 1}, {0, 3}} {
		l.before.Store(n[0])
		l.after.Store(n[1])
		before := c.count()
		rec := r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
		if rec.Attempt != 3 || c.count()-before != 3 {
			t.Fatalf("%v: %d attempts, %d calls", n, rec.Attempt, c.count()-before)
		}
	}
	r.settled("s")
}

// deposed is the real store, some of whose calls a server answers that led the stream before the record was claimed.
type deposed struct {
	*store.Store
	earlier bool         // Get returns the record from before the claim
	refuses atomic.Int32 // number of calls of Update to refuse
	gets    atomic.Int32 // calls of Get

	mu   sync.Mutex
	next []error // the first answers to GetAsOf
}

func (d *deposed) answers(next []error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = next
}

func (d *deposed) Update(ctx context.Context, w store.Write) (uint64, error) {
	if d.refuses.Add(-1) >= 0 {
		return 0, store.ErrRevision
	}
	return d.Store.Update(ctx, w)
}

func (d *deposed) Get(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
	d.gets.Add(1)
	t, err := d.Store.Get(ctx, id)
	if d.earlier {
		t.Rev, t.Record.State = t.Rev-1, schemas.StatePending
	}
	return t, err
}

func (d *deposed) GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (store.Timer, error) {
	if rev == 0 {
		return d.Get(ctx, id)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.next) > 0 {
		err := d.next[0]
		d.next = d.next[1:]
		return store.Timer{}, err
	}
	return d.Store.GetAsOf(ctx, id, rev)
}

func behind(n int) []error {
	return slices.Repeat([]error{schemas.Errorf(schemas.CodeUnavailable, "%w", store.ErrBehind)}, n)
}

// TestDeposedLeader: a server that led the stream before, and answers as of then, neither makes an event be
// acknowledged without a result, nor its callback be called again.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := &deposed{Store: r.store, earlier: true}
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%2 == 1 {
			w.WriteHeader(500)
		}
	})
	r.start(func(o *Options) { o.Store = d })
	for _, n := range [][2]int{{1, 0}, {2, 1}, {1, 2}} {
		d.refuses.Store(int32(n[0]))
		d.answers(behind(n[1]))
		before := c.count()
		rec := r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
		if rec.Attempt != 2 || c.count()-before != 2 {
			t.Errorf("%v: %d attempts, %d calls; want 2 and 2", n, rec.Attempt, c.count()-before)
		}
	}
	r.settled("s")
}

// TestClaimIsLost: reads that are older than the claim count only if they are answered for claimLost without a pause.
// Then the stream has lost the claim.
func TestClaimIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := &deposed{Store: r.store}
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	const lost = 300 * time.Millisecond
	r.start(func(o *Options) { o.Store, o.claimLost = d, lost })

	d.refuses.Store(1)
	d.answers(append(slices.Repeat([]error{schemas.ErrUnavailable}, 4), behind(1)...)) // the four take more than claimLost
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	if n := d.gets.Load(); n != 0 {
		t.Errorf("%d reads of any age after the store did not answer", n)
	}

	d.refuses.Store(1)
	d.answers(behind(100))
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	if n := d.gets.Load(); n == 0 {
		t.Error("no read of any age, although the claim is lost")
	}
	r.settled("s")
}

// held is a store whose Update blocks until the test releases it.
type held struct {
	*store.Store
	free          chan struct{}
	waiting, most atomic.Int32
}

func (h *held) Update(ctx context.Context, w store.Write) (uint64, error) {
	n := h.waiting.Add(1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
	defer h.waiting.Add(-1)
	select {
	case <-h.free:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return h.Store.Update(ctx, w)
}

// TestSlowStoreHoldsNoPlaces: results that wait for the store release their permits, so
// other callbacks start, up to a bound.
func TestSlowStoreHoldsNoPlaces(t *testing.T) {
	t.Parallel()
	const limit = 2
	r := newRig(t)
	h := &held{Store: r.store, free: make(chan struct{})}
	var running, most atomic.Int32
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		time.Sleep(5 * time.Millisecond) // calls overlap
	})
	r.start(func(o *Options) { o.Store, o.Concurrency, o.Total = h, limit, limit })
	ids := make([]schemas.TimerID, 30)
	for i := range ids {
		ids[i] = r.fire(timer{callback: c.URL})
	}
	const bound = limit + limit*resultsPerPermit
	waittest.Until(t, "as many outcomes to wait as may", func() bool { return h.waiting.Load() == bound })
	close(h.free)
	for _, id := range ids {
		r.await(id, schemas.StateSuccess)
	}
	if n := h.most.Load(); n != bound {
		t.Errorf("%d outcomes waited at once; the bound is %d", n, bound)
	}
	if n := most.Load(); n > limit {
		t.Errorf("%d callbacks ran at once; the limit is %d", n, limit)
	}
	if n := c.count(); n != len(ids) {
		t.Errorf("%d calls for %d timers", n, len(ids))
	}
	r.settled("s")
}

// deaf is a store whose Update always fails, as for a process that dies.
type deaf struct{ *store.Store }

func (deaf) Update(ctx context.Context, _ store.Write) (uint64, error) {
	return 0, schemas.Errorf(schemas.CodeUnavailable, "no answer")
}

func TestCrashBetweenCallAndWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	first := r.start(func(o *Options) { o.Store = deaf{r.store}; o.StopGrace = time.Millisecond })
	id := r.fire(timer{callback: c.URL})
	waittest.Until(t, "the call", func() bool { return c.count() == 1 })
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	rec := r.await(id, schemas.StateSuccess)
	if rec.Attempt != 1 || c.count() != 2 {
		t.Fatalf("%d attempts, %d calls; a crash is not a failed attempt", rec.Attempt, c.count())
	}
	for _, q := range c.calls {
		if q.Header.Get("Ce-Timerattempt") != "1" || q.Header.Get("Idempotency-Key") != id.MsgID(1) {
			t.Errorf("got %v", q.Header)
		}
	}
}

// TestOneDeadLetterAcrossACrash: a process dies after it has published a dead letter and
// before it has written the record. The next process repeats both. The message ID makes
// it one dead letter.
func TestOneDeadLetterAcrossACrash(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	first := r.start(func(o *Options) { o.Store = deaf{r.store} })
	id := r.fire(timer{callback: c.URL})
	waittest.Until(t, "the first process to publish the letter", func() bool { return len(r.dead("s")) == 1 })
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	r.await(id, schemas.StateFail)
	letters := r.dead("s")
	if len(letters) != 1 || c.count() < 2 {
		t.Fatalf("%d dead letters after %d calls of two processes", len(letters), c.count())
	}
	if got := letters[0].Get("Nats-Msg-Id"); !strings.HasPrefix(got, id.MsgID(1)+".") {
		t.Errorf("message ID of the dead letter is %q", got)
	}
}

func TestRecordedOutcomeIsNotCalledAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	id := r.fire(timer{callback: c.URL})
	// The event was delivered and recorded but not acknowledged: the process died between
	// the write and the acknowledgement.
	reader, err := r.store.ReadFeed(t.Context(), store.Feed{Service: "s"}, store.FeedOptions{AckWait: time.Second, MaxAckPending: 100, Most: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := reader.Request(1); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	cur := r.get(id)
	rec := cur.Record
	rec.State, rec.Attempt, rec.Body = schemas.StateSuccess, 1, schemas.Body{}
	if _, err := r.store.Update(t.Context(), store.Write{ID: id, Rev: cur.Rev, Record: &rec, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	r.start(nil)
	r.settled("s")
	if c.count() != 0 {
		t.Fatalf("%d calls", c.count())
	}
}

// TestDamagedRecordHoldsNoPermit: callbacks whose records are damaged while they run return
// their permits, and are not called again.
func TestDamagedRecordHoldsNoPermit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const damaged = 2 * resultsPerPermit // more than may wait for the store without a permit
	ids := make(chan schemas.TimerID, 1)
	c := httpCallee(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		if n <= damaged {
			id := <-ids
			storetest.Overwrite(t, r.store, fmt.Sprint("KV_timers_", r.store.Geometry().Shard(id)), "timer."+id.String(), []byte(storetest.PubAck))
		}
	})
	r.start(func(o *Options) { o.Concurrency, o.Total = 1, 1 })
	for n := range damaged {
		ids <- r.fire(timer{callback: c.URL})
		waittest.Until(t, "the call", func() bool { return c.count() > n })
	}
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	if c.count() != damaged+1 {
		t.Fatalf("%d calls for %d timers", c.count(), damaged+1)
	}
}

func TestRecreatedConsumerCallsNothingTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	r.start(nil)
	for range 5 {
		r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	}
	r.settled("s")
	if err := natstest.JetStream(t, r.nc).DeleteConsumer(t.Context(), schemas.StreamFired, "belfry_s"); err != nil {
		t.Fatal(err)
	}
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	r.settled("s")
	if c.count() != 6 {
		t.Fatalf("%d calls", c.count())
	}
}

func TestLongCallIsKeptAlive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// Long, so that a busy machine causes no second delivery.
	const ackWait = 10 * time.Second
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { time.Sleep(ackWait + 3*time.Second) }) // the callback takes longer than the ack wait
	reg := prometheus.NewRegistry()
	r.start(func(o *Options) { o.AckWait, o.Registerer = ackWait, reg })
	rec := r.await(r.fire(timer{callback: c.URL, attributes: map[string]string{"timertimeout": "5m"}}), schemas.StateSuccess)
	r.settled("s")
	if rec.Attempt != 1 || c.count() != 1 || r.consumer("s", store.KindFired).NumRedelivered != 0 {
		t.Fatalf("%d attempts, %d calls", rec.Attempt, c.count())
	}
	if n := metrictest.Sum(t, reg, "belfry_callbacks_skipped_total"); n != 0 {
		t.Errorf("the event was delivered again %v times while its callback ran", n)
	}
}

func TestStopLetsCallsFinish(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	f := r.start(func(o *Options) { o.StopGrace = waittest.Bound })
	id := r.fire(timer{callback: c.URL})
	waittest.Until(t, "the call", func() bool { return c.count() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- f.Stop(context.Background()) }()
	waittest.Until(t, "no more pulls", func() bool { return f.pulling.Err() != nil })
	close(release)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if rec := r.get(id).Record; rec.State != schemas.StateSuccess {
		t.Fatalf("got record %+v", rec)
	}
}

func TestStopCancelsWhatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hang := atomic.Bool{}
	hang.Store(true)
	c := httpCallee(t, func(_ int, _ http.ResponseWriter, q *http.Request) {
		if hang.Load() {
			<-q.Context().Done()
		}
	})
	f := r.start(func(o *Options) { o.StopGrace = 50 * time.Millisecond; o.AckWait = time.Minute })
	var ids []schemas.TimerID
	for range 20 {
		ids = append(ids, r.fire(timer{callback: c.URL, attributes: map[string]string{"timertimeout": "10m"}}))
	}
	waittest.Until(t, "the calls", func() bool { return c.count() == 20 })
	begin := time.Now()
	if err := f.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > waittest.Bound { // much shorter than a call
		t.Fatalf("Stop took %v", took)
	}
	hang.Store(false)
	r.start(nil)
	for _, id := range ids {
		if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 {
			t.Fatalf("an interrupted call counts as an attempt: %+v", rec)
		}
	}
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := Options{Store: r.store, NATS: r.natsCalls(), Now: nowMs}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Stop(t.Context()), f.Stop(t.Context())); err != nil {
		t.Fatal(err)
	}
	if f.Start(t.Context()) == nil {
		t.Fatal("started after Stop")
	}
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	for range 5 {
		f := r.start(nil)
		id := r.fire(timer{callback: c.URL})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _ = f.Stop(context.Background()) })
		}
		wg.Wait()
		g := r.start(nil)
		r.await(id, schemas.StateSuccess)
		_ = g.Stop(t.Context())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, change := range []func(*Options){
		func(o *Options) { o.Store = nil }, func(o *Options) { o.Now = nil }, func(o *Options) { o.AckWait = time.Millisecond },
		func(o *Options) { o.Retention = time.Millisecond }, func(o *Options) { o.Total = -1 },
		func(o *Options) { o.Services = map[string]ServiceConfig{"a.b": {}} },
		func(o *Options) { o.Services = map[string]ServiceConfig{"a": {Secrets: []string{"whsec_hunter2"}}} },
	} {
		o := Options{Store: r.store, NATS: r.natsCalls(), Now: nowMs}
		change(&o)
		if _, err := New(o); schemas.CodeOf(err) != schemas.CodeConfig || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestOneServiceDoesNotDelayAnother: services whose callees hang or flood delay no other
// service.
func TestOneServiceDoesNotDelayAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hung := httpCallee(t, func(_ int, _ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	fast := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	f := r.start(func(o *Options) { o.Total = 24; o.Concurrency = 16; o.StopGrace = time.Millisecond })
	for range 60 {
		for _, svc := range []string{"hung1", "hung2", "hung3"} {
			r.fire(timer{svc: svc, callback: hung.URL, attributes: map[string]string{"timertimeout": "10m"}})
		}
	}
	waittest.Until(t, "all shared places are taken", func() bool { return f.live.count() >= 18 })
	var took []time.Duration
	for range 50 {
		begin := time.Now()
		id := r.fire(timer{svc: "good", callback: fast.URL})
		r.await(id, schemas.StateSuccess)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	t.Logf("50 timers beside three hung services: median %v, worst %v from claim to record", median, worst)
	if median > 30*time.Second { // the median, because the machine may have stopped for a while
		t.Fatalf("the median from claim to record is %v: the service was delayed", median)
	}
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	r.start(nil)
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	// A timeout of the store, or waiting for a heartbeat, would delay every try. A
	// machine that stops for a while delays only one.
	const quick, tries = 4 * time.Second, 4
	for try := 1; ; try++ {
		r.server.Restart()
		waittest.Until(t, "the connection", func() bool { return r.nc.IsConnected() })
		waittest.Until(t, "the store", func() bool {
			_, err := r.store.Get(t.Context(), schemas.TimerID{})
			return errors.Is(err, schemas.ErrNotFound)
		})
		begin := time.Now()
		id := r.fire(timer{callback: c.URL})
		fired := time.Since(begin)
		r.await(id, schemas.StateSuccess)
		took := time.Since(begin)
		t.Logf("after the server was back: fired after %v, called back after %v", fired, took)
		if took < quick {
			return
		}
		if try == tries {
			t.Fatalf("the first callback was late in %d tries, in the last one %v after the server's restart\n%s", tries, took, r.log)
		}
	}
}

func TestCredentialsAreNotLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(nil)
	id := r.fire(timer{callback: "http://alice:hunter2@127.0.0.1:1/?token=hunter2"})
	rec := r.await(id, schemas.StateFail)
	r.settled("s")
	if strings.Contains(r.log.String(), "hunter2") || strings.Contains(rec.Outcome.Error, "hunter2") || r.log.String() == "" {
		t.Fatalf("%s\n%s", r.log.String(), rec.Outcome.Error)
	}
}
