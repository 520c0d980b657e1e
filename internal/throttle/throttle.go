// Package throttle limits repeated log lines.
package throttle

import (
	"sync"
	"time"
)

// Interval is the least time between two lines of one Log.
const Interval = 10 * time.Second

// Log throttles log lines of one kind to one per Interval. Its zero value is ready for use.
type Log struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

// Allow reports whether to write a line for an occurrence at now, and how many occurrences
// had no line since the last one.
func (l *Log) Allow(now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && now.Sub(l.last) < Interval {
		l.suppressed++
		return 0, false
	}
	suppressed, l.suppressed, l.last = l.suppressed, 0, now
	return suppressed, true
}
