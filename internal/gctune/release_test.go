package gctune

import (
	"testing"
	"time"
)

// releaseLooks is a number of looks in which there is at most one release.
const releaseLooks = int(releasePause / time.Second)

// TestReleaseWhenQuiet: memory is returned once, after the process has allocated little
// for a while, or if it keeps far more garbage than it needs, and only if that saves much.
func TestReleaseWhenQuiet(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	begin := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		name           string
		allocates      uint64 // between two checks
		live, resident uint64
		want           bool
	}{
		{"busy", 100 * mb, 50 * mb, 800 * mb, false},
		{"busy, garbage for a minute", 50 * mb, 1000 * mb, 4000 * mb, true},
		{"busy, garbage for 20 s", 150 * mb, 1000 * mb, 4000 * mb, false},
		{"busy, less garbage than live", 10 * mb, 1000 * mb, 1900 * mb, false},
		{"busy, little garbage", 10 * mb, 50 * mb, 500 * mb, false},
		{"quiet after a burst", mb, 50 * mb, 800 * mb, true},
		{"quiet, little to gain", mb, 20 * mb, 60 * mb, false},
		{"quiet, much alive beside the gain", mb, 800 * mb, 890 * mb, false},
		{"quiet after a start", mb, 800 * mb, 1000 * mb, true},
		{"no live heap known", mb, 0, 100 * mb, true},
		{"metrics of different moments", mb, 100 * mb, 90 * mb, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var r releaser
			var released []int
			for look := 1; look <= releaseLooks; look++ {
				h := heap{allocated: uint64(look) * c.allocates, live: c.live, resident: c.resident}
				if r.due(h, begin.Add(time.Duration(look)*time.Second)) {
					released = append(released, look)
				}
			}
			if c.want != (len(released) == 1) || !c.want && len(released) > 0 {
				t.Errorf("released at looks %v", released)
			}
		})
	}
}

// TestReleaseAgain: the next release is after releasePause and, after a busy check, after
// the same quiet time.
func TestReleaseAgain(t *testing.T) {
	t.Parallel()
	var r releaser
	var allocated uint64
	at := time.Unix(1_000_000, 0)
	look := func(bytes uint64) bool {
		allocated += bytes
		at = at.Add(time.Second)
		return r.due(heap{allocated: allocated, live: 1 << 20, resident: 256 << 20}, at)
	}
	count := func(looks int, bytes uint64) (n int) {
		for range looks {
			if look(bytes) {
				n++
			}
		}
		return n
	}
	if n := count(quietLooks-1, 0); n != 0 {
		t.Errorf("%d releases before it was quiet for long enough", n)
	}
	if !look(0) {
		t.Error("no release when it was quiet for long enough")
	}
	if n := count(int(releasePause/time.Second)-1, 0); n != 0 {
		t.Errorf("%d releases within the pause", n)
	}
	if !look(0) {
		t.Error("no release after the pause")
	}
	if n := count(200, quietBytes+1); n != 0 {
		t.Errorf("%d releases of a busy process", n)
	}
	if n := count(quietLooks, 0); n != 1 {
		t.Errorf("%d releases when it became quiet again", n)
	}
}

// TestReleaseShare: after a release of 4 s the next one is made 400 s later, or 40 s later in a quiet process that
// returns as much as it keeps.
func TestReleaseShare(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	begin := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		name                      string
		allocates, live, resident uint64
		want                      time.Duration
	}{
		{"quiet, much to gain", mb, 1000 * mb, 3000 * mb, 40 * time.Second},
		{"quiet, less to gain than is alive", mb, 1000 * mb, 1500 * mb, 400 * time.Second},
		{"busy", 20 * mb, 1000 * mb, 3000 * mb, 400 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := releaser{at: begin, took: 4 * time.Second}
			var allocated uint64
			for now := begin.Add(time.Second); now.Sub(begin) <= 10*time.Minute; now = now.Add(time.Second) {
				allocated += c.allocates
				if r.due(heap{allocated: allocated, live: c.live, resident: c.resident}, now) {
					if got := now.Sub(begin); got != c.want {
						t.Errorf("released after %s, want %s", got, c.want)
					}
					return
				}
			}
			t.Error("never released")
		})
	}
}

// TestHeapMetrics: this version of Go has the metrics that a release needs.
func TestHeapMetrics(t *testing.T) {
	t.Parallel()
	h := readHeap()
	if h.allocated == 0 || h.resident == 0 {
		t.Errorf("got %+v", h)
	}
}
