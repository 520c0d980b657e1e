package oidc

import (
	"sync"
	"time"
)

// Bounds of the package.
const (
	KeysMaxAge   = keysMaxAge
	KeysMaxStale = keysMaxStale
	MinFetch     = minFetch
	MaxWaiting   = maxWaiting
)

// Clock is the clock of a verifier for the age of its keys.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock gives a verifier a clock that does not move by itself.
func NewClock(v *Verifier, now time.Time) *Clock {
	c := &Clock{now: now}
	v.keys.now = func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.now
	}
	return c
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
