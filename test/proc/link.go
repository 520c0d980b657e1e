//go:build unix

package proc

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a network between clients and one address: a TCP proxy whose
// connections can be cut, held up, or delayed.
type Link struct {
	l      net.Listener
	target string
	done   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	cut    bool
	delay  time.Duration
	held   chan struct{} // closed when held data may pass; nil if nothing is held
	conns  map[net.Conn]struct{}
}

// NewLink listens on a free port and forwards connections to target until the test ends.
func NewLink(tb testing.TB, target string) *Link {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	k := &Link{l: l, target: target, conns: map[net.Conn]struct{}{}}
	k.done.Go(k.accept)
	tb.Cleanup(k.close)
	return k
}

// Address is the address for clients.
func (k *Link) Address() string { return k.l.Addr().String() }

// Cut closes every connection, and each new one, until Heal.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = true
	for c := range k.conns {
		c.Close()
	}
}

// Hold holds all data back until Heal, without closing a connection. Then the data arrives,
// as after an outage of a network.
func (k *Link) Hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = make(chan struct{})
	}
}

// Delay delays every byte by d in each direction, until Heal.
func (k *Link) Delay(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay = d
}

// Heal ends Cut, Hold and Delay.
func (k *Link) Heal() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut, k.delay = false, 0
	if k.held != nil {
		close(k.held)
		k.held = nil
	}
}

func (k *Link) close() {
	k.l.Close()
	k.Heal()
	k.mu.Lock()
	k.closed = true
	for c := range k.conns {
		c.Close()
	}
	k.mu.Unlock()
	k.done.Wait()
}

func (k *Link) accept() {
	for {
		c, err := k.l.Accept()
		if err != nil {
			return
		}
		k.done.Go(func() { k.carry(c) })
	}
}

// add registers a connection. It returns false if the connection must be closed.
func (k *Link) add(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut || k.closed {
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

func (k *Link) drop(c net.Conn) {
	k.mu.Lock()
	delete(k.conns, c)
	k.mu.Unlock()
	c.Close()
}

func (k *Link) carry(from net.Conn) {
	defer k.drop(from)
	if !k.add(from) {
		return
	}
	to, err := net.DialTimeout("tcp", k.target, time.Second)
	if err != nil {
		return
	}
	defer k.drop(to)
	if !k.add(to) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { k.pump(from, to) })
	k.pump(to, from)
	both.Wait()
}

// chunk is data with the time at which it may arrive.
type chunk struct {
	b  []byte
	at time.Time
}

const (
	chunkBytes  = 32 << 10
	chunksAhead = 256
)

// pump forwards one direction until either end closes.
func (k *Link) pump(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	chunks := make(chan chunk, chunksAhead)
	k.done.Go(func() {
		defer close(chunks)
		for {
			b := make([]byte, chunkBytes)
			n, err := from.Read(b)
			if n > 0 {
				k.mu.Lock()
				at := time.Now().Add(k.delay)
				k.mu.Unlock()
				chunks <- chunk{b[:n], at}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		time.Sleep(time.Until(c.at)) // the delay of the network
		k.mu.Lock()
		held := k.held
		k.mu.Unlock()
		if held != nil {
			<-held
		}
		if _, err := to.Write(c.b); err != nil {
			break
		}
	}
	from.Close() // ends the reader
	for range chunks {
	}
}
