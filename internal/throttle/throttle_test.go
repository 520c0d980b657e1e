package throttle

import (
	"testing"
	"time"
)

func TestLog(t *testing.T) {
	t.Parallel()
	var l Log
	at := time.Unix(1, 0)
	for i, c := range []struct {
		after      time.Duration
		suppressed int
		ok         bool
	}{{0, 0, true}, {0, 0, false}, {Interval - 1, 0, false}, {1, 2, true}, {1, 0, false}, {2 * Interval, 1, true}, {Interval, 0, true}} {
		at = at.Add(c.after)
		if n, ok := l.Allow(at); n != c.suppressed || ok != c.ok {
			t.Errorf("occurrence %d: %d, %v; want %d, %v", i, n, ok, c.suppressed, c.ok)
		}
	}
}
