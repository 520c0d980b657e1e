package router

import "sync"

// permits bound the operations of one kind.
type permits chan struct{}

func (p permits) take() bool {
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p permits) release() { <-p }

// gate counts the operations under way, and admits none after close. (A WaitGroup
// alone must not be used for that: Add may not run concurrently with Wait.)
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *gate) leave() { g.inside.Done() }

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// wait waits for the operations under way, after close.
func (g *gate) wait() { g.inside.Wait() }
