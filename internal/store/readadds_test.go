package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestReadAddsShared: two readers share the adds. Each add is delivered once, to one of them,
// in order, with its bytes, and acknowledged adds leave the stream. The same holds with
// replicas, where the server announces the end of a request before its last adds.
func TestReadAddsShared(t *testing.T) {
	t.Parallel()
	noDrop := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) })
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		testReadAddsShared(t, open(t, natstest.Run(t).InProcess(noDrop)))
	})
	t.Run("three", func(t *testing.T) {
		t.Parallel()
		nc := natstest.Cluster3(t).Servers[0].InProcess(noDrop)
		testReadAddsShared(t, open(t, nc, func(c *store.Config) { c.Replicas = 3 }))
	})
}

func testReadAddsShared(t *testing.T, s *store.Store) {
	const n, most = 3*store.AddsMost + 100, 512
	publishAdds(t, s, n, 0)
	type got struct {
		reader int
		adds   []*store.Add
		err    error
	}
	groups := make(chan got, n+2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 2 {
		r := readAdds(t, s)
		go func() {
			defer r.Rest()
			for {
				adds, err := r.Next(ctx, most)
				groups <- got{i, adds, err}
				if err != nil {
					return
				}
				if i == 0 {
					time.Sleep(5 * time.Millisecond) // the other one is faster
				}
			}
		}()
	}
	seen, last := map[uint64]bool{}, [2]uint64{}
	for len(seen) < n {
		g := <-groups
		if g.err != nil {
			t.Fatal(g.err)
		}
		if len(g.adds) == 0 || len(g.adds) > most {
			t.Errorf("a group of %d", len(g.adds))
		}
		for _, a := range g.adds {
			if a.Deliveries > 1 && a.Deliveries < 10 {
				t.Logf("add %d comes for the %d. time: this machine is slow", a.Seq, a.Deliveries)
				continue
			}
			switch {
			case seen[a.Seq], a.Seq <= last[g.reader]:
				t.Fatalf("add %d came to reader %d after %d", a.Seq, g.reader, last[g.reader])
			case string(a.Data) != fmt.Sprint(a.Seq), fmt.Sprint(a.Header["n"]) != fmt.Sprint([]any{a.Seq}), a.Deliveries != 1, a.Stored.IsZero():
				t.Fatalf("unexpected add %+v", a)
			}
			seen[a.Seq], last[g.reader] = true, a.Seq
			if err := a.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "all are gone", func() bool { return addsLeft(t, s) == 0 })
	cancel()
	for ended := 0; ended < 2; {
		if g := <-groups; errors.Is(g.err, context.Canceled) {
			ended++
		} else if g.err != nil {
			t.Error(g.err)
		}
	}
}

// TestReadAddsAway: the reader pauses for longer than the interval of heartbeats, while more
// adds are published than it may hold. No add is dropped.
func TestReadAddsAway(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess(nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) }))
	s := open(t, nc)
	const n = 3 * store.AddsMost
	publishAdds(t, s, 1, 0)
	r := readAdds(t, s)
	defer r.Rest()
	total := 0
	read := func(upTo int) {
		t.Helper()
		for total < upTo {
			adds, err := r.Next(t.Context(), store.AddsMost)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range adds {
				if a.Deliveries > 1 {
					continue // this machine is slow
				}
				if total++; a.Seq != uint64(total) {
					t.Fatalf("%d came, want %d", a.Seq, total)
				}
				if err := a.Ack(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	read(1)
	publishAdds(t, s, n-1, 0)
	time.Sleep(2200 * time.Millisecond) // longer than two heartbeats, shorter than RouterAckWait
	if got := r.Waiting(); got < store.AddsMost/2 || got > store.AddsMost+3 {
		t.Errorf("%d adds were delivered while the reader was away", got)
	}
	read(n)
}

// TestReadAddsLarge: if the bytes of a request limit its adds, later requests deliver the
// rest.
func TestReadAddsLarge(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	const n, size = 200, 400 << 10
	publishAdds(t, s, n, size)
	r := readAdds(t, s)
	defer r.Rest()
	if _, err := r.Next(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "as many adds are delivered as fit the bytes", func() bool { return r.Waiting() >= store.AddsBytes/size-10 })
	time.Sleep(100 * time.Millisecond) // for more, which must not come
	if got := r.Waiting(); got > store.AddsBytes/size+3 {
		t.Errorf("%d adds of %d bytes wait", got, size)
	}
	for total := 1; total < n; {
		adds, err := r.Next(t.Context(), store.AddsMost)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range adds {
			if a.Deliveries == 1 {
				total++
			}
			if err := a.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestReadAddsIdle: requests that expire without adds are no error; the reader sends new ones.
func TestReadAddsIdle(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	r, err := s.ReadAddsExpiring(t.Context(), 2500*time.Millisecond) // the least is twice the heartbeat
	if err != nil {
		t.Fatal(err)
	}
	defer r.Rest()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	if adds, err := r.Next(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%d adds, %v", len(adds), err)
	}
	if got := r.Left(); got != store.AddsMost {
		t.Errorf("%d adds are requested, not %d", got, store.AddsMost)
	}
	publishAdds(t, s, 1, 0)
	if adds, err := r.Next(t.Context(), 1); err != nil || len(adds) != 1 {
		t.Errorf("%d adds, %v", len(adds), err)
	}
}

// TestReadAddsStatus: an add with the headers of a status message is an add.
func TestReadAddsStatus(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	looks := []nats.Header{
		{"Status": {"404"}}, {"Status": {"100"}}, {"Status": {"503"}}, {"Status": {"409"}, "Description": {"Consumer Deleted"}},
		{"Status": {"408"}, "Nats-Pending-Messages": {"1000"}}, {"Status": {"409"}, "Description": {"Batch Completed"}}, {"Status": {"nonsense"}},
	}
	for _, h := range looks {
		if _, err := s.JetStream().PublishMsg(t.Context(), &nats.Msg{Subject: schemas.SubjectAdd, Header: h}); err != nil {
			t.Fatal(err)
		}
	}
	r := readAdds(t, s)
	defer r.Rest()
	for total := 0; total < len(looks); {
		adds, err := r.Next(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range adds {
			if a.Deliveries > 1 {
				continue // this machine is slow
			}
			if got, want := nats.Header(a.Header).Get("Status"), looks[total].Get("Status"); got != want || a.Seq != uint64(total+1) {
				t.Errorf("add %d with status %q, want %d with %q", a.Seq, got, total+1, want)
			}
			total++
		}
	}
}

// TestReadAddsRest: Rest returns the adds that were delivered but not read yet. An add that is
// handed back with Retry is delivered again.
func TestReadAddsRest(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	publishAdds(t, s, 10, 0)
	r := readAdds(t, s)
	adds, err := r.Next(t.Context(), 3)
	if err != nil || len(adds) == 0 {
		t.Fatalf("%d adds, %v", len(adds), err)
	}
	left := 10 - len(adds)
	eventually(t, "the other adds are delivered, too", func() bool { return r.Waiting() >= left })
	rest := r.Rest()
	if len(rest) != left || rest[0].Seq != uint64(len(adds)+1) || rest[left-1].Seq != 10 {
		t.Fatalf("%d adds are the rest, %d were left of 10", len(rest), left)
	}
	for _, a := range append(adds[1:], rest...) {
		if err := a.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all but one are gone", func() bool { return addsLeft(t, s) == 1 })
	adds[0].Retry(0)
	next := readAdds(t, s)
	defer next.Rest()
	again, err := next.Next(t.Context(), 3)
	if err != nil || len(again) != 1 || again[0].Seq != 1 || again[0].Deliveries < 2 {
		t.Fatalf("%d adds, %v", len(again), err)
	}
	// While Working is called in time, the add is not delivered again.
	for range 4 {
		again[0].Working()
		ctx, cancel := context.WithTimeout(t.Context(), store.RouterAckWait/3)
		adds, err := next.Next(ctx, 3)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || len(adds) > 0 {
			t.Fatalf("%d adds, %v", len(adds), err)
		}
	}
}

// TestReadAddsBroken: if its consumer is deleted, or the connection is lost, a reader returns
// an error, and the next reader continues.
func TestReadAddsBroken(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.Connect(nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)))
	breaks := map[string]func(){
		"the consumer is deleted": func() {
			if err := s.JetStream().DeleteConsumer(t.Context(), schemas.StreamAdd, store.RouterConsumer); err != nil {
				t.Fatal(err)
			}
		},
		"the server is restarted": srv.Restart,
	}
	for what, disturb := range breaks {
		r := readAdds(t, s)
		ended := make(chan error)
		go func() {
			_, err := r.Next(t.Context(), 1)
			ended <- err
		}()
		disturb()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: Next returned no error", what)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the reader does not notice", what)
		}
		r.Rest()
		var next *store.AddReader
		eventually(t, "another reader", func() (ok bool) {
			var err error
			next, err = s.ReadAdds(t.Context())
			return err == nil
		})
		publishAdds(t, s, 1, 0)
		adds, err := next.Next(t.Context(), 1)
		if err != nil || len(adds) != 1 {
			t.Fatalf("%s: %d adds, %v", what, len(adds), err)
		}
		if err := adds[0].Ack(); err != nil {
			t.Fatal(err)
		}
		next.Rest()
	}
}

// addConsumer returns the routers' consumer.
func addConsumer(t *testing.T, s *store.Store) jetstream.Consumer {
	t.Helper()
	return consumerOf(t, s, store.RouterConsumer, s.OpenInbox)
}

// tenantConsumer is addConsumer for the adds of tenants.
func tenantConsumer(t *testing.T, s *store.Store) jetstream.Consumer {
	t.Helper()
	return consumerOf(t, s, store.TenantConsumer, s.OpenTenantInbox)
}

// consumerOf returns the consumer of an inbox, which open makes.
func consumerOf(t *testing.T, s *store.Store, name string, open func(context.Context) (*store.Inbox, error)) jetstream.Consumer {
	t.Helper()
	inbox, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inbox.Close()
	c, err := s.JetStream().Consumer(t.Context(), schemas.StreamAdd, name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readAdds(t *testing.T, s *store.Store) *store.AddReader {
	t.Helper()
	r, err := s.ReadAdds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// publishAdds publishes n adds: of size zero bytes, or for size 0 with their sequence as data.
func publishAdds(t *testing.T, s *store.Store, n, size int) {
	t.Helper()
	publishAddsOn(t, s, schemas.SubjectAdd, n, size)
}

// publishAddsOn is publishAdds for another subject.
func publishAddsOn(t *testing.T, s *store.Store, subject string, n, size int) {
	t.Helper()
	var stored []jetstream.PubAckFuture
	for i := range n {
		name := fmt.Sprint(i + 1)
		m := &nats.Msg{Subject: subject, Header: nats.Header{"n": {name}}, Data: []byte(name)}
		if size > 0 {
			m.Data = make([]byte, size)
		}
		f, err := s.JetStream().PublishMsgAsync(m, jetstream.WithStallWait(waittest.Bound))
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, f)
	}
	select {
	case <-s.JetStream().PublishAsyncComplete():
	case <-time.After(time.Minute):
		t.Fatal("the adds are not stored")
	}
	for _, f := range stored {
		select {
		case err := <-f.Err():
			t.Fatal(err)
		default:
		}
	}
}

func addsLeft(t *testing.T, s *store.Store) uint64 {
	t.Helper()
	stream, err := s.JetStream().Stream(t.Context(), schemas.StreamAdd)
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after a minute: %s", what)
		}
	}
}

// TestInbox: an Inbox delivers every add once, makes a deleted consumer again, and removes
// finished adds.
func TestInbox(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	in, err := s.OpenInbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen, read := make(chan uint64, 1000), make(chan struct{})
	go func() {
		defer close(read)
		in.Read(ctx, 64, func(group []*store.Add) {
			for _, a := range group {
				if a.Deliveries == 1 {
					seen <- a.Seq
				}
				a.Done()
			}
		})
	}()
	expect := func(from, to uint64) {
		t.Helper()
		for seq := from; seq <= to; seq++ {
			select {
			case got := <-seen:
				if got != seq {
					t.Fatalf("add %d was delivered, not %d", got, seq)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("add %d was not delivered", seq)
			}
		}
	}
	publishAdds(t, s, 200, 0)
	expect(1, 200)
	eventually(t, "all adds are removed", func() bool { return addsLeft(t, s) == 0 })
	if err := s.JetStream().DeleteConsumer(t.Context(), schemas.StreamAdd, store.RouterConsumer); err != nil {
		t.Fatal(err)
	}
	publishAdds(t, s, 5, 0)
	expect(201, 205)
	cancel()
	<-read
	in.Close()
	eventually(t, "all adds are removed", func() bool { return addsLeft(t, s) == 0 })
}
