package sim

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// This file is scheduler's shard.go for one goroutine: the loop around a core. Its
// order of doing things is that of the real loop, including that what a select
// finds ready first is a matter of chance. A turn of it takes no time here, so a
// renewal never falls due amid one, and no lease runs out there; where in a turn it
// is begun, and what the core is like then, varies from turn to turn instead.

// Bounds of scheduler's loop.
const (
	maxSleep     = time.Second
	jumpRecheck  = 5 * time.Millisecond
	tailBurst    = 256
	tailBuffer   = 1024
	drainBound   = 500 * time.Millisecond
	releaseBound = 500 * time.Millisecond
	releaseRetry = 50 * time.Millisecond
	minRenewWait = 250 * time.Millisecond
)

// reign is one epoch of one process owning a shard.
type reign struct {
	n     *node
	w     *world
	shard int
	epoch uint64
	t     *scheduler.Tenure
	core  *scheduler.Core
	nowMs int64

	inbox     []scheduler.Event
	tail      []store.Timer
	scan      []scheduler.Event
	renewed   *renewal
	releasing bool
	ended     bool
	suspended bool
	draining  bool
	turn      int // of the loop
	acts      int // performed in it

	markMs, sweptMs int64
	progress        store.Clock // as last written, without holds of newer records
	sweepHeld       int64

	waking   bool
	timer    uint64 // of the sleep that counts
	drained  signal
	tailPos  uint64
	fetching bool
	scanRoom signal
}

func (r *reign) config() scheduler.CoreConfig {
	p := &r.w.p
	return scheduler.CoreConfig{
		Geometry: p.geo, HorizonMs: p.horizon.Milliseconds(), ScanBehindMs: cmp.Or(p.scanBehind, p.indexKeep/2).Milliseconds(),
		SweepMs: p.sweep.Milliseconds(), MaxLoaded: p.maxLoaded, MaxInflight: p.maxInflight, Retention: p.retention,
		Level: r.n.client.Reads(),
	}
}

func newReign(n *node, shard int, t *scheduler.Tenure) {
	clock, _ := t.Clock()
	r := &reign{n: n, w: n.w, shard: shard, epoch: clock.Epoch, t: t, markMs: clock.TimeMs, sweptMs: clock.SweptMs, tailPos: clock.Tail, progress: clock}
	if r.sweptMs == 0 {
		r.sweptMs = clock.TimeMs - n.w.p.sweep.Milliseconds()
	}
	if n.w.cfg.Plant == PlantTailDropped {
		clock.Tail = n.w.server.LastSeq(fake.StreamShard(shard))
		r.tailPos = clock.Tail
	}
	r.core = scheduler.NewCore(r.config(), clock, clock.Epoch)
	n.reigns[shard] = r
	r.fetch()
	r.w.spawn(n, r.sweep)
	r.iterate()
}

// over ends the reign.
func (r *reign) over(why string) {
	if r.ended {
		return
	}
	r.ended = true
	r.w.trace("%s: shard %d, epoch %d: %s", r.n.name, r.shard, r.epoch, why)
	r.n.reigns[r.shard] = nil
	r.n.step(scheduler.KeepEnded{Shard: r.shard})
}

// --- the loop ---

// wake has the loop go on, soon.
func (r *reign) wake() {
	if r.waking || r.ended {
		return
	}
	r.waking = true
	r.n.soon(r.woken)
}

// woken is what follows the loop's select: one of the things that are ready.
func (r *reign) woken() {
	r.waking = false
	if r.ended {
		return
	}
	var ready []func() bool
	if r.releasing {
		ready = append(ready, func() bool {
			r.w.spawn(r.n, r.release)
			return false
		})
	}
	if r.renewed != nil {
		ready = append(ready, r.takeRenewed)
	}
	if len(r.inbox) > 0 || len(ready) == 0 {
		ready = append(ready, func() bool { return true })
	}
	if ready[r.w.rng.IntN(len(ready))]() {
		r.iterate()
	}
}

// iterate is one turn of the loop, up to its select.
func (r *reign) iterate() {
	if r.ended {
		return
	}
	r.turn++
	r.acts = 0
	if !r.takeRenewed() {
		return
	}
	r.nowMs = r.n.earliestNs() / int64(time.Millisecond)
	jumped := r.checkTrust()
	if r.turn%3 == 0 {
		r.maybeRenew()
	}
	events := r.inbox
	r.inbox = nil
	for _, ev := range events {
		r.perform(r.core.Step(r.nowMs, ev))
	}
	for range tailBurst {
		if !r.core.WantsTail() {
			break
		}
		ev := r.nextStream()
		if ev == nil {
			break
		}
		r.perform(r.core.Step(r.nowMs, ev))
	}
	r.perform(r.core.Step(r.nowMs, scheduler.EvTick{}))
	r.maybeRenew()
	r.timer++
	timer := r.timer
	r.n.after(r.sleep(jumped), func() {
		if r.timer == timer {
			r.wake()
		}
	})
	if r.releasing || r.renewed != nil || len(r.inbox) > 0 || (len(r.tail) > 0 || len(r.scan) > 0) && r.core.WantsTail() {
		r.wake()
	}
}

// nextStream takes a record from the tail or the scan, nil if none is there.
func (r *reign) nextStream() scheduler.Event {
	switch {
	case len(r.tail) > 0 && (len(r.scan) == 0 || r.w.oneIn(2)):
		ev := scheduler.EvTail{Timer: r.tail[0]}
		r.tail = r.tail[1:]
		r.fetch()
		if r.w.cfg.Trace != nil {
			r.w.trace("%s: shard %d gets %s", r.n.name, r.shard, r.w.describe(ev))
		}
		return ev
	case len(r.scan) > 0:
		ev := r.scan[0]
		r.scan = r.scan[1:]
		r.scanRoom.give()
		if r.w.cfg.Trace != nil {
			r.w.trace("%s: shard %d gets %s", r.n.name, r.shard, r.w.describe(ev))
		}
		return ev
	}
	return nil
}

func (r *reign) put(ev scheduler.Event) {
	if r.ended {
		return
	}
	if r.w.cfg.Trace != nil {
		r.w.trace("%s: shard %d gets %s", r.n.name, r.shard, r.w.describe(ev))
	}
	r.inbox = append(r.inbox, ev)
	r.drained.give()
	r.wake()
}

func (r *reign) checkTrust() (jumped bool) {
	expired := !r.t.Trusted(r.n.mono())
	if jumped = r.n.jumped(); jumped {
		r.n.resample.give()
	}
	if expired != r.suspended {
		r.suspended = expired
		r.w.trace("%s: shard %d suspended %v", r.n.name, r.shard, expired)
	}
	r.core.Pause(expired || jumped)
	return jumped
}

func (r *reign) sleep(jumped bool) time.Duration {
	if jumped {
		return jumpRecheck
	}
	d := maxSleep
	if next, ok := r.t.NextWrite(); ok {
		d = min(d, next-r.n.mono())
	}
	if r.core.Paused() {
		return max(d, 0)
	}
	if next, ok := r.core.Next(); ok {
		d = min(d, time.Duration(next*int64(time.Millisecond)-r.n.earliestNs()))
	}
	return max(d, 0)
}

// --- the clock ---

type renewal struct {
	start    time.Duration
	clock    store.Clock
	progress store.Clock
	rev      uint64
	err      error
	was      store.Clock
	wasRev   uint64
	readErr  error
}

func (r *reign) maybeRenew() {
	if next, ok := r.t.NextWrite(); !ok || r.n.mono() < next {
		return
	}
	c, progress := r.checkpoint()
	_, rev := r.t.Clock()
	r.t.Writing()
	r.w.spawn(r.n, func(*proc) {
		res := r.renew(c, rev)
		res.progress = progress
		r.renewed = &res
		r.drained.give()
		r.wake()
	})
}

func (r *reign) renew(c store.Clock, rev uint64) renewal {
	res := renewal{start: r.n.mono(), clock: c}
	limit := max(r.w.p.tick, minRenewWait)
	if res.rev, res.err = r.n.client.WriteClock(within(limit), r.shard, c, rev); errors.Is(res.err, store.ErrRevision) {
		left := max(limit-(r.n.mono()-res.start), 0)
		res.was, res.wasRev, res.readErr = r.n.client.ReadClock(within(left), r.shard)
	}
	return res
}

func (r *reign) checkpoint() (c, progress store.Clock) {
	c, _ = r.t.Clock()
	progress = r.core.Checkpoint(&c)
	swept := r.sweptMs
	if r.sweepHeld != 0 {
		swept = min(swept, r.sweepHeld)
	}
	c.SweptMs = max(c.SweptMs, swept)
	return c, progress
}

func (r *reign) onRenewed(res *renewal) bool {
	verdict := r.t.Wrote(r.n.mono(), res.start, res.clock, res.rev, res.err)
	if verdict == scheduler.Unsure {
		verdict = r.t.Reread(r.n.mono(), res.was, res.wasRev, res.readErr)
	}
	switch verdict {
	case scheduler.Kept:
		r.markMs, r.progress = r.core.MarkMs(), res.progress
	case scheduler.Lost:
		r.over("lost to " + res.was.Owner)
		return false
	}
	return true
}

// takeRenewed takes the result of a renewal, if there is one; false if the shard is
// lost.
func (r *reign) takeRenewed() bool {
	res := r.renewed
	r.renewed = nil
	return res == nil || r.onRenewed(res)
}

// release is the loop's own once it has ended, so nothing else steps the core.
func (r *reign) release(p *proc) {
	r.waking = true // the loop is over
	r.draining = true
	r.timer++
	r.perform(r.core.Drain(r.n.earliestNs() / int64(time.Millisecond)))
	until := r.n.mono() + drainBound
	for !r.core.Idle() && r.n.mono() < until {
		p.sleepOr(until-r.n.mono(), &r.drained)
		if !r.takeRenewed() {
			return
		}
		r.checkTrust()
		events := r.inbox
		r.inbox = nil
		now := r.n.earliestNs() / int64(time.Millisecond)
		for _, ev := range events {
			r.perform(r.core.Step(now, ev))
		}
	}
	for {
		if _, idle := r.t.NextWrite(); idle {
			break
		}
		if res := r.renewed; res != nil {
			r.renewed = nil
			if !r.onRenewed(res) {
				return
			}
			continue
		}
		p.sleepOr(callTimeout, &r.drained)
	}
	until = r.n.mono() + releaseBound
	for {
		c, _ := r.checkpoint()
		c.Owner = ""
		_, rev := r.t.Clock()
		res := r.renew(c, rev)
		if res.err == nil || res.readErr == nil && res.was.Owner == "" && res.was.Epoch == c.Epoch {
			r.over("released")
			return
		}
		if !r.onRenewed(&res) {
			return
		}
		if r.n.mono() >= until {
			r.over("not released")
			return
		}
		p.sleep(releaseRetry)
	}
}

// --- actions ---

func (r *reign) perform(actions []scheduler.Action) {
	for _, a := range actions {
		if r.acts++; r.turn%3 == 1 && r.acts == 1+r.turn%5 && !r.draining {
			r.maybeRenew()
		}
		r.act(a)
	}
}

func (r *reign) act(a scheduler.Action) {
	if r.w.cfg.Trace != nil {
		r.w.trace("%s: shard %d does %s", r.n.name, r.shard, r.w.describe(a))
	}
	c := r.n.client
	switch a := a.(type) {
	case scheduler.ActClaim:
		r.w.check.claims(r, a)
		r.w.stats.Claims++
		r.claim(a)
	case scheduler.ActPublish:
		r.w.check.publishes(r, a)
		r.publish(a)
	case scheduler.ActFinish:
		c.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: r.w.p.retention}, func(res store.Result) {
			r.put(scheduler.EvFinished{Finish: a, Err: res.Err})
		})
	case scheduler.ActDeadLetter:
		r.w.check.deadLetters(r, a)
		r.deadLetter(a)
	case scheduler.ActFail:
		c.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: r.w.p.retention}, func(res store.Result) {
			r.put(scheduler.EvFailed{ID: a.ID, Err: res.Err})
		})
	case scheduler.ActLoad:
		r.later(a.Delay, func(*proc) {
			load, err := c.LoadTicks(within(callTimeout), r.shard, a.Ticks, a.Limit, a.After, a.Seen)
			r.put(scheduler.EvLoaded{Load: load, Err: err})
		})
	case scheduler.ActScan:
		r.later(a.Delay, func(p *proc) { r.scanAll(p, a.ThroughMs) })
	case scheduler.ActReread:
		r.later(a.Delay, func(*proc) {
			t, err := c.Get(within(callTimeout), a.ID)
			r.put(scheduler.EvReread{ID: a.ID, Timer: t, Err: err})
		})
	case scheduler.ActIndex:
		r.later(a.Delay, func(*proc) {
			r.put(scheduler.EvIndexed{ID: a.ID, Err: c.PutIndex(within(callTimeout), a.ID, a.Tick)})
		})
	case scheduler.ActCount:
		r.later(a.Delay, func(*proc) {
			ev := r.w.countPending(r.shard, a.Through)
			ev.Round = a.Round
			r.put(ev)
		})
	case scheduler.ActMissing:
		r.w.check.fail(PropKept, "shard %d: a count misses %d timers", r.shard, a.Missing)
	case scheduler.ActConfirm:
		r.later(a.Delay, func(*proc) {
			found, err := c.FiredSince(within(callTimeout), a.Subjects, time.UnixMilli(a.SinceMs), a.IDs)
			r.put(scheduler.EvConfirmed{Found: found, Err: err})
		})
	}
}

// countPending is store.CountPending at one instant.
func (w *world) countPending(shard int, through uint64) scheduler.EvCounted {
	var ev scheduler.EvCounted
	for _, l := range w.lives {
		t, err := w.server.Record(l.id)
		if err != nil || w.p.geo.Shard(l.id) != shard {
			continue
		}
		ev.Last = max(ev.Last, t.Rev)
		if t.Rev <= through && t.Record.State == schemas.StatePending {
			ev.Waiting = append(ev.Waiting, binary.BigEndian.Uint64(l.id[:8]))
		}
	}
	slices.Sort(ev.Waiting)
	return ev
}

func (r *reign) claim(a scheduler.ActClaim) {
	write := r.n.client.UpdateAsync
	if r.w.cfg.Plant == PlantUnfenced {
		write = r.n.client.Unfenced
	}
	write(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record}, func(res store.Result) {
		r.put(scheduler.EvClaimed{ID: a.ID, Rev: res.Rev, Err: res.Err})
	})
	if d := r.n.pauseAtClaim; d > 0 && !r.w.p.refusals {
		r.n.pauseAtClaim = 0
		r.w.after(0, func() { r.n.pause(d) })
	}
}

func (r *reign) publish(a scheduler.ActPublish) {
	if r.w.cfg.Plant == PlantEndless {
		// Every error may be gone the next time.
		r.n.client.PublishAsync(a.Msg, func(_ uint64, duplicate bool, err error) {
			if store.Permanent(err) {
				err = schemas.ErrUnavailable
			}
			r.put(scheduler.EvPublished{ID: a.ID, Duplicate: duplicate, Err: err})
		})
		return
	}
	if r.w.cfg.Plant == PlantEarlyMark {
		r.put(scheduler.EvPublished{ID: a.ID})
		r.n.client.PublishAsync(a.Msg, func(uint64, bool, error) {})
		return
	}
	r.n.client.PublishAsync(a.Msg, func(_ uint64, duplicate bool, err error) {
		r.put(scheduler.EvPublished{ID: a.ID, Duplicate: duplicate, Err: err})
	})
}

func (r *reign) deadLetter(a scheduler.ActDeadLetter) {
	if r.w.cfg.Plant == PlantUnstableLetter {
		r.w.letters++
		a.Msg.MsgID += "." + strconv.Itoa(r.w.letters)
	}
	r.later(0, func(*proc) {
		_, err := r.n.client.PublishLetter(within(callTimeout), a.Msg)
		if d := r.n.pauseAtClaim; err == nil && d > 0 {
			// All die, and the next owner comes when the stream has forgotten the letter.
			r.n.pauseAtClaim = 0
			r.w.after(0, func() {
				for _, n := range r.w.nodes {
					n.crash(d)
				}
			})
			return
		}
		r.put(scheduler.EvDeadLettered{ID: a.ID, Err: err})
	})
}

// later runs f in a proc of its own, after a delay, unless the reign ended.
func (r *reign) later(d time.Duration, f func(p *proc)) {
	r.w.spawn(r.n, func(p *proc) {
		if d > 0 {
			p.sleep(d)
		}
		if !r.ended {
			f(p)
		}
	})
}

func (r *reign) scanAll(p *proc, throughMs int64) {
	r.w.trace("%s: shard %d is scanned", r.n.name, r.shard)
	put := func(ev scheduler.Event) error {
		for len(r.scan) >= tailBuffer && !r.ended {
			p.sleepOr(maxSleep, &r.scanRoom)
		}
		if r.ended {
			return schemas.ErrUnavailable
		}
		r.scan = append(r.scan, ev)
		r.wake()
		return nil
	}
	err := r.n.client.ScanQueued(within(callTimeout), r.shard, throughMs, func(t store.Timer) error { return put(scheduler.EvScanned{Timer: t}) })
	// The reign's end is the only way this fails, and then nobody asks.
	_ = put(scheduler.EvScanDone{Err: err})
}
