package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
)

// reading is a node that reads adds and holds them.
type reading struct {
	*store.Store
	t    *testing.T
	mu   sync.Mutex
	held []*store.Add
}

// readHolding opens an inbox that holds what it reads, until the test ends.
func readHolding(t *testing.T, s *store.Store) *reading {
	t.Helper()
	r := &reading{Store: s, t: t}
	inbox, err := s.OpenInbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		inbox.Read(ctx, 512, func(adds []*store.Add) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.held = append(r.held, adds...)
		})
	})
	t.Cleanup(func() {
		cancel()
		reader.Wait()
		inbox.Close()
	})
	return r
}

// take waits until n adds are held, and takes them.
func (r *reading) take(n int) (adds []*store.Add) {
	r.t.Helper()
	waittest.Until(r.t, "the adds are read", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.held) >= n
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	adds, r.held = r.held, nil
	return adds
}

// TestAwaitAdds: a call ends when the adds that were stored before are settled. It does not wait for adds that are put off,
// nor longer than its context.
func TestAwaitAdds(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	s.AwaitFor(time.Hour)
	if !s.AwaitAdds(t.Context()) {
		t.Error("without an add: AwaitAdds returned false")
	}
	r := readHolding(t, s)
	// settles calls AwaitAdds, and meanwhile f, which settles what was added.
	settles := func(what string, f func()) {
		t.Helper()
		var settled atomic.Bool
		time.AfterFunc(50*time.Millisecond, func() {
			settled.Store(true)
			f()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ok := s.AwaitAdds(ctx); !ok || !settled.Load() {
			t.Errorf("%s: AwaitAdds returned %v; the adds were settled: %v", what, ok, settled.Load())
		}
	}
	publishAdds(t, s, 100, 0)
	settles("done", func() {
		for _, a := range r.take(100) {
			a.Done()
		}
	})
	publishAdds(t, s, 3, 0)
	settles("put off", func() {
		for _, a := range r.take(3) {
			a.Retry(time.Hour)
		}
	})
	publishAdds(t, s, 1, 0)
	held := r.take(1)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if s.AwaitAdds(ctx) {
		t.Error("AwaitAdds returned true after its context had ended")
	}
	s.AwaitFor(time.Millisecond)
	if ctx, cancel = context.WithTimeout(t.Context(), time.Minute); !s.AwaitAdds(ctx) {
		t.Error("the wait has no bound")
	}
	cancel()
	held[0].Done()
}

// TestAwaitAddsShared: a call does not wait while another router reads adds, too.
func TestAwaitAddsShared(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.InProcess())
	r, other := readHolding(t, s), readHolding(t, open(t, srv.InProcess(), func(c *store.Config) { c.Node = "n2" }))
	here := 0
	waittest.Until(t, "both routers have read adds", func() bool {
		publishAdds(t, s, 10, 0)
		here += len(r.take(0))
		return here > 0 && len(other.take(0)) > 0
	})
	waittest.Until(t, "a call does not wait", func() bool { return !s.AwaitAdds(t.Context()) })
}
