package status

import (
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// TestLagOfMovedClock: the low watermark of a shard is compared with the clock that timers follow.
func TestLagOfMovedClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 3, 28, 1, 0, 0, 0, time.UTC)
	hour := time.Hour.Milliseconds()
	for name, c := range map[string]struct {
		moved store.MovedClock
		late  bool
	}{
		"not moved":       {late: true},
		"frozen":          {moved: store.MovedClock{AtMs: at.UnixMilli(), ServerMs: at.UnixMilli(), Frozen: true}},
		"running, behind": {moved: store.MovedClock{AtMs: at.UnixMilli(), ServerMs: at.UnixMilli() + hour}},
		"running, ahead":  {moved: store.MovedClock{AtMs: at.UnixMilli() + hour, ServerMs: at.UnixMilli()}, late: true},
		"moved just now":  {moved: store.MovedClock{AtMs: at.UnixMilli() + 720*hour, ServerMs: at.UnixMilli() + hour - 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shard := store.ClockAt{Shard: 0, StoredMs: at.UnixMilli() + hour}
			shard.Clock.Owner, shard.Clock.TimeMs = "a", at.UnixMilli()
			var st Status
			st.fill(store.Cluster{Clocks: []store.ClockAt{shard}}, c.moved)
			st.findProblems()
			if got := strings.Contains(strings.Join(st.Problems, "\n"), "low watermark"); got != c.late {
				t.Errorf("got problems %q and lag %d ms, want late %t", st.Problems, st.Shards[0].LagMs, c.late)
			}
			if shown := c.moved.At(at.UnixMilli() + hour); c.moved != (store.MovedClock{}) && st.Clock.UnixMilli() != shown {
				t.Errorf("got the clock %s, want %s", st.Clock, time.UnixMilli(shown))
			}
		})
	}
}

// TestSharedNameIsAProblem: a node whose name several processes use is a problem.
func TestSharedNameIsAProblem(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		var st Status
		st.fill(store.Cluster{Nodes: []store.Member{{Node: "a", Presence: store.Presence{Shared: shared}}}}, store.MovedClock{})
		st.findProblems()
		if got := strings.Contains(strings.Join(st.Problems, "\n"), "several processes use the node name a"); got != shared {
			t.Errorf("shared %v: got problems %q", shared, st.Problems)
		}
	}
}
