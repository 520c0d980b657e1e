package store_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestAskedAgain: a request to a stream without a leader is answered once the stream has a
// leader. The time-out of the calls is far longer than this test, so the test fails unless
// the client repeats its requests.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	c := natstest.Cluster3(t)
	survivor := c.Servers[0]
	// Make the store with the usual time-out: a new cluster may change its leader once more,
	// and some of these requests are not repeated.
	first := open(t, survivor.Connect(), func(c *store.Config) { c.Replicas = 3 })
	id := storetest.IDsOf(first.Geometry(), 0, 1)[0]
	rev := storetest.CreateAll(t, first, []store.Write{{ID: id, Record: storetest.Pending(storetest.NowMs(t, first) + 60_000)}})[0]
	s := open(t, survivor.Connect(), func(c *store.Config) { c.Node, c.Replicas, c.Timeout = "n2", 3, 10*time.Minute })
	stream := "KV_" + schemas.BucketTimers(0)
	for _, other := range c.Servers[1:] {
		other.Stop()
	}
	c.WaitNoStreamLeader(stream)

	calls := []struct {
		name string
		call func() error
	}{
		{"read at the leader", func() error { _, err := s.Get(t.Context(), id); return err }},
		{"state of a stream", func() error { _, err := s.LastSeq(t.Context(), 0); return err }},
	}
	// A server that knows no leader may also refuse the request at once. That is an answer, and
	// the caller repeats the call. Only silence is an error.
	answered := make(chan string, len(calls))
	for _, call := range calls {
		go func() {
			for call.call() != nil && t.Context().Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			answered <- call.name
		}()
	}
	seen := make(chan uint64, 1)
	tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) { seen <- tm.Rev })
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	// Wait until all calls have sent requests. Most are lost, but the remaining server may have
	// become leader for a moment, when the other servers stopped.
	<-time.After(time.Second)
	for _, other := range c.Servers[1:] {
		other.Start()
	}
	deadline := time.After(2 * time.Minute)
	for range calls {
		select {
		case <-answered:
		case <-deadline:
			t.Fatal("a call is not answered although the stream has a leader again")
		}
	}
	select {
	case got := <-seen:
		if got != rev {
			t.Fatalf("the tail brought revision %d, want %d", got, rev)
		}
	case <-deadline:
		t.Fatal("the tail is silent although the stream has a leader again")
	}
}

// TestOpenAskedAgain: a server that stops being the leader drops requests without an answer.
// Open then repeats them, long before its time-out, except the first heartbeat of a store.
func TestOpenAskedAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, subject string
		existing      bool // the store was opened before, with other limits
	}{
		{"account", "$JS.API.INFO", false},
		{"look up", "$JS.API.STREAM.INFO.*", false},
		{"make", "$JS.API.STREAM.CREATE.*", false},
		{"make the probe", "$JS.API.STREAM.CREATE.BELFRY_PROBE_n1", false},
		{"remove the probe", "$JS.API.STREAM.DELETE.*", false},
		{"write the layout", "$KV.clock.meta", false},
		{"change", "$JS.API.STREAM.UPDATE.*", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			if tt.existing {
				open(t, srv.Connect()).Close()
			}
			dropped := make(chan struct{})
			drop(t, srv, tt.subject, 1, func() { close(dropped) })
			cfg := store.Config{Node: "n1", Geometry: storetest.Geometry, FiredMaxAge: 3 * time.Hour, Timeout: time.Hour}
			opened := make(chan error, 1)
			nc := srv.Connect()
			go func() { opened <- opens(t.Context(), nc, cfg) }()
			select {
			case err := <-opened:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("Open did not repeat the dropped request")
			}
			select {
			case <-dropped:
			default:
				t.Fatal("nothing was dropped: Open does not send this request")
			}
		})
	}
}

// TestChangeUnanswered: if the update of a stream is not answered, Open waits. It must not
// report a configuration error, which would end the process.
func TestChangeUnanswered(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	open(t, srv.Connect()).Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const requests = 3 // more than one try of Open
	drop(t, srv, "$JS.API.STREAM.UPDATE.*", requests, cancel)
	cfg := store.Config{Node: "n1", Geometry: storetest.Geometry, FiredMaxAge: 3 * time.Hour, Timeout: 200 * time.Millisecond}
	err := opens(ctx, srv.Connect(), cfg)
	if err == nil {
		t.Fatal("the store was opened")
	}
	if ctx.Err() == nil || schemas.CodeOf(err) == schemas.CodeConfig {
		t.Fatalf("Open did not wait: %v", err)
	}
}

// drop makes a server drop the next n messages to a subject, so that they get no answer. It
// then calls after, and lets later messages pass.
func drop(t *testing.T, srv *natstest.Server, subject string, n int, after func()) {
	t.Helper()
	const aside = "dropped"
	acc := srv.GlobalAccount()
	nc := srv.Connect()
	if _, err := nc.Subscribe(aside, func(*nats.Msg) {
		if n--; n == 0 {
			after()
			acc.RemoveMapping(subject)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := acc.AddMapping(subject, aside); err != nil {
		t.Fatal(err)
	}
}

// TestOpenUndecided: while a write is being replicated, the leader refuses to repeat it. The
// refusal does not show whether the write will succeed: Open waits until that is decided.
func TestOpenUndecided(t *testing.T) {
	t.Parallel()
	c := natstest.Cluster3(t)
	at := -1
	waittest.Until(t, "a leader of the cluster", func() bool {
		at = slices.IndexFunc(c.Servers[:], func(s *natstest.Server) bool { return s.JetStreamIsLeader() })
		return at >= 0
	})
	leader, others := c.Servers[at], slices.Delete(slices.Clone(c.Servers[:]), at, at+1)
	nc := leader.Connect()
	open(t, nc, func(c *store.Config) { c.Replicas = 3 }).Close()
	for _, stream := range []string{"KV_clock", "KV_services"} {
		waittest.Until(t, "the leader of the cluster to lead "+stream, func() bool {
			if c.WaitStreamLeader(stream) == leader {
				return true
			}
			_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, []byte(`{"placement":{"preferred":"`+leader.Name()+`"}}`), time.Second)
			return false
		})
	}
	const meta = "$KV.clock.meta"
	waittest.Until(t, "the purge of "+meta, func() bool {
		m, err := nc.Request("$JS.API.STREAM.PURGE.KV_clock", []byte(`{"filter":"`+meta+`"}`), time.Second)
		return err == nil && strings.Contains(string(m.Data), `"success":true`)
	})
	asked := make(chan struct{}, 100)
	watch := leader.Connect()
	if _, err := watch.Subscribe(meta, func(*nats.Msg) { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := watch.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, other := range others {
		other.Stop()
	}
	opened := make(chan error, 1)
	go func() {
		for {
			began := time.Now()
			err := opens(t.Context(), nc, store.Config{Node: "n1", Replicas: 3, Geometry: storetest.Geometry})
			// Repeat if Open gave up after a minute because the servers could not decide.
			if !errors.Is(err, schemas.ErrUnavailable) || time.Since(began) < 50*time.Second {
				opened <- err
				return
			}
		}
	}()
	for range 2 {
		select {
		case <-asked:
		case <-time.After(5 * time.Second):
			t.Log("Open sent the write only once: the leader had stepped down before that, because it has no other servers")
		}
	}
	for _, other := range others {
		other.Start()
	}
	select {
	case err := <-opened:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(4 * time.Minute):
		t.Fatal("Open still waits after 4 minutes")
	}
}
