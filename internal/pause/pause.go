// Package pause waits in a way that a context can end.
package pause

import (
	"context"
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
