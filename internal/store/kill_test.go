package store_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// killed is a store on a server that runs in its own process, so that it can be killed.
type killed struct {
	t    *testing.T
	p    *natstest.Process
	s    *store.Store
	sync bool
	// window is the store's Config.Window.
	window int
}

func newKilled(t *testing.T, sync bool) *killed { return newKilledWindow(t, sync, 0) }

func newKilledWindow(t *testing.T, sync bool, window int) *killed {
	k := &killed{t: t, p: natstest.RunProcess(t, sync), sync: sync, window: window}
	k.open()
	return k
}

func (k *killed) open() {
	k.t.Helper()
	s, err := store.Open(k.t.Context(), k.p.Connect(), store.Config{Node: "n1", Geometry: storetest.Geometry, GroupCommit: k.sync, Window: k.window}, zerolog.Nop())
	if err != nil {
		k.t.Fatal(err)
	}
	k.s = s
	k.t.Cleanup(s.Close)
}

// createLarge creates the timers first to last-1 of ids, each with 100 kB of data, and sets their revisions.
func (k *killed) createLarge(ids []schemas.TimerID, revs []uint64, pending *schemas.Record, first, last int) {
	k.t.Helper()
	for i := first; i < last; i++ {
		r := *pending
		r.Body.Data = make([]byte, 100_000)
		revs[i] = storetest.CreateAll(k.t, k.s, []store.Write{{ID: ids[i], Record: &r}})[0]
	}
}

// kill ends the server with SIGKILL and closes the store, so that its requests in flight are
// lost. Then it starts both again.
func (k *killed) kill() {
	k.t.Helper()
	k.s.Conn().Close()
	k.p.Kill()
	k.s.Close()
	k.p.Start()
	k.open()
}

// states returns the state of every timer that has a record.
func (k *killed) states() map[schemas.TimerID]schemas.State {
	k.t.Helper()
	out := map[schemas.TimerID]schemas.State{}
	q := store.ListQuery{Limit: store.MaxListLimit}
	for {
		p, err := k.s.List(k.t.Context(), q)
		if err != nil {
			k.t.Fatal(err)
		}
		for _, tm := range p.Timers {
			out[tm.ID] = tm.Record.State
		}
		if q.Cursor = p.Cursor; q.Cursor == "" {
			return out
		}
	}
}

// superseded returns the number of replaced revisions that still exist. They would become
// their timers' records again when the newer revisions expire.
func (k *killed) superseded() (n uint64) {
	k.t.Helper()
	js := natstest.JetStream(k.t, k.s.Conn())
	for shard := range storetest.Geometry.Shards {
		bucket := schemas.BucketTimers(shard)
		stream, err := js.Stream(k.t.Context(), "KV_"+bucket)
		if err != nil {
			k.t.Fatal(err)
		}
		info, err := stream.Info(k.t.Context(), jetstream.WithSubjectFilter("$KV."+bucket+".timer.>"))
		if err != nil {
			k.t.Fatal(err)
		}
		for _, revisions := range info.State.Subjects {
			n += revisions - 1
		}
	}
	return n
}

func (k *killed) update(id schemas.TimerID, rev uint64, r *schemas.Record, ttl time.Duration) uint64 {
	next, err := k.s.Update(k.t.Context(), store.Write{ID: id, Rev: rev, Record: r, TTL: ttl})
	if err != nil {
		k.t.Error(err)
	}
	return next
}

// each runs f for the numbers below n, up to 256 at a time.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 256)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

// TestKilledNothingReturns writes all states of many timers, waits until the final records
// have expired, and kills the server. No record may exist again after that, in any state. The
// timers cover all ways in which a revision is replaced.
func TestKilledNothingReturns(t *testing.T) {
	t.Parallel()
	for _, sync := range []bool{false, true} {
		t.Run(map[bool]string{false: "fast", true: "safe"}[sync], func(t *testing.T) {
			t.Parallel()
			k := newKilled(t, sync)
			k.s.SetShortTTL(0) // as with a long retention, final records use deletes, too
			const n = 2000
			now := storetest.NowMs(t, k.s)
			writes := make([]store.Write, n)
			for i := range writes {
				r := storetest.Pending(now)
				if i%2 == 0 {
					r.AddedMs = now - 24*3600_000 // added long ago, due now
				}
				if i%7 == 0 {
					r.DueMs = now + 3600_000 // to be cancelled or moved
				}
				writes[i] = store.Write{ID: storetest.ID(i), Record: r}
			}
			revs := storetest.CreateAll(t, k.s, writes)
			open := map[schemas.TimerID]schemas.State{}
			for i := range n {
				switch i % 10 {
				case 3:
					open[storetest.ID(i)] = schemas.StatePending
				case 4:
					open[storetest.ID(i)] = schemas.StateDelivered
				}
			}
			each(n, func(i int) {
				id, rev, r := storetest.ID(i), revs[i], *writes[i].Record
				if open[id] == schemas.StatePending {
					return
				}
				if i%14 == 0 {
					r.State, r.Queued, r.Body = schemas.StateCancelled, false, schemas.Body{}
					if open[id] == 0 {
						k.update(id, rev, &r, time.Second)
						return
					}
					r = *writes[i].Record
				}
				if i%7 == 0 {
					r.DueMs, r.Moves = now, 1
					rev = k.update(id, rev, &r, 0)
				}
				rev = k.update(id, rev, storetest.Delivered(r), 0)
				if open[id] == schemas.StateDelivered {
					return
				}
				for range i % 3 {
					retry := storetest.Delivered(r)
					retry.State = schemas.StateRetrying
					rev = k.update(id, rev, retry, 0)
				}
				k.update(id, rev, storetest.Success(r), time.Second)
			})
			if t.Failed() {
				return
			}
			waittest.Until(t, "the final records to expire", func() bool { return len(k.states()) == len(open) })
			for round := range 2 {
				k.kill()
				for id, state := range k.states() {
					if open[id] != state {
						t.Fatalf("after kill %d: %s is %s; it should be %q", round+1, id, state, open[id])
					}
				}
				if got := k.states(); len(got) != len(open) {
					t.Fatalf("after kill %d: %d records; %d were open", round+1, len(got), len(open))
				}
			}
		})
	}
}

// TestKilledAnywhere kills the server while timers are claimed and finished, and again while
// their records expire. A timer whose final write was acknowledged never has another state
// again, and an acknowledged timer is not lost.
func TestKilledAnywhere(t *testing.T) {
	testsize.NotShort(t, "rounds of kills")
	testsize.NotRace(t, "the server that is killed is another process")
	t.Parallel()
	for _, sync := range []bool{false, true} {
		t.Run(map[bool]string{false: "fast", true: "safe"}[sync], func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			l := &lives{killed: newKilled(t, sync), rnd: rand.New(rand.NewPCG(seed, 1)), acked: map[schemas.TimerID]schemas.State{}}
			for round := range testsize.Choose(t, "rounds", 1, 2, 4) {
				l.killWhileWriting(500+l.rnd.IntN(1500), round%2 == 0)
				l.check("after the kill while writing")
				// Kill the server shortly before or after the last record expires.
				<-time.After(time.Duration(l.rnd.IntN(2500)) * time.Millisecond)
				l.kill()
				l.check("after the kill near the expiry")
				waittest.Until(t, "the final records to expire", func() bool { return l.check("while they expire") == 0 })
				l.kill()
				if n := l.check("after the kill that followed the expiry"); n != 0 {
					t.Fatalf("round %d: %d finished timers have a record again", round, n)
				}
			}
		})
	}
}

// players is the number of goroutines that write: enough for both batches and single writes.
const players = 64

// lives holds for each timer the last state whose write was acknowledged.
type lives struct {
	*killed
	rnd *rand.Rand

	mu    sync.Mutex
	acked map[schemas.TimerID]schemas.State
	next  int
}

// killWhileWriting runs timers until n more have finished, and kills the server while others
// are in progress. With both set it also closes the store.
func (l *lives) killWhileWriting(n int, both bool) {
	l.t.Helper()
	s := l.s
	l.play(n, func() {
		// At a random moment, not only just after an answer.
		<-time.After(time.Duration(l.rnd.IntN(30_000)) * time.Microsecond)
		l.p.Kill()
		if both {
			s.Conn().Close()
		}
	})
	if both {
		s.Close()
	}
	l.p.Start()
	l.others()
	if both {
		l.open()
	} else {
		waittest.Until(l.t, "the store to be connected again", s.Conn().IsConnected)
	}
	waittest.Until(l.t, "no timer to have more than one revision", func() bool { return l.superseded() == 0 })
}

// others writes to each shard, as another node may before this node has reconnected.
func (l *lives) others() {
	l.t.Helper()
	js := natstest.JetStream(l.t, l.p.Connect())
	for shard := range storetest.Geometry.Shards {
		if _, err := js.Publish(l.t.Context(), "$KV."+schemas.BucketTimers(shard)+".another", nil); err != nil {
			l.t.Fatal(err)
		}
	}
}

// play runs timers until n more have finished, calls enough, and waits until all writers have
// ended.
func (l *lives) play(n int, enough func()) {
	var workers sync.WaitGroup
	left := make(chan struct{})
	var over atomic.Bool
	for range players {
		workers.Go(func() {
			for !over.Load() && l.live(l.s) {
				l.mu.Lock()
				if n--; n == 0 {
					close(left)
				}
				l.mu.Unlock()
			}
		})
	}
	<-left
	enough()
	over.Store(true)
	workers.Wait()
}

// live writes all states of one timer. It returns false if the store does not answer.
func (l *lives) live(s *store.Store) bool {
	l.mu.Lock()
	l.next++
	i := l.next
	l.mu.Unlock()
	id, r := storetest.ID(i), storetest.Pending(1_700_000_000_000)
	if i%2 == 0 {
		r.AddedMs = time.Now().UnixMilli() // young: its writes roll up; the other timers are old
	}
	res := s.Create(l.t.Context(), []store.Write{{ID: id, Record: r}})[0]
	rev, err := res.Rev, res.Err
	for _, w := range []store.Write{{Record: r}, {Record: storetest.Delivered(*r)}, {Record: storetest.Success(*r), TTL: time.Second}} {
		if err == nil && w.Record.State != schemas.StatePending {
			w.ID, w.Rev = id, rev
			rev, err = s.Update(l.t.Context(), w)
		}
		if err != nil {
			if !errors.Is(err, schemas.ErrUnavailable) {
				l.t.Error(err)
			}
			return false
		}
		l.mu.Lock()
		l.acked[id] = w.Record.State
		l.mu.Unlock()
	}
	return true
}

// check compares the records with the acknowledged states. It returns the number of finished
// timers that still have a record.
func (l *lives) check(when string) (final int) {
	l.t.Helper()
	there := l.states()
	for id, acked := range l.acked {
		state := there[id]
		switch {
		case acked.Final() && state != 0 && !state.Final():
			l.t.Fatalf("%s: %s was finished and is %s", when, id, state)
		case acked == schemas.StatePending && state == 0:
			l.t.Fatalf("%s: %s was acknowledged as pending and is gone", when, id)
		case acked == schemas.StateDelivered && state == schemas.StatePending:
			l.t.Fatalf("%s: %s was claimed and is pending again", when, id)
		case acked.Final() && state.Final():
			final++
		}
	}
	// A final write whose acknowledgement was lost counts as acknowledged once it is read.
	for id, state := range there {
		if state.Final() {
			l.acked[id] = state
		}
	}
	return final
}
