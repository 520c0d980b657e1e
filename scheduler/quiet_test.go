package scheduler

import (
	"testing"

	"github.com/rs/zerolog"
)

// TestQuietKnowsTheTail: a shard is quiet only after a turn that knew the newest record. Otherwise a clock
// that is moved to the deadline of a run overtakes the record of its success.
func TestQuietKnowsTheTail(t *testing.T) {
	t.Parallel()
	const at = 1_800_000_000_000
	state := newShardState(0, newMetrics(), zerolog.Nop())
	state.state.Store(1)
	s := &Scheduler{shards: []*shard{{shardState: state}}}
	for _, c := range []struct {
		ms        int64
		rev, seen uint64
		quiet     bool
	}{{at, 7, 7, true}, {at, 7, 0, true}, {at, 6, 7, false}, {at - 1, 7, 7, false}, {0, 7, 7, false}} {
		state.quietMs.Store(c.ms)
		state.quietRev.Store(c.rev)
		if got := s.Quiet(at, []uint64{c.seen}); got != c.quiet {
			t.Errorf("%+v: got %t", c, got)
		}
	}
}
