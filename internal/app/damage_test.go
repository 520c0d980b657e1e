package app

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestStrangersReply: a client names keys of Belfry's buckets as reply subjects.
// JetStream's answers overwrite a record and every clock; the others fire, the node
// starts again, and the damage is on view.
func TestStrangersReply(t *testing.T) {
	t.Parallel()
	o := options(t)
	a := start(t, o)
	nc := connectTo(t, a.NATSURL())
	add := func(id, after string) schemas.TimerID {
		t.Helper()
		if _, err := nc.Request("timers.add", event(id, `"timerafter":"`+after+`","timersvc":"orders"`), bound); err != nil {
			t.Fatal(err)
		}
		return schemas.NewTimerID("/test", id)
	}
	victim, other := add("victim", "6s"), add("other", "6s")
	for _, id := range []schemas.TimerID{victim, other} {
		await(t, func() (string, bool) {
			_, err := a.Store().Get(t.Context(), id)
			return "timer not stored", err == nil
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
	await(t, func() (string, bool) {
		_, err := a.Store().Get(t.Context(), victim)
		return "the record is not overwritten", schemas.CodeOf(err) == schemas.CodeDamaged
	})
	clocks := func(a *App) {
		t.Helper()
		await(t, func() (string, bool) {
			c, err := a.Store().ReadCluster(t.Context())
			ok := err == nil && !slices.ContainsFunc(c.Clocks, func(at store.ClockAt) bool { return at.Err != nil || at.Clock.Owner == "" })
			return "clocks are damaged", ok
		})
	}
	clocks(a)
	stop(t, a)

	o.NATSListen = "127.0.0.1:0"
	a = start(t, o)
	clocks(a)
	await(t, func() (string, bool) {
		r, err := a.Store().Get(t.Context(), other)
		return "the other timer has not fired", err == nil && r.Record.State == schemas.StateSuccess
	})
	await(t, func() (string, bool) {
		code, body := get(t, a, "/readyz")
		return body, code == http.StatusOK && strings.Contains(body, `"damaged_records":1`)
	})
	_, metrics := get(t, a, "/metrics")
	if !strings.Contains(metrics, `belfry_damaged_records{shard="`) {
		t.Error("the metric is missing")
	}
	report, err := a.Store().ReadDamage(t.Context())
	if err != nil || len(report) != 1 || report[0].Records[0].Timer != victim.String() {
		t.Fatalf("%+v, %v", report, err)
	}
}

// TestSuspendedIsNotReady: shards whose clocks cannot be written make a node not ready.
func TestSuspendedIsNotReady(t *testing.T) {
	t.Parallel()
	a := start(t, options(t))
	js := a.Store().JetStream()
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
	limit(1)
	await(t, func() (string, bool) {
		code, body := get(t, a, "/readyz")
		return body, code == http.StatusServiceUnavailable && strings.Contains(body, "shards 0, 1 are suspended")
	})
	limit(size)
	await(t, func() (string, bool) {
		code, body := get(t, a, "/readyz")
		return body, code == http.StatusOK
	})
}
