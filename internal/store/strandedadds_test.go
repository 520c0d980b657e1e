package store_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestStrandedAdds: adds that the consumer counts as acknowledged, and that the stream still has after the server was
// started again, are read again until the router has settled them, and removed then. Old ones are left, and other adds are read once.
func TestStrandedAdds(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	const adds = 10
	publish := func() {
		t.Helper()
		js := natstest.JetStream(t, srv.InProcess())
		for range adds {
			if _, err := js.Publish(t.Context(), schemas.SubjectAdd, []byte("add")); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func(s *store.Store) uint64 {
		t.Helper()
		st, err := s.JetStream().Stream(t.Context(), schemas.StreamAdd)
		if err != nil {
			t.Fatal(err)
		}
		return st.CachedInfo().State.Msgs
	}
	s := open(t, srv.InProcess())
	publish()
	s.Close()
	srv.Stop()
	stream := filepath.Join(srv.StoreDir(), "jetstream", "$G", "streams", schemas.StreamAdd, "msgs")
	before := filepath.Join(t.TempDir(), "msgs")
	if err := os.CopyFS(before, os.DirFS(stream)); err != nil {
		t.Fatal(err)
	}
	srv.Start()

	// The adds are acknowledged, and the server loses their removal.
	s = open(t, srv.InProcess())
	read, stop := readAll(t, s)
	waittest.Until(t, "all adds are read", func() bool { return len(read()) == adds })
	for _, a := range read() {
		a.Done()
	}
	waittest.Until(t, "all adds are removed", func() bool { return left(s) == 0 })
	stop()
	s.Close()
	srv.Stop()
	if err := os.RemoveAll(stream); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(stream, os.DirFS(before)); err != nil {
		t.Fatal(err)
	}
	srv.Start()

	// Their records may have expired.
	s = open(t, srv.InProcess(), func(c *store.Config) { c.Retention = time.Second })
	waittest.Until(t, "the stranded adds are too old", func() bool {
		young, old, err := s.Stranded(t.Context())
		return err == nil && len(young) == 0 && len(old) == adds
	})
	s.Close()

	s = open(t, srv.InProcess())
	if n := left(s); n != adds {
		t.Fatalf("the stream has %d adds, want %d", n, adds)
	}
	publish()
	s.LookForStranded(20 * time.Millisecond)
	read, stop = readAll(t, s)
	defer stop()
	again := func() (again []*store.Add) {
		t.Helper()
		for _, a := range read() {
			if a.Seq <= adds {
				again = append(again, a)
			} else if a.Deliveries > 1 {
				t.Errorf("add %d, which is not stranded, was read again", a.Seq)
			}
		}
		return again
	}
	waittest.Until(t, "the stranded adds are read", func() bool { return len(again()) >= adds })
	for _, a := range again()[:adds] {
		if a.Working(); a.Deliveries < 2 {
			t.Errorf("add %d counts as new", a.Seq)
		}
		a.Retry(time.Millisecond)
	}
	waittest.Until(t, "stranded adds that were put off are read again", func() bool { return len(again()) >= 2*adds })
	for _, a := range again()[:adds] {
		a.Done()
	}
	waittest.Until(t, "the stranded adds are removed", func() bool { return left(s) == adds })
}

// readAll reads the adds of a store. read returns what was read so far, and stop ends it.
func readAll(t *testing.T, s *store.Store) (read func() []*store.Add, stop func()) {
	t.Helper()
	inbox, err := s.OpenInbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []*store.Add
	var reader sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	reader.Go(func() {
		inbox.Read(ctx, 512, func(adds []*store.Add) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, adds...)
		})
	})
	read = func() []*store.Add {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
	return read, func() {
		cancel()
		reader.Wait()
		inbox.Close()
	}
}
