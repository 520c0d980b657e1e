package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestServerGone: while the server is down every call soon fails with ErrUnavailable. After a
// restart of the server the same store works again, and its tail has no gap.
func TestServerGone(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TCP", "in process"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			nc := srv.Connect
			if kind == "in process" {
				nc = srv.InProcess
			}
			s := open(t, nc(nats.ReconnectBufSize(-1)), func(c *store.Config) { c.Timeout = 15 * time.Second })
			g := s.Geometry()
			due := storetest.NowMs(t, s) + 60_000
			ids := storetest.IDsOf(g, 0, 200)
			create := func(ids []schemas.TimerID) uint64 {
				var writes []store.Write
				for _, id := range ids {
					writes = append(writes, store.Write{ID: id, Record: storetest.Pending(due)})
				}
				revs := storetest.CreateAll(t, s, writes)
				return revs[len(revs)-1]
			}
			got := make(chan store.Timer, 1000)
			tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) { got <- tm })
			if err != nil {
				t.Fatal(err)
			}
			defer tail.Stop()
			create(ids[:100])
			services, err := s.WatchServices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			srv.Stop()
			start := time.Now()
			for name, f := range map[string]func() error{
				"get": func() error { _, err := s.Get(t.Context(), ids[0]); return err },
				"create": func() error {
					return s.Create(t.Context(), []store.Write{{ID: ids[150], Record: storetest.Pending(1)}})[0].Err
				},
				"load":    func() error { _, err := s.LoadTicks(t.Context(), 0, []int64{1}, 10, 0, 0, nil); return err },
				"clock":   func() error { _, _, err := s.ReadClock(t.Context(), 0); return err },
				"beat":    func() error { _, err := s.Beat(t.Context()); return err },
				"publish": func() error { _, _, err := s.Publish(t.Context(), store.Msg{Subject: "timers.fired.a"}); return err },
				"dead":    func() error { _, err := s.DeadList(t.Context(), store.DeadQuery{}); return err },
				"fired":   func() error { _, err := s.FiredBacklog(t.Context(), "s"); return err },
			} {
				if err := f(); !errors.Is(err, schemas.ErrUnavailable) {
					t.Errorf("%s while the server is down: %v", name, err)
				}
			}
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("eight calls took %s", took)
			}
			srv.Start()
			back := time.Now()
			waittest.Until(t, "the store to be back", func() bool {
				_, err := s.Beat(t.Context())
				return err == nil
			})
			t.Logf("store back %s after the server", time.Since(back))
			last := create(ids[100:])
			written := time.Now()
			seen := map[schemas.TimerID]bool{}
			for seq := uint64(0); seq < last; {
				select {
				case tm := <-got:
					if tm.Rev <= seq {
						t.Fatalf("revision %d after %d", tm.Rev, seq)
					}
					seq = tm.Rev
					seen[tm.ID] = true
				case <-time.After(60 * time.Second):
					t.Fatalf("the tail stands at %d of %d, %d seen", seq, last, len(seen))
				}
			}
			t.Logf("tail caught up %s after the last write", time.Since(written))
			if len(seen) != len(ids) {
				t.Fatalf("the tail brought %d of %d", len(seen), len(ids))
			}
			if err := s.WakeService(t.Context(), store.Feed{Service: "later"}); err != nil {
				t.Fatal(err)
			}
			for svc := ""; svc != "later"; {
				select {
				case c := <-services:
					svc = c.Service
				case <-time.After(60 * time.Second):
					t.Fatal("the service did not come")
				}
			}
		})
	}
}

// TestClosed: calls after Close, and calls in progress at Close, return.
func TestClosed(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.Connect())
	var calls sync.WaitGroup
	for i := range 500 {
		calls.Add(1)
		s.PublishAsync(store.Msg{Subject: "timers.fired.a", Data: []byte{byte(i)}}, func(uint64, bool, error) { calls.Done() })
	}
	s.Close()
	s.Close()
	calls.Wait()
	if _, _, err := s.Publish(context.Background(), store.Msg{Subject: "timers.fired.a"}); !errors.Is(err, schemas.ErrUnavailable) {
		t.Fatalf("publish after close: %v", err)
	}
}
