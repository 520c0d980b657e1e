package store_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestHolds: a hold is changed by compare-and-set, reaches the copies of all nodes, leaves the limits
// as they are, and does not count as one. A value that cannot be read holds nothing.
func TestHolds(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	a, b := limits(t, server.Connect(), "a"), open(t, server.Connect(), func(c *store.Config) { c.Node = "b" })
	ctx, now := t.Context(), time.Now()
	rev, err := a.PutLimit(ctx, store.FlowLimit{Pattern: "api.example.com", Limit: aLimit}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.DeleteLimit(ctx, store.FlowLimit{Pattern: "api.example.com"}, rev); err != nil {
		t.Fatal(err)
	}
	change := func(s *store.Store, f func(h *store.FlowHold) bool) store.FlowHold {
		t.Helper()
		h, err := s.ChangeHold(ctx, "api.example.com", now.UnixMilli(), f)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	put := change(a, func(h *store.FlowHold) bool {
		h.Reason, h.By = "HTTP status 429", "a"
		return h.Hold.RetryAfter(time.Minute, now.UnixNano())
	})
	if set, _ := a.FlowsNow(); set.Undisturbed() || !set.Empty() || len(set.All()) != 0 || len(set.Holds(now.UnixNano())) != 1 {
		t.Errorf("the node that changed the hold has %+v", set.Holds(now.UnixNano()))
	}
	nodes := []store.Member{
		{Node: "new", Presence: store.Presence{Reads: store.NewestLevel}}, {Node: "old", Presence: store.Presence{Reads: store.LevelAdds}},
		{Node: "router", Presence: store.Presence{Reads: store.LevelAdds, Roles: []string{"router"}}},
	}
	set, _ := a.FlowsNow()
	if got := set.HoldsIgnoredBy(nodes, now.UnixNano()); len(got) != 1 || got[0] != "old" {
		t.Errorf("the hold is ignored by %v, want the old node that makes callbacks", got)
	}
	if got := set.HoldsIgnoredBy(nodes, now.Add(time.Hour).UnixNano()); len(got) > 0 {
		t.Errorf("a hold that has ended is ignored by %v, want none", got)
	}
	var got store.FlowHold
	waittest.Until(t, "the other node knows the hold", func() (ok bool) {
		set, _ := b.FlowsNow()
		if set == nil {
			return false
		}
		got, ok = set.HoldOf("api.example.com")
		return ok
	})
	if p, at := got.Hold.Ask(now.UnixNano()); p != flow.Held || at != now.Add(time.Minute).UnixNano() || got.Rev != put.Rev || got.Reason != "HTTP status 429" || got.By != "a" || got.AtMs != now.UnixMilli() {
		t.Errorf("the other node has %+v", got)
	}
	// The other node extends the hold while the first one does so, too.
	tries := 0
	change(b, func(h *store.FlowHold) bool {
		if tries++; tries == 1 {
			change(a, func(h *store.FlowHold) bool { return h.Hold.RetryAfter(2*time.Minute, now.UnixNano()) })
		}
		return h.Hold.RetryAfter(3*time.Minute, now.UnixNano())
	})
	if set, err = a.RefreshFlows(ctx); err != nil {
		t.Fatal(err)
	}
	if h, _ := set.HoldOf("api.example.com"); tries != 2 || h.Hold.UntilNs != now.Add(3*time.Minute).UnixNano() {
		t.Errorf("after a conflict and %d tries: got %+v", tries, h)
	}
	change(a, func(h *store.FlowHold) bool { h.Hold, h.EndedMs = flow.Hold{}, now.UnixMilli(); return true })
	set, _ = a.FlowsNow()
	if h, _ := set.HoldOf("api.example.com"); h.Hold != (flow.Hold{}) || len(set.EndedHolds()) != 1 || len(set.Holds(now.UnixNano())) != 0 {
		t.Errorf("an ended hold is not shown as ended: %+v", set.EndedHolds())
	}
	change(a, func(h *store.FlowHold) bool { return h.Hold.Open(now.UnixNano()) })
	set, _ = a.FlowsNow()
	if len(set.EndedHolds()) != 1 || len(set.OpenCircuits(now.UnixNano())) != 1 {
		t.Errorf("a circuit that opened after the end of a hold is not shown as open: %+v", set.Holds(now.UnixNano()))
	}
	subject := "$KV." + schemas.BucketFlows + ".limit.hold." + base64.RawURLEncoding.EncodeToString([]byte("api.example.com"))
	if _, err := natstest.JetStream(t, server.Connect()).Publish(ctx, subject, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if set, err = a.RefreshFlows(ctx); err != nil {
		t.Fatal(err)
	}
	if _, ok := set.HoldOf("api.example.com"); ok {
		t.Error("a damaged hold stops calls")
	}
	change(a, func(h *store.FlowHold) bool { return h.Hold.RetryAfter(time.Minute, now.UnixNano()) })
	if set, _ = a.FlowsNow(); len(set.Holds(now.UnixNano())) != 1 {
		t.Error("a damaged hold cannot be replaced")
	}
}

// TestHoldTTL: the server removes a hold a minute after it has ended.
func TestHoldTTL(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	a := limits(t, server.Connect(), "a")
	now := time.Now()
	if _, err := a.ChangeHold(t.Context(), "k", now.UnixMilli(), func(h *store.FlowHold) bool {
		return h.Hold.RetryAfter(30*time.Second, now.UnixNano())
	}); err != nil {
		t.Fatal(err)
	}
	info, err := natstest.JetStream(t, server.Connect()).Stream(t.Context(), "KV_"+schemas.BucketFlows)
	if err != nil {
		t.Fatal(err)
	}
	m, err := info.GetLastMsgForSubject(t.Context(), "$KV."+schemas.BucketFlows+".limit.hold."+base64.RawURLEncoding.EncodeToString([]byte("k")))
	if err != nil {
		t.Fatal(err)
	}
	if ttl, err := time.ParseDuration(m.Header.Get("Nats-TTL")); err != nil || ttl < 89*time.Second || ttl > 92*time.Second {
		t.Errorf("the hold is kept for %s (%v), want 30 s and a minute", ttl, err)
	}
}

// TestHoldsAreBounded: beyond the bound a key gets no new hold; existing holds change as before. A hold whose key has
// expired frees its place, and the copies of nodes forget it.
func TestHoldsAreBounded(t *testing.T) {
	t.Parallel()
	s := limits(t, natstest.Run(t).Connect(), "a")
	s.SetMaxHolds(20)
	now := time.Now()
	hold := func(key string, at time.Time, d time.Duration) error {
		_, err := s.ChangeHold(t.Context(), key, at.UnixMilli(), func(h *store.FlowHold) bool { return h.Hold.RetryAfter(d, at.UnixNano()) })
		return err
	}
	for i := range 20 {
		d := time.Hour
		if i == 0 {
			d = time.Second
		}
		if err := hold(fmt.Sprint("k", i), now, d); err != nil {
			t.Fatal(err)
		}
	}
	if err := hold("another", now, time.Hour); schemas.CodeOf(err) != schemas.CodeBadRequest || !strings.Contains(err.Error(), "20 holds") {
		t.Errorf("a hold beyond the bound: %v", err)
	}
	if _, ok, err := s.ResetHold(t.Context(), "another", "ann", now.UnixMilli()); ok || err != nil {
		t.Errorf("the reset of a key without a hold: %v, %v", ok, err)
	}
	if err := hold("k7", now.Add(10*time.Minute), time.Hour); err != nil {
		t.Errorf("the extension of a hold: %v", err)
	}
	later := now.Add(10 * time.Minute).UnixNano()
	if set, _ := s.FlowsNow(); len(set.Holds(later)) != 19 {
		t.Errorf("got %d holds that last, want all but the first", len(set.Holds(later)))
	}
	// The key of the first hold expires a minute after its end.
	if err := hold("another", now.Add(30*time.Second), time.Hour); err == nil {
		t.Error("a hold frees its place before its key expires")
	}
	if err := hold("another", now.Add(90*time.Second), time.Hour); err != nil {
		t.Errorf("a hold after another has expired: %v", err)
	}
	set, err := s.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := set.HoldOf("k0"); !ok {
		t.Error("the copy has forgotten a hold that the stream still has")
	}
	set = set.WithoutExpired(now.Add(90 * time.Second))
	if _, ok := set.HoldOf("k0"); ok {
		t.Error("the copy has a hold whose key has expired")
	}
	if _, ok := set.HoldOf("k1"); !ok {
		t.Error("the copy has forgotten a hold that has not ended")
	}
}

// BenchmarkHoldChange measures the change of one hold among others.
func BenchmarkHoldChange(b *testing.B) {
	for _, n := range []int{1, store.MaxHolds} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := limits(b, natstest.Run(b).Connect(), "a")
			now := time.Now()
			change := func(key string, d time.Duration) {
				if _, err := s.ChangeHold(b.Context(), key, now.UnixMilli(), func(h *store.FlowHold) bool { return h.Hold.RetryAfter(d, now.UnixNano()) }); err != nil {
					b.Fatal(err)
				}
			}
			for i := range n {
				change(fmt.Sprint("k", i), time.Minute)
			}
			d := time.Minute
			b.ReportAllocs()
			for b.Loop() {
				d += d / 5
				if d > time.Hour {
					now, d = now.Add(time.Hour), time.Minute
				}
				change("k0", d)
			}
		})
	}
}
