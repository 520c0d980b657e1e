package scheduler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// These tests check that the production loop of a term behaves like the simulated one.

// oneShard is a store with a single shard, so that a test knows its clock.
var oneShard = store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 600}}

// TestTailFromItsOffset: a new owner follows the shard from the clock's applied offset,
// not from the last sequence that its predecessor saw. The timer is behind the low
// watermark and after the offset, so only the tail delivers it.
func TestTailFromItsOffset(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	setup := open(t, srv.Connect(), "setup", oneShard)
	w := timer("held", nowMs()-30_000)
	create(t, setup, w)
	tm, err := setup.Get(t.Context(), w.ID)
	if err != nil {
		t.Fatal(err)
	}
	last, err := setup.LastSeq(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c, rev, err := setup.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.TimeMs, c.SweptMs, c.Tail, c.Seen = nowMs()-5000, nowMs(), tm.Rev-1, last
	if _, err := setup.WriteClock(t.Context(), 0, c, rev); err != nil {
		t.Fatal(err)
	}
	n := start(t, srv, "n1", store.Config{}, func(o *scheduler.Options) { o.SweepDelay, o.IndexKeep = time.Hour, 4*time.Hour })
	checkTimes(t, fired(t, n.nc, 1))
	await(t, n.store, w.ID, schemas.StateSuccess)
	if v := metrictest.Sum(t, n.reg, "belfry_missed_timers_total"); v != 0 {
		t.Errorf("the sweeper fired it, not the tail: %v missed timers", v)
	}
}

// doubtful is the cluster's time while the host's clock may have jumped.
type doubtful struct {
	scheduler.Time
	jumped    atomic.Bool
	looks     atomic.Int64
	resamples atomic.Int64
}

func (d *doubtful) JumpDetected() bool {
	d.looks.Add(1)
	return d.jumped.Load()
}

func (d *doubtful) Resample() {
	d.resamples.Add(1)
	d.Time.Resample()
}

// claims counts the claims and publishes of an owner.
type claims struct {
	*store.Store
	made atomic.Int64
}

func (c *claims) UpdateAsync(w store.Write, done func(store.Result)) {
	if w.Record.State == schemas.StateDelivered {
		c.made.Add(1)
	}
	c.Store.UpdateAsync(w, done)
}

func (c *claims) PublishAsync(m store.Msg, done func(uint64, bool, error)) {
	c.made.Add(1)
	c.Store.PublishAsync(m, done)
}

// TestNothingFiresAfterAJump: while the host's clock may have jumped, the loop requests a
// new reading of the cluster's time and fires nothing, however overdue.
func TestNothingFiresAfterAJump(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	var clock *doubtful
	var counted *claims
	n := start(t, srv, "n1", oneShard, func(o *scheduler.Options) {
		clock, counted = &doubtful{Time: o.Time}, &claims{Store: o.Store.(*store.Store)}
		clock.jumped.Store(true)
		o.Time, o.Store = clock, counted
	})
	w := timer("1", nowMs()-1000)
	create(t, n.store, w)
	waittest.Until(t, "the shard is owned", func() bool { return metrictest.Sum(t, n.reg, "belfry_shard_owned") == 1 })
	// The loop, which would fire due timers, reads the time once per iteration.
	from := clock.looks.Load()
	waittest.Until(t, "200 turns of the loop", func() bool { return clock.looks.Load() > from+200 })
	if made := counted.made.Load(); made != 0 {
		t.Errorf("%d claims and publishes while the clock may have jumped", made)
	}
	if clock.resamples.Load() == 0 {
		t.Error("no new reading of the time was requested")
	}
	clock.jumped.Store(false)
	fired(t, n.nc, 1)
	await(t, n.store, w.ID, schemas.StateSuccess)
}

// slowPublish holds the answers to publishes until the test releases them, and records a
// release of the clock while one is held.
type slowPublish struct {
	*store.Store
	letGo chan struct{}

	mu       sync.Mutex
	held     int
	released int // publishes in flight at the release of the clock; -1 before it
}

func (s *slowPublish) PublishAsync(m store.Msg, done func(uint64, bool, error)) {
	s.mu.Lock()
	s.held++
	s.mu.Unlock()
	s.Store.PublishAsync(m, func(seq uint64, duplicate bool, err error) {
		go func() {
			<-s.letGo
			s.mu.Lock()
			s.held--
			s.mu.Unlock()
			done(seq, duplicate, err)
		}()
	})
}

func (s *slowPublish) WriteClock(ctx context.Context, shard int, c store.Clock, rev uint64) (uint64, error) {
	if c.Owner == "" {
		s.mu.Lock()
		s.released = s.held
		s.mu.Unlock()
	}
	return s.Store.WriteClock(ctx, shard, c, rev)
}

// holding returns the number of held publishes.
func (s *slowPublish) holding() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// drainsWithin is shorter than the time for which a release waits for writes in flight.
const drainsWithin = 400 * time.Millisecond

// TestReleaseWaitsForWrites: a shard is released after the answers to its publishes have
// arrived, so that the next owner does not have to check them.
func TestReleaseWaitsForWrites(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := &slowPublish{letGo: make(chan struct{}), released: -1}
	n := start(t, srv, "n1", oneShard, func(o *scheduler.Options) {
		s.Store = o.Store.(*store.Store)
		o.Store = s
	})
	create(t, n.store, timers(20, func(int64) int64 { return nowMs() })...)
	waittest.Until(t, "all are published", func() bool { return s.holding() == 20 })
	begun := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- n.sched.Stop(context.Background()) }()
	time.AfterFunc(drainsWithin/4, func() { close(s.letGo) })
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.released < 0:
		t.Errorf("the clock was not released within %s", took)
	case s.released > 0 && took < drainsWithin:
		t.Errorf("the clock was released after %s with %d publishes in flight", took, s.released)
	}
}

// lostAnswers is a store that carries out the writes of records in a state and never answers them.
type lostAnswers struct {
	*store.Store
	state schemas.State
	lost  atomic.Int64
}

func (s *lostAnswers) UpdateAsync(w store.Write, done func(store.Result)) {
	if w.Record.State != s.state {
		s.Store.UpdateAsync(w, done)
		return
	}
	s.Store.UpdateAsync(w, func(store.Result) { s.lost.Add(1) })
}

// TestReleaseWithClaimsInFlight: the clock of a shard that is released before its claims are
// answered says that the number of pending timers is unknown. The next owner counts them. Without
// answers to final records the number is known: these timers have fired.
func TestReleaseWithClaimsInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state   schemas.State
		unknown bool
	}{{schemas.StateDelivered, true}, {schemas.StateSuccess, false}} {
		t.Run(c.state.String(), func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			s := &lostAnswers{state: c.state}
			n := start(t, srv, "n1", oneShard, func(o *scheduler.Options) {
				s.Store = o.Store.(*store.Store)
				o.Store = s
			})
			// The tail brings the adds before they are due: a claim of an add that it does not bring any more lowers the number.
			create(t, n.store, timers(8, func(i int64) int64 {
				if i < 5 {
					return nowMs() + 2000
				}
				return nowMs() + 3_600_000
			})...)
			waittest.Until(t, "the writes", func() bool { return s.lost.Load() == 5 })
			if err := n.sched.Stop(context.Background()); err != nil {
				t.Fatal(err)
			}
			released, _, err := n.store.ReadClock(t.Context(), 0)
			if err != nil || released.Owner != "" || released.PendingUnknown != c.unknown || !c.unknown && released.Pending != 3 {
				t.Fatalf("the released clock: %+v, %v", released, err)
			}
			next := start(t, srv, "n2", store.Config{}, nil)
			waittest.Until(t, "the number", func() bool {
				c, _, err := next.store.ReadClock(t.Context(), 0)
				return err == nil && c.Owner == "n2" && !c.PendingUnknown && c.Pending == 3
			})
		})
	}
}

// slowCounts is a store that does not answer how many messages a stream has.
type slowCounts struct {
	*store.Store
	asked atomic.Int64
}

func (s *slowCounts) Messages(ctx context.Context, _ int) (uint64, int64, error) {
	s.asked.Add(1)
	<-ctx.Done()
	return 0, 0, context.Cause(ctx)
}

// TestReleaseWithoutTheCount: a shard is released also if the server does not say how many messages it has.
func TestReleaseWithoutTheCount(t *testing.T) {
	t.Parallel()
	var s *slowCounts
	n := start(t, natstest.Run(t), "n1", oneShard, func(o *scheduler.Options) {
		s = &slowCounts{Store: o.Store.(*store.Store)}
		o.Store = s
		o.Lease, o.Heartbeat = 30*time.Second, 10*time.Second // few renewals: each must be answered before the release
	})
	waittest.Until(t, "an inspection to count the messages", func() bool {
		c, _, err := n.store.ReadClock(t.Context(), 0)
		return err == nil && c.Msgs > 0
	})
	if err := n.sched.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if c, _, err := n.store.ReadClock(t.Context(), 0); err != nil || c.Owner != "" || s.asked.Load() != 1 {
		t.Errorf("after %d requests for the number: %+v, %v", s.asked.Load(), c, err)
	}
}

// endsEarlier is a store whose first answer about the end of a stream is that of a replica that is behind. The
// audit that follows fails.
type endsEarlier struct {
	*store.Store
	by    uint64
	asked atomic.Bool
}

func (s *endsEarlier) LastSeq(ctx context.Context, shard int) (uint64, error) {
	last, err := s.Store.LastSeq(ctx, shard)
	if err == nil && !s.asked.Swap(true) {
		last -= s.by
	}
	return last, err
}

func (s *endsEarlier) Audit(context.Context, int, store.Inspection, store.Expectation, int64, func(store.Timer) error) (store.ShardDamage, error) {
	return store.ShardDamage{}, schemas.ErrUnavailable
}

// TestCountsAfterAnEarlierEnd: an owner that starts its tail before the position of the previous owner counts
// the pending timers: the tail brings records that the previous owner's number includes.
func TestCountsAfterAnEarlierEnd(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	const pending = 8
	first := start(t, srv, "n1", oneShard, nil)
	create(t, first.store, timers(pending, func(int64) int64 { return nowMs() + 3_600_000 })...)
	exact := func(n *node, name string) func() bool {
		return func() bool {
			c, _, err := n.store.ReadClock(t.Context(), 0)
			return err == nil && c.Owner == name && !c.PendingUnknown && c.Counted && c.Pending == pending
		}
	}
	waittest.Until(t, "the number", exact(first, "n1"))
	if err := first.sched.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	next := start(t, srv, "n2", store.Config{}, func(o *scheduler.Options) {
		o.Store = &endsEarlier{Store: o.Store.(*store.Store), by: pending}
	})
	waittest.Until(t, "the shard to be taken", func() bool { return metrictest.Sum(t, next.reg, "belfry_shard_owned") == 1 })
	create(t, next.store, timer("last", nowMs()+3_600_000)) // the tail has brought all others before it
	waittest.Until(t, "the tail and the number", func() bool {
		c, _, err := next.store.ReadClock(t.Context(), 0)
		tm, errGet := next.store.Get(t.Context(), schemas.NewTimerID("/test", "last"))
		return err == nil && errGet == nil && c.Seen >= tm.Rev && !c.PendingUnknown && c.Counted
	})
	if c, _, err := next.store.ReadClock(t.Context(), 0); err != nil || c.Pending != pending+1 {
		t.Errorf("%d pending timers, %v", c.Pending, err)
	}
}
