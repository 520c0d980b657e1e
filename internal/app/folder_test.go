package app

import (
	"errors"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestOpenFolder: a tool can read the streams in a stopped node's folder. Meanwhile no
// client can connect, and no node can use the folder.
func TestOpenFolder(t *testing.T) {
	t.Parallel()
	o := options(t)
	a := start(t, o)
	stop(t, a)
	nc, end, err := OpenFolder(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	js := natstest.JetStream(t, nc)
	if _, err := js.Stream(t.Context(), "KV_clock"); err != nil {
		t.Error(err)
	}
	if addr := nc.ConnectedServerName(); addr != "belfry" {
		t.Errorf("got a connection to server %q, want belfry", addr)
	}
	if urls := nc.DiscoveredServers(); len(urls) > 0 {
		t.Errorf("got server URLs %v, want none: the server must not be reachable over the network", urls)
	}
	if _, err := New(o); !errors.Is(err, ErrInUse) {
		t.Errorf("New on a folder that is in use: got error %v, want %v", err, ErrInUse)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	start(t, o)
}
