package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file reads due records ahead: the ticks within the horizon, through the index or by a
// scan of the shard.

// readAhead requests the next ticks within the horizon, or a scan of the shard if the low
// watermark is too old for the index.
func (k *Core) readAhead() {
	if k.loading || len(k.entries) >= k.cfg.MaxLoaded {
		return
	}
	through := k.cfg.Geometry.Tick(k.now + k.cfg.HorizonMs)
	if k.loaded >= through {
		return
	}
	if k.now-k.ProgressMs() > k.cfg.ScanBehindMs && k.loaded == k.watermark && k.page == 0 {
		k.loading, k.scanning = true, true
		k.horizon = through
		k.do(ActScan{ThroughMs: k.cfg.Geometry.TickStart(through+1) - 1, Delay: k.backoff(k.loadFail)})
		return
	}
	last := min(through, k.loaded+int64(k.width))
	if k.page != 0 {
		last = k.loaded + 1
	}
	// With more ticks than slots, two ticks would have the same slot.
	last = min(last, k.loaded+k.cfg.Geometry.WheelSize)
	ticks := make([]int64, 0, last-k.loaded)
	for t := k.loaded + 1; t <= last; t++ {
		ticks = append(ticks, t)
	}
	k.loading, k.asked = true, last-k.loaded
	// From now on the tail puts records of these ticks into the wheel. Records that it
	// delivered before are in the store; Seen makes sure that the load sees them.
	k.horizon = max(k.horizon, last)
	a := ActLoad{Ticks: ticks, Limit: loadLimit, After: k.page, Seen: k.tailSeen, Delay: k.backoff(k.loadFail)}
	if k.cfg.Geometry.TickStart(k.loaded+1)-k.now > k.cfg.HorizonMs/2 {
		a.Limit = pacedPageLimit
		if k.page != 0 {
			a.Delay = max(a.Delay, pacedPagePause)
		}
	}
	k.do(a)
}

func (k *Core) onLoaded(ev EvLoaded) {
	k.loading = false
	if ev.Err != nil {
		k.loadFail++
		return
	}
	k.loadFail = 0
	for _, r := range ev.Load.Newer {
		k.holdWatermark(r)
	}
	if !ev.Load.Complete && k.asked > 1 {
		k.width = max(1, int(k.asked)/4)
		return
	}
	for i := range ev.Load.Timers {
		t := ev.Load.Timers[i]
		tick := k.cfg.Geometry.Tick(t.Record.DueMs)
		if t.Record.Schedule != nil {
			k.resumeClaims(t) // an index entry of an earlier due time names the schedule of a claim
		}
		// Skip records of another revolution of the slots, and index entries left by a
		// reschedule or by the sweeper.
		if tick > k.loaded && tick <= k.horizon {
			k.onRecord(t, tick, 0)
		}
	}
	if k.page = ev.Load.Next; k.page != 0 {
		return
	}
	k.loaded += k.asked
	if k.width < maxLoadTicks {
		k.width = min(maxLoadTicks, k.width*2)
	}
}

func (k *Core) onScanDone(ev EvScanDone) {
	k.loading, k.scanning = false, false
	if ev.Err != nil {
		k.loadFail++
		return
	}
	k.loadFail = 0
	k.loaded = k.horizon
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
		if k.resumeClaims(t); tick > k.horizon {
			return // a scan returns every schedule with a claim
		}
	}
	var pin uint64
	if tick <= k.watermark {
		pin = t.Rev
	}
	k.onRecord(t, tick, pin)
}

// onRecord processes a record that a load or a scan found in a tick.
func (k *Core) onRecord(t store.Timer, tick int64, pin uint64) {
	switch {
	case t.Record.Pending():
		k.take(t, tick, pin)
	case t.Record.State == schemas.StateDelivered && t.Record.Epoch != k.epoch && t.Record.Schedule == nil:
		k.takeClaimed(t, tick, pin)
	}
}
