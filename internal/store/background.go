package store

import (
	"context"
	"sync"
)

// background owns the goroutines of an open store. stop ends them all and waits for them;
// after stop, no more can be started. Safe for concurrent use.
type background struct {
	ctx    context.Context // ends with stop
	cancel context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// newBackground makes a background whose goroutines outlive ctx and keep its values.
func newBackground(ctx context.Context) *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return b
}

// spawn runs f in a goroutine, or returns false after stop.
func (b *background) spawn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.running.Go(f)
	return true
}

// run runs f in a goroutine until stop ends its context. After stop it does nothing.
func (b *background) run(f func(context.Context)) { b.spawn(func() { f(b.ctx) }) }

// stop ends the context of all goroutines and waits for them. It may be called twice.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.cancel()
	b.running.Wait()
}
