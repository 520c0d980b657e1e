// Package tcptest serves TCP connections in tests that need a server to misbehave, and finds free
// ports.
package tcptest

import (
	"net"
	"sync"
	"testing"

	"github.com/belfryio/belfry/internal/freeport"
)

// Serve calls handle for each connection, and closes the connection afterwards. It returns
// the address of the server, which lives until the test ends.
func Serve(tb testing.TB, handle func(net.Conn)) (address string) {
	tb.Helper()
	l := listen(tb)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			closed := make(chan struct{})
			serving.Go(func() {
				defer close(closed)
				defer c.Close()
				handle(c)
			})
			serving.Go(func() {
				select {
				case <-closed:
				case <-tb.Context().Done():
					c.Close() // ends a handle that reads
				}
			})
		}
	})
	tb.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// FreePort returns a port of 127.0.0.1 on which nobody listens. No other test and no connection
// gets this port meanwhile, so a server can stop, and start again on it.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freeport.Pick()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// FreeAddress returns the address of a FreePort. It refuses connections until a server listens on
// it.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	return freeport.Address(FreePort(tb))
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
