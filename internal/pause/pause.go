// Package pause waits in a way that a context or a time limit can end.
package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d and returns true, or returns false as soon as ctx ends. With d of 0 or less
// it does not wait.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Random is For a random duration below most, which must be positive. It keeps processes apart
// that would otherwise repeat the same at the same time.
func Random(ctx context.Context, most time.Duration) bool { return For(ctx, rand.N(most)) }

// Within runs f in a goroutine, and waits until f returns, for at most d. It returns false if f still runs; f
// is not stopped.
func Within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
