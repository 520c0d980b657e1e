package scheduler

import "math"

// dueBatch bounds the due entries that the core moves from the wheel to the queue at once. It starts
// small and doubles with each move that leaves due entries in the wheel. In a burst of thousands of
// entries the first claims, and the publishes that follow them, therefore do not wait for the others.
//
// While entries are left, only an EvTick moves more. A Term steps many events between two ticks, such
// as the results of claims: if each of them moved entries, the publishes in the same turn would wait.
// The bound grows, because a service whose timers are behind those of another in the wheel waits for
// these moves.
type dueBatch struct {
	size        int
	first, most int
	left        bool // the last move has left due entries in the wheel
}

// newDueBatch returns a bound that grows from first to most; 0 stands for no bound.
func newDueBatch(first, most int) dueBatch {
	if most == 0 {
		most = math.MaxInt
	}
	if first == 0 || first > most {
		first = most
	}
	return dueBatch{size: first, first: first, most: most}
}

// moved notes whether a move of size entries has left due entries.
func (b *dueBatch) moved(left bool) {
	b.left = left
	switch {
	case !left:
		b.size = b.first
	case b.size > b.most/2:
		b.size = b.most
	default:
		b.size *= 2
	}
}
