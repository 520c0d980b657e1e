package scheduler

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// delays is a host that notes the delay of each request and ends the term then.
type delays struct {
	Host
	noted []time.Duration
}

func (d *delays) Go(f func(context.Context)) { f(context.Background()) }

func (d *delays) Pause(_ context.Context, wait time.Duration) bool {
	d.noted = append(d.noted, wait)
	return false
}

// TestPutIndexesKeepsDelays: an index entry that failed before is written after its delay, and
// does not hold up others of the same tick.
func TestPutIndexesKeepsDelays(t *testing.T) {
	t.Parallel()
	var h delays
	term := &Term{host: &h}
	index := func(name string, tick int64, delay time.Duration) ActIndex {
		id := schemas.NewTimerID("/s", name)
		return ActIndex{ID: id, Record: id, Tick: tick, Ahead: true, Delay: delay}
	}
	term.putIndexes([]ActIndex{index("a", 7, 0), index("b", 7, time.Second), index("c", 7, 0), index("d", 8, 2*time.Second)})
	if want := []time.Duration{0, time.Second, 2 * time.Second}; !slices.Equal(h.noted, want) {
		t.Errorf("requests after %v, want %v", h.noted, want)
	}
}
