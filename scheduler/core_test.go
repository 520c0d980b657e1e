package scheduler

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestCoreUnderFaults runs whole lives of timers through a core whose store
// loses answers, whose process crashes, and whose callers cancel and move.
// BELFRY_SEED repeats one seed; BELFRY_SEEDS sets how many are run.
func TestCoreUnderFaults(t *testing.T) {
	t.Parallel()
	from, n := uint64(1), 150
	if s := os.Getenv("BELFRY_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		from, n = v, 1
	} else if s := os.Getenv("BELFRY_SEEDS"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		n = v
	}
	for seed := from; seed < from+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("repeat with: BELFRY_SEED=%d go test -run TestCoreUnderFaults ./scheduler", seed)
				}
			}()
			runLives(t, seed)
		})
	}
}

func runLives(t *testing.T, seed uint64) {
	geo := schemas.Geometry{Shards: 1, SlotWidth: schemas.DefaultSlotWidth, WheelSize: 1000}
	w := newWorld(t, seed, geo)
	w.faults = seed%10 != 0
	start := w.now
	due := map[schemas.TimerID]int64{}
	cancelled := map[schemas.TimerID]bool{}
	var ids []schemas.TimerID
	for i := range 300 {
		if w.rng.IntN(40) == 0 {
			// An outage: nobody runs for a while, then a new owner resumes.
			w.now += w.rng.Int64N(30_000)
			w.boot()
		}
		d := w.now + w.rng.Int64N(20_000) - 1000
		switch w.rng.IntN(10) {
		case 0:
			d = start + 10_000 // many at one instant
		case 1:
			d += geo.WheelSize * 1000 // another revolution
		}
		id := w.add(i, d, fmt.Sprint("svc", i%3))
		due[id], ids = d, append(ids, id)
		w.step(w.rng.Int64N(60))
		victim := ids[w.rng.IntN(len(ids))]
		rec := w.recs[victim]
		if rec.Record.State != schemas.StatePending {
			continue
		}
		switch w.rng.IntN(8) {
		case 0:
			r := rec.Record
			r.State, r.Queued, r.Body = schemas.StateCancelled, false, schemas.Body{}
			if _, err := w.cas(victim, rec.Rev, r); err == nil {
				cancelled[victim] = true
			}
		case 1:
			r := rec.Record
			r.DueMs = w.now + w.rng.Int64N(15_000)
			r.ScheduledMs, r.Moves = r.DueMs, r.Moves+1
			w.index(victim, r.DueMs)
			if _, err := w.cas(victim, rec.Rev, r); err == nil {
				due[victim] = r.DueMs
			}
		}
	}
	w.faults = w.faults && seed%3 != 0
	for range 3000 {
		w.step(20)
	}
	w.faults = false
	for range 1000 {
		w.step(20)
	}
	end := w.now
	for id, d := range due {
		times := w.pub[id.MsgID(1)]
		switch {
		case cancelled[id]:
			if len(times) > 0 {
				t.Errorf("fired at %v after an acknowledged cancel", times)
			}
		case d > end:
			if len(times) > 0 {
				t.Errorf("due %d fired at %v, a revolution early", d, times)
			}
		case len(times) == 0:
			t.Errorf("timer due %d (now %d) was lost: %s", d, end, w.recs[id].Record.State)
		case times[0] < d:
			t.Errorf("due %d fired %d ms early", d, d-times[0])
		}
	}
	if len(w.core.entries) > 0 {
		for _, e := range w.core.entries {
			if e.rec.DueMs < end {
				t.Errorf("entry due %d left in phase %d", e.rec.DueMs, e.phase)
			}
		}
	}
	w.core.Checkpoint(&w.clock)
	if lag := end - w.clock.TimeMs; lag > 3000 {
		t.Errorf("the mark is %d ms behind", lag)
	}
	w.checkMark()
	if w.clock.Tail != w.seq {
		t.Errorf("the tail stands at %d of %d", w.clock.Tail, w.seq)
	}
}
