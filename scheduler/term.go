package scheduler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/schemas"
)

// A Term is the loop of one period of ownership of a shard, without goroutines, timers
// or channels of its own. A driver calls Turn in a loop; everything that takes time runs
// through Host, and its answer comes back as an event for a later turn:
//
//	driver ── Turn ──▶ 1. look after the lease: result of the last clock write, time, trust, next write
//	  ▲                2. events: Core.Step, carry out the actions
//	  │                3. records of the tail and of scans: the same
//	  │                4. EvTick
//	  │  returns how long the driver may sleep
//	  └── Host.Wake ◀── answers of store calls (any goroutine)
//
// Production drives a term with goroutines (termLoop in shard.go), the simulation with its
// only goroutine.
//
// After Release, a term stops claiming, waits for the writes in flight, at most drainBound,
// and gives the clock back, within releaseBound:
//
//	firing ── Release ──▶ draining ── idle or bound ──▶ releasing ── clock written ──▶ over

// Bounds of a term.
const (
	maxSleep    = time.Second // every sleep is capped, and the clock read again
	jumpRecheck = 5 * time.Millisecond
	tailBurst   = 256 // records of the tail taken in one turn
	// A turn of a busy shard has thousands of actions, and each may wait for a permit to
	// write, so a turn can take longer than the lease. The term therefore looks after its
	// lease after so many actions, or so much time.
	keepEvery = 64
	keepFor   = 50 * time.Millisecond
	// drainBound bounds the wait for writes in flight before a release, and releaseBound
	// the release itself.
	drainBound   = 500 * time.Millisecond
	releaseBound = 500 * time.Millisecond
	releaseRetry = 50 * time.Millisecond
	// damageLogEvery is the minimum time between error lines about an overwritten clock.
	damageLogEvery = 30 * time.Second
	// minRenewWait is the least time that a write of the clock may take.
	minRenewWait = 250 * time.Millisecond
)

// Host is what a term needs of its driver.
type Host interface {
	// Monotonic returns the process's monotonic clock, counted from any start.
	Monotonic() time.Duration
	// Go runs f elsewhere, so that it may wait. The context ends with the term.
	Go(f func(ctx context.Context))
	// Pause waits for d within a function that Go runs. It returns false if the term ended.
	Pause(ctx context.Context, d time.Duration) bool
	// WithTimeout bounds calls within a function that Go runs.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Wake makes the driver call Turn soon. Any goroutine may call it.
	Wake()
	// Follow begins to read the shard's stream after a sequence, for Record.
	Follow(after uint64)
	// Record returns the next record of the tail (EvTail) or of a scan (EvScanned,
	// EvScanDone), nil if there is none now. The order within each is kept.
	Record() Event
	// Offer queues an event of a scan for Record. It waits for room within a function
	// that Go runs, and returns an error if the term ended.
	Offer(ctx context.Context, ev Event) error
	// Missing reports that a count has found fewer timers than were counted before.
	Missing(n int64)
}

// TermStore is what a term needs of the store.
type TermStore interface {
	SweepStore
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	UpdateAsync(w store.Write, done func(store.Result))
	PublishAsync(m store.Msg, done func(seq uint64, duplicate bool, err error))
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
	ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(store.Timer) error) error
	CountPending(ctx context.Context, shard int, through uint64) (store.Count, error)
	ReadClock(ctx context.Context, shard int) (store.Clock, uint64, error)
	WriteClock(ctx context.Context, shard int, c store.Clock, rev uint64) (uint64, error)
}

// TermTime is what a term needs of the cluster's time.
type TermTime interface {
	// EarliestNs is the leader's clock in Unix nanoseconds, never ahead of it.
	EarliestNs() int64
	// JumpDetected reports that the host's wall clock moved since the last
	// reading, which makes a new one due before anything is fired.
	JumpDetected() bool
	// Resample asks for a reading now.
	Resample()
}

// TermConfig configures the terms of one shard.
type TermConfig struct {
	Shard int
	Core  CoreConfig
	Store TermStore
	Time  TermTime
	// Lease and Tick are those of Options.
	Lease, Tick time.Duration
	Log         zerolog.Logger
	// Messages, if not nil, counts the messages of the shard's stream for the next owner;
	// see store.Expectation.
	Messages func(ctx context.Context, shard int) (n uint64, atMs int64, err error)
	// Trace, if not nil, receives each action before it is carried out, and each answer
	// when it arrives.
	Trace func(actionOrEvent any)
	// LookEvery is the number of actions between looks at the lease; 0 for keepEvery.
	// HoldRenewal, if not nil, reports whether a due renewal waits for the next look. The
	// simulation sets both: a turn takes no time there, so without them every renewal
	// would begin at the start of a turn.
	LookEvery   int
	HoldRenewal func() bool
}

// termPhase is how far a term is.
type termPhase uint8

const (
	termFiring termPhase = iota
	termDraining
	termReleasing
)

// Term is one period of ownership of a shard. Turn and Release must not run at the same
// time. Everything else happens within them, or in functions that Host.Go runs.
type Term struct {
	*shardState
	cfg    TermConfig
	host   Host
	tenure *Tenure
	core   *Core
	in     inbox
	events []Event // taken from in by the current turn

	phase termPhase
	// until is the end of the current phase's bound, on the monotonic clock. retryAt is
	// the time of the next try to release the clock.
	until, retryAt time.Duration
	idle           bool // no write was in flight at the end of draining
	over           bool // released, or given up trying

	// As the last look at the lease found them.
	nowMs  int64
	jumped bool
	lost   bool
	keptAt time.Duration
	acts   int // carried out since
	// damageLog throttles error lines about an overwritten clock.
	damageLog throttle.Log

	giveUp atomic.Bool // the shard must be taken again
	// sweepHeld is the position that the recorded sweep must not pass, in Unix
	// milliseconds; 0 for none. It lasts until the term ends.
	sweepHeld atomic.Int64
}

// NewTerm returns a term for a driver other than a Scheduler. tenure is the acknowledged
// take-over of the shard.
func NewTerm(c TermConfig, tenure *Tenure, host Host) *Term {
	return newTerm(c, newShardState(c.Shard, newMetrics(), c.Log), tenure, host)
}

func newTerm(c TermConfig, s *shardState, tenure *Tenure, host Host) *Term {
	if c.LookEvery == 0 {
		c.LookEvery = keepEvery
	}
	clock, _ := tenure.Clock()
	t := &Term{shardState: s, cfg: c, host: host, tenure: tenure, core: NewCore(c.Core, clock, clock.Epoch), damageLog: throttle.Log{Every: damageLogEvery}}
	s.markMs.Store(clock.TimeMs)
	s.written.Store(&clock)
	s.progress.Store(&clock)
	if s.swept.Store(clock.SweptMs); clock.SweptMs == 0 {
		// A new shard: audit what was due shortly before it was created, too.
		s.swept.Store(clock.TimeMs - c.Core.SweepMs)
	}
	return t
}

// Start begins to follow the shard's stream and to sweep. Call it once, before Turn.
func (t *Term) Start() {
	t.setState(1)
	clock, _ := t.tenure.Clock()
	after := clock.Tail
	t.host.Follow(after)
	t.host.Go(t.sweep)
}

// End marks the shard as not owned. Call it once, after the last Turn.
func (t *Term) End() { t.setState(0) }

// inbox receives the answers of store calls.
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

// put delivers an answer to the core, in the next turn.
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
// one, unless Wake is called, or WantsRecords and there is a record. It returns false when
// the term is over: the shard is released or lost.
func (t *Term) Turn() (wait time.Duration, more bool) {
	// First of all: the wait may have been longer than the lease.
	t.keep()
	if t.phase == termReleasing {
		// Answers are for the next owner: the clock may be released already, so a claim that
		// is answered now must not be published.
		wait, more = t.handOver()
		return wait, more && !t.lost
	}
	t.events = t.in.take(t.events)
	for i, ev := range t.events {
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
		t.step(ev)
	}
	t.step(EvTick{})
	if t.lost {
		return 0, false
	}
	return t.sleep(), true
}

func (t *Term) step(ev Event) { t.perform(t.core.Step(t.nowMs, ev)) }

// keep reads the time and looks after the lease: it processes the result of the last clock
// write, and begins the next write when it is due.
func (t *Term) keep() {
	t.acts, t.keptAt = 0, t.host.Monotonic()
	if t.giveUp.Load() {
		t.lost = true
	}
	if res := t.in.takeRenewed(); res != nil {
		t.onRenewed(res)
	}
	t.nowMs = t.cfg.Time.EarliestNs() / int64(time.Millisecond)
	t.jumped = t.checkTrust()
	if !t.lost && t.phase == termFiring {
		t.maybeRenew()
	}
}

// checkTrust pauses the core while the lease or the time is in doubt.
func (t *Term) checkTrust() (jumped bool) {
	expired := !t.tenure.Trusted(t.host.Monotonic())
	if jumped = t.cfg.Time.JumpDetected(); jumped {
		t.cfg.Time.Resample()
	}
	if expired != (t.state.Load() == 2) {
		if expired {
			t.state.Store(2)
			t.log.Warn().Dur("lease", t.cfg.Lease).Msg("lease ran out without a renewal: firing is suspended until the store answers")
		} else {
			t.state.Store(1)
			t.log.Info().Msg("lease renewed: firing again")
		}
	}
	t.core.Pause(expired || jumped)
	return jumped
}

// sleep returns how long nothing is to do without an event.
func (t *Term) sleep() time.Duration {
	if t.jumped {
		return jumpRecheck
	}
	d := maxSleep
	if next, ok := t.tenure.NextWrite(); ok {
		d = min(d, next-t.host.Monotonic())
	}
	if t.core.Paused() {
		return max(d, 0)
	}
	if next, ok := t.core.Next(); ok {
		d = min(d, time.Duration(next*int64(time.Millisecond)-t.cfg.Time.EarliestNs()))
	}
	return max(d, 0)
}

// handOver is the end of a turn after Release. The next owner need not wait for the lease
// if the clock is given back.
func (t *Term) handOver() (wait time.Duration, more bool) {
	now := t.host.Monotonic()
	if t.phase == termDraining {
		if !t.core.Idle() && now < t.until {
			return t.until - now, true
		}
		if t.idle = t.core.Idle(); !t.idle {
			t.log.Warn().Dur("bound", drainBound).Msg("writes still in flight at the release: the next owner confirms them")
		}
		// The bound of the release starts when no write of the clock is in flight.
		t.phase, t.until = termReleasing, 0
	}
	if t.over || t.lost {
		return 0, false
	}
	if _, idle := t.tenure.NextWrite(); !idle {
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
