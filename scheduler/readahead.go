package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file reads due records ahead: the ticks within the horizon, through the index or by a
// scan of the shard.

// readAhead is the progress of these reads. At most one read is in flight.
type readAhead struct {
	loaded  int64  // every tick up to here is in the wheel
	horizon int64  // every tick up to here is loaded or being loaded
	page    uint64 // After of the next ActLoad; not 0 within a large tick
	loading bool   // an ActLoad or ActScan is in flight
	width   int    // maximum ticks of the next ActLoad
	asked   int64  // ticks of the last ActLoad
	fails   int    // failed reads in a row
	pages   tickPages
}

// readAhead requests the next ticks within the horizon, or a scan of the shard if the low
// watermark is too old for the index.
func (k *Core) readAhead() {
	if k.ahead.loading || len(k.entries) >= k.cfg.MaxLoaded {
		return
	}
	through := k.cfg.Geometry.Tick(k.now + k.cfg.HorizonMs)
	if k.ahead.loaded >= through {
		return
	}
	delay := k.backoff(k.ahead.fails)
	if k.now-k.ProgressMs() > k.cfg.ScanBehindMs && k.ahead.page == 0 {
		k.advanceWatermark() // the clock may have been set ahead since the last Step
	}
	if k.now-k.ProgressMs() > k.cfg.ScanBehindMs && k.ahead.loaded == k.watermark && k.ahead.page == 0 {
		k.ahead.loading, k.ahead.horizon = true, through
		k.do(ActScan{ThroughMs: k.cfg.Geometry.TickStart(through+1) - 1, Delay: delay})
		return
	}
	a := ActLoad{Ticks: k.ahead.nextTicks(through, k.cfg.Geometry.WheelSize), Limit: loadLimit, After: k.ahead.page, Seen: k.tailSeen, Delay: delay}
	if k.cfg.Geometry.TickStart(k.ahead.loaded+1)-k.now > k.cfg.HorizonMs/2 {
		a.Limit = k.ahead.pages.limit(len(a.Ticks))
		if k.ahead.page != 0 {
			a.Delay = max(a.Delay, pacedPagePause)
		}
	}
	k.do(a)
}

// nextTicks begins a load, and returns its ticks, of which through is the last at most.
func (r *readAhead) nextTicks(through, wheelSize int64) []int64 {
	last := min(through, r.loaded+int64(r.width))
	if r.page != 0 {
		last = r.loaded + 1
	}
	// With more ticks than slots, two ticks would have the same slot.
	last = min(last, r.loaded+wheelSize)
	ticks := make([]int64, 0, last-r.loaded)
	for t := r.loaded + 1; t <= last; t++ {
		ticks = append(ticks, t)
	}
	r.loading, r.asked = true, last-r.loaded
	// From now on the tail puts records of these ticks into the wheel. Records that it
	// delivered before are in the store; Seen makes sure that the load sees them.
	r.horizon = max(r.horizon, last)
	return ticks
}

// loadsLater reports whether a timer that is due at dueMs (Unix milliseconds) waits for a later load.
func (k *Core) loadsLater(dueMs int64) bool { return k.cfg.Geometry.Tick(dueMs) > k.ahead.horizon }

// ended notes that a read has ended, and reports whether it succeeded.
func (r *readAhead) ended(err error) (ok bool) {
	r.loading = false
	if err != nil {
		r.fails++
		return false
	}
	r.fails = 0
	return true
}

// narrow makes the next load smaller.
func (r *readAhead) narrow() { r.width = max(1, int(r.asked)/4) }

// turnPage notes that a load has succeeded, and how many timers its index entries named. next is the cursor of
// the tick's next page; 0 after the last.
func (r *readAhead) turnPage(next uint64, named int) {
	r.pages.read(named, int(r.asked), next == 0)
	if r.page = next; next != 0 {
		return
	}
	r.loaded += r.asked
	if r.width < maxLoadTicks {
		r.width = min(maxLoadTicks, r.width*2)
	}
}

func (k *Core) onLoaded(ev EvLoaded) {
	if !k.ahead.ended(ev.Err) {
		return
	}
	for _, r := range ev.Load.Newer {
		k.holdWatermark(r)
	}
	if !ev.Load.Complete && k.ahead.asked > 1 {
		k.ahead.narrow()
		return
	}
	for i := range ev.Load.Timers {
		t := ev.Load.Timers[i]
		tick := k.cfg.Geometry.Tick(t.Record.DueMs)
		if t.Record.Schedule != nil {
			k.onReadSchedule(t) // an index entry of an earlier due time names the schedule of a claim
		}
		// Skip records of another revolution of the slots, and index entries left by a
		// reschedule or by the sweeper.
		if tick > k.ahead.loaded && tick <= k.ahead.horizon {
			k.onRecord(t, tick, 0)
		}
	}
	k.ahead.turnPage(ev.Load.Next, ev.Load.Named)
}

func (k *Core) onScanDone(ev EvScanDone) {
	if k.ahead.ended(ev.Err) {
		k.ahead.loaded = k.ahead.horizon
	}
}

// onScanned processes a record that a scan found. If its tick is not after the low
// watermark, the tail has yet to deliver it: the record then pins the applied offset as if
// the tail had delivered it.
func (k *Core) onScanned(t store.Timer) {
	if t.Unread != store.Readable {
		k.onScannedNewer(t)
		return
	}
	tick := k.cfg.Geometry.Tick(t.Record.DueMs)
	if t.Record.Schedule != nil {
		if k.onReadSchedule(t); tick > k.ahead.horizon {
			return // a scan returns every schedule with a claim
		}
	}
	var pin uint64
	if tick <= k.watermark {
		pin = t.Rev
	}
	k.onRecord(t, tick, pin)
}

// onReadSchedule processes the claims in the record of a schedule that a load or a scan found. The tail may never bring the last
// one, because this term's final record may replace it.
func (k *Core) onReadSchedule(t store.Timer) {
	k.countLoadedClaim(&t)
	k.resumeClaims(t)
}

// onRecord processes a record that a load or a scan found in a tick.
func (k *Core) onRecord(t store.Timer, tick int64, pin uint64) {
	switch {
	case t.Record.Pending():
		k.take(t, tick, pin)
	case t.Record.State == schemas.StateDelivered && t.Record.Epoch != k.epoch && t.Record.Schedule == nil:
		k.countLoadedClaim(&t)
		k.takeClaimed(t, tick, pin)
	}
}
