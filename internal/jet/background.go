package jet

import (
	"context"
	"sync"
)

// Background owns goroutines that end together: those of a client, or of the store above
// it. After Stop, none of them runs and none can start. Safe for concurrent use.
type Background struct {
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// NewBackground returns a Background whose goroutines outlive ctx and keep its values.
func NewBackground(ctx context.Context) *Background {
	g := &Background{}
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Context returns a context that ends with Stop.
func (g *Background) Context() context.Context { return g.ctx }

// Spawn runs f in a goroutine, or returns false after Stop. A sync.WaitGroup alone does not
// suffice for that: its Go must not run while another goroutine is in Wait.
func (g *Background) Spawn(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	g.running.Go(f)
	return true
}

// Run runs f in a goroutine until Stop ends its context. After Stop it does nothing.
func (g *Background) Run(f func(context.Context)) { g.Spawn(func() { f(g.ctx) }) }

// Stop ends the context of all goroutines and waits for them. It may be called twice.
func (g *Background) Stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.cancel()
	g.running.Wait()
}
