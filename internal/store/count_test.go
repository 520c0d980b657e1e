package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestCountPending: CountPending counts the records of a shard in state pending up to a
// revision, and no others.
func TestCountPending(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	g := s.Geometry()
	if c, err := s.CountPending(t.Context(), 0, 1<<60); err != nil || len(c.Waiting) != 0 || c.Last != 0 {
		t.Errorf("an empty shard: %+v %v", c, err)
	}
	ids := storetest.IDsOf(g, 0, 2505)
	due := storetest.NowMs(t, s) + 3_600_000
	writes := make([]store.Write, len(ids))
	for i, id := range ids {
		writes[i] = store.Write{ID: id, Record: storetest.Pending(due)}
	}
	writes[2].Record.State, writes[2].Record.Queued = schemas.StatePaused, false // it counts
	var revs []uint64
	for some := range slices.Chunk(writes, 500) {
		revs = append(revs, storetest.CreateAll(t, s, some)...)
	}
	other := storetest.IDsOf(g, 1, 1)[0]
	storetest.CreateAll(t, s, []store.Write{{ID: other, Record: storetest.Pending(due)}})
	through := revs[2499]
	// One timer is claimed, one is finished, and five are newer than through.
	for i, rec := range []*store.Write{{Record: storetest.Delivered(*storetest.Pending(due))}, {Record: storetest.Success(*storetest.Delivered(*storetest.Pending(due))), TTL: time.Hour}} {
		rec.ID, rec.Rev = ids[i], revs[i]
		if _, err := s.Update(t.Context(), *rec); err != nil {
			t.Fatal(err)
		}
	}
	c, err := s.CountPending(t.Context(), 0, through)
	if err != nil {
		t.Fatal(err)
	}
	var want []uint64
	for _, id := range ids[2:2500] {
		want = append(want, store.CountKey(id))
	}
	slices.Sort(want)
	if l := c.Late[store.CountKey(ids[1])]; len(c.Late) != 7 || l.Waiting || l.Rev != c.Last || !c.Late[store.CountKey(ids[2504])].Waiting || c.Behind {
		t.Errorf("later records are %v, behind %v; want the claimed, the finished and five pending ones", c.Late, c.Behind)
	}
	if !slices.Equal(c.Waiting, want) || c.Last <= revs[2504] {
		t.Errorf("%d are pending, want %d; the last revision is %d", len(c.Waiting), len(want), c.Last)
	}
}
