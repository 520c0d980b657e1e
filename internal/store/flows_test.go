package store_test

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

var aLimit = flow.Limit{Rate: flow.Rate{Count: 100, Per: time.Minute}, Burst: 10}

// limits opens a store that may store limits.
func limits(t testing.TB, nc *nats.Conn, node string) *store.Store {
	t.Helper()
	s := open(t, nc, func(c *store.Config) { c.Node = node })
	if _, err := s.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "limits may be stored", func() bool { return s.CanLimit() == nil })
	return s
}

// TestLimits: a change is made by compare-and-set, is in force on every node once it is
// acknowledged, and marks the limits under which waiting events may be called earlier.
func TestLimits(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits until changes are in force")
	server := natstest.Run(t)
	a, b := limits(t, server.Connect(), "a"), open(t, server.Connect(), func(c *store.Config) { c.Node = "b" })
	ctx := t.Context()
	put := func(pattern string, l flow.Limit, rev uint64) uint64 {
		t.Helper()
		next, err := a.PutLimit(ctx, store.FlowLimit{Pattern: pattern, Limit: l, AtMs: 5, By: "me", Note: "n"}, rev)
		if err != nil {
			t.Fatal(err)
		}
		// On a machine that stops the test for a second, the copy is not fresh: then no call follows it.
		var set *store.FlowSet
		waittest.Until(t, "the other node's copy is fresh", func() (fresh bool) { set, fresh = b.FlowsNow(); return fresh })
		got, ok := set.Get(pattern)
		if !ok || got.Rev != next || got.Limit != l || got.AtMs != 5 || got.By != "me" || got.Note != "n" || got.Err != nil {
			t.Fatalf("the other node has %+v (%v), want %+v with revision %d", got, ok, l, next)
		}
		return next
	}
	raised := func() (out []string) {
		t.Helper()
		set, err := b.RefreshFlows(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range set.Raised() {
			out = append(out, l.Pattern)
		}
		return out
	}
	if set, _ := b.FlowsNow(); set != nil && !set.Empty() {
		t.Fatalf("a new store has limits: %+v", set.All())
	}
	rev := put("api.example.com", aLimit, 0)
	if _, err := a.PutLimit(ctx, store.FlowLimit{Pattern: "api.example.com", Limit: aLimit}, 0); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("a limit that exists: got error %v, want ErrRevision", err)
	}
	if _, err := a.PutLimit(ctx, store.FlowLimit{Pattern: "api.example.com", Limit: aLimit}, rev+100); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("another revision: got error %v, want ErrRevision", err)
	}
	lower := aLimit
	lower.Rate.Count = 50
	rev = put("api.example.com", lower, rev)
	if got := raised(); len(got) != 0 {
		t.Fatalf("after a new and a lowered limit: raised are %v", got)
	}
	rev = put("api.example.com", aLimit, rev)
	put("*", lower, 0)
	put("api.*", aLimit, 0)
	if got := raised(); !slices.Equal(got, []string{"api.*", "api.example.com"}) {
		t.Fatalf("after a raised limit, and a pattern before another: raised are %v", got)
	}
	for key, want := range map[string]string{"api.example.com": "api.example.com", "api.other": "api.*", "x": "*"} {
		set, _ := b.FlowsNow()
		for range 2 { // also from the copy's memory
			if l, ok := set.Find(key); !ok || l.Pattern != want {
				t.Errorf("the limit of %s: got that of %q (%v), want %q", key, l.Pattern, ok, want)
			}
		}
	}
	if _, err := a.DeleteLimit(ctx, store.FlowLimit{Pattern: "api.example.com"}, rev); err != nil {
		t.Fatal(err)
	}
	set, fresh := b.FlowsNow()
	if _, ok := set.Get("api.example.com"); ok || !fresh || len(set.All()) != 2 {
		t.Fatalf("after the deletion: got %+v, fresh %v", set.All(), fresh)
	}
	if got := raised(); !slices.Contains(got, "api.example.com") {
		t.Fatalf("after the deletion: raised are %v", got)
	}
	put("api.example.com", aLimit, 0) // again

	bad := func(what string, l flow.Limit) {
		t.Helper()
		if _, err := a.PutLimit(ctx, store.FlowLimit{Pattern: "bad", Limit: l}, 0); schemas.CodeOf(err) != schemas.CodeBadRequest || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: got error %v, want bad_request about %s", l, err, what)
		}
	}
	bad("limits nothing", flow.Limit{})
	bad("rate", flow.Limit{Rate: flow.Rate{Count: -1, Per: time.Second}})
	bad("rate", flow.Limit{Rate: flow.Rate{Count: 1, Per: time.Millisecond}, Burst: 1})
	bad("rate", flow.Limit{Rate: flow.Rate{Count: 1e9, Per: time.Second}, Burst: 1})
	bad("burst", flow.Limit{Rate: flow.Rate{Count: 1, Per: time.Second}})
	bad("parallel", flow.Limit{Parallel: -1})
	if _, err := a.PutLimit(ctx, store.FlowLimit{Pattern: "a b", Limit: aLimit}, 0); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("a wrong pattern: got error %v", err)
	}
}

// TestLimitAfterDeletionExpired: a limit can be stored again after the stream has dropped its
// deletion, also by a node whose copy still has it.
func TestLimitAfterDeletionExpired(t *testing.T) {
	t.Parallel()
	s := limits(t, natstest.Run(t).Connect(), "a")
	set := func(pattern string, rev uint64) uint64 {
		t.Helper()
		next, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: pattern, Limit: aLimit}, rev)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	if _, err := s.DeleteLimit(t.Context(), store.FlowLimit{Pattern: "a"}, set("a", 0)); err != nil {
		t.Fatal(err)
	}
	set("b", 0) // so that the deletion is not the newest change
	stream, err := s.JetStream().Stream(t.Context(), "KV_"+schemas.BucketFlows)
	if err != nil {
		t.Fatal(err)
	}
	subject := "$KV." + schemas.BucketFlows + ".limit." + base64.RawURLEncoding.EncodeToString([]byte("a"))
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil { // as its TTL does
		t.Fatal(err)
	}
	again := set("a", 0)
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "a", Limit: aLimit}, 0); !errors.Is(err, store.ErrRevision) {
		t.Errorf("a limit that exists again: got error %v, want ErrRevision", err)
	}
	if _, err := s.DeleteLimit(t.Context(), store.FlowLimit{Pattern: "a"}, again); err != nil {
		t.Error(err)
	}
}

// TestDamagedLimit: a limit that cannot be read is known by its pattern, so that its keys wait,
// and can be stored again.
func TestDamagedLimit(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := limits(t, nc, "n1")
	l := store.FlowLimit{Pattern: "k*", Limit: aLimit}
	if _, err := s.PutLimit(t.Context(), l, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := natstest.JetStream(t, nc).Publish(t.Context(), "$KV.flows.limit.ayo", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	set, err := s.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, ok := set.Find("key")
	if !ok || !errors.Is(got.Err, schemas.ErrDamaged) {
		t.Fatalf("got %+v (%v), want a damaged limit", got, ok)
	}
	if _, err := s.PutLimit(t.Context(), l, got.Rev); err != nil {
		t.Fatal(err)
	}
}

// TestHold: a paused or unreadable limit of a service or a group holds their callbacks; limits
// that are not paused, and names that only begin alike, do not.
func TestHold(t *testing.T) {
	t.Parallel()
	s := limits(t, natstest.Run(t).Connect(), "a")
	set, err := s.RefreshFlows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	damaged := schemas.Errorf(schemas.CodeDamaged, "damaged")
	for _, l := range []store.FlowLimit{
		{Pattern: "mail", Limit: flow.Limit{Paused: true}},
		{Pattern: "service:mail", Limit: aLimit},
		{Pattern: "service:sms", Limit: flow.Limit{Paused: true}},
		{Pattern: "service:batch-*", Limit: flow.Limit{Paused: true}},
		{Pattern: "service:batch-9", Limit: aLimit},
		{Pattern: "group:g", Limit: flow.Limit{Paused: true}},
		{Pattern: "group:acme=import", Limit: flow.Limit{Paused: true}},
		{Pattern: "service:acme=mail", Limit: flow.Limit{Paused: true}},
		{Pattern: "service:broken", Err: damaged},
		{Pattern: "*", Limit: flow.Limit{Paused: true}}, // holds only the callbacks whose key has no other limit
	} {
		set = set.With(l)
	}
	for _, x := range []struct{ service, group, want string }{
		{"mail", "", ""}, {"mail", "sms", ""}, {"mail", "g", "group:g"}, {"mail", "gg", ""},
		{"sms", "", "service:sms"}, {"sms2", "", ""}, {"sms", "g", "service:sms"},
		{"batch-1", "", "service:batch-1"}, {"batch-9", "", ""},
		{"broken", "", "service:broken"}, {"acme=batch-1", "g", ""},
		{"acme=batch-1", "import", "group:acme=import"}, {"globex=batch-1", "import", ""}, {"batch", "import", ""}, {"batch", "acme=import", ""},
		{"acme=mail", "", "service:acme=mail"}, {"globex=mail", "", ""}, {"acme-2=mail", "", ""},
	} {
		key, l, ok := set.Hold(x.service, x.group)
		if !ok {
			key = ""
		}
		if key != x.want || ok && (l.Err != nil) != (x.service == "broken") {
			t.Errorf("service %q, group %q: held by %q (%v), want %q", x.service, x.group, key, l.Err, x.want)
		}
	}
}

// TestLimitsNeedNewNodes: no limit is stored while a node runs that does not obey limits.
func TestLimitsNeedNewNodes(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	s := limits(t, server.Connect(), "new")
	old := open(t, server.Connect(), func(c *store.Config) { c.Node, c.Level = "old", store.LevelSchedules })
	if _, err := old.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the new node knows of the old one", func() bool { return s.CanLimit() != nil })
	_, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "k", Limit: aLimit}, 0)
	if schemas.CodeOf(err) != schemas.CodeUnavailable || !strings.Contains(err.Error(), "old") {
		t.Fatalf("got error %v, want unavailable that names the node", err)
	}
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "acme=k", Limit: aLimit}, 0); schemas.CodeOf(err) != schemas.CodeUnavailable || !strings.Contains(err.Error(), "flow keys of tenants") {
		t.Fatalf("a key of a tenant: got error %v, want unavailable", err)
	}
	// A record that waits for its slot cannot be read by the old node, which would fire it again.
	due := time.Now().UnixMilli() + 60_000
	rec := schemas.Record{
		Definition: schemas.Definition{Service: "s", Source: "/t", EventID: "1", Type: "t", Callback: "nats:x", Body: schemas.Body{Mode: schemas.ModeBinary}},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Run: 1, MaxAttempt: 3},
	}
	rec.Defer("k", 1, due, true)
	id := schemas.NewTimerID("/t", "1")
	if _, err := s.Update(t.Context(), store.Write{ID: id, Record: &rec}); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Get(t.Context(), id); !errors.Is(err, schemas.ErrNewer) {
		t.Fatalf("the old node: got error %v, want ErrNewer", err)
	}
	if _, err := s.Get(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// TestMatchFlow: '*' stands for any run of characters.
func TestMatchFlow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, key string
		want         bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "x", true}, {"a*", "a", true}, {"a*", "ba", false},
		{"*.example.com", "api.example.com", true}, {"*.example.com", "example.com", false},
		{"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-c", false}, {"ab*ba", "aba", false}, {"a**b", "ab", true},
		{"customer:*", "customer:7", true}, {"*a*", "bab", true}, {"*a*", "bbb", false},
	} {
		if got := flow.Match(tt.pattern, tt.key); got != tt.want {
			t.Errorf("Match(%q, %q): got %v, want %v", tt.pattern, tt.key, got, tt.want)
		}
	}
}
