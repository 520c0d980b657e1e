package scheduler

import (
	"cmp"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler/wheel"
	"github.com/belfryio/belfry/schemas"
)

// CoreConfig configures a Core.
type CoreConfig struct {
	Geometry schemas.Geometry
	// HorizonMs is the read-ahead: ticks up to HorizonMs after now are read into the wheel.
	HorizonMs int64
	// ScanBehindMs is the age of the low watermark, in milliseconds, above which the core
	// reads the whole shard (ActScan), because index entries may have expired.
	ScanBehindMs int64
	// MaxLoaded is the number of entries that stops the read-ahead. The tail stops at twice
	// that number. MaxInflight is the number of writes in flight that stops claims.
	MaxLoaded, MaxInflight int
	// FirstInflight is that number after a moment without writes in flight. Each claim that
	// is stored raises it by one, up to MaxInflight. 0 stands for MaxInflight. See claimWindow.
	FirstInflight int
	// FireAtOnce bounds the due entries that one Step moves from the wheel to the queue. The first Step
	// with due entries moves at most FirstFireAtOnce. 0 stands for no bound, and for FireAtOnce. See
	// dueBatch.
	FirstFireAtOnce, FireAtOnce int
	// SweepMs is the sweeper's distance behind the low watermark. A record for a tick
	// further back gets a new index entry, because the sweeper has passed its tick.
	SweepMs int64
	// Retention is the TTL of a final record.
	Retention time.Duration
	// Backlog is shared by the cores of a node; nil for a core that shares its processors with no other.
	Backlog *Backlog
	// Head is the last sequence of the shard's stream at the take-over; math.MaxUint64 if it is not known. See
	// earlierClaims.
	Head uint64
	// Level is the format level that this node reads.
	Level store.FormatLevel
	// Zones is the zone data of this node's plans; nil for that of the process.
	Zones *calendar.ZoneData
	// Seal encrypts a timer's callback for schemas.HeaderCallback. It returns "" if the
	// callback stays in the event. If Seal is nil, every callback stays there.
	Seal func(id schemas.TimerID, callback string) string
}

// Bounds of a core.
const (
	maxLoadTicks  = 512  // ticks in one ActLoad
	loadLimit     = 1000 // records in one ActLoad
	minRetryDelay = 50 * time.Millisecond
	maxRetryDelay = 2 * time.Second
	// dedupBatch bounds the message ids in one ActDedupCheck.
	dedupBatch = 4096
	// A dedup check searches the stream from dedupSlackMs before the claim, because the
	// event's timestamp may come from another server or from a clock that was set back since.
	// For claims older than dedupCheckAfterMs it starts at oldDedupSlackMs before.
	dedupSlackMs    = 1000
	oldDedupSlackMs = 30_000
	// dedupCheckAfterMs is the age of a claim above which a dedup check precedes a repeated
	// publish. It must stay below the stream's dedup window. NewCore lowers it if retention,
	// and with it the window, is less than 40 s.
	dedupCheckAfterMs = 15_000
)

// Core makes the decisions for one shard during one term: what to read, claim, publish and
// finish. It is pure: it does no I/O, has no goroutine and reads no clock. It is not safe
// for concurrent use.
type Core struct {
	cfg   CoreConfig
	epoch uint64

	wheel       *wheel.Wheel[*entry]
	entries     map[schemas.TimerID]*entry
	outstanding map[int64]int // number of unfinished entries by tick after watermark
	pins        pins
	ready       fairQueue
	repeats     []*entry // steps whose retry is due
	toPrepare   []*entry // schedules whose next due time has no index entry yet
	preparing   int      // such index entries in flight
	inflight    int      // writes, publishes and rereads in flight
	window      claimWindow
	due         dueBatch

	// from is the clock from which this term resumed, and fromMs the time of the first Step. resumed has the runs
	// that it has completed or is completing for claims of earlier owners and for unclear claims, with the times of
	// these claims.
	from    store.Clock
	fromMs  int64
	head    uint64 // what the tail has to reach before this term stops to look for earlier claims; 0 for unknown yet
	resumed map[schemas.TimerID]int64

	watermark int64  // all readable records of every tick up to here are done
	tailSeen  uint64 // last stream sequence that the tail delivered
	stored    uint64 // highest sequence that this term knows to be stored: stated by the clock, read by the tail, or written

	ahead       readAhead
	newer       newerRecords
	pending     pendingCount
	completions completions
	claims      claimTime // of the last stored claim
	backlog     backlogMember
	dedup       dedupChecks
	damaged     damagedClaims
	voids       voidRecords
	justClaimed justClaimed
	// calendars are the calendars of excluded dates; nil if they are not known. calendarsFresh is
	// true if claims may follow them; see SetCalendars.
	calendars      *store.CalendarSet
	calendarsFresh bool
	paused         bool
	draining       bool

	now     int64 // the time of the current Step, Unix milliseconds
	actions []Action
}

// NewCore returns a core that resumes a shard from its clock c, in the term of epoch.
func NewCore(cfg CoreConfig, c store.Clock, epoch uint64) *Core {
	watermark := cfg.Geometry.Tick(c.TimeMs) - 1
	k := &Core{
		cfg: cfg, epoch: epoch,
		wheel:       wheel.New[*entry](c.TimeMs),
		entries:     map[schemas.TimerID]*entry{},
		outstanding: map[int64]int{},
		ready:       newFairQueue(),
		watermark:   watermark, tailSeen: c.Tail, stored: max(c.Tail, c.Seen),
		window:  newClaimWindow(cfg.FirstInflight, cfg.MaxInflight),
		due:     newDueBatch(cfg.FirstFireAtOnce, cfg.FireAtOnce),
		backlog: backlogMember{of: cmp.Or(cfg.Backlog, new(Backlog))},
		from:    c, resumed: map[schemas.TimerID]int64{},
		ahead:   readAhead{loaded: watermark, horizon: watermark, width: maxLoadTicks},
		newer:   newNewerRecords(),
		damaged: damagedClaims{},
		voids:   voidRecords{revs: map[schemas.TimerID]uint64{}},

		justClaimed: justClaimed{revs: map[schemas.TimerID]uint64{}},
		pending:     newPendingCount(c, cfg.Retention.Milliseconds()),
		dedup:       dedupChecks{afterMs: dedupCheckAfterMs},

		completions: newCompletions(cfg.SweepMs),
	}
	if keep := cfg.Retention.Milliseconds(); keep > 0 {
		// Half of the dedup window; see store.DedupWindowFor.
		k.dedup.afterMs = min(k.dedup.afterMs, keep*3/8)
	}
	return k
}

// Step processes one event and returns the actions that follow. now is the lower bound of
// the cluster's time in Unix milliseconds. The slice is valid until the next call.
func (k *Core) Step(now int64, ev Event) []Action {
	k.actions = k.actions[:0]
	k.now, k.fromMs = now, cmp.Or(k.fromMs, now)
	tick := false
	switch ev := ev.(type) {
	case EvTick:
		tick = true
	case EvTail:
		k.onTail(ev.Timer)
	case EvLoaded:
		k.onLoaded(ev)
	case EvScanned:
		k.onScanned(ev.Timer)
	case EvScanDone:
		k.onScanDone(ev)
	case EvClaimed:
		k.onClaimed(ev)
	case EvPublished:
		k.onPublished(ev)
	case EvReread:
		k.onReread(ev)
	case EvDedupChecked:
		k.onDedupChecked(ev)
	case EvSwept:
		k.onSwept(ev)
	case EvIndexed:
		k.onIndexed(ev)
	case EvDeadLettered:
		k.onDeadLettered(ev)
	case EvFailed:
		k.onFailed(ev)
	case EvFinished:
		k.onFinished(ev)
	case EvCounted:
		k.pending.onCounted(ev)
	case EvRecount:
		k.pending.restart()
	case EvLooked:
		k.onLooked(ev)
	case EvRunCreated:
		k.onRunCreated(ev)
	case EvNewer:
		k.newer.add(ev.ID, newerPin{rev: ev.Rev, tick: noPin})
	case EvVoid:
		k.onVoid(ev)
	case EvGone:
		k.newer.replaced(ev.ID, ev.Rev)
	}
	k.readAhead()
	k.fire(tick)
	k.complete()
	k.advanceWatermark()
	k.count()
	return k.actions
}

func (k *Core) do(a Action) { k.actions = append(k.actions, a) }

// Checkpoint sets the fields of c from which a new owner resumes: low watermark, applied
// offsets, and number of pending timers. It returns the same clock as if no record of a newer
// format held it back; the sweeper works from that clock.
func (k *Core) Checkpoint(c *store.Clock) (progress store.Clock) {
	k.pending.checkpoint(c, k.tailSeen)
	progress = *c
	applied := k.appliedOffset()
	progress.TimeMs, progress.Tail = max(c.TimeMs, k.ProgressMs()), max(c.Tail, applied)
	c.TimeMs, c.Tail = max(c.TimeMs, k.LowWatermarkMs()), max(c.Tail, k.newer.tail(applied))
	c.EarlierEpoch, c.EarlierTail = k.earlierClaims(applied, c.Tail)
	if k.newer.count() > 0 {
		c.Needs = max(c.Needs, k.cfg.Level+1)
	}
	return progress
}

// appliedOffset returns the stream sequence after which a new owner may resume the tail.
func (k *Core) appliedOffset() uint64 {
	if first := k.pins.first(); first != nil {
		// A record that was reread may be ahead of the tail.
		return min(first.pin-1, k.tailSeen)
	}
	return k.tailSeen
}

// Next returns the time, in Unix milliseconds, at which Step must be called if no event
// comes before; false if there is none.
func (k *Core) Next() (int64, bool) {
	if k.paused {
		return 0, false
	}
	if k.due.left && k.inflight >= k.window.size {
		// What a Step moves now cannot be claimed yet. Leave the CPU to the writes in flight: their
		// results come before the next move, or at the latest a millisecond later.
		return k.now + 1, true
	}
	next, ok := k.wheel.Next()
	if k.completions.held && (!ok || next > k.now+completionPollMs) {
		return k.now + completionPollMs, true
	}
	return next, ok
}

// End takes the core out of its node's Backlog. Call it after the last Step.
func (k *Core) End() { k.backlog.set(false) }

// Pause stops claims and publishes while the owner's lease or the time is in doubt. Step
// still processes results. A claimed event is published after the pause, or by the next
// owner. Without this rule, a process that was paused for hours could publish an event that
// another owner published longer ago than the stream's dedup window.
func (k *Core) Pause(yes bool) { k.paused = yes }

// SetCalendars sets the calendars that schedules exclude. While they are not fresh, schedules
// that exclude calendars wait: their dates may have changed.
func (k *Core) SetCalendars(set *store.CalendarSet, fresh bool) {
	k.calendars, k.calendarsFresh = set, fresh
}

// Drain stops claims for the rest of the term. Claimed events are still published.
func (k *Core) Drain(now int64) []Action {
	k.draining = true
	return k.Step(now, EvTick{})
}

// Paused reports whether the core is paused.
func (k *Core) Paused() bool { return k.paused }

// WantsTail reports whether there is room for more records of the tail.
func (k *Core) WantsTail() bool { return len(k.entries) < 2*k.cfg.MaxLoaded }

// Idle reports whether no write is in flight or queued. Steps that wait for a retry do not
// count.
func (k *Core) Idle() bool { return k.inflight == 0 && k.completions.idle() }

// ProgressMs returns the low watermark as if no record of a newer format held it back, in
// Unix milliseconds: the end of the last tick whose readable records are all done.
func (k *Core) ProgressMs() int64 { return k.cfg.Geometry.TickStart(k.watermark + 1) }

// Loaded returns the number of entries in memory.
func (k *Core) Loaded() int { return len(k.entries) }

// Pending returns the number of timers in state pending or paused in the shard; false while
// the number is unknown.
func (k *Core) Pending() (int64, bool) { return max(k.pending.n, 0), k.pending.known }

// know notes a revision that is stored.
func (k *Core) know(rev uint64) { k.stored = max(k.stored, rev) }

func (k *Core) onTail(t store.Timer) {
	k.tailSeen = max(k.tailSeen, t.Rev)
	k.know(t.Rev)
	if k.voids.has(&t) {
		return
	}
	if t.Unread != store.Readable {
		k.onTailNewer(t)
		return
	}
	k.newer.replaced(t.ID, t.Rev)
	tick := k.cfg.Geometry.Tick(t.Record.DueMs)
	r := &t.Record
	added := r.State == schemas.StatePending && r.Moves == 0 && t.Rev > k.pending.from
	repaired := k.repairedClaim(&t, added)
	if r.Origin == nil {
		// A schedule's run is never pending, so it is not part of the number.
		k.pending.read(t.ID, t.Rev, r.State.Waits(), added)
	}
	if added {
		k.pending.n++
	}
	if r.Schedule != nil {
		k.resumeClaims(t)
	}
	k.countEarlierClaim(&t)
	var pin uint64
	if tick <= k.watermark {
		pin = t.Rev
	}
	switch {
	case r.Pending():
		if tick > k.ahead.horizon {
			k.forget(t)
			return
		}
		k.take(t, tick, pin)
	case r.State == schemas.StateDelivered:
		if (r.Epoch != k.epoch || repaired) && tick <= k.ahead.horizon && r.Schedule == nil {
			k.takeClaimed(t, tick, pin)
		}
		if r.Epoch == k.epoch {
			k.countClaim(t)
		}
	default:
		switch {
		case t.Rev <= k.pending.from:
		case r.State == schemas.StateCancelled && r.FiredMs == 0, r.State == schemas.StateCompleted && r.Epoch == 0:
			k.pending.n-- // by an operation, not by an owner
		case r.State == schemas.StateCompleted && r.Epoch == k.epoch, r.State == schemas.StateFail:
			k.countClaim(t)
		}
		k.forget(t)
		if o := r.Origin; o != nil && o.Waited && r.State.Final() {
			k.onConcluded(o, r.Run)
		}
	}
}

// take puts a waiting record into the wheel and removes an older revision of it.
func (k *Core) take(t store.Timer, tick int64, pin uint64) {
	if e := k.entries[t.ID]; e != nil {
		if e.rev >= t.Rev {
			k.pinFor(e, pin) // an entry of the sweeper has no pin yet
			return
		}
		if e.phase != phaseWaiting && e.phase != phaseReady {
			if e.keepNewer(t) {
				k.pinFor(e, t.Rev)
			}
			if e.rev == 0 && !e.counted && tick > k.watermark {
				// The entry rereads a schedule whose run has concluded. The tail may have passed
				// the revision that a load has found, so a pin is too late.
				e.tick, e.counted = tick, true
				k.outstanding[tick]++
			}
			return
		}
		if k.replace(e, t.Rev); k.entries[t.ID] != nil {
			return // by a later revision
		}
	}
	k.insert(t, tick, pin, phaseWaiting)
}

// takeClaimed queues a dedup check for a record that a previous owner claimed: its event may
// or may not have been published.
func (k *Core) takeClaimed(t store.Timer, tick int64, pin uint64) {
	if e := k.entries[t.ID]; e != nil {
		if e.rev >= t.Rev {
			k.pinFor(e, pin) // an entry of the sweeper has no pin yet
			return
		}
		if k.readRun(e, t, tick, pin) {
			return
		}
		if e.phase != phaseWaiting && e.phase != phaseReady {
			k.pinFor(e, t.Rev)
			return // this node's write in flight will conflict with the claim
		}
		if k.replace(e, t.Rev); k.entries[t.ID] != nil {
			return // by a later revision
		}
	}
	e := k.insert(t, tick, pin, phaseDedupCheck)
	if t.Record.Origin != nil && t.Record.Attempt == 0 {
		e.more().unindexed = true
	}
	k.dedup.queue = append(k.dedup.queue, e)
}

func (k *Core) insert(t store.Timer, tick int64, pin uint64, p phase) *entry {
	e := &entry{id: t.ID, rev: t.Rev, rec: t.Record, tick: tick, phase: p}
	e.node.Value = e
	k.entries[t.ID] = e
	if tick > k.watermark {
		k.outstanding[tick]++
		e.counted = true
	} else if pin != 0 {
		k.pins.add(e, pin)
	}
	if p == phaseWaiting {
		k.wheel.Add(&e.node, t.Record.DueMs)
		if t.Record.Moves > 0 {
			k.repairedClaim(&t, false) // a scan or the sweeper may read a repaired record before the tail
		}
	}
	if t.Record.Schedule != nil {
		e.more()
		k.toPrepare = append(k.toPrepare, e)
	}
	return e
}

// pinFor pins the applied offset before a sequence, unless e has a pin: before a later revision of e's record, which waits
// until e's write has a result, or where an entry that e replaces had its pin. The revision's tick may be before e's; then only
// the pin keeps a new owner from missing it. A rev of 0 means that the low watermark waits for the record.
func (k *Core) pinFor(e *entry, rev uint64) {
	if e.pin == 0 && rev != 0 {
		k.pins.add(e, rev)
	}
}

// forget drops an entry whose record has a later revision that needs no work now.
func (k *Core) forget(t store.Timer) {
	e := k.entries[t.ID]
	if e != nil && e.rev < t.Rev && (e.phase == phaseWaiting || e.phase == phaseReady) {
		k.replace(e, t.Rev)
	}
}

// replace removes an entry because its record has a later revision. It takes up a revision
// that arrived in the meantime only if that is later still.
func (k *Core) replace(e *entry, rev uint64) {
	if n := e.newer(); n != nil && n.Rev <= rev {
		e.extra.newer = nil
	}
	k.done(e)
}

// done removes an entry and takes up a later revision that arrived in the meantime.
func (k *Core) done(e *entry) {
	if e.phase == phaseDone {
		return
	}
	k.wheel.Remove(&e.node)
	e.phase = phaseDone
	k.justClaimed.add(e, k.now)
	if k.entries[e.id] == e {
		delete(k.entries, e.id)
	}
	if e.counted {
		e.counted = false
		if k.outstanding[e.tick]--; k.outstanding[e.tick] == 0 {
			delete(k.outstanding, e.tick)
		}
	}
	if n := e.newer(); n != nil {
		e.extra.newer = nil
		if n.Record.Pending() {
			tick := k.cfg.Geometry.Tick(n.Record.DueMs)
			if tick <= k.ahead.horizon {
				var pin uint64
				if tick <= k.watermark {
					pin = n.Rev
				}
				k.insert(*n, tick, pin, phaseWaiting)
			}
		}
	}
	if e.extra != nil {
		k.endRun(e)
	}
	e.rec.Body = schemas.Body{}
}

// advanceWatermark moves the low watermark over the ticks that have passed, are loaded and
// have no unfinished entry.
func (k *Core) advanceWatermark() {
	for k.watermark < k.ahead.loaded {
		next := k.watermark + 1
		if k.outstanding[next] > 0 || k.cfg.Geometry.TickStart(next+1) > k.now {
			return
		}
		if len(k.outstanding) == 0 {
			// No tick has an unfinished entry: skip all of them at once.
			passed := k.cfg.Geometry.Tick(k.now) - 1
			k.watermark = max(next, min(k.ahead.loaded, passed))
			continue
		}
		k.watermark = next
	}
}

func (k *Core) backoff(fails int) time.Duration {
	if fails == 0 {
		return 0
	}
	return min(maxRetryDelay, minRetryDelay<<min(fails-1, 8))
}
