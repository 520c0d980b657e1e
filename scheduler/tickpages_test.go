package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// TestTickPages: the limit of a page is a sixteenth of the timers of the last tick, or of this one so far,
// from minPage to maxPage. Reads of several ticks have the limit maxPage.
func TestTickPages(t *testing.T) {
	t.Parallel()
	var p tickPages
	want := func(limit int) {
		t.Helper()
		if got := p.limit(1); got != limit {
			t.Errorf("a page of %d timers, want %d", got, limit)
		}
	}
	want(minPage)
	for range 40 {
		p.read(25, 1, false)
	}
	want(62) // its tick has not ended
	p.read(600, 1, true)
	want(100)
	p.read(80, 1, false)
	want(100)
	p.read(80, 1, true)
	want(minPage)
	p.read(100_000, 1, true)
	want(maxPage)
	p.read(3200, 10, true)
	want(20)
	p.read(0, 1, true)
	want(minPage)
	if got := p.limit(2); got != maxPage {
		t.Errorf("two ticks with a limit of %d, want %d", got, maxPage)
	}
}

// sweptStore has the same number of timers in every tick. Like the store, it refuses a read of several ticks
// that has more timers than the limit.
type sweptStore struct {
	SweepStore
	timers int
	reads  []int // ticks in each read
	limits []int // the limit of each read that succeeded
}

func (s *sweptStore) LoadTicks(_ context.Context, _ int, ticks []int64, limit int, _, _ uint64, _ *store.Near) (store.Load, error) {
	s.reads = append(s.reads, len(ticks))
	n := s.timers * len(ticks)
	if len(ticks) > 1 && n > limit {
		return store.Load{}, nil
	}
	s.limits = append(s.limits, limit)
	return store.Load{Complete: true, Named: n}, nil // all records have expired
}

// TestSweepWidth: the sweeper reads as many ticks at once as fit an answer: 256 empty ticks, but busy ticks
// one by one, also if their timers have no record any more. While it is late, its pages are large.
func TestSweepWidth(t *testing.T) {
	t.Parallel()
	geo := coreConfig.Geometry
	some := func(timers int) (reads, limits []int) {
		st := &sweptStore{timers: timers}
		s := Sweeper{Store: st, Geometry: geo, Delay: time.Minute, Audited: func(int) {}}
		start := int64(1_800_000_000_000)
		for at, more := start, true; more; {
			var err error
			if at, more, err = s.Some(t.Context(), at, store.Clock{TimeMs: start + 1300*geo.SlotWidth.Milliseconds()}); err != nil {
				t.Fatal(err)
			}
		}
		return st.reads, st.limits
	}
	const ticks = 1240
	if got, _ := some(0); len(got) != 5 {
		t.Errorf("%d empty ticks: %d reads, want 5", ticks, len(got))
	}
	got, limits := some(200)
	if len(got) != ticks+1 {
		t.Errorf("%d ticks with 200 timers: %d reads, want %d", ticks, len(got), ticks+1)
	}
	if first, last := limits[0], limits[len(limits)-1]; first != maxPage || last != minPage {
		t.Errorf("pages of %d timers while the sweeper is late, %d then; want %d, %d", first, last, maxPage, minPage)
	}
	// 32 ticks with 7 timers fit an answer. The first read asks for 256 ticks, the second for one, and then the
	// width doubles.
	if got, _ := some(7); len(got) > ticks/32+8 {
		t.Errorf("%d ticks with 7 timers: %d reads: %d", ticks, len(got), got)
	}
}
