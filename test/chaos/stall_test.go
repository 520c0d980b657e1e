//go:build unix

package chaos

import (
	"sync"
	"testing"
	"time"
)

// stalls measures for how long the machine did not run this process. Promised times of
// fail-over hold on a machine that runs what is ready to run, so such stalls are added to
// them.
type stalls struct {
	mu      sync.Mutex
	longest time.Duration
}

const stallTick = 10 * time.Millisecond

// watchStalls measures until the test ends.
func watchStalls(t *testing.T) *stalls {
	s := &stalls{}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(stallTick)
		defer ticker.Stop()
		last := time.Now()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			now := time.Now()
			s.mu.Lock()
			s.longest = max(s.longest, now.Sub(last)-stallTick)
			s.mu.Unlock()
			last = now
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
	return s
}

func (s *stalls) max() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}
