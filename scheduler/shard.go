package scheduler

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/schemas"
)

// Bounds of the loop.
const (
	maxSleep    = time.Second // every sleep is capped, and the clock read again
	jumpRecheck = 5 * time.Millisecond
	tailBuffer  = 1024
	tailBurst   = 256 // tail records taken between two looks at the wheel
	// A round of a busy shard has thousands of actions, and each may wait for a place
	// among the writes in flight: it took longer than the lease. So that is looked
	// after whenever so many are done, or so much time has gone.
	keepEvery = 64
	keepFor   = 50 * time.Millisecond
	// A hand-over does not wait longer for writes in flight, and for the clock.
	drainBound   = 500 * time.Millisecond
	releaseBound = 500 * time.Millisecond
	releaseRetry = 50 * time.Millisecond
	// damageLogEvery is the minimum time between error lines about an overwritten clock.
	damageLogEvery = 30 * time.Second
	// minRenewWait is the least time that a write of the clock is given.
	minRenewWait = 250 * time.Millisecond
)

// errSuspended has the core publish again later.
var errSuspended = errors.New("firing is suspended")

// started is what the monotonic clock is counted from.
var started = time.Now()

func monotonic() time.Duration { return time.Since(started) }

// shard runs one shard while this node owns it.
type shard struct {
	n     int
	label string
	o     *Options
	m     *metrics
	log   zerolog.Logger
	cfg   CoreConfig

	state   atomic.Int32 // for Status: 0 standby, 1 owner, 2 suspended
	markMs  atomic.Int64
	swept   atomic.Int64
	written atomic.Pointer[store.Clock] // the clock as last written
	// progress is the clock as last written, without holds of newer records.
	progress atomic.Pointer[store.Clock]
	newer    atomic.Int64 // records of newer formats, for Status
	// seen is the last sequence of the stream that a previous owner had read, until the
	// loss below it is recorded. end is the last sequence of the stream at the take-over,
	// 0 if unknown.
	seen, end atomic.Uint64
	damage    atomic.Pointer[damage]
	// expect is what the clock said about the stream at the take-over. counted is the
	// number of messages in the stream that the last inspection found.
	expect  atomic.Pointer[store.Expectation]
	counted atomic.Pointer[store.Expectation]

	mu       sync.Mutex
	lastErrs map[string]string
}

func newShard(n int, o *Options, m *metrics) *shard {
	return &shard{
		n: n, label: strconv.Itoa(n), o: o, m: m,
		log: o.Log.With().Int("shard", n).Logger(),
		cfg: CoreConfig{
			Geometry: o.Store.Geometry(), HorizonMs: o.Horizon.Milliseconds(), ScanBehindMs: min(o.IndexKeep, DefaultIndexKeep).Milliseconds() / 2,
			SweepMs: o.SweepDelay.Milliseconds(), MaxLoaded: o.MaxLoaded, MaxInflight: o.MaxInflight, Retention: o.Retention,
			Level: o.Store.Reads(), Seal: o.Store.SealCallback,
		},
		lastErrs: map[string]string{},
	}
}

// inbox is the one-slot wake and the queue behind it that answers come through.
type inbox struct {
	mu     sync.Mutex
	events []Event
	wake   chan struct{}
}

func (b *inbox) put(ev Event) {
	b.mu.Lock()
	b.events = append(b.events, ev)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) take(into []Event) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	into = append(into[:0], b.events...)
	clear(b.events)
	b.events = b.events[:0]
	return into
}

// reign is one epoch of owning the shard.
type reign struct {
	*shard
	t       *Tenure
	core    *Core
	in      inbox
	tail    chan Event
	scan    chan Event
	ctx     context.Context // ends with the reign
	wg      sync.WaitGroup
	renewed chan renewal

	// As keep has found them last.
	nowMs  int64
	jumped bool
	lost   bool
	// damageLog throttles error lines about an overwritten clock.
	damageLog throttle.Log
	rewind    atomic.Bool // the shard must be taken again
	// missing receives the number of timers that a count misses.
	missing chan int64
	// sweepHeld is the position that the recorded sweep must not pass, in Unix
	// milliseconds; 0 for none. It lasts until the term ends.
	sweepHeld atomic.Int64
	keptAt    time.Duration
	acts      int // performed since
	draining  bool
}

// own fires the shard's timers until release is closed, which gives it back in
// good order; until ctx ends, which drops it; or until another node has it.
func (s *shard) own(ctx context.Context, t *Tenure, release <-chan struct{}) {
	rctx, cancel := context.WithCancel(ctx)
	clock, _ := t.Clock()
	r := &reign{
		shard: s, t: t, core: NewCore(s.cfg, clock, clock.Epoch),
		in:   inbox{wake: make(chan struct{}, 1)},
		tail: make(chan Event, tailBuffer), scan: make(chan Event, tailBuffer),
		ctx: rctx, renewed: make(chan renewal, 1), missing: make(chan int64, 1),
		damageLog: throttle.Log{Every: damageLogEvery},
	}
	s.markMs.Store(clock.TimeMs)
	s.written.Store(&clock)
	s.progress.Store(&clock)
	if s.swept.Store(clock.SweptMs); clock.SweptMs == 0 {
		// A new shard's: what was due shortly before it was made is audited, too.
		s.swept.Store(clock.TimeMs - s.o.SweepDelay.Milliseconds())
	}
	s.setState(1)
	r.startTail()
	r.wg.Go(r.sweep)
	r.wg.Go(r.inspect)
	if r.loop(ctx, release) {
		r.release()
	}
	s.setState(0)
	cancel()
	r.wg.Wait()
}

func (s *shard) setState(v int32) {
	s.state.Store(v)
	owned := 0.0
	if v != 0 {
		owned = 1
	}
	s.m.owner.WithLabelValues(s.label).Set(owned)
	if v == 0 {
		s.m.pending.DeleteLabelValues(s.label)
		s.m.loaded.DeleteLabelValues(s.label)
		s.m.lag.DeleteLabelValues(s.label)
		s.m.damaged.DeleteLabelValues(s.label)
		s.m.lost.DeleteLabelValues(s.label)
		s.m.newer.DeleteLabelValues(s.label)
		s.newer.Store(0)
		s.damage.Store(nil)
	}
}

// startTail follows the shard's stream from the checkpoint, for as long as the
// reign lasts.
func (r *reign) startTail() {
	clock, _ := r.t.Clock()
	after := clock.Tail
	r.wg.Go(func() {
		fails := 0
		for {
			tail, err := r.o.Store.Tail(r.ctx, r.n, after, func(t store.Timer) {
				select {
				case r.tail <- EvTail{Timer: t}:
				case <-r.ctx.Done():
				}
			})
			r.logChange("tail", err)
			if err == nil {
				<-r.ctx.Done()
				tail.Stop()
				return
			}
			fails++
			if !pause.For(r.ctx, r.core.backoff(fails)) {
				return
			}
		}
	})
}

// loop is the shard's heartbeat. It returns true if the shard is to be released,
// false if it was lost, or ctx ended.
func (r *reign) loop(ctx context.Context, release <-chan struct{}) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var events []Event
	var waited Event // what ended the last wait
	for {
		// Before anything is done: the wait may have been longer than the lease.
		r.keep()
		if waited != nil {
			r.perform(r.core.Step(r.nowMs, waited))
			waited = nil
		}
		events = r.in.take(events)
		for i, ev := range events {
			r.perform(r.core.Step(r.nowMs, ev))
			events[i] = nil
		}
		for range tailBurst {
			ev := r.nextStream()
			if ev == nil {
				break
			}
			r.perform(r.core.Step(r.nowMs, ev))
		}
		r.perform(r.core.Step(r.nowMs, EvTick{}))
		if r.lost {
			return false
		}
		timer.Reset(r.sleep())
		var tail, scan chan Event
		if r.core.WantsTail() {
			tail, scan = r.tail, r.scan
		}
		select {
		case <-ctx.Done():
			return false
		case <-release:
			return true
		case waited = <-tail:
		case waited = <-scan:
		case <-r.in.wake:
		case <-timer.C:
		case res := <-r.renewed:
			if !r.onRenewed(res) {
				return false
			}
		}
	}
}

// keep reads the time and looks after the lease: it takes what the last renewal
// came to, and begins the next one when it is due.
func (r *reign) keep() {
	r.acts, r.keptAt = 0, monotonic()
	if r.rewind.Load() {
		r.lost = true
	}
	select {
	case res := <-r.renewed:
		if !r.onRenewed(res) {
			r.lost = true
		}
	default:
	}
	r.nowMs = r.o.Time.EarliestNs() / int64(time.Millisecond)
	r.jumped = r.checkTrust()
	if !r.lost && !r.draining {
		r.maybeRenew()
	}
}

// nextStream takes a record from the tail or the scan if one is there.
func (r *reign) nextStream() Event {
	if !r.core.WantsTail() {
		return nil
	}
	select {
	case ev := <-r.tail:
		return ev
	case ev := <-r.scan:
		return ev
	default:
		return nil
	}
}

// checkTrust pauses the core while the lease or the time is in doubt.
func (r *reign) checkTrust() (jumped bool) {
	expired := !r.t.Trusted(monotonic())
	if jumped = r.o.Time.JumpDetected(); jumped {
		r.o.Time.Resample()
	}
	if expired != (r.state.Load() == 2) {
		if expired {
			r.state.Store(2)
			r.log.Warn().Dur("lease", r.o.Lease).Msg("lease ran out without a renewal: firing is suspended until the store answers")
		} else {
			r.state.Store(1)
			r.log.Info().Msg("lease renewed: firing again")
		}
	}
	r.core.Pause(expired || jumped)
	return jumped
}

func (r *reign) sleep() time.Duration {
	if r.jumped {
		return jumpRecheck
	}
	d := maxSleep
	if next, ok := r.t.NextWrite(); ok {
		d = min(d, next-monotonic())
	}
	if r.core.Paused() {
		return max(d, 0)
	}
	if next, ok := r.core.Next(); ok {
		d = min(d, time.Duration(next*int64(time.Millisecond)-r.o.Time.EarliestNs()))
	}
	return max(d, 0)
}

// renewal is the result of one write of the clock, with the reading that had to
// follow it where it lost a compare-and-set.
type renewal struct {
	start    time.Duration
	clock    store.Clock
	progress store.Clock // see Core.Checkpoint
	rev      uint64
	err      error
	was      store.Clock
	wasRev   uint64
	readErr  error
}

// maybeRenew writes the clock once a tick, without holding up the loop.
func (r *reign) maybeRenew() {
	if next, ok := r.t.NextWrite(); !ok || monotonic() < next {
		return
	}
	c, progress := r.checkpoint()
	_, rev := r.t.Clock()
	r.t.Writing()
	r.wg.Go(func() {
		res := r.renew(r.ctx, c, rev)
		res.progress = progress
		r.renewed <- res
	})
}

// renew writes the clock. An attempt is given up after a tick: what a store
// without a leader has swallowed would be waited for in vain, and when it is back
// its owners are to be the first to write.
func (s *shard) renew(ctx context.Context, c store.Clock, rev uint64) renewal {
	res := renewal{start: monotonic(), clock: c}
	write, cancel := context.WithTimeout(ctx, max(s.o.Tick, minRenewWait))
	defer cancel()
	if res.rev, res.err = s.o.Store.WriteClock(write, s.n, c, rev); isRevision(res.err) {
		res.was, res.wasRev, res.readErr = s.o.Store.ReadClock(write, s.n)
	}
	return res
}

// checkpoint returns the clock to write, and the progress behind it; see Core.Checkpoint.
func (r *reign) checkpoint() (c, progress store.Clock) {
	c, _ = r.t.Clock()
	progress = r.core.Checkpoint(&c)
	swept := r.swept.Load()
	if held := r.sweepHeld.Load(); held != 0 {
		swept = min(swept, held)
	}
	c.SweptMs = max(c.SweptMs, swept)
	if n := r.counted.Load(); n != nil {
		c.Msgs, c.MsgsMs = n.Msgs, n.MsgsMs
	}
	return c, progress
}

// holdSweep keeps the recorded position of the sweeper before a time in Unix
// milliseconds, where it found a record of a newer format.
func (r *reign) holdSweep(ms int64) {
	if held := r.sweepHeld.Load(); held == 0 || ms < held {
		r.sweepHeld.Store(ms)
	}
}

// onRenewed returns false if the shard is lost.
func (r *reign) onRenewed(res renewal) bool {
	verdict := r.t.Wrote(monotonic(), res.start, res.clock, res.rev, res.err)
	err := res.err
	if verdict == Unsure {
		verdict = r.t.Reread(monotonic(), res.was, res.wasRev, res.readErr)
		err = res.readErr
	}
	switch verdict {
	case Kept:
		r.markMs.Store(res.clock.TimeMs)
		r.written.Store(&res.clock)
		r.progress.Store(&res.progress)
		r.tellNewer(res.clock)
		if pending, known := r.core.Pending(); known {
			r.m.pending.WithLabelValues(r.label).Set(float64(pending))
		} else {
			r.m.pending.DeleteLabelValues(r.label)
		}
		r.m.loaded.WithLabelValues(r.label).Set(float64(r.core.Loaded()))
		lag := time.Duration(r.o.Time.EarliestNs() - r.core.LowWatermarkMs()*int64(time.Millisecond))
		r.m.lag.WithLabelValues(r.label).Set(lag.Seconds())
	case Lost:
		r.m.deposed.Inc()
		r.lostTo(res)
		return false
	default:
		r.m.storeErrs.WithLabelValues("renew_clock").Inc()
		if isDamage(res.readErr) {
			r.m.damagedClocks.Inc()
			log := r.log.Error()
			if _, ok := r.damageLog.Allow(time.Now()); !ok {
				log = r.log.Debug() // the metric counts each
			}
			log.Err(res.readErr).Uint64("revision", res.wasRev).Msg("a client that does not own the shard overwrote or removed its clock: writing it again")
			err = nil // the next write decides
		}
	}
	r.logChange("renew clock", err)
	return true
}

// tellNewer reports the records of newer formats, in the log when the first is met and
// when none is left.
func (r *reign) tellNewer(c store.Clock) {
	n := int64(r.core.Newer())
	r.m.newer.WithLabelValues(r.label).Set(float64(n))
	switch was := r.newer.Swap(n); {
	case was == 0 && n > 0:
		r.log.Error().Int64("records", n).Int("needs_level", int(c.Needs)).Int("reads_level", int(r.cfg.Level)).Time("low_watermark", time.UnixMilli(c.TimeMs)).
			Msg("the shard has records of a newer format: it goes to a node that reads them; until there is one, the low watermark stays before them and all other timers fire")
	case was > 0 && n == 0:
		r.log.Info().Msg("no record of a newer format is left in the shard")
	}
}

// isDamage reports whether a clock has a value that no owner wrote.
func isDamage(err error) bool {
	return errors.Is(err, schemas.ErrDamaged) || errors.Is(err, schemas.ErrNotFound)
}

// lostTo logs why this node lost a shard.
func (r *reign) lostTo(res renewal) {
	switch log := r.log.With().Uint64("epoch", res.clock.Epoch).Logger(); {
	case errors.Is(res.readErr, schemas.ErrNewer):
		log.Error().Err(res.readErr).Msg("shard given up: a node of a newer version has written its clock")
	case isDamage(res.readErr):
		r.m.damagedClocks.Inc()
		log.Error().Err(res.readErr).Msg("shard given up: its clock was overwritten after the lease had expired; a node takes it again after a lease")
	default:
		log.Warn().Str("to", res.was.Owner).Msg("shard lost: another node moved its clock")
	}
}

// release lets what is in flight finish and gives the clock back, so that the
// next owner need not wait for the lease.
func (r *reign) release() {
	r.perform(r.core.Drain(r.o.Time.EarliestNs() / int64(time.Millisecond)))
	r.draining = true // the clock is written once more, when all is done
	idle := r.drain()
	if r.lost {
		return
	}
	if !idle {
		r.log.Warn().Dur("bound", drainBound).Msg("writes still in flight at the release: the next owner confirms them")
	}
	if _, idle := r.t.NextWrite(); !idle {
		if res := <-r.renewed; !r.onRenewed(res) {
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, releaseBound)
	defer cancel()
	r.countMessages(ctx)
	for {
		c, _ := r.checkpoint()
		c.Owner = ""
		// Claims without an answer may be stored, and are not in the count.
		c.PendingUnknown = c.PendingUnknown || !idle
		_, rev := r.t.Clock()
		res := r.renew(ctx, c, rev)
		if res.err == nil || res.readErr == nil && res.was.Owner == "" && res.was.Epoch == c.Epoch {
			r.log.Debug().Uint64("epoch", c.Epoch).Time("mark", time.UnixMilli(c.TimeMs)).Msg("shard released")
			return
		}
		if !r.onRenewed(res) || !pause.For(ctx, releaseRetry) {
			r.log.Warn().Err(res.err).Msg("clock not released: the next owner waits for the lease")
			return
		}
	}
}

// drain waits for the writes in flight, within bounds.
func (r *reign) drain() bool {
	ctx, cancel := context.WithTimeout(r.ctx, drainBound)
	defer cancel()
	var events []Event
	for !r.core.Idle() && !r.lost {
		select {
		case <-ctx.Done():
			return false
		case <-r.in.wake:
			r.keep()
			events = r.in.take(events)
			for _, ev := range events {
				r.perform(r.core.Step(r.nowMs, ev))
			}
		}
	}
	return true
}

// perform carries out actions; answers come back through the inbox.
func (r *reign) perform(actions []Action) {
	for _, a := range actions {
		now := monotonic()
		if r.acts++; r.acts >= keepEvery || now-r.keptAt > keepFor {
			r.keep()
		}
		if r.lost {
			return // what is claimed is the next owner's
		}
		switch a := a.(type) {
		case ActClaim:
			r.o.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record}, func(res store.Result) {
				r.in.put(EvClaimed{ID: a.ID, Rev: res.Rev, Err: res.Err})
			})
		case ActPublish:
			if r.core.Paused() || !r.t.Trusted(now) {
				// The lease ran out since it was decided; see Core.Pause.
				r.in.put(EvPublished{ID: a.ID, Err: errSuspended})
				continue
			}
			r.publish(a)
		case ActFinish:
			r.o.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: r.o.Retention}, func(res store.Result) {
				if res.Err != nil && !errors.Is(res.Err, store.ErrRevision) {
					r.m.storeErrs.WithLabelValues("finish").Inc()
				}
				r.in.put(EvFinished{Finish: a, Err: res.Err})
			})
		case ActDeadLetter:
			if r.core.Paused() || !r.t.Trusted(now) {
				r.in.put(EvDeadLettered{ID: a.ID, Err: errSuspended})
				continue
			}
			r.later(0, func() {
				_, err := r.o.Store.PublishLetter(r.ctx, a.Msg)
				r.failed("dead letter", err)
				r.in.put(EvDeadLettered{ID: a.ID, Err: err})
			})
		case ActFail:
			r.o.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: r.o.Retention}, func(res store.Result) {
				if res.Err == nil {
					r.m.refused.Inc()
					r.log.Error().Stringer("timer", a.ID).Str("service", a.Record.Service).Str("error", a.Record.Outcome.Error).Msg("JetStream will never store the event; it is now a dead letter")
				} else if !isRevision(res.Err) {
					r.m.storeErrs.WithLabelValues("fail").Inc()
				}
				r.in.put(EvFailed{ID: a.ID, Err: res.Err})
			})
		case ActLoad:
			r.later(a.Delay, func() {
				load, err := r.o.Store.LoadTicks(r.ctx, r.n, a.Ticks, a.Limit, a.After, a.Seen)
				r.failed("load", err)
				r.in.put(EvLoaded{Load: load, Err: err})
			})
		case ActScan:
			r.later(a.Delay, func() { r.scanAll(a.ThroughMs) })
		case ActReread:
			r.later(a.Delay, func() {
				t, err := r.o.Store.Get(r.ctx, a.ID)
				if !errors.Is(err, schemas.ErrNotFound) {
					r.failed("reread", err)
				}
				r.in.put(EvReread{ID: a.ID, Timer: t, Err: err})
			})
		case ActIndex:
			r.later(a.Delay, func() {
				err := r.o.Store.PutIndex(r.ctx, a.ID, a.Tick)
				r.failed("index", err)
				r.in.put(EvIndexed{ID: a.ID, Err: err})
			})
		case ActCount:
			r.later(a.Delay, func() {
				c, err := r.o.Store.CountPending(r.ctx, r.n, a.Through)
				r.failed("count", err)
				r.in.put(EvCounted{Round: a.Round, Waiting: c.Waiting, Unread: c.Unread, Last: c.Last, Err: err})
			})
		case ActMissing:
			select {
			case r.missing <- a.Missing:
			default: // one term has one such count
			}
		case ActConfirm:
			r.later(a.Delay, func() {
				found, err := r.o.Store.FiredSince(r.ctx, a.Subjects, time.UnixMilli(a.SinceMs), a.IDs)
				r.failed("confirm", err)
				r.in.put(EvConfirmed{Found: found, Err: err})
			})
		}
	}
}

func (r *reign) publish(a ActPublish) {
	claimed := r.o.Time.EarliestNs()
	r.o.Store.PublishAsync(a.Msg, func(_ uint64, duplicate bool, err error) {
		switch {
		case store.Permanent(err): // the timer becomes a dead letter, and a line in the log
		case err != nil:
			r.failed("publish", err)
		default:
			r.m.firedOf(a.Service).Inc()
			late := time.Duration(a.LateMs)*time.Millisecond + time.Duration(r.o.Time.EarliestNs()-claimed)
			r.m.lateness.Observe(max(late, 0).Seconds())
			if duplicate {
				r.m.duplicates.Inc()
			}
		}
		r.in.put(EvPublished{ID: a.ID, Duplicate: duplicate, Err: err})
	})
}

func (r *reign) scanAll(throughMs int64) {
	r.log.Info().Msg("the mark is older than the index: reading every pending timer once")
	err := r.o.Store.ScanQueued(r.ctx, r.n, throughMs, func(t store.Timer) error {
		select {
		case r.scan <- EvScanned{Timer: t}:
			return nil
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	})
	r.failed("scan", err)
	select {
	case r.scan <- EvScanDone{Err: err}:
	case <-r.ctx.Done():
	}
}

// later runs f in a goroutine of the reign, after a delay.
func (r *reign) later(d time.Duration, f func()) {
	r.wg.Go(func() {
		if pause.For(r.ctx, d) {
			f()
		}
	})
}

// failed counts and logs a store call that will be tried again.
func (s *shard) failed(call string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		s.m.storeErrs.WithLabelValues(call).Inc()
	}
	s.logChange(call, err)
}

// logChange logs a failing call once until it succeeds or fails otherwise.
func (s *shard) logChange(call string, err error) {
	text := ""
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return
		}
		// By code: texts name the record, and would make each a change.
		if text = string(schemas.CodeOf(err)); text == "" {
			text = err.Error()
		}
	}
	s.mu.Lock()
	changed := s.lastErrs[call] != text
	s.lastErrs[call] = text
	s.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		s.log.Warn().Str("call", call).Err(err).Msg("store call fails; trying again")
	default:
		s.log.Info().Str("call", call).Msg("store call succeeds again")
	}
}
