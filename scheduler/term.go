package scheduler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/internal/tracing"
)

// A Term is the loop of one period of ownership of a shard. It has no goroutines, timers or
// channels: a driver calls Turn in a loop. Calls that may block run through Host, and their
// results come back as events for a later turn:
//
//	driver ── Turn ──▶ 1. checkLease: result of the last clock write, time, trust, next write
//	  ▲                2. events: Core.Step, perform the actions
//	  │                3. records of the tail and of scans: the same
//	  │                4. EvTick
//	  │  returns how long the driver may sleep
//	  └── Host.Wake ◀── results of store calls (any goroutine)
//
// Production drives a term with goroutines (termLoop in shard.go), the simulation with its
// only goroutine.
//
// After Release, a term stops claiming, waits at most drainBound for its writes in flight,
// and writes the released clock within releaseBound:
//
//	firing ── Release ──▶ draining ── idle or bound ──▶ releasing ── clock written ──▶ over

// Bounds of a term.
const (
	// maxSleep bounds every wait, after which the term reads the time again.
	maxSleep = time.Second
	// jumpRecheck is the wait while a jump of the host's clock awaits a new reading.
	jumpRecheck = 5 * time.Millisecond
	// tailBurst bounds the records of the tail in one turn.
	tailBurst = 256
	// A turn of a busy shard has thousands of actions, and each may wait for a permit to
	// write, so a turn can take longer than the lease. The term therefore checks its lease
	// after leaseCheckEvery actions or after leaseCheckAfter.
	leaseCheckEvery = 64
	leaseCheckAfter = 50 * time.Millisecond
	// drainBound bounds the wait for writes in flight before a release. releaseBound bounds
	// the release itself, and releaseRetry is the pause between its attempts.
	drainBound   = 500 * time.Millisecond
	releaseBound = 500 * time.Millisecond
	releaseRetry = 50 * time.Millisecond
	// damageLogEvery is the minimum time between error lines about an overwritten clock.
	damageLogEvery = 30 * time.Second
	// skipLogEvery is the minimum time between lines about overdue events, and between lines
	// about nominal times that schedules of the shard have skipped.
	skipLogEvery = time.Second
	// minRenewWait is the minimum timeout of a write of the clock.
	minRenewWait = 250 * time.Millisecond
)

// Host is the environment of a Term: the driver's clock, goroutines and queues.
type Host interface {
	// Monotonic returns the process's monotonic clock, counted from any start.
	Monotonic() time.Duration
	// Go runs f concurrently; f may block. The context ends with the term.
	Go(f func(ctx context.Context))
	// Pause waits for d within a function that Go runs. It returns false if the term ended.
	Pause(ctx context.Context, d time.Duration) bool
	// WithTimeout is context.WithTimeout by the host's clock, for functions that Go runs.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Wake makes the driver call Turn soon. Any goroutine may call it.
	Wake()
	// Follow starts to read the shard's stream after a sequence. Record returns the records.
	Follow(after uint64)
	// Record returns the next event of the tail (EvTail) or of a scan (EvScanned,
	// EvScanDone), nil if there is none now. It keeps the order within each of the two.
	Record() Event
	// Offer queues an event of a scan for Record. It blocks while the queue is full, so only
	// functions that Go runs may call it. It returns an error if the term ended.
	Offer(ctx context.Context, ev Event) error
	// Missing reports that a count found n fewer timers than the previous owner had counted.
	Missing(n int64)
}

// TermTime is the cluster's time, as a Term uses it.
type TermTime interface {
	// EarliestNs returns a lower bound of the JetStream leader's clock, in Unix nanoseconds.
	EarliestNs() int64
	// JumpDetected reports that the host's wall clock has jumped since the last reading of
	// the leader's clock. Nothing may fire before a new reading.
	JumpDetected() bool
	// Resample requests a reading of the leader's clock now.
	Resample()
}

// TermConfig configures the terms of one shard.
type TermConfig struct {
	Shard int
	Core  CoreConfig
	Store TermStore
	Time  TermTime
	// Lease and Heartbeat are as in Options.
	Lease, Heartbeat time.Duration
	Log              zerolog.Logger
	// Calendars returns the node's copy of the calendars, and whether claims may follow it.
	// With nil, schedules that exclude calendars wait.
	Calendars func() (set *store.CalendarSet, fresh bool)
	// Limits has the limits of pending timers; with nil, there are none.
	Limits LimitStore
	// Ended has the shard's list of ended timers; with nil, there is none.
	Ended EndedStore
	// Messages, if not nil, counts the messages of the shard's stream for the next owner;
	// see store.Expectation.
	Messages func(ctx context.Context, shard int) (n uint64, atMs int64, err error)
	// Near, if not nil, is the memory for timers that are due soon; see store.Near.
	Near *store.NearMemory
	// Tracing, if not nil, makes the spans of firings.
	Tracing *tracing.Tracer
	// Trace, if not nil, receives each action before it is carried out, and each result when
	// it arrives.
	Trace func(actionOrEvent any)
	// LeaseCheckEvery is the number of actions between two checks of the lease; 0 means 64.
	// HoldRenewal, if not nil, reports whether a due renewal waits for the next check. The
	// simulation sets both: a turn takes no time there, so without them every renewal would
	// begin at the start of a turn.
	LeaseCheckEvery int
	HoldRenewal     func() bool
}

// termPhase is the phase of a term; see the diagram above.
type termPhase uint8

const (
	termFiring termPhase = iota
	termDraining
	termReleasing
)

// Term runs one period of ownership of a shard: it carries out the decisions of a Core and
// renews the Lease. Turn and Release must not run at the same time. All work happens within
// them, or in functions that Host.Go runs.
type Term struct {
	*shardState
	cfg    TermConfig
	host   Host
	lease  *Lease
	core   *Core
	in     inbox
	events []Event // taken from in by the current turn

	phase termPhase
	// until is the end of the current phase, on the monotonic clock. retryAt is the time of
	// the next attempt to release the clock.
	until, retryAt time.Duration
	over           bool // the clock is released, or the attempts have ended

	// Results of the last checkLease.
	nowMs          int64
	jumped         bool
	lost           bool
	leaseCheckedAt time.Duration
	actsSinceCheck int // actions carried out since
	// damageLog throttles error lines about an overwritten clock.
	damageLog throttle.Log
	// creates has the ActCreateRuns of the current pass. skipLog throttles lines about
	// skipped nominal times.
	creates []ActCreateRun
	// indexes has the ActIndex of the current pass that are ahead of a claim and have no delay.
	indexes []ActIndex
	skipLog throttle.Log
	// overdueLog throttles lines about overdue events.
	overdueLog throttle.Log

	giveUp atomic.Bool // set by the inspector: end the term, so that the shard is taken again
	// planned is the basis of the plans of the shard's schedules; see replan.go.
	planned atomic.Pointer[string]
	older   olderPlans
	limited limitedCount
	ended   endedTimers
	near    *store.Near // nil without TermConfig.Near
	// tailRev is the revision up to which the core knows the records of the tail.
	tailRev uint64
	// sweepHeld limits the sweeper's position in the clock, in Unix milliseconds; 0 for no
	// limit. It lasts until the term ends.
	sweepHeld atomic.Int64
}

// NewTerm returns a term for a driver other than a Scheduler, such as a simulation. lease
// begins with the take-over of the shard.
func NewTerm(c TermConfig, lease *Lease, host Host) *Term {
	return newTerm(c, newShardState(c.Shard, newMetrics(), c.Log), lease, host)
}

func newTerm(c TermConfig, s *shardState, lease *Lease, host Host) *Term {
	if c.LeaseCheckEvery == 0 {
		c.LeaseCheckEvery = leaseCheckEvery
	}
	clock, _ := lease.Clock()
	t := &Term{shardState: s, cfg: c, host: host, lease: lease, core: NewCore(c.Core, clock, clock.Epoch), near: store.NewNear(c.Near), damageLog: throttle.Log{Every: damageLogEvery}, skipLog: throttle.Log{Every: skipLogEvery}, overdueLog: throttle.Log{Every: skipLogEvery}}
	t.planned.Store(&clock.Basis)
	t.ended.resume(&c.Core, &clock)
	s.watermarkMs.Store(clock.TimeMs)
	s.written.Store(&clock)
	s.progress.Store(&clock)
	if s.swept.Store(clock.SweptMs); clock.SweptMs == 0 {
		// A new shard: also audit the ticks shortly before its creation.
		s.swept.Store(clock.TimeMs - c.Core.SweepMs)
	}
	return t
}

// Start starts the tail, the sweeper and the planning of schedules. Call it once, before the first Turn.
func (t *Term) Start() {
	t.setState(1)
	clock, _ := t.lease.Clock()
	after := clock.Tail
	t.tailRev = after
	t.host.Follow(after)
	t.host.Go(t.sweep)
	t.host.Go(t.replan)
}

// End marks the shard as not owned. Call it once, after the last Turn.
func (t *Term) End() {
	t.core.End()
	t.near.Clear()
	t.setState(0)
}

// inbox queues the results of store calls for the next turn.
type inbox struct {
	mu      sync.Mutex
	events  []Event
	renewed *renewal
}

func (b *inbox) put(ev Event) {
	b.mu.Lock()
	b.events = append(b.events, ev)
	b.mu.Unlock()
}

func (b *inbox) take(into []Event) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	into = append(into[:0], b.events...)
	clear(b.events)
	b.events = b.events[:0]
	return into
}

func (b *inbox) putRenewed(r *renewal) {
	b.mu.Lock()
	b.renewed = r
	b.mu.Unlock()
}

func (b *inbox) takeRenewed() *renewal {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.renewed
	b.renewed = nil
	return r
}

// put queues an event for the core, for the next turn. Any goroutine may call it.
func (t *Term) put(ev Event) {
	if t.cfg.Trace != nil {
		t.cfg.Trace(ev)
	}
	t.in.put(ev)
	t.host.Wake()
}

// WantsRecords reports whether the next turn takes records; see Host.Record.
func (t *Term) WantsRecords() bool { return t.phase == termFiring && t.core.WantsTail() }

// Release makes the next turn start to hand the shard over.
func (t *Term) Release() {
	if t.phase != termFiring {
		return
	}
	t.phase, t.until = termDraining, t.host.Monotonic()+drainBound
	t.perform(t.core.Drain(t.cfg.Time.EarliestNs() / int64(time.Millisecond)))
}

// Turn does one turn of the loop. It returns how long the driver may wait before the next
// turn. The driver must call Turn sooner after Host.Wake, and when there is a record while
// WantsRecords is true. Turn returns false when the term is over: the shard is released or
// lost.
func (t *Term) Turn() (wait time.Duration, more bool) {
	// Check first: the driver may have waited for longer than the lease.
	t.checkLease()
	if t.phase == termReleasing {
		// The clock may be released already, so a claim whose result arrives now must not be
		// published. Ignore all results; the next owner finds them in the store.
		wait, more = t.handOver()
		return wait, more && !t.lost
	}
	t.events = t.in.take(t.events)
	for i, ev := range t.events {
		switch ev := ev.(type) {
		case EvRecount:
			t.limited.recount()
			t.ended.lost()
			t.near.Clear()
		case EvVoid:
			t.limited.recount() // the tail does not bring the delete
			t.near.Forget(ev.ID)
		}
		t.step(ev)
		t.events[i] = nil
	}
	if t.phase != termFiring {
		wait, more = t.handOver()
		return wait, more && !t.lost
	}
	for range tailBurst {
		if !t.core.WantsTail() {
			break
		}
		ev := t.host.Record()
		if ev == nil {
			break
		}
		if tail, ok := ev.(EvTail); ok {
			t.older.note(&tail.Timer, t.zones(), t.calendarCopy())
			t.limited.note(&tail.Timer)
			if t.cfg.Ended != nil {
				t.ended.note(&tail.Timer, t.nowMs)
			}
			t.tailRev = max(t.tailRev, tail.Timer.Rev)
			due := tail.Timer.Record.DueMs
			t.near.Note(&tail.Timer, due-t.nowMs <= store.NearFor && t.core.loadsLater(due))
		}
		t.step(ev)
	}
	t.step(EvTick{})
	if t.lost {
		return 0, false
	}
	t.countLimited()
	t.keepEnded()
	t.noteQuiet()
	return t.sleep(), true
}

func (t *Term) step(ev Event) { t.perform(t.core.Step(t.nowMs, ev)) }

// checkLease reads the time, processes the result of the last clock write, and starts the
// next write if it is due.
func (t *Term) checkLease() {
	t.actsSinceCheck, t.leaseCheckedAt = 0, t.host.Monotonic()
	if t.giveUp.Load() {
		t.lost = true
	}
	if res := t.in.takeRenewed(); res != nil {
		t.onRenewed(res)
	}
	t.nowMs = t.cfg.Time.EarliestNs() / int64(time.Millisecond)
	if t.cfg.Calendars != nil {
		t.core.SetCalendars(t.cfg.Calendars())
	}
	t.jumped = t.checkTrust()
	if !t.lost && t.phase == termFiring {
		t.maybeRenew()
	}
}

// checkTrust pauses the core while the lease or the time is in doubt.
func (t *Term) checkTrust() (jumped bool) {
	expired := !t.lease.Trusted(t.host.Monotonic())
	if jumped = t.cfg.Time.JumpDetected(); jumped {
		t.cfg.Time.Resample()
	}
	if expired != (t.state.Load() == 2) {
		if expired {
			t.state.Store(2)
			t.log.Warn().Dur("lease", t.cfg.Lease).Msg("lease expired without a renewal: firing is suspended until the store answers")
		} else {
			t.state.Store(1)
			t.log.Info().Msg("lease renewed: firing again")
		}
	}
	t.core.Pause(expired || jumped)
	return jumped
}

// sleep returns how long the term has nothing to do unless an event comes.
func (t *Term) sleep() time.Duration {
	if t.jumped {
		return jumpRecheck
	}
	d := maxSleep
	if next, ok := t.lease.NextWrite(); ok {
		d = min(d, next-t.host.Monotonic())
	}
	if due, ok := t.limited.due(t.host.Monotonic()); ok {
		d = min(d, due)
	}
	if t.core.Paused() {
		return max(d, 0)
	}
	if next, ok := t.core.Next(); ok {
		d = min(d, time.Duration(next*int64(time.Millisecond)-t.cfg.Time.EarliestNs()))
	}
	return max(d, 0)
}

// handOver is the end of a turn after Release. It waits for writes in flight and then
// releases the clock, so that the next owner need not wait until the lease expires.
func (t *Term) handOver() (wait time.Duration, more bool) {
	now := t.host.Monotonic()
	if t.phase == termDraining {
		if !t.core.Idle() && now < t.until {
			return t.until - now, true
		}
		if !t.core.Idle() {
			t.log.Warn().Dur("bound", drainBound).Msg("writes are still in flight at the release: the next owner checks whether their events were published")
		}
		// releaseBound starts when no write of the clock is in flight.
		t.phase, t.until = termReleasing, 0
	}
	if t.over || t.lost {
		return 0, false
	}
	if _, idle := t.lease.NextWrite(); !idle {
		return maxSleep, true
	}
	switch {
	case t.until == 0:
		t.until = now + releaseBound
	case now < t.retryAt:
		return t.retryAt - now, true
	}
	t.releaseClock(t.until - now)
	return maxSleep, true
}
