//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// TestFullDiskOfIndex: while the disk of the search index is full, timers are added and fire, the node stays
// ready and says that the index is not written, and searches answer from its entries. When there is room again, the
// same process writes the rest.
func TestFullDiskOfIndex(t *testing.T) {
	t.Parallel()
	const before, during = 20, 200
	folder := filepath.Join(t.TempDir(), "index")
	n := proc.New(t, proc.Options{Config: "profile: fast\nshards: 2\nhistory-folder: " + folder + "\n"})
	if err := n.SmallDiskAt(folder, 32<<20); err != nil {
		t.Skipf("NOTHING WAS SHOWN: this machine cannot provide a disk that can be filled: %v", err)
	}
	n.Start()
	n.Ready(t.Context())
	c := diskClient(t, n.URL())
	acked := map[string]bool{}
	add := func(prefix string, count int) {
		events := make([]event.Event, count)
		for i := range events {
			events[i] = diskEvent(fmt.Sprintf("%s-%d", prefix, i))
			acked[events[i].ID()] = true
		}
		for page := range slices.Chunk(events, 500) {
			if err := c.AddBatch(t.Context(), page, belfry.After(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
	}
	found := func() (count int) {
		q := belfry.SearchQuery{States: []belfry.State{schemas.StateSuccess}, Limit: 100}
		for {
			page, err := c.Search(t.Context(), q)
			if err != nil {
				return -1
			}
			count += len(page.Timers)
			if q.Cursor = page.Cursor; q.Cursor == "" {
				return count
			}
		}
	}
	failing := func() bool {
		values := slices.Collect(maps.Values(metrictest.TextOf(t, n.Metrics(), "belfry_visibility_failing")))
		return len(values) == 1 && values[0] == 1
	}
	add("before", before)
	waittest.Until(t, "the first timers in the index", func() bool { return found() == before }, n.LogTail)
	if err := n.Fill(); err != nil {
		t.Fatal(err)
	}
	add("during", during)
	waittest.Until(t, "every timer fires", func() bool { return len(missing(acked, firedEvents(t, c))) == 0 }, n.LogTail)
	waittest.Until(t, "an index that cannot be written", failing, n.LogTail)
	if status, body, err := n.Readiness(); err != nil || status != 200 {
		t.Errorf("got status %d, %s, error %v, want a node that is ready", status, body, err)
	}
	if got := found(); got < before || got >= before+during {
		t.Errorf("a search found %d timers, want the timers of the index", got)
	}
	if err := n.Free(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "all timers in the index", func() bool { return found() == before+during }, func() string { return fmt.Sprint(found(), n.LogTail()) })
	waittest.Until(t, "an index that is written", func() bool { return !failing() })
}
