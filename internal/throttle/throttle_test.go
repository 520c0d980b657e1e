package throttle

import (
	"strconv"
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

func TestKeyed(t *testing.T) {
	t.Parallel()
	var k Keyed
	at := time.Unix(1, 0)
	if !k.Allow("a", at) || k.Allow("a", at.Add(Interval-1)) || !k.Allow("b", at) || !k.Allow("a", at.Add(Interval)) {
		t.Error("a key is not throttled by itself")
	}
	for i := range 2 * maxKeys {
		if got, want := k.Allow(strconv.Itoa(i), at.Add(Interval)), i < maxKeys-1; got != want { // "a" counts
			t.Fatalf("key %d: %v", i, got)
		}
	}
	if len(k.last) > maxKeys {
		t.Errorf("%d keys are kept", len(k.last))
	}
	if !k.Allow("c", at.Add(2*Interval)) {
		t.Error("expired keys are not removed")
	}
}
