package devclock

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const (
	// requestBound bounds one request that moves the clock. It must stay below the time-out of
	// clients; see schemas.ClockReply.More.
	requestBound = 3 * time.Second
	// recheck is the interval at which a move checks again whether the node has settled, if no
	// change wakes it.
	recheck = 10 * time.Millisecond
	// stalled is the time without a change after which a frozen clock advances in steps of creep.
	// A callback may wait for its slot under a flow limit, which follows the clock.
	stalled = time.Second
	creep   = 100 * time.Millisecond
	// passedTarget is the maximum time by which the target of clock.to may be in the past of a
	// running clock.
	passedTarget = time.Minute
	// maxMs is the last time to which a clock moves, at the end of the year 2200: JetStream and
	// Go's nanoseconds end in 2262.
	maxMs   = 7_289_654_399_000
	maxDays = 10_000
)

// Store is the part of a store that a Mover needs; *store.Store implements it.
type Store interface {
	Geometry() schemas.Geometry
	Tail(ctx context.Context, shard int, after uint64, fn func(store.Timer)) (*store.Tail, error)
	HasNext(ctx context.Context, shard int, after uint64) (bool, error)
	End(ctx context.Context, stream string) (last, messages uint64, err error)
	Forget(ctx context.Context, id schemas.TimerID, rev uint64) error
	ReadMovedClock(ctx context.Context) (store.MovedClock, uint64, error)
	WriteMovedClock(ctx context.Context, c store.MovedClock, rev uint64) (uint64, error)
	Retention() time.Duration
}

// Node is the part of a node that a move waits for.
type Node interface {
	// Wake makes the scheduler read the clock at once. Quiet reports whether the scheduler has had a
	// turn at a time, in Unix milliseconds, or later, after which nothing was in flight, and which knew the
	// records of each shard up to a revision.
	Wake()
	Quiet(atMs int64, seen []uint64) bool
	// Routed returns the last sequence of TIMERS_ADD that the router has taken, and whether all taken
	// adds are settled.
	Routed() (through uint64, settled bool)
}

// Mover moves a Clock. It serves one request at a time; others wait.
type Mover struct {
	clock  *Clock
	store  Store
	node   Node
	log    zerolog.Logger
	timers *timers
	tails  []*store.Tail
	// permit has an entry while a request moves the clock.
	permit chan struct{}

	// counted is the last sequence of TIMERS_FIRED at the end of the last request, and more is true if
	// that request has not reached its target: the next one then counts what fired in between. The
	// holder of permit uses both.
	counted uint64
	more    bool
}

// Open makes the Mover of a node and continues the stored clock. A new clock shows the time of
// its source, and is frozen if frozen is true. The source must be ready. Errors:
// schemas.ErrUnavailable, schemas.ErrDamaged.
func Open(ctx context.Context, c *Clock, s Store, frozen bool, log zerolog.Logger) (*Mover, error) {
	m := &Mover{clock: c, store: s, log: log, timers: newTimers(s.Geometry().Shards), permit: make(chan struct{}, 1)}
	was, rev, err := s.ReadMovedClock(ctx)
	if err != nil {
		return nil, err
	}
	if rev != 0 {
		c.Restore(was)
	}
	if rev == 0 || was.Frozen != frozen {
		if err := m.set(ctx, c.Now(), frozen); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Start begins to follow the records of all timers. The caller must call Stop.
func (m *Mover) Start(n Node) error {
	m.node = n
	for shard := range m.store.Geometry().Shards {
		tail, err := m.store.Tail(context.Background(), shard, 0, func(t store.Timer) { m.timers.note(shard, &t) })
		if err != nil {
			m.Stop()
			return err
		}
		m.tails = append(m.tails, tail)
	}
	return nil
}

// Stop ends following. No request may be under way.
func (m *Mover) Stop() {
	for _, t := range m.tails {
		t.Stop()
	}
	m.tails = nil
}

// ClockGet describes the clock.
func (m *Mover) ClockGet(context.Context, struct{}) (schemas.ClockReply, error) {
	return m.describe(schemas.ClockReply{}), nil
}

// ClockAdvance moves the clock by a duration. Errors: schemas.ErrBadRequest,
// schemas.ErrUnavailable.
func (m *Mover) ClockAdvance(ctx context.Context, q schemas.ClockAdvanceRequest) (schemas.ClockReply, error) {
	d, err := durationOf(q.By)
	if err != nil {
		return schemas.ClockReply{}, err
	}
	return m.exclusive(ctx, func(ctx context.Context) (schemas.ClockReply, error) {
		return m.to(ctx, m.clock.Now()+d.Milliseconds())
	})
}

// ClockTo moves the clock to a time. Errors: schemas.ErrBadRequest for a time that has passed,
// schemas.ErrUnavailable.
func (m *Mover) ClockTo(ctx context.Context, q schemas.ClockToRequest) (schemas.ClockReply, error) {
	at, err := timeOf("at", q.At)
	if err != nil {
		return schemas.ClockReply{}, err
	}
	return m.exclusive(ctx, func(ctx context.Context) (schemas.ClockReply, error) {
		// A running clock may have passed the target of a move that takes several requests.
		if now := m.clock.Now(); at < now && (m.clock.Frozen() || now-at > passedTarget.Milliseconds()) {
			return schemas.ClockReply{}, schemas.Errorf(schemas.CodeBadRequest, "at: the clock shows %s, and moves only forward", schemas.FormatTime(now))
		}
		return m.to(ctx, at)
	})
}

// ClockRunUntilIdle moves the clock from one due time to the next, until none is left. Errors:
// schemas.ErrBadRequest, schemas.ErrUnavailable.
func (m *Mover) ClockRunUntilIdle(ctx context.Context, q schemas.ClockIdleRequest) (schemas.ClockReply, error) {
	until := int64(math.MaxInt64)
	if q.Until != "" {
		var err error
		if until, err = timeOf("until", q.Until); err != nil {
			return schemas.ClockReply{}, err
		}
	}
	steps := q.Max
	if steps == 0 {
		steps = schemas.DefaultClockSteps
	}
	if steps < 1 || steps > schemas.MaxClockSteps {
		return schemas.ClockReply{}, schemas.Errorf(schemas.CodeBadRequest, "max is %d; it must be 1 to %d", q.Max, schemas.MaxClockSteps)
	}
	return m.exclusive(ctx, func(ctx context.Context) (schemas.ClockReply, error) { return m.run(ctx, until, steps) })
}

// durationOf parses a duration, also in days and weeks.
func durationOf(text string) (time.Duration, error) {
	d, err := schemas.ParseDuration(text)
	if err != nil && len(text) > 1 {
		unit := map[byte]time.Duration{'d': 24 * time.Hour, 'w': 7 * 24 * time.Hour}[text[len(text)-1]]
		if n, bad := strconv.Atoi(text[:len(text)-1]); bad == nil && unit > 0 && n >= 0 && n <= maxDays {
			d, err = time.Duration(n)*unit, nil
		}
	}
	switch {
	case err != nil:
		return 0, schemas.Errorf(schemas.CodeBadRequest, "by: %w (or days and weeks, such as 30d and 2w)", err)
	case d < 0:
		return 0, schemas.Errorf(schemas.CodeBadRequest, "by is %s: the clock moves only forward", text)
	}
	return d, nil
}

func timeOf(name, text string) (int64, error) {
	ms, err := schemas.ParseTime(text)
	switch {
	case err != nil:
		return 0, schemas.Errorf(schemas.CodeBadRequest, "%s: %w", name, err)
	case ms > maxMs:
		return 0, schemas.Errorf(schemas.CodeBadRequest, "%s is after the year 2200", name)
	}
	return ms, nil
}

// exclusive runs f while no other request moves the clock, and counts the events that fire.
func (m *Mover) exclusive(ctx context.Context, f func(context.Context) (schemas.ClockReply, error)) (schemas.ClockReply, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	select {
	case m.permit <- struct{}{}:
		defer func() { <-m.permit }()
	case <-ctx.Done():
		return schemas.ClockReply{}, schemas.Errorf(schemas.CodeUnavailable, "another request is moving the clock; nothing was done: try again")
	}
	if !m.more {
		var err error
		if m.counted, _, err = m.store.End(ctx, schemas.StreamFired); err != nil {
			return schemas.ClockReply{}, err
		}
	}
	r, err := f(ctx)
	if err != nil && !errors.Is(err, schemas.ErrBadRequest) && ctx.Err() != nil {
		// requestBound ended during a request to the store. Moves that were written stay.
		r.More, err = true, nil
	}
	if err != nil {
		return schemas.ClockReply{}, err
	}
	after, _, err := m.store.End(context.WithoutCancel(ctx), schemas.StreamFired)
	if err != nil {
		return schemas.ClockReply{}, err
	}
	r.Fired = int(after - m.counted)
	m.counted, m.more = after, r.More
	return m.describe(r), nil
}

func (m *Mover) describe(r schemas.ClockReply) schemas.ClockReply {
	now := m.clock.Now()
	v := m.timers.at(now)
	r.Now, r.Frozen, r.Pending = schemas.TimeOf(now), m.clock.Frozen(), v.pending
	if v.next != 0 {
		r.Next = schemas.TimeOf(v.next)
	}
	r.Waiting = v.open[:min(len(v.open), schemas.MaxClockTimers)]
	return r
}

// to moves the clock to a time, and to each due time before it.
func (m *Mover) to(ctx context.Context, target int64) (schemas.ClockReply, error) {
	if target > maxMs {
		return schemas.ClockReply{}, schemas.Errorf(schemas.CodeBadRequest, "the clock would show a time after the year 2200")
	}
	r := schemas.ClockReply{Target: schemas.TimeOf(target)}
	for {
		v, ok, err := m.settle(ctx, target)
		if err != nil || !ok {
			r.More = err == nil
			return r, err
		}
		switch now := m.clock.Now(); {
		case v.next != 0 && v.next <= target:
			r.Steps++
			err = m.step(ctx, v.next)
		case now < target:
			err = m.step(ctx, target)
		default:
			return r, m.forget(ctx)
		}
		if err != nil {
			return r, err
		}
	}
}

// run moves the clock to each due time, at most steps, and not after until.
func (m *Mover) run(ctx context.Context, until int64, steps int) (schemas.ClockReply, error) {
	var r schemas.ClockReply
	for {
		v, ok, err := m.settle(ctx, until)
		switch {
		case err != nil || !ok:
			r.More = err == nil
			return r, err
		case v.next == 0:
			return r, m.forget(ctx)
		case v.next > until:
			if m.clock.Now() >= until {
				return r, m.forget(ctx)
			}
			err = m.step(ctx, until)
		case r.Steps == steps:
			r.Stopped, r.Endless = true, m.timers.endless(schemas.MaxClockTimers)
			return r, m.forget(ctx)
		default:
			r.Steps++
			err = m.step(ctx, v.next)
		}
		if err != nil {
			return r, err
		}
	}
}

// step moves the clock and wakes the scheduler.
func (m *Mover) step(ctx context.Context, atMs int64) error {
	if err := m.set(ctx, max(atMs, m.clock.Now()), m.clock.Frozen()); err != nil {
		return err
	}
	m.node.Wake()
	return nil
}

// set writes the clock and moves it.
func (m *Mover) set(ctx context.Context, atMs int64, frozen bool) error {
	ms := int64(time.Millisecond)
	c := store.MovedClock{AtMs: atMs, ServerMs: (m.clock.Source.LatestNs() + ms - 1) / ms, Frozen: frozen}
	// A write without an answer may be stored: the next write must find its revision.
	_, rev, err := m.store.ReadMovedClock(ctx)
	if err != nil {
		return err
	}
	if _, err = m.store.WriteMovedClock(ctx, c, rev); err != nil {
		return err
	}
	m.clock.moveTo(c)
	return nil
}

// settle waits until the node has settled; it returns false if ctx ends first. A frozen clock advances
// slowly to target while callbacks wait for a slot.
func (m *Mover) settle(ctx context.Context, target int64) (view, bool, error) {
	last, since := uint64(0), time.Now()
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	for {
		v, ok, err := m.settled(ctx)
		if err != nil || ok {
			return v, ok, err
		}
		if ctx.Err() != nil {
			return v, false, nil
		}
		if v.changes != last {
			last, since = v.changes, time.Now()
		}
		if m.clock.Frozen() && len(v.open) > 0 && time.Since(since) > stalled {
			since = since.Add(creep)
			if at := m.creepTo(v, target); at > m.clock.Now() {
				if err := m.step(ctx, at); err != nil {
					return v, false, err
				}
			}
		}
		timer.Reset(recheck)
		select {
		case <-m.timers.changed:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// creepTo returns the time of the next short step of a frozen clock, which passes no due time.
func (m *Mover) creepTo(v view, target int64) int64 {
	at := min(m.clock.Now()+creep.Milliseconds(), target)
	if v.next != 0 {
		at = min(at, v.next-1)
	}
	return at
}

// settled reports whether all adds are stored, everything due has fired, and every callback has
// a result. It looks at the timers before and after it asks the parts of the node: nothing may
// have changed in between.
func (m *Mover) settled(ctx context.Context) (view, bool, error) {
	now := m.clock.Now()
	v := m.timers.at(now)
	if len(v.open) > 0 || !m.node.Quiet(m.movedMs(), v.seen) {
		m.node.Wake()
		return v, false, nil
	}
	last, messages, err := m.store.End(ctx, schemas.StreamAdd)
	if err != nil {
		return v, false, err
	}
	if through, settled := m.node.Routed(); !settled || messages > 0 && through < last {
		return v, false, nil
	}
	for shard, seen := range v.seen {
		if more, err := m.store.HasNext(ctx, shard, seen); err != nil || more {
			return v, false, err
		}
	}
	after := m.timers.at(m.clock.Now())
	return after, after.changes == v.changes && len(after.open) == 0 && slices.Equal(after.seen, v.seen) && m.node.Quiet(m.movedMs(), v.seen), nil
}

// movedMs returns the time to which the clock was moved last, in Unix milliseconds.
func (m *Mover) movedMs() int64 { return m.clock.last().atNs / int64(time.Millisecond) }

// forget removes the records of the timers that ended longer than the retention ago.
func (m *Mover) forget(ctx context.Context) error {
	revs, learned := m.timers.expired(m.clock.Now() - m.store.Retention().Milliseconds())
	if len(revs) == 0 {
		return nil
	}
	// Another timer may be added with the same id. Its event must not count as a duplicate.
	ctx = context.WithoutCancel(ctx)
	if rest := 2*store.DevelopmentDedupWindow - time.Since(learned); rest > 0 {
		pause.For(ctx, rest)
	}
	for id, rev := range revs {
		if err := m.store.Forget(ctx, id, rev); err != nil {
			return err
		}
	}
	return nil
}
