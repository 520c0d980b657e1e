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
	"github.com/belfryio/belfry/schemas"
)

// tailBuffer bounds the records of the tail, and those of a scan, that wait for the loop.
const tailBuffer = 1024

// started is the origin of monotonic.
var started = time.Now()

// monotonic returns the time since the process started, on the monotonic clock.
func monotonic() time.Duration { return time.Since(started) }

// shardState is the state of one shard that outlives terms: status, metrics and positions. A
// term updates it; Status, the sweeper and the inspector read it from other goroutines.
type shardState struct {
	callLog
	label string
	m     *metrics

	state       atomic.Int32 // for Status: 0 standby, 1 owner, 2 suspended
	watermarkMs atomic.Int64
	swept       atomic.Int64                // the sweeper's position, Unix milliseconds
	written     atomic.Pointer[store.Clock] // the clock as last written
	// progress is the clock as last written, as if no newer record held it back.
	progress atomic.Pointer[store.Clock]
	newer    atomic.Int64 // records of newer formats, for Status
	waits    calendarWaits
	damage   atomic.Pointer[damage]
	// quietMs is the cluster's time, in Unix milliseconds, of the last turn of a term if nothing was
	// in flight after it, otherwise 0.
	quietMs atomic.Int64
	// quietRev is the revision up to which the tail had come in that turn.
	quietRev atomic.Uint64
	// counted is the number of messages in the stream that the last inspection found.
	counted atomic.Pointer[store.Expectation]
}

func newShardState(n int, m *metrics, log zerolog.Logger) *shardState {
	return &shardState{callLog: newCallLog(log.With().Int("shard", n).Logger()), label: strconv.Itoa(n), m: m}
}

// shard is one shard of a Scheduler.
type shard struct {
	*shardState
	n   int
	o   *Options
	cfg TermConfig

	// seen is the last stream sequence that a previous owner had read; 0 after a loss below
	// it has been recorded. end is the last sequence of the stream at the take-over, 0 if
	// unknown.
	seen, end atomic.Uint64
	// expect is the content of the stream according to the clock at the take-over.
	expect atomic.Pointer[store.Expectation]
	// precision is shared by all shards of the node.
	precision *precision
	// wake ends a wait of the term.
	wake chan struct{}
}

func newShard(n int, o *Options, p *precision, b *Backlog, near *store.NearMemory, m *metrics) *shard {
	return &shard{
		shardState: newShardState(n, m, o.Log), n: n, o: o, precision: p, wake: make(chan struct{}, 1),
		cfg: TermConfig{
			Shard: n, Store: o.Store, Time: o.Time, Lease: o.Lease, Heartbeat: o.Heartbeat, Messages: o.Store.Messages, Calendars: o.Store.CalendarsNow, Limits: o.Store, Ended: o.Store, Near: near, Tracing: o.Tracing,
			Core: CoreConfig{
				Geometry: o.Store.Geometry(), HorizonMs: o.Horizon.Milliseconds(), ScanBehindMs: min(o.IndexKeep, DefaultIndexKeep).Milliseconds() / 2,
				SweepMs: o.SweepDelay.Milliseconds(), MaxLoaded: o.MaxLoaded, MaxInflight: o.MaxInflight, FirstInflight: firstInflight, FirstFireAtOnce: firstFireAtOnce, FireAtOnce: fireAtOnce, Retention: o.Retention, Backlog: b,
				Level: o.Store.Reads(), Seal: o.Store.SealCallback,
			},
		},
	}
}

// termLoop drives a term with goroutines, channels and a timer.
type termLoop struct {
	*Term
	s      *shard
	ctx    context.Context // ends with the term
	wg     sync.WaitGroup
	wake   chan struct{}
	tail   chan Event
	scan   chan Event
	waited Event // the record that ended the last wait
	// missing receives the number of missing timers that a count has found.
	missing chan int64
}

var _ Host = (*termLoop)(nil)

// own runs a term of the shard. It returns when another node owns the shard, after release
// was closed and the shard is handed over, or when ctx ends, which drops the shard without
// a release.
func (s *shard) own(ctx context.Context, lease *Lease, release <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	l := &termLoop{
		s: s, ctx: ctx, wake: s.wake,
		tail: make(chan Event, tailBuffer), scan: make(chan Event, tailBuffer), missing: make(chan int64, 1),
	}
	l.Term = newTerm(s.cfg, s.shardState, lease, l)
	l.Start()
	l.wg.Go(l.inspect)
	l.run(release)
	l.End()
	cancel()
	l.wg.Wait()
}

// run calls Turn until the term is over.
func (l *termLoop) run(release <-chan struct{}) {
	due := newWaiter(l.s.precision)
	defer due.stop()
	for {
		wait, more := l.Turn()
		if !more {
			return
		}
		due.set(wait)
		var tail, scan chan Event
		if l.WantsRecords() {
			if l.waited != nil {
				continue
			}
			tail, scan = l.tail, l.scan
		}
		select {
		case <-l.ctx.Done():
			return
		case <-release:
			l.Release()
			release = nil
		case l.waited = <-tail:
		case l.waited = <-scan:
		case <-l.wake:
		case <-due.exact.C:
		case <-due.coarse.C:
		}
	}
}

// Monotonic implements Host.
func (l *termLoop) Monotonic() time.Duration { return monotonic() }

// Go implements Host.
func (l *termLoop) Go(f func(ctx context.Context)) { l.wg.Go(func() { f(l.ctx) }) }

// Pause implements Host.
func (l *termLoop) Pause(ctx context.Context, d time.Duration) bool { return pause.For(ctx, d) }

// WithTimeout implements Host.
func (l *termLoop) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// Wake implements Host.
func (l *termLoop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Follow implements Host.
func (l *termLoop) Follow(after uint64) {
	l.wg.Go(func() {
		fails := 0
		for {
			tail, err := l.s.o.Store.Tail(l.ctx, l.s.n, after, func(t store.Timer) {
				select {
				case l.tail <- EvTail{Timer: t}:
				case <-l.ctx.Done():
				}
			})
			l.logChange("tail", err)
			if err == nil {
				<-l.ctx.Done()
				tail.Stop()
				return
			}
			fails++
			if !pause.For(l.ctx, l.core.backoff(fails)) {
				return
			}
		}
	})
}

// Record implements Host.
func (l *termLoop) Record() Event {
	if ev := l.waited; ev != nil {
		l.waited = nil
		return ev
	}
	select {
	case ev := <-l.tail:
		return ev
	case ev := <-l.scan:
		return ev
	default:
		return nil
	}
}

// Offer implements Host.
func (l *termLoop) Offer(ctx context.Context, ev Event) error {
	select {
	case l.scan <- ev:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Missing implements Host.
func (l *termLoop) Missing(n int64) {
	select {
	case l.missing <- n:
	default: // full: a term reports only once
	}
}

// setState sets the state of the shard for Status and the metrics.
func (s *shardState) setState(v int32) {
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

// failed counts and logs the failure of a store call that will be retried. A nil err ends a
// series of failures.
func (s *shardState) failed(call string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		s.m.storeErrs.WithLabelValues(call).Inc()
	}
	s.logChange(call, err)
}

// callLog logs failing store calls, one line for each series of equal failures.
type callLog struct {
	log zerolog.Logger

	mu   sync.Mutex
	last map[string]string // last error code by call, empty for success
}

func newCallLog(log zerolog.Logger) callLog { return callLog{log: log, last: map[string]string{}} }

// logChange logs the result of a call if it differs from the previous result.
func (c *callLog) logChange(call string, err error) {
	text := ""
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return
		}
		// Compare codes: texts name the record, so each would be a change.
		if text = string(schemas.CodeOf(err)); text == "" {
			text = err.Error()
		}
	}
	c.mu.Lock()
	changed := c.last[call] != text
	c.last[call] = text
	c.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		c.log.Warn().Str("call", call).Err(err).Msg("store call fails; retrying")
	default:
		c.log.Info().Str("call", call).Msg("store call succeeds again")
	}
}
