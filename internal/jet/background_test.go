package jet

import (
	"context"
	"sync"
	"testing"
)

// TestBackgroundStop: Stop ends and awaits every goroutine, and none starts after it, however many
// try meanwhile.
func TestBackgroundStop(t *testing.T) {
	t.Parallel()
	g := NewBackground(t.Context())
	var mu sync.Mutex
	running := 0
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		running += by
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for g.Spawn(func() {
				count(1)
				<-g.Context().Done()
				count(-1)
			}) {
			}
		})
	}
	g.Stop()
	mu.Lock()
	left := running
	mu.Unlock()
	if left != 0 {
		t.Errorf("%d goroutines run after Stop", left)
	}
	callers.Wait()
	g.Run(func(context.Context) { t.Error("a goroutine has started after Stop") })
	g.Stop()
}
