package store_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/router/natsapi"
	"github.com/belfryio/belfry/schemas"
)

// TestStrandedAdds: adds that the consumer counts as acknowledged, and that the stream still has after the server was
// started again, are read again until the router has settled them, and removed then. Other adds are read once.
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
	s := open(t, srv.InProcess())
	publish()
	s.Close()
	srv.Undo(schemas.StreamAdd, func() {
		s := open(t, srv.InProcess())
		defer s.Close()
		read, stop := readAll(t, s)
		defer stop()
		waittest.Until(t, "all adds are read", func() bool { return len(read()) == adds })
		for _, a := range read() {
			a.Done()
		}
		waittest.Until(t, "all adds are removed", func() bool { return addsLeft(t, s) == 0 })
	})

	// With a short retention their records may have expired.
	s = open(t, srv.InProcess(), func(c *store.Config) { c.Retention = time.Second })
	waittest.Until(t, "the stranded adds are old", func() bool {
		found, err := s.Stranded(t.Context())
		return err == nil && len(found) == adds && !slices.ContainsFunc(found, func(a *store.Add) bool { return !a.Old })
	})
	s.Close()

	s = open(t, srv.InProcess())
	if n := addsLeft(t, s); n != adds {
		t.Fatalf("the stream has %d adds, want %d", n, adds)
	}
	publish()
	s.LookForStranded(20 * time.Millisecond)
	read, stop := readAll(t, s)
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
		if a.Working(); a.Deliveries < 2 || a.Old {
			t.Errorf("add %d: %d deliveries, old: %v", a.Seq, a.Deliveries, a.Old)
		}
		a.Retry(time.Millisecond)
	}
	waittest.Until(t, "stranded adds that were put off are read again", func() bool { return len(again()) >= 2*adds })
	for _, a := range again()[:adds] {
		a.Done()
	}
	waittest.Until(t, "the stranded adds are removed", func() bool { return addsLeft(t, s) == adds })
}

// TestOldStrandedAdds: a router rejects an old stranded add whose timer has no record. If there is a record, the add is a
// duplicate. Both leave the stream.
func TestOldStrandedAdds(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	publish := func(s *store.Store, id string, data string) {
		t.Helper()
		event := `{"specversion":"1.0","id":"` + id + `","source":"/test","type":"t","timersvc":"s","timerafter":"1h","data":"` + data + `"}`
		if _, err := s.JetStream().Publish(t.Context(), schemas.SubjectAdd, []byte(event)); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, srv.InProcess())
	publish(s, "kept", "a")
	publish(s, "lost", "b")
	s.Close()
	srv.Undo(schemas.StreamAdd, func() {
		s := open(t, srv.InProcess())
		defer s.Close()
		defer serveAdds(t, s, srv.InProcess())()
		waittest.Until(t, "the adds are handled", func() bool { return addsLeft(t, s) == 0 })
	})

	// The record of one of the timers expires.
	s = open(t, srv.InProcess(), func(c *store.Config) { c.Retention = time.Second })
	kept, lost := schemas.NewTimerID("/test", "kept"), schemas.NewTimerID("/test", "lost")
	record, err := s.Get(t.Context(), lost)
	if err != nil {
		t.Fatal(err)
	}
	record.Record.State, record.Record.Queued, record.Record.DoneMs = schemas.StateCancelled, false, time.Now().UnixMilli()
	if _, err := s.Update(t.Context(), store.Write{ID: lost, Rev: record.Rev, Record: &record.Record, TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the record has expired", func() bool {
		_, err := s.Get(t.Context(), lost)
		return errors.Is(err, schemas.ErrNotFound)
	})
	s.LookForStranded(20 * time.Millisecond)
	defer serveAdds(t, s, srv.InProcess())()
	waittest.Until(t, "the adds are handled again", func() bool { return addsLeft(t, s) == 0 })
	page, err := s.RejectedList(t.Context(), store.RejectedQuery{Limit: 10})
	if err != nil || len(page.Adds) != 1 {
		t.Fatalf("the rejected adds are %v (error %v), want one", page.Adds, err)
	}
	if m := page.Adds[0]; m.Get(schemas.HeaderErrorCode) != string(schemas.CodeNotFound) || !strings.Contains(string(m.Data), `"id":"lost"`) {
		t.Errorf("rejected with code %s: %s", m.Get(schemas.HeaderErrorCode), m.Data)
	}
	if _, err := s.Get(t.Context(), lost); !errors.Is(err, schemas.ErrNotFound) {
		t.Errorf("the timer that was cancelled: %v, want no record", err)
	}
	if r, err := s.Get(t.Context(), kept); err != nil || r.Record.State != schemas.StatePending {
		t.Errorf("the timer that waits: %v, state %s", err, r.Record.State)
	}
}

// serveAdds serves timers.add with a router, until stop.
func serveAdds(t *testing.T, s *store.Store, nc *nats.Conn) (stop func()) {
	t.Helper()
	clock := clustertime.NewService(func(ctx context.Context) (clustertime.Reading, error) {
		st, err := s.Beat(ctx)
		return clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, err
	}, 0, zerolog.Nop())
	clock.Start()
	r, err := router.New(router.Options{Store: s, Time: clock, Dedup: s.NewDedupCheck()})
	if err != nil {
		t.Fatal(err)
	}
	n, err := natsapi.New(natsapi.Options{Service: r, OpenInbox: s.OpenInbox, Conn: endpoint.On(nc)})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Start(t.Context()), n.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := n.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		r.Stop(context.WithoutCancel(t.Context()))
		clock.Stop()
	}
}

// TestStrandedSet: a stranded add is passed when two looks in a row have found it, and again only after it was settled. The
// leader of the stream must still have it.
func TestStrandedSet(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	for range 2 {
		if _, err := s.JetStream().Publish(t.Context(), schemas.SubjectAdd, []byte("add")); err != nil {
			t.Fatal(err)
		}
	}
	inbox, err := s.OpenInbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer inbox.Close()
	var set store.StrandedSet
	// look returns the sequences that a look passes, if it has found those.
	look := func(found ...uint64) (adds []*store.Add, seqs []uint64) {
		t.Helper()
		var all []*store.Add
		for _, seq := range found {
			all = append(all, s.StrandedAdd(seq))
		}
		adds = set.Next(t.Context(), s.Adds, all)
		inbox.Pass(adds)
		for _, a := range adds {
			seqs = append(seqs, a.Seq)
		}
		return adds, seqs
	}
	expect := func(when string, got []uint64, want ...uint64) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d are passed, want %d", when, got, want)
		}
	}
	_, seqs := look(1)
	expect("the first look", seqs)
	first, seqs := look(1, 2)
	expect("add 1 was found twice", seqs, 1)
	second, seqs := look(1, 2)
	expect("add 1 is not settled, add 2 was found twice", seqs, 2)
	first[0].Retry(0)
	first, seqs = look(1, 2)
	expect("add 1 was put off", seqs, 1)
	first[0].Retry(0)
	second[0].Retry(0)
	if err := s.RemoveAdd(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	_, seqs = look(1, 2)
	expect("add 1 was removed, and a replica has it", seqs, 2)
	_, seqs = look()
	expect("nothing is found", seqs)
	_, seqs = look(2)
	expect("add 2 was not found in between", seqs)
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
