package app

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// TestStrangersReply: a client uses keys of Belfry's buckets as reply subjects, so that
// JetStream's answers overwrite a record and every clock. All other timers fire, the node
// can restart, and the damage is reported.
func TestStrangersReply(t *testing.T) {
	t.Parallel()
	o := options(t)
	a := start(t, o)
	nc := connectTo(t, a.NATSURL())
	add := func(id, after string) schemas.TimerID {
		t.Helper()
		if _, err := nc.Request("timers.add", event(id, `"timerafter":"`+after+`","timersvc":"orders"`), requestBound); err != nil {
			t.Fatal(err)
		}
		return schemas.NewTimerID("/test", id)
	}
	victim, other := add("victim", "6s"), add("other", "6s")
	for _, id := range []schemas.TimerID{victim, other} {
		waittest.Until(t, "the timer is stored", func() bool {
			_, err := a.Store().Get(t.Context(), id)
			return err == nil
		})
	}
	g := a.Store().Geometry()
	attack := func(key string) {
		t.Helper()
		m := &nats.Msg{Subject: "timers.add", Reply: key, Data: event("carrier-"+key, `"timerafter":"1h"`)}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	key := schemas.BucketTimers(g.Shard(victim)) + ".timer." + victim.String()
	attack("$KV." + key)
	attack("$KV.clock.clock.0")
	attack("$KV.clock.clock.1")
	attack("$KV.clock.meta")
	waittest.Until(t, "the record is overwritten", func() bool {
		_, err := a.Store().Get(t.Context(), victim)
		return schemas.CodeOf(err) == schemas.CodeDamaged
	})
	clocks := func(a *App) {
		t.Helper()
		waittest.Until(t, "every clock is readable and has an owner", func() bool {
			c, err := a.Store().ReadCluster(t.Context())
			return err == nil && !slices.ContainsFunc(c.Clocks, func(at store.ClockAt) bool { return at.Err != nil || at.Clock.Owner == "" })
		})
	}
	clocks(a)
	stop(t, a)

	o.NATSListen = "127.0.0.1:0"
	a = start(t, o)
	clocks(a)
	waittest.Until(t, "the other timer has fired", func() bool {
		r, err := a.Store().Get(t.Context(), other)
		return err == nil && r.Record.State == schemas.StateSuccess
	})
	awaitReady(t, a, func(code int, body string) bool {
		return code == http.StatusOK && strings.Contains(body, `"damaged_records":1`)
	})
	_, metrics := get(t, a, "/metrics")
	if !strings.Contains(metrics, `belfry_damaged_records{shard="`) {
		t.Errorf("got metrics %s, want belfry_damaged_records", metrics)
	}
	report, err := a.Store().ReadDamage(t.Context())
	if err != nil || len(report) != 1 || report[0].Records[0].Timer != victim.String() {
		t.Fatalf("got damage report %+v (%v), want the record of timer %s", report, err, victim)
	}
}

// awaitReady waits until the answer of /readyz meets a condition.
func awaitReady(t *testing.T, a *App, ok func(code int, body string) bool) {
	t.Helper()
	code, body := 0, ""
	waittest.Until(t, "an answer of /readyz", func() bool {
		code, body = get(t, a, "/readyz")
		return ok(code, body)
	}, func() string { return fmt.Sprint(code, " ", body) })
}

// TestSuspendedIsNotReady: shards whose clocks cannot be written make a node not ready.
func TestSuspendedIsNotReady(t *testing.T) {
	t.Parallel()
	a := start(t, options(t))
	js := natstest.JetStream(t, connectTo(t, a.NATSURL()))
	s, err := js.Stream(t.Context(), "KV_clock")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	size := cfg.MaxMsgSize
	limit := func(bytes int32) {
		t.Helper()
		cfg.MaxMsgSize = bytes
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	// A shard that was never taken cannot become suspended.
	waittest.Until(t, "the node owns both shards", func() bool {
		shards := a.firing.Load().Status()
		return len(shards) == 2 && !slices.ContainsFunc(shards, func(s scheduler.ShardStatus) bool { return s.State != scheduler.StateOwner })
	})
	limit(1)
	awaitReady(t, a, func(code int, body string) bool {
		return code == http.StatusServiceUnavailable && strings.Contains(body, "shards 0, 1 are suspended")
	})
	limit(size)
	awaitReady(t, a, func(code int, _ string) bool { return code == http.StatusOK })
}
