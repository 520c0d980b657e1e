package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// opens opens a store and closes it again. It returns the error of Open.
func opens(ctx context.Context, nc *nats.Conn, cfg store.Config) error {
	s, err := store.Open(ctx, nc, cfg, zerolog.Nop())
	if err == nil {
		s.Close()
	}
	return err
}

// refused checks that Open fails with a code, and with an error that contains the words.
func refused(t *testing.T, nc *nats.Conn, cfg store.Config, code schemas.Code, words ...string) {
	t.Helper()
	cfg.Timeout = time.Minute // the server answers, whenever the machine lets it
	cfg.ReadyWithin = time.Duration(testsize.Choose(t, "seconds for which Open retries", 10, 10, 60)) * time.Second
	err := opens(t.Context(), nc, cfg)
	if err == nil {
		t.Fatal("the store was opened")
	}
	if schemas.CodeOf(err) != code {
		t.Fatalf("code %q: %v", schemas.CodeOf(err), err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}

// TestProbeLeftBehind: an interrupted start may leave its probe stream. The next start
// succeeds and removes the probe, also if another node has made all streams in between.
func TestProbeLeftBehind(t *testing.T) {
	t.Parallel()
	for _, made := range []bool{false, true} {
		t.Run(fmt.Sprintf("made=%v", made), func(t *testing.T) {
			t.Parallel()
			nc := natstest.Run(t).Connect()
			if made {
				open(t, nc).Close()
			}
			js := natstest.JetStream(t, nc)
			const name = "BELFRY_PROBE_n1"
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, MaxBytes: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			open(t, nc)
			if _, err := js.Stream(t.Context(), name); !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Errorf("the probe still exists: %v", err)
			}
		})
	}
}

// TestManyServices: the server's default limit of consumers for each stream does not limit
// services, neither in new streams nor in existing ones.
func TestManyServices(t *testing.T) {
	t.Parallel()
	const byDefault, services = 3, 7
	nc := natstest.Run(t, func(o *server.Options) { o.JetStreamLimits.DefaultMaxConsumers = byDefault }).Connect()
	js := natstest.JetStream(t, nc)
	s := open(t, nc)
	for _, again := range []bool{false, true} {
		if again {
			s.Close()
			for _, name := range []string{schemas.StreamFired, schemas.StreamRetry} {
				stream, err := js.Stream(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				cfg := stream.CachedInfo().Config
				cfg.MaxConsumers = -1
				if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
					t.Fatal(err)
				}
			}
			s = open(t, nc)
		}
		for n := range services {
			svc := fmt.Sprintf("svc-%v-%d", again, n)
			if err := s.RegisterService(t.Context(), svc); err != nil {
				t.Fatal(err)
			}
			for _, kind := range []store.Kind{store.KindFired, store.KindRetry} {
				r, err := s.ReadFeed(t.Context(), store.Feed{Service: svc, Kind: kind}, store.FeedOptions{AckWait: time.Second, MaxAckPending: 100, Most: 1})
				if err != nil {
					t.Fatalf("service %d: %v", n, err)
				}
				r.Close()
			}
		}
	}
}

// TestAccountLimitStays: Open keeps an account's own limit of consumers.
func TestAccountLimitStays(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	limits := srv.GlobalAccount().JetStreamUsage().Limits
	limits.MaxConsumers = 100
	if err := srv.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
		t.Fatal(err)
	}
	s := open(t, srv.Connect())
	stream, err := s.JetStream().Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().Config.MaxConsumers; n > 100 {
		t.Errorf("the stream may have %d consumers", n)
	}
}

func TestOpenAgain(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	s := open(t, nc)
	r := storetest.Pending(storetest.NowMs(t, s) + 60_000)
	rev := storetest.CreateAll(t, s, []store.Write{{ID: storetest.ID(1), Record: r}})[0]
	// A second node, at the same time, with the same settings or none.
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			cfg := store.Config{Node: fmt.Sprintf("n%d", i+2)}
			other, err := store.Open(t.Context(), nc, cfg, zerolog.Nop())
			if err != nil {
				t.Error(err)
				return
			}
			defer other.Close()
			if other.Geometry() != storetest.Geometry {
				t.Errorf("geometry %+v", other.Geometry())
			}
			if got, err := other.Get(t.Context(), storetest.ID(1)); err != nil || got.Rev != rev {
				t.Errorf("%+v %v", got, err)
			}
		})
	}
	wg.Wait()
	g := storetest.Geometry
	g.Shards = 3
	refused(t, nc, store.Config{Node: "n", Geometry: g}, schemas.CodeConfig, "shards=2", "shards=3", "first start")
	g = storetest.Geometry
	g.WheelSize = 100
	refused(t, nc, store.Config{Node: "n", Geometry: g}, schemas.CodeConfig, "wheel_size=64")
	g = storetest.Geometry
	g.SlotWidth = time.Second
	refused(t, nc, store.Config{Node: "n", Geometry: g}, schemas.CodeConfig, "slot_width=100ms")
}

func TestConcurrentFirstOpen(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	var wg sync.WaitGroup
	for i := range 6 {
		nc := srv.Connect()
		wg.Go(func() {
			s, err := store.Open(t.Context(), nc, store.Config{Node: fmt.Sprintf("n%d", i), Geometry: storetest.Geometry}, zerolog.Nop())
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
}

func TestOpenRefused(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "Open retries for a while")
	t.Run("config", func(t *testing.T) {
		t.Parallel()
		nc := natstest.Run(t).Connect()
		refused(t, nc, store.Config{}, schemas.CodeConfig, "node name")
		refused(t, nc, store.Config{Node: "a.b"}, schemas.CodeConfig, "node name")
		refused(t, nc, store.Config{Node: "n", Replicas: 9}, schemas.CodeConfig, "replicas")
		refused(t, nc, store.Config{Node: "n", Geometry: schemas.Geometry{Shards: 1}}, schemas.CodeConfig, "slot width")
		refused(t, nc, store.Config{Node: "n", Replicas: 3}, schemas.CodeConfig, "replicas")
	})
	t.Run("no JetStream", func(t *testing.T) {
		t.Parallel()
		refused(t, natstest.Run(t, natstest.NoJetStream).Connect(), store.Config{Node: "n"}, schemas.CodeConfig, "without JetStream")
	})
	t.Run("account without JetStream", func(t *testing.T) {
		t.Parallel()
		srv := natstest.Run(t, func(o *server.Options) {
			acc := server.NewAccount("PLAIN")
			o.Accounts = []*server.Account{acc}
			o.Users = []*server.User{{Username: "u", Password: "p", Account: acc}}
		})
		refused(t, srv.Connect(nats.UserInfo("u", "p")), store.Config{Node: "n"}, schemas.CodeConfig, "JetStream", "account")
	})
	t.Run("too little storage", func(t *testing.T) {
		t.Parallel()
		refused(t, natstest.Run(t, natstest.MaxStore(1<<20)).Connect(), store.Config{Node: "n"}, schemas.CodeStoreFull, "storage")
	})
	t.Run("another stream of the name", func(t *testing.T) {
		t.Parallel()
		nc := natstest.Run(t).Connect()
		js := natstest.JetStream(t, nc)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: schemas.StreamAdd, Subjects: []string{"timers.add"}}); err != nil {
			t.Fatal(err)
		}
		refused(t, nc, store.Config{Node: "n"}, schemas.CodeConfig, schemas.StreamAdd, "retention")
	})
	t.Run("subjects taken", func(t *testing.T) {
		t.Parallel()
		nc := natstest.Run(t).Connect()
		js := natstest.JetStream(t, nc)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"timers.>"}}); err != nil {
			t.Fatal(err)
		}
		refused(t, nc, store.Config{Node: "n"}, schemas.CodeConfig, "subjects overlap")
	})
	t.Run("later format", func(t *testing.T) {
		t.Parallel()
		nc := natstest.Run(t).Connect()
		s := open(t, nc)
		js := s.JetStream()
		if _, err := js.Publish(t.Context(), "$KV.clock.meta", []byte(`{"format":99}`)); err != nil {
			t.Fatal(err)
		}
		refused(t, nc, store.Config{Node: "n"}, schemas.CodeUnknownFormat, "99")
	})
}

// TestLimitsChange: Open changes the limits of existing streams to the configured ones.
func TestLimitsChange(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	open(t, nc)
	s := open(t, nc, func(c *store.Config) { c.FiredMaxAge, c.FiredMaxBytes, c.DeadMaxAge = time.Hour, 32<<20, 48*time.Hour })
	info := func(name string) jetstream.StreamConfig {
		st, err := s.JetStream().Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return st.CachedInfo().Config
	}
	if c := info(schemas.StreamFired); c.MaxAge != time.Hour || c.MaxBytes != 32<<20 {
		t.Errorf("fired: %+v", c)
	}
	if c := info(schemas.StreamDead); c.MaxAge != 48*time.Hour {
		t.Errorf("dead: %+v", c)
	}
}

// TestKVClients: an ordinary KV client reads the buckets.
func TestKVClients(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect())
	r := storetest.Pending(storetest.NowMs(t, s) + 60_000)
	id := storetest.ID(1)
	rev := storetest.CreateAll(t, s, []store.Write{{ID: id, Record: r}})[0]
	kv, err := s.JetStream().KeyValue(t.Context(), schemas.BucketTimers(s.Geometry().Shard(id)))
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), "timer."+id.String())
	if err != nil || e.Revision() != rev {
		t.Fatalf("%v %v", e, err)
	}
	// A KV client deletes the record by mistake: the timer is gone, and can be added again.
	if err := kv.Delete(t.Context(), "timer."+id.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), id); !errors.Is(err, schemas.ErrNotFound) {
		t.Fatalf("get: %v", err)
	}
	storetest.CreateAll(t, s, []store.Write{{ID: id, Record: r}})
	for bucket, key := range map[string]string{schemas.BucketClock: "clock.0", schemas.BucketServices: ""} {
		kv, err := s.JetStream().KeyValue(t.Context(), bucket)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			if _, err := kv.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUndecodable: a record that cannot be read stops neither loads nor tails.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect())
	g := s.Geometry()
	ids := storetest.IDsOf(g, 0, 3)
	due := storetest.NowMs(t, s) + 3000
	var writes []store.Write
	for _, id := range ids {
		writes = append(writes, store.Write{ID: id, Record: storetest.Pending(due)})
	}
	revs := storetest.CreateAll(t, s, writes)
	for _, data := range []string{"\x63later", "x", ""} {
		if _, err := s.JetStream().Publish(t.Context(), "$KV.timers_0.timer."+ids[1].String(), []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Get(t.Context(), ids[1]); !errors.Is(err, schemas.ErrDamaged) {
		t.Fatalf("get: %v", err)
	}
	load, err := s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, 0, nil)
	if err != nil || len(load.Timers) != 2 {
		t.Fatalf("%+v %v", load, err)
	}
	got := make(chan uint64, 10)
	tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) { got <- tm.Rev })
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	rev, err := s.Update(t.Context(), store.Write{ID: ids[2], Rev: revs[2], Record: storetest.Delivered(*writes[2].Record)})
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(0); seq != rev; {
		select {
		case seq = <-got:
		case <-time.After(60 * time.Second):
			t.Fatal("the tail stands still")
		}
	}
	if s.Undecodable() == 0 {
		t.Error("not counted")
	}
}

// TestFull: a full shard refuses new timers, but no other writes. It accepts new timers again
// when it has space.
func TestFull(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect(), func(c *store.Config) {
		c.Geometry.Shards = 1
		c.ShardMaxBytes, c.AddMaxBytes = 2<<20, 256<<10
	})
	r := storetest.Pending(storetest.NowMs(t, s) + 60_000)
	r.AddedMs = r.DueMs
	r.Body.Data = make([]byte, 4000)
	type kept struct {
		id  schemas.TimerID
		rev uint64
	}
	var all []kept
	for i := 0; ; i++ {
		res := s.Create(t.Context(), []store.Write{{ID: storetest.ID(i), Record: r}})[0]
		if res.Err != nil {
			if !errors.Is(res.Err, schemas.ErrStoreFull) {
				t.Fatalf("after %d timers: %v", i, res.Err)
			}
			break
		}
		all = append(all, kept{storetest.ID(i), res.Rev})
		if i > 1000 {
			t.Fatal("the shard is not full after 1000 timers")
		}
	}
	if len(all) < 200 {
		t.Fatalf("full after %d timers", len(all))
	}
	// All its timers can be claimed and finished at the same time.
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			rev, err := s.Update(t.Context(), store.Write{ID: all[i].id, Rev: all[i].rev, Record: storetest.Delivered(*r)})
			if err == nil {
				_, err = s.Update(t.Context(), store.Write{ID: all[i].id, Rev: rev, Record: storetest.Success(*r), TTL: time.Hour})
			}
			if err != nil {
				t.Errorf("timer %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	waittest.Until(t, "space for a new timer", func() bool {
		return s.Create(t.Context(), []store.Write{{ID: storetest.ID(5000), Record: r}})[0].Err == nil
	})
	// A full TIMERS_ADD returns the same error.
	var err error
	for range 1000 {
		if _, _, err = s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectAdd, Data: make([]byte, 4000)}); err != nil {
			break
		}
	}
	if !errors.Is(err, schemas.ErrStoreFull) {
		t.Fatalf("publish to a full stream: %v", err)
	}
	// A timer that is too large has an error, too.
	big := *r
	big.Body.Data = make([]byte, 2<<20)
	if err := s.Create(t.Context(), []store.Write{{ID: storetest.ID(6000), Record: &big}})[0].Err; schemas.CodeOf(err) != schemas.CodeStoreFull && schemas.CodeOf(err) != schemas.CodeTooLarge {
		t.Fatalf("too large: %v", err)
	}
}
