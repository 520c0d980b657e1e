package freeport_test

import (
	"net"
	"testing"

	"github.com/belfryio/belfry/internal/freeport"
)

// TestPick: the ports are free, differ, and are below the range from which Linux picks ports.
func TestPick(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 200 {
		port, err := freeport.Pick()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port >= 32_768 {
			t.Fatalf("got port %d, seen before: %v", port, seen[port])
		}
		seen[port] = true
		l, err := net.Listen("tcp", freeport.Address(port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
