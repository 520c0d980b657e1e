// Package tcptest serves TCP connections in tests that need a server to misbehave.
package tcptest

import (
	"net"
	"sync"
	"testing"
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

// Refused returns an address that refuses connections.
func Refused(tb testing.TB) (address string) {
	tb.Helper()
	l := listen(tb)
	defer l.Close()
	return l.Addr().String()
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
