package devclock

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Source is the cluster's time; *clustertime.Service implements it.
type Source interface {
	Ready(ctx context.Context) error
	EarliestNs() int64
	LatestNs() int64
	JumpDetected() bool
	Resample()
	SteadyFor() time.Duration
	Age() time.Duration
}

// maxMoves bounds the moves that a Clock keeps for Map. Map converts earlier times by the oldest kept
// move.
const maxMoves = 4096

// move sets the clock to atNs at the time fromNs of the source, both in Unix nanoseconds. From then on
// the clock runs with the source, or stands still if frozen is true.
type move struct {
	fromNs, atNs int64
	frozen       bool
}

func (m move) at(sourceNs int64) int64 {
	if m.frozen {
		return m.atNs
	}
	return m.atNs + max(sourceNs-m.fromNs, 0)
}

// Clock is a movable cluster time: the time of a Source, changed by moves. Safe for concurrent use.
type Clock struct {
	Source

	mu    sync.RWMutex
	moves []move // in order
}

// New returns a clock without moves. Call Follow before its times are read.
func New() *Clock { return &Clock{moves: []move{{fromNs: math.MinInt64 / 2, atNs: math.MinInt64 / 2}}} }

// Follow sets the source. It must be called once, before the times are read.
func (c *Clock) Follow(s Source) { c.Source = s }

// Restore continues a clock that was stored.
func (c *Clock) Restore(s store.MovedClock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ms := int64(time.Millisecond)
	c.moves = append(c.moves, move{fromNs: s.ServerMs * ms, atNs: s.AtMs * ms, frozen: s.Frozen})
}

func (c *Clock) last() move {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.moves[len(c.moves)-1]
}

// EarliestNs returns a lower bound of the moved time, in Unix nanoseconds.
func (c *Clock) EarliestNs() int64 { return c.last().at(c.Source.EarliestNs()) }

// LatestNs returns an upper bound of the moved time, in Unix nanoseconds.
func (c *Clock) LatestNs() int64 { return c.last().at(c.Source.LatestNs()) }

// Now returns EarliestNs in Unix milliseconds, rounded down.
func (c *Clock) Now() int64 { return c.EarliestNs() / int64(time.Millisecond) }

// Frozen reports whether the clock stands still between moves.
func (c *Clock) Frozen() bool { return c.last().frozen }

// Map converts a time of the source to the time that the clock showed then.
func (c *Clock) Map(t time.Time) time.Time {
	ns := t.UnixNano()
	c.mu.RLock()
	defer c.mu.RUnlock()
	i := len(c.moves) - 1
	for i > 0 && c.moves[i].fromNs > ns {
		i--
	}
	return time.Unix(0, c.moves[i].at(ns))
}

// moveTo moves the clock to a time in Unix milliseconds that is not before Now.
func (c *Clock) moveTo(s store.MovedClock) {
	c.Restore(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.moves) - maxMoves; n > 0 {
		c.moves = append(c.moves[:0], c.moves[n:]...)
	}
}
