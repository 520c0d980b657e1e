//go:build !linux || race

package gctune

// newHugePages returns a range of size 0: only Linux takes requests for huge pages, and the race
// detector would use memory for a reservation.
func newHugePages(int) *hugePages { return &hugePages{} }

func (*hugePages) set(bool) {}
