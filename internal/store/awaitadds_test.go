package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// reading is a node that reads adds and holds them.
type reading struct {
	*store.Store
	t    *testing.T
	mu   sync.Mutex
	held []*store.Add
	// read are all adds that it has read, known has their sequences. settles is true if each add is settled when it is read.
	read    []*store.Add
	known   map[uint64]struct{}
	settles bool
}

// readHolding opens an inbox, whose adds are held until they are taken.
func readHolding(t *testing.T, s *store.Store) *reading {
	t.Helper()
	return readDoor(t, s, s.OpenInbox)
}

// readDoor is readHolding for an inbox that open opens.
func readDoor(t *testing.T, s *store.Store, open func(context.Context) (*store.Inbox, error)) *reading {
	t.Helper()
	r := &reading{Store: s, t: t, known: map[uint64]struct{}{}}
	inbox, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		inbox.Read(ctx, 512, func(adds []*store.Add) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.read = append(r.read, adds...)
			for _, a := range adds {
				_, again := r.known[a.Seq]
				r.known[a.Seq] = struct{}{}
				switch {
				case r.settles:
					a.Done()
				case !again: // on a busy machine an add may be delivered again
					r.held = append(r.held, a)
				}
			}
		})
	})
	reader.Go(func() { // unless the machine is busy, no add is delivered again
		for pause.For(ctx, store.RouterAckWait/4) {
			r.mu.Lock()
			for _, a := range r.read {
				a.Working()
			}
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		reader.Wait()
		inbox.Close()
	})
	return r
}

// take publishes n adds, waits until they are held, and takes them.
func (r *reading) take(n int) (adds []*store.Add) {
	r.t.Helper()
	publishAdds(r.t, r.Store, n, 0)
	waittest.Until(r.t, "the adds are read", func() bool { return r.holds(n) })
	return r.takeHeld()
}

// holds reports whether n adds or more are held.
func (r *reading) holds(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held) >= n
}

// takeHeld takes the adds that are held.
func (r *reading) takeHeld() (adds []*store.Add) {
	r.mu.Lock()
	defer r.mu.Unlock()
	adds, r.held = r.held, nil
	return adds
}

// settle settles the adds that are held, and further ones when they are read.
func (r *reading) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settles = true
	for _, a := range r.held {
		a.Done()
	}
}

// TestAwaitAdds: a call ends when the adds that were stored before are settled, and in any case when its time is up. It
// does not wait for adds that are put off, nor longer than its context.
func TestAwaitAdds(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	if s.AwaitAdds(t.Context(), time.Hour) {
		t.Error("AwaitAdds returned true, and the process reads no adds")
	}
	r := readHolding(t, s)
	bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !s.AwaitAdds(bounded, time.Hour) {
		t.Error("AwaitAdds returned false, and there are no adds")
	}
	for how, settle := range map[string]func(*store.Add){
		"done":    (*store.Add).Done,
		"put off": func(a *store.Add) { a.Retry(time.Hour) },
	} {
		held := r.take(100)
		var settled atomic.Bool
		time.AfterFunc(50*time.Millisecond, func() {
			settled.Store(true)
			for _, a := range held {
				settle(a)
			}
		})
		if ok := s.AwaitAdds(bounded, time.Hour); !ok || !settled.Load() {
			t.Errorf("%s: AwaitAdds returned %v; the adds were settled: %v", how, ok, settled.Load())
		}
	}
	held := r.take(1)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if s.AwaitAdds(ctx, time.Hour) {
		t.Error("AwaitAdds returned true after its context had ended")
	}
	if !s.AwaitAdds(bounded, 2*time.Second) {
		t.Error("AwaitAdds returned false after its time was up")
	}
	if !s.AwaitAdds(bounded, time.Nanosecond) {
		t.Error("AwaitAdds returned false, and its time was up before the stream's state was known")
	}
	held[0].Done()
	if n := s.Waits(); n != 0 {
		t.Errorf("%d calls wait after all have returned", n)
	}
}

// TestAwaitAddsOfOthers: the wait for adds that another router has read is bounded, however long a call may wait for its
// own process.
func TestAwaitAddsOfOthers(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s, other := open(t, srv.InProcess()), open(t, srv.InProcess(), func(c *store.Config) { c.Node = "n2" })
	bounded, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	elsewhere := readHolding(t, other)
	held := elsewhere.take(3)
	mine := readHolding(t, s)
	if !s.AwaitAdds(bounded, time.Hour) {
		t.Error("another router holds the last adds: AwaitAdds returned false")
	}
	mine.settle()
	// Now both read. The adds that this router reads are settled, so that it waits only for those of the other one.
	last := uint64(3)
	waittest.Until(t, "this router reads the last add", func() bool {
		if s.Delivered() == last {
			return true
		}
		publishAdds(t, s, 1, 0)
		last++
		return false
	})
	// More adds come meanwhile, which do not prolong the wait.
	ctx, stop := context.WithCancel(t.Context())
	var more sync.WaitGroup
	more.Go(func() {
		for pause.For(ctx, 3*time.Millisecond) {
			if _, err := s.JetStream().Publish(t.Context(), schemas.SubjectAdd, []byte("more")); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if !s.AwaitAdds(bounded, time.Hour) || bounded.Err() != nil {
		t.Error("another router holds earlier adds: AwaitAdds returned false, or too late")
	}
	stop()
	more.Wait()
	for _, a := range held {
		a.Done()
	}
}

// TestAwaitAddsInBacklog: a call that has waited for long does not end because, for a moment, all adds that were read are
// settled and the next ones are not read yet.
func TestAwaitAddsInBacklog(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const adds = 6
	var read atomic.Int64
	inbox, err := s.OpenInbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publishAdds(t, s, adds, 0)
	ctx, stop := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		inbox.Read(ctx, 1, func(group []*store.Add) {
			read.Add(1)
			group[0].Done()
			time.Sleep(150 * time.Millisecond) // the next one is not read yet
		})
	})
	if ok := s.AwaitAdds(bounded, time.Hour); !ok || read.Load() != adds {
		t.Errorf("AwaitAdds returned %v after %d of %d adds were settled", ok, read.Load(), adds)
	}
	stop()
	reader.Wait()
	inbox.Close()
}

// TestAwaitAddsOfNewStream: if the stream is made again, other adds get the sequences of adds that were settled.
func TestAwaitAddsOfNewStream(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	r := readHolding(t, s)
	const adds = 10
	for _, a := range r.take(adds) {
		a.Done()
	}
	stream, err := s.JetStream().Stream(t.Context(), schemas.StreamAdd)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.JetStream().DeleteStream(t.Context(), schemas.StreamAdd); err != nil {
		t.Fatal(err)
	}
	if _, err := s.JetStream().CreateStream(t.Context(), stream.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	if got := s.Delivered(); got != adds {
		t.Fatalf("the last add that was delivered is %d, want %d", got, adds)
	}
	r.settle()
	publishAdds(t, s, 1, 0)
	s.AwaitAdds(t.Context(), time.Minute)
	if got := s.Delivered(); got >= adds {
		t.Errorf("the last add that was delivered is %d, and the stream has one", got)
	}
}
