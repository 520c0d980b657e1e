package store

import (
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
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
