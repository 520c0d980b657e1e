package devclock

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Source is the cluster's time; *clustertime.Service has it.
type Source interface {
	Ready(ctx context.Context) error
	EarliestNs() int64
	LatestNs() int64
	JumpDetected() bool
	Resample()
	SteadyFor() time.Duration
	Age() time.Duration
}

// maxMoves bounds the moves that Map knows. Times before them follow the oldest one.
const maxMoves = 4096

// move says that the clock shows atNs when the source shows fromNs, and runs on unless it is
// frozen.
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

// Clock is the cluster's time, moved. Before Follow it is the zero time. Safe for concurrent use.
type Clock struct {
	Source

	mu    sync.RWMutex
	moves []move // in order
}

// New returns a clock that nothing has moved.
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

// EarliestNs is a lower bound of the moved time, in Unix nanoseconds.
func (c *Clock) EarliestNs() int64 { return c.last().at(c.Source.EarliestNs()) }

// LatestNs is an upper bound of the moved time, in Unix nanoseconds.
func (c *Clock) LatestNs() int64 { return c.last().at(c.Source.LatestNs()) }

// Now is EarliestNs in milliseconds.
func (c *Clock) Now() int64 { return c.EarliestNs() / int64(time.Millisecond) }

// Frozen reports whether the clock stands still between moves.
func (c *Clock) Frozen() bool { return c.last().frozen }

// Map returns what the clock showed at a time of the source.
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
