// Package throttle limits repeated log lines.
package throttle

import (
	"maps"
	"sync"
	"time"
)

// Interval is the least time between two lines of one kind.
const Interval = 10 * time.Second

// Log throttles log lines of one kind. Its zero value is ready for use.
type Log struct {
	// Every is the least time between two lines; 0 means Interval.
	Every time.Duration

	mu         sync.Mutex
	last       time.Time
	suppressed int
}

// Allow reports whether to write a line for an occurrence at now, and how many occurrences
// had no line since the last one.
func (l *Log) Allow(now time.Time) (suppressed int, ok bool) {
	every := l.Every
	if every == 0 {
		every = Interval
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && now.Sub(l.last) < every {
		l.suppressed++
		return 0, false
	}
	suppressed, l.suppressed, l.last = l.suppressed, 0, now
	return suppressed, true
}

// maxKeys bounds the kinds of one Keyed that have a line within one Interval.
const maxKeys = 1000

// Keyed throttles log lines of many kinds to one per key and Interval. A further key, beyond
// maxKeys within one Interval, has no line. Its zero value is ready for use.
type Keyed struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// Allow reports whether to write a line for an occurrence of key at now.
func (k *Keyed) Allow(key string, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t, seen := k.last[key]; seen && now.Sub(t) < Interval {
		return false
	}
	if len(k.last) >= maxKeys {
		maps.DeleteFunc(k.last, func(_ string, t time.Time) bool { return now.Sub(t) >= Interval })
	}
	if len(k.last) >= maxKeys {
		return false
	}
	if k.last == nil {
		k.last = map[string]time.Time{}
	}
	k.last[key] = now
	return true
}
