package gctune

import "testing"

func TestHugeBytes(t *testing.T) {
	t.Parallel()
	const gb = 1 << 30
	for _, c := range []struct {
		memory uint64
		want   int
	}{{0, 0}, {gb, gb / 8}, {4 * gb, gb / 2}, {64 * gb, gb}} {
		if got := hugeBytes(c.memory); got != c.want {
			t.Errorf("%d bytes of memory: a range of %d bytes; want %d", c.memory, got, c.want)
		}
	}
}
