package store

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestLeave: a node that leaves has no presence at once, and writes none again. A process
// that has taken its name keeps its own presence.
func TestLeave(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	open := func(node string) *Store {
		t.Helper()
		s := openNode(t, srv.Connect(), Config{Node: node})
		if _, err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := open("a"), open("b")
	alive := func() (names []string) {
		t.Helper()
		c, err := b.ReadCluster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.Nodes {
			names = append(names, n.Node)
		}
		return names
	}
	want := func(want ...string) {
		t.Helper()
		if got := alive(); !slices.Equal(got, want) {
			t.Fatalf("alive: %v; want %v", got, want)
		}
	}
	want("a", "b")
	for range 2 {
		if err := a.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		want("b")
	}
	if _, err := a.Beat(t.Context()); schemas.CodeOf(err) != schemas.CodeUnavailable {
		t.Fatalf("a heartbeat after Leave: %v", err)
	}
	want("b")

	first := open("c")
	open("c") // of the same name
	if err := first.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("b", "c")
}

// TestSharedName: two processes with one node name both find out. The successor of a process that was killed does
// not take it for one, and neither does a process for itself, after the answer to a heartbeat was lost or its
// presence was removed.
func TestSharedName(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	open := func(node string) *Store { return openNode(t, srv.Connect(), Config{Node: node}) }
	beat := func(s *Store) {
		t.Helper()
		if _, err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a1, a2 := open("a"), open("a")
	for _, s := range []*Store{a1, a2, a1, a2} {
		beat(s)
	}
	if !a1.Shared() || !a2.Shared() {
		t.Errorf("two processes: %v, %v", a1.Shared(), a2.Shared())
	}
	beat(a1) // with its new knowledge
	c, err := a1.ReadCluster(t.Context())
	if err != nil || len(c.Nodes) != 1 || !c.Nodes[0].Presence.Shared {
		t.Errorf("presences: %+v, %v", c.Nodes, err)
	}

	beat(open("b")) // killed: it never writes again
	next := open("b")
	for range 3 {
		beat(next)
	}
	given := &endsAmid{Context: t.Context()}
	given.n.Store(1) // for the wait until no other heartbeat is in progress
	if _, err := next.Beat(given); err == nil {
		t.Fatal("the heartbeat did not end with its context")
	}
	beat(next)
	next.lastBeat.Store(next.lastBeat.Load() - 1) // as if the answer had never arrived
	beat(next)
	if _, err := next.jet.Purge(t.Context(), "remove presence", nodePrefix+"b", nil, next.lastBeat.Load(), time.Hour); err != nil {
		t.Fatal(err)
	}
	beat(next)
	beat(next)
	// A former leader answers with the presence of the predecessor.
	next.firstBeat.Store(next.lastBeat.Load() + 2)
	if _, err := next.jet.Put(t.Context(), nodePrefix+"b", []byte(`{"v":1,"instance":"predecessor"}`), next.lastBeat.Load(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := next.lookForRival(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next.Shared() {
		t.Error("a process whose predecessor was killed takes it, or itself, for another one")
	}
}

// TestLiveAfterRevisionsGoBack: a process reads the presences again after the bucket of the clocks was deleted
// and made again by another node.
func TestLiveAfterRevisionsGoBack(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := openNode(t, srv.Connect(), Config{Node: "a"})
	s.firstBeat.Store(1 << 40) // as if the bucket had had many more writes
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), clockStream); err != nil {
		t.Fatal(err)
	}
	b := openNode(t, srv.Connect(), Config{Node: "b"})
	var first uint64
	every, begun := time.Tick(200*time.Millisecond), time.Now()
	waittest.Until(t, "the presences to be read", func() bool {
		<-every
		for _, n := range []*Store{s, b} {
			if _, err := n.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if first == 0 {
			first = s.lastBeat.Load()
		}
		nodes, err := s.live(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(nodes) > 0 && s.firstBeat.Load() == first {
			t.Error("the first presence in the new bucket shows all live nodes")
		}
		if len(nodes) == 0 && time.Since(begun) > 3*layoutSettle {
			t.Fatal("no presences are read")
		}
		return len(nodes) == 2
	})
}

// endsAmid is a context that ends after n calls of Done, for a call that is given up while its
// request is on its way.
type endsAmid struct {
	context.Context
	n atomic.Int64
}

func (c *endsAmid) Done() <-chan struct{} {
	if c.n.Add(-1) >= 0 {
		return nil
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

func (c *endsAmid) Err() error {
	if c.n.Load() >= 0 {
		return nil
	}
	return context.Canceled
}

// TestLeaveAmidBeat: a node that stops while a heartbeat is on its way has no presence.
func TestLeaveAmidBeat(t *testing.T) {
	t.Parallel()
	s := openNode(t, natstest.Run(t).Connect(), Config{Node: "a"})
	ctx := &endsAmid{Context: t.Context()}
	ctx.n.Store(1) // for the wait until no other heartbeat is in progress
	if _, err := s.Beat(ctx); err == nil {
		t.Fatal("the heartbeat did not end with its context")
	}
	if err := s.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := s.ReadCluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Nodes) != 0 {
		t.Fatalf("alive after Leave: %+v", c.Nodes)
	}
}
