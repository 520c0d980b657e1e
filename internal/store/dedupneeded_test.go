package store

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestDedupNeededInTime: an add whose write may wait until the record of an earlier delivery
// has expired is searched for in TIMERS_FIRED. Without the reserve, an add that was checked
// just before the expiry and stored just after it fired twice.
func TestDedupNeededInTime(t *testing.T) {
	t.Parallel()
	d := NewDedupCheck((*Events)(nil), 20*time.Second)
	const fired = 1_800_000_000_000
	k := AddKey{Timer: schemas.NewTimerID("/s", "1"), Service: "s", Seq: 1, FireMs: fired}
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{9 * time.Second, false}, {11 * time.Second, true}, {19 * time.Second, true}, {21 * time.Second, true}} {
		if got := d.Needed(k, fired+c.after.Milliseconds()); got != c.want {
			t.Errorf("%s after the timer fired, with records kept 20 s: search %t, want %t", c.after, got, c.want)
		}
	}
}

// TestDedupOfLaterTimer: an event counts for an add only if the add can have fired by then, whatever other adds
// are asked for in the same call or in calls before. After the record of a timer has expired, an add with the same id makes
// another timer, for which the event of the first one says nothing.
func TestDedupOfLaterTimer(t *testing.T) {
	t.Parallel()
	a, x := schemas.NewTimerID("/s", "a"), schemas.NewTimerID("/s", "x")
	old := AddKey{Timer: a, Service: "s", Seq: 1, FireMs: 50_000}
	first, second := AddKey{Timer: x, Service: "s", Seq: 2, FireMs: 100_000}, AddKey{Timer: x, Service: "s", Seq: 3, FireMs: 5_000_000}
	for _, most := range []int{firedLookupMax, 0} { // in memory, and without
		events := &events{{x.MsgID(1), 100_000}, {a.MsgID(2), 100_001}, {"other.1", 100_002}}
		d := NewDedupCheck(events, time.Hour)
		d.lookup.max = most
		check := func(want []uint64, keys ...AddKey) {
			t.Helper()
			got, err := d.Fired(t.Context(), 6_000_000, keys)
			if seqs := slices.Sorted(maps.Keys(got)); err != nil || !slices.Equal(seqs, want) {
				t.Errorf("with up to %d in memory: the adds %v have fired, %v; want %v", most, seqs, err, want)
			}
		}
		check(nil, old, second)
		check(nil, second)
		check([]uint64{2}, old, first, second)
		*events = append(*events, event{x.MsgID(1), 4_999_000}) // within the skew of the clocks
		check([]uint64{2, 3}, old, first, second)
		check([]uint64{3}, second)
		*events = append(*events, event{a.MsgID(1), 49_999})
		check([]uint64{1}, old)
	}
}

type event struct {
	msgID string
	atMs  int64
}

// events is a FiredReader.
type events []event

func (e *events) FiredAfter(_ context.Context, _ []string, after uint64, since time.Time, fn func(string, int64) bool) (uint64, error) {
	for i := after; i < uint64(len(*e)); i++ {
		if ev := (*e)[i]; after > 0 || ev.atMs >= since.UnixMilli() {
			if !fn(ev.msgID, ev.atMs) {
				return i + 1, nil
			}
		}
	}
	return uint64(len(*e)), nil
}
