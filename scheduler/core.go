package scheduler

import (
	"math"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler/wheel"
	"github.com/belfryio/belfry/schemas"
)

// CoreConfig bounds a core.
type CoreConfig struct {
	Geometry schemas.Geometry
	// HorizonMs is how far ahead of now ticks are read into the wheel.
	HorizonMs int64
	// ScanBehindMs: a mark further back than this is caught up with ActScan,
	// because index entries may have expired.
	ScanBehindMs int64
	// MaxLoaded entries stop the read-ahead; MaxInflight writes stop claims.
	MaxLoaded, MaxInflight int
	// SweepMs is how far behind the mark the sweeper looks: what comes for a tick
	// further back is indexed anew, or nobody would see it concluded.
	SweepMs int64
	// Retention is the TTL of a final record.
	Retention time.Duration
	// Level is the format level that this node reads.
	Level store.FormatLevel
	// Seal returns a timer's callback as it travels in schemas.HeaderCallback, or ""
	// if it stays in the event; nil leaves every callback there.
	Seal func(id schemas.TimerID, callback string) string
}

// Bounds of one load.
const (
	maxLoadTicks = 512  // ticks asked for at once
	loadLimit    = 1000 // records asked for at once
	// Where there is time, a tick of many timers is read little by little: a
	// thousand records read at once keep what is due waiting for tens of
	// milliseconds. The second half of the horizon is for reading without pauses.
	leisureLimit  = 250
	leisurePause  = 20 * time.Millisecond
	minRetryDelay = 50 * time.Millisecond
	maxRetryDelay = 2 * time.Second
	confirmBatch  = 4096
	// How much earlier than its claim an event's timestamp may be: another server's,
	// or by a clock that was set back meanwhile. What the stream may have forgotten
	// is looked for from farther back.
	confirmSlackMs    = 1000
	oldConfirmSlackMs = 30_000
	// publishDoubtMs after its claim, an event is looked up before it is published
	// again; earlier where records, and with them the stream's memory of ids, are
	// kept for less than 40 s.
	publishDoubtMs = 15_000
)

type phase uint8

const (
	phaseWaiting    phase = iota // in the wheel until due
	phaseReady                   // in the fair queue
	phaseClaiming                // compare-and-set in flight
	phasePublishing              // publish in flight, or waiting to be repeated
	phaseRereading               // lost a compare-and-set, or confirming what won
	phaseConfirming              // claimed by an earlier owner
	phaseIndexing                // published, being indexed for the sweeper
	phaseDeadLetter              // refused permanently; dead letter in flight, or waiting to be repeated
	phaseFailing                 // dead letter stored; final record in flight, or waiting to be repeated
	phaseDone
)

type entry struct {
	node  wheel.Timer[*entry]
	id    schemas.TimerID
	rev   uint64
	rec   schemas.Record
	tick  int64
	phase phase
	// hold is the stream sequence that the tail may not pass while the entry is
	// not done, because its tick is behind the mark; 0 if its tick covers it.
	hold uint64
	// counted says that the entry stands in outstanding[tick].
	counted bool
	// wasPending says that the claim takes it off the pending count.
	wasPending bool
	// beforeClaim is the record that the claim in flight replaces.
	beforeClaim claimed
	// refusal is why JetStream will never store the entry's event, or its claim;
	// empty otherwise.
	refusal string
	fails   int
	// stale counts the rereads that the leader answered with less than was known.
	stale int
	newer *store.Timer // came while a write of ours was in flight
}

// Core decides for one shard during one epoch of ownership. Not safe for
// concurrent use.
type Core struct {
	cfg   CoreConfig
	epoch uint64

	wheel       *wheel.Wheel[*entry]
	entries     map[schemas.TimerID]*entry
	outstanding map[int64]int // entries not done, by tick beyond the mark
	held        []*entry      // in order of hold
	ready       fairQueue
	confirm     []*entry
	repeat      []*entry // publishes due to be tried again

	mark     int64 // every tick up to here is done
	loaded   int64 // every tick up to here is in the wheel
	horizon  int64 // every tick up to here is loaded or being loaded
	page     uint64
	loading  bool
	scanning bool
	width    int // ticks to ask for next
	asked    int64
	loadFail int

	tailSeen    uint64
	newer       newerRecords
	pendingFrom uint64 // creations up to here are in pending already
	pending     int64
	// pendingKnown says that pending is right; see recount.go.
	pendingKnown bool
	// counted says that pending results from a count; see store.Clock.Counted.
	counted bool
	// expected is the number of timers that an earlier owner had counted, for the first
	// count; -1 if it is unknown. From expectedUntilMs on, records that counted may have
	// expired.
	expected        int64
	expectedUntilMs int64
	count           *recount
	countFails      int
	countRound      int // grows with each EvRecount
	inflight        int
	unsettled       []ActFinish // fired, not concluded
	settling        int         // of them, being written
	refinish        []ActFinish // of them, failed, for when it is refinishMs
	refinishMs      int64
	confirming      bool
	confirmN        int // how many of confirm were asked about
	paused          bool
	draining        bool

	doubtMs int64
	now     int64
	actions []Action
}

// NewCore resumes a shard from its clock. epoch is the new owner's.
func NewCore(cfg CoreConfig, c store.Clock, epoch uint64) *Core {
	mark := cfg.Geometry.Tick(c.TimeMs) - 1
	k := &Core{
		cfg: cfg, epoch: epoch,
		wheel:       wheel.New[*entry](c.TimeMs),
		entries:     map[schemas.TimerID]*entry{},
		outstanding: map[int64]int{},
		ready:       newFairQueue(),
		mark:        mark, loaded: mark, horizon: mark, width: maxLoadTicks,
		tailSeen: c.Tail, pendingFrom: max(c.Seen, c.Tail), pending: c.Pending, pendingKnown: !c.PendingUnknown, counted: c.Counted, expected: -1,
		doubtMs: publishDoubtMs,
		newer:   newNewerRecords(),
	}
	if c.Counted {
		k.expected, k.expectedUntilMs = c.Pending, math.MaxInt64
	}
	if keep := cfg.Retention.Milliseconds(); keep > 0 {
		k.expectedUntilMs = c.TimeMs + keep*7/8
		// Half of the dedup window; see store.DedupWindowFor.
		k.doubtMs = min(k.doubtMs, keep*3/8)
	}
	return k
}

// Step takes one event at now (Unix milliseconds, the cluster's earliest) and
// returns what to do. The slice is valid until the next call.
func (k *Core) Step(now int64, ev Event) []Action {
	k.actions = k.actions[:0]
	k.now = now
	switch ev := ev.(type) {
	case EvTick:
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
	case EvConfirmed:
		k.onConfirmed(ev)
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
		k.onCounted(ev)
	case EvRecount:
		k.onRecount()
	case EvGone:
		k.newer.replaced(ev.ID, ev.Rev)
	}
	k.readAhead()
	k.fire()
	k.settle()
	k.advanceMark()
	k.endCount()
	k.beginCount()
	return k.actions
}

func (k *Core) do(a Action) { k.actions = append(k.actions, a) }

// Checkpoint fills in what a new owner would resume from. It returns the same clock as
// it would be without records of newer formats, from which the sweeper works.
func (k *Core) Checkpoint(c *store.Clock) (progress store.Clock) {
	c.Seen = max(k.tailSeen, k.pendingFrom)
	c.Pending, c.PendingUnknown, c.Counted = max(k.pending, 0), !k.pendingKnown, k.pendingKnown && k.counted
	progress = *c
	progress.TimeMs, progress.Tail = max(c.TimeMs, k.MarkMs()), max(c.Tail, k.tailMark())
	c.TimeMs, c.Tail = max(c.TimeMs, k.LowWatermarkMs()), max(c.Tail, k.newer.tail(k.tailMark()))
	if k.newer.count() > 0 {
		c.Needs = max(c.Needs, k.cfg.Level+1)
	}
	return progress
}

// tailMark is the sequence that a new owner may resume the tail after.
func (k *Core) tailMark() uint64 {
	for len(k.held) > 0 && (k.held[0].phase == phaseDone || k.held[0].hold == 0) {
		k.held[0] = nil
		k.held = k.held[1:]
	}
	if len(k.held) > 0 {
		// A record that was reread may be ahead of the tail, and hold it there.
		return min(k.held[0].hold-1, k.tailSeen)
	}
	return k.tailSeen
}

// Next is when Step has something to do without an event, in Unix milliseconds.
func (k *Core) Next() (int64, bool) {
	if k.paused {
		return 0, false
	}
	return k.wheel.Next()
}

// Pause stops claims and publishes while the owner's lease is in doubt; what is
// in flight is still taken note of. What was claimed is published when the doubt
// is over, or by the next owner: a process that wakes up hours later, with the
// answer to a claim before it, must not publish what another owner has published
// so long ago that the stream's dedup window has forgotten it.
func (k *Core) Pause(yes bool) { k.paused = yes }

// Drain ends claims for good; what is claimed is still published.
func (k *Core) Drain(now int64) []Action {
	k.draining = true
	return k.Step(now, EvTick{})
}

// Paused reports what Pause last said.
func (k *Core) Paused() bool { return k.paused }

// WantsTail reports whether there is room for more of the tail.
func (k *Core) WantsTail() bool { return len(k.entries) < 2*k.cfg.MaxLoaded }

// Idle reports whether no write is in flight, or waits to be. What is to be tried
// again is not waited for.
func (k *Core) Idle() bool { return k.inflight == 0 && k.settling == 0 && len(k.unsettled) == 0 }

// MarkMs is the end of the last tick that is done, but for records of newer formats.
func (k *Core) MarkMs() int64 { return k.cfg.Geometry.TickStart(k.mark + 1) }

// Loaded is the number of entries held.
func (k *Core) Loaded() int { return len(k.entries) }

// Pending is the number of timers in state pending in the shard; false while it is not
// known.
func (k *Core) Pending() (int64, bool) { return max(k.pending, 0), k.pendingKnown }

// --- reading ahead ---

func (k *Core) readAhead() {
	if k.loading || len(k.entries) >= k.cfg.MaxLoaded {
		return
	}
	through := k.cfg.Geometry.Tick(k.now + k.cfg.HorizonMs)
	if k.loaded >= through {
		return
	}
	if k.now-k.MarkMs() > k.cfg.ScanBehindMs && k.loaded == k.mark && k.page == 0 {
		k.loading, k.scanning = true, true
		k.horizon = through
		k.do(ActScan{ThroughMs: k.cfg.Geometry.TickStart(through+1) - 1, Delay: k.backoff(k.loadFail)})
		return
	}
	last := min(through, k.loaded+int64(k.width))
	if k.page != 0 {
		last = k.loaded + 1
	}
	// More ticks than slots would name a slot twice.
	last = min(last, k.loaded+k.cfg.Geometry.WheelSize)
	ticks := make([]int64, 0, last-k.loaded)
	for t := k.loaded + 1; t <= last; t++ {
		ticks = append(ticks, t)
	}
	k.loading, k.asked = true, last-k.loaded
	// From here the tail puts these ticks' records into the wheel itself: what it
	// brought before is in the store, and the load must see it.
	k.horizon = max(k.horizon, last)
	a := ActLoad{Ticks: ticks, Limit: loadLimit, After: k.page, Seen: k.tailSeen, Delay: k.backoff(k.loadFail)}
	if k.cfg.Geometry.TickStart(k.loaded+1)-k.now > k.cfg.HorizonMs/2 {
		a.Limit = leisureLimit
		if k.page != 0 {
			a.Delay = max(a.Delay, leisurePause)
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
		k.holdMark(r)
	}
	if !ev.Load.Complete && k.asked > 1 {
		k.width = max(1, int(k.asked)/4)
		return
	}
	for i := range ev.Load.Timers {
		t := ev.Load.Timers[i]
		tick := k.cfg.Geometry.Tick(t.Record.DueMs)
		// Another revolution, or an index entry that a reschedule or a sweep left.
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

// onScanned takes a record that a scan found. One behind the mark is the tail's,
// which the scan was ahead of: it holds the tail as if that had brought it.
func (k *Core) onScanned(t store.Timer) {
	if t.Unread != store.Readable {
		k.onScannedNewer(t)
		return
	}
	tick := k.cfg.Geometry.Tick(t.Record.DueMs)
	var hold uint64
	if tick <= k.mark {
		hold = t.Rev
	}
	k.onRecord(t, tick, hold)
}

// onRecord takes a record that a load or a scan found in a tick.
func (k *Core) onRecord(t store.Timer, tick int64, hold uint64) {
	switch {
	case t.Record.Pending():
		k.take(t, tick, hold)
	case t.Record.State == schemas.StateDelivered && t.Record.Epoch != k.epoch:
		k.takeClaimed(t, tick, hold)
	}
}

// --- the tail ---

func (k *Core) onTail(t store.Timer) {
	k.tailSeen = max(k.tailSeen, t.Rev)
	if t.Unread != store.Readable {
		k.onTailNewer(t)
		return
	}
	k.newer.replaced(t.ID, t.Rev)
	tick := k.cfg.Geometry.Tick(t.Record.DueMs)
	r := &t.Record
	added := r.State == schemas.StatePending && r.Moves == 0 && t.Rev > k.pendingFrom
	k.noteChange(t.ID, t.Rev, r.State == schemas.StatePending, added)
	if added {
		k.pending++
	}
	var hold uint64
	if tick <= k.mark {
		hold = t.Rev
	}
	switch {
	case r.Pending():
		if tick > k.horizon {
			k.forget(t)
			return
		}
		k.take(t, tick, hold)
	case r.State == schemas.StateDelivered:
		if r.Epoch != k.epoch && tick <= k.horizon {
			k.takeClaimed(t, tick, hold)
		}
		if r.Epoch == k.epoch {
			k.countClaim(t)
		}
	default:
		if r.State == schemas.StateCancelled && r.FiredMs == 0 && t.Rev > k.pendingFrom {
			k.pending--
		}
		k.forget(t)
	}
}

// take puts a record that waits into the wheel, in place of an older one.
func (k *Core) take(t store.Timer, tick int64, hold uint64) {
	if e := k.entries[t.ID]; e != nil {
		if e.rev >= t.Rev {
			k.holdFor(e, hold) // the sweeper's entry holds nothing
			return
		}
		if e.phase != phaseWaiting && e.phase != phaseReady {
			if e.newer == nil || e.newer.Rev < t.Rev {
				e.newer = &t
				k.holdFor(e, t.Rev)
			}
			return
		}
		k.done(e)
	}
	k.insert(t, tick, hold, phaseWaiting)
}

// takeClaimed takes a claim that an owner before this one made: whether it was
// published is not known yet.
func (k *Core) takeClaimed(t store.Timer, tick int64, hold uint64) {
	if e := k.entries[t.ID]; e != nil {
		if e.rev >= t.Rev {
			k.holdFor(e, hold) // the sweeper's entry holds nothing
			return
		}
		if e.phase != phaseWaiting && e.phase != phaseReady {
			k.holdFor(e, t.Rev)
			return // our own write in flight will meet it
		}
		k.done(e)
	}
	e := k.insert(t, tick, hold, phaseConfirming)
	k.confirm = append(k.confirm, e)
}

func (k *Core) insert(t store.Timer, tick int64, hold uint64, p phase) *entry {
	e := &entry{id: t.ID, rev: t.Rev, rec: t.Record, tick: tick, phase: p}
	e.node.Value = e
	k.entries[t.ID] = e
	if tick > k.mark {
		k.outstanding[tick]++
		e.counted = true
	} else if hold != 0 {
		k.holdAt(e, hold)
	}
	if p == phaseWaiting {
		k.wheel.Add(&e.node, t.Record.DueMs)
	}
	return e
}

// holdFor keeps the tail from passing a newer record that waits behind e's write.
// Its tick may be before e's, and then nothing else keeps the mark from passing it.
// A rev of 0 is a record that its tick covers.
func (k *Core) holdFor(e *entry, rev uint64) {
	if e.hold == 0 && rev != 0 {
		k.holdAt(e, rev)
	}
}

// forget drops an entry that a newer record has made idle.
func (k *Core) forget(t store.Timer) {
	e := k.entries[t.ID]
	if e != nil && e.rev < t.Rev && (e.phase == phaseWaiting || e.phase == phaseReady) {
		k.done(e)
	}
}

// done ends an entry and takes up what came meanwhile.
func (k *Core) done(e *entry) {
	if e.phase == phaseDone {
		return
	}
	k.wheel.Remove(&e.node)
	e.phase = phaseDone
	if k.entries[e.id] == e {
		delete(k.entries, e.id)
	}
	if e.counted {
		e.counted = false
		if k.outstanding[e.tick]--; k.outstanding[e.tick] == 0 {
			delete(k.outstanding, e.tick)
		}
	}
	if n := e.newer; n != nil {
		e.newer = nil
		if n.Record.Pending() {
			tick := k.cfg.Geometry.Tick(n.Record.DueMs)
			if tick <= k.horizon {
				var hold uint64
				if tick <= k.mark {
					hold = n.Rev
				}
				k.insert(*n, tick, hold, phaseWaiting)
			}
		}
	}
	e.rec.Body = schemas.Body{}
}

// holdAt keeps the tail from passing a sequence until e is done. Records that were
// reread come ahead of the tail, so the order is not that of the calls.
func (k *Core) holdAt(e *entry, seq uint64) {
	e.hold = seq
	k.held = append(k.held, e)
	for i := len(k.held) - 1; i > 0 && k.held[i-1].hold > seq; i-- {
		k.held[i], k.held[i-1] = k.held[i-1], k.held[i]
	}
}

// advanceMark moves over every tick that has passed, is loaded and is done.
func (k *Core) advanceMark() {
	for k.mark < k.loaded {
		next := k.mark + 1
		if k.outstanding[next] > 0 || k.cfg.Geometry.TickStart(next+1) > k.now {
			return
		}
		if len(k.outstanding) == 0 {
			// Nothing waits anywhere: jump over the empty ticks at once.
			passed := k.cfg.Geometry.Tick(k.now) - 1
			k.mark = max(next, min(k.loaded, passed))
			continue
		}
		k.mark = next
	}
}

func (k *Core) backoff(fails int) time.Duration {
	if fails == 0 {
		return 0
	}
	return min(maxRetryDelay, minRetryDelay<<min(fails-1, 8))
}
