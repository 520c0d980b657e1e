package store

import (
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
