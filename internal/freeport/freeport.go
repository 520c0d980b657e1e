// Package freeport picks TCP ports for servers of tests and measurements that must have the same
// port again after a restart, or whose port must be known before they start.
//
// A port that the system picks (port 0) is unsuitable: as soon as its listener is closed, the
// system may give it to an outgoing connection or to another listener.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// first and last bound the ports. They are below the ranges from which operating systems pick
// ports: 32768 and above on Linux, 49152 and above on others.
const first, last = 12_000, 30_000

// tries bounds the ports that Pick looks at.
const tries = 1000

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// Pick returns a port of 127.0.0.1 on which nobody listens. It returns no port twice in this
// process. Another process picks the same port only by a rare chance.
func Pick() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := first + rand.IntN(last-first)
		if given[port] {
			continue
		}
		l, err := net.Listen("tcp", Address(port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		given[port] = true
		return port, nil
	}
	return 0, errors.New("no free port of 127.0.0.1 was found")
}

// Address is the address of a port of 127.0.0.1, as host:port.
func Address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
