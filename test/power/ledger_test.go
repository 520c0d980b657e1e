package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

const (
	source  = "/power"
	service = "power"
)

// answer is what a client knows about the effect of a call.
type answer int

const (
	none    answer = iota // not made, or refused: no effect
	unknown               // made but not answered: it may have had an effect
	yes                   // acknowledged
)

// timer is a timer with the calls that were made for it.
type timer struct {
	id    string
	key   belfry.TimerID
	dueMs int64 // in the last acknowledged call
	moves []int64

	added, cancelled answer
	busy             bool // a call for it is in progress
}

// ledger has all timers of a round, over its power losses.
type ledger struct {
	mu     sync.Mutex
	rng    *rand.Rand
	timers []*timer
	far    bool // no timer becomes due in this round
	pad    int  // the largest number of data bytes
	acked  int  // acknowledged calls
	// schedules and the history of the calls for them; see schedules_test.go.
	schedules []*schedule
	history   *check.Recorder
	calendar  calendar
}

const (
	soonest, latest = 200 * time.Millisecond, 2500 * time.Millisecond
	away            = time.Hour
)

// due draws a due time: soon, or after the round.
func (l *ledger) due() int64 {
	d := away + time.Duration(l.rng.Int64N(int64(away)))
	if !l.far && l.rng.IntN(2) == 0 {
		d = soonest + time.Duration(l.rng.Int64N(int64(latest-soonest)))
	}
	return time.Now().Add(d).UnixMilli()
}

// next draws a new timer and its data.
func (l *ledger) next() (*timer, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &timer{id: fmt.Sprintf("t%d", len(l.timers)), dueMs: l.due(), added: unknown, busy: true}
	m.key = belfry.NewTimerID(source, m.id)
	l.timers = append(l.timers, m)
	return m, fmt.Sprintf("%q", strings.Repeat("x", l.rng.IntN(l.pad)))
}

// pick draws a timer to cancel or reschedule, or returns nil.
func (l *ledger) pick() *timer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.timers) == 0 {
		return nil
	}
	m := l.timers[l.rng.IntN(len(l.timers))]
	if m.busy || m.added != yes || m.cancelled != none || len(m.moves) > 0 {
		return nil
	}
	m.busy = true
	return m
}

func (l *ledger) chance(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.IntN(n)
}

// settle records the result of a call.
func (l *ledger) settle(m *timer, err error, ok, maybe func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.busy = false
	switch {
	case err == nil:
		l.acked++
		ok()
	case errors.Is(err, belfry.ErrUnavailable) || errors.Is(err, context.Canceled):
		maybe()
	}
}

func (l *ledger) made(m *timer, data string) event.Event {
	e := event.New()
	e.SetID(m.id)
	e.SetSource(source)
	e.SetType("power.timer")
	if err := e.SetData("application/json", []byte(data)); err != nil {
		panic(err) // these bytes are always valid
	}
	return e
}

// step makes one random call and waits for its answer. A refused call is not an error.
func (l *ledger) step(ctx context.Context, c *belfry.Client) {
	if !l.far && l.chance(6) == 0 {
		l.schedule(ctx, c)
		return
	}
	switch n := l.chance(10); {
	case n < 4:
		m, data := l.next()
		_, err := c.Add(ctx, l.made(m, data), belfry.At(time.UnixMilli(m.dueMs)), belfry.WithService(service))
		l.settle(m, err, func() { m.added = yes }, func() {})
	case n < 6:
		l.publish(ctx, c)()
	case n < 8:
		if m := l.pick(); m != nil {
			_, err := c.Cancel(ctx, m.key)
			l.settle(m, err, func() { m.cancelled = yes }, func() { m.cancelled = unknown })
		}
	default:
		if m := l.pick(); m != nil {
			l.mu.Lock()
			due := l.due()
			l.mu.Unlock()
			_, err := c.Reschedule(ctx, m.key, belfry.At(time.UnixMilli(due)))
			l.settle(m, err, func() { m.dueMs = due }, func() { m.moves = append(m.moves, due) })
		}
	}
}

// publish adds with timers.add, and returns a function that waits for the
// acknowledgement.
func (l *ledger) publish(ctx context.Context, c *belfry.Client) (wait func()) {
	m, data := l.next()
	p, err := c.AddAsync(l.made(m, data), belfry.At(time.UnixMilli(m.dueMs)), belfry.WithService(service))
	if err != nil {
		l.settle(m, err, func() {}, func() {})
		return func() {}
	}
	return func() { l.settle(m, p.Wait(ctx), func() { m.added = yes }, func() {}) }
}

// work makes calls until ctx ends, or the connection has broken: one after another, or many at once, so that the node
// commits them in groups.
func (l *ledger) work(ctx context.Context, c *belfry.Client, workers, burst int) {
	going := func() bool { return ctx.Err() == nil && c.Conn().IsConnected() }
	var all sync.WaitGroup
	defer all.Wait()
	for range workers {
		all.Go(func() {
			for going() {
				l.step(ctx, c)
			}
		})
	}
	if !l.far {
		all.Go(func() { l.changeCalendar(ctx, c) })
	}
	if burst == 0 {
		return
	}
	all.Go(func() {
		for going() {
			waits := make([]func(), burst)
			for i := range waits {
				waits[i] = l.publish(ctx, c)
			}
			for _, w := range waits {
				w()
			}
		}
	})
}

// fired is an event in TIMERS_FIRED.
type fired struct {
	id    string
	count int
	atMs  int64
}

// soon reports whether all possible due times of a timer are in this round.
func (l *ledger) soon(m *timer) bool {
	limit := time.Now().Add(away / 2).UnixMilli()
	for _, ms := range m.moves {
		if ms > limit {
			return false
		}
	}
	return m.dueMs <= limit
}

// check compares a timer's record and events with what was acknowledged. found is false
// if there is no record.
func (l *ledger) check(m *timer, got belfry.Timer, found bool, f fired) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s (%+v): ", m.id, *m)+fmt.Sprintf(format, args...))
	}
	if f.count > 1 {
		fault("in timers.fired %d times", f.count)
	}
	earliest := m.dueMs
	for _, ms := range m.moves {
		earliest = min(earliest, ms)
	}
	if f.count > 0 && f.atMs < earliest {
		fault("fired %d ms early", earliest-f.atMs)
	}
	if m.cancelled == yes && f.count > 0 {
		fault("fired, though its cancel was acknowledged")
	}
	if m.added != yes {
		return faults
	}
	if !found {
		fault("lost: its add was acknowledged, and it is not known")
		return faults
	}
	due := got.Due.UnixMilli()
	switch {
	case m.cancelled == yes && got.State != schemas.StateCancelled:
		fault("lost: its cancel was acknowledged, and it is %s", got.State)
	case m.cancelled != none:
	case got.State == schemas.StateCancelled:
		fault("cancelled, which nobody asked for")
	case due != m.dueMs && !contains(m.moves, due):
		fault("lost: due at %d", due)
	case l.soon(m) && (got.State != schemas.StateSuccess && got.State != schemas.StateDelivered || f.count != 1):
		// The record says delivered if the node died before its final state was synced,
		// which nobody had acknowledged. The sweeper repairs that.
		fault("lost: it was due, and is %s, with %d events", got.State, f.count)
	case !l.soon(m) && len(m.moves) == 0 && (got.State != schemas.StatePending || f.count != 0):
		fault("not due yet, and is %s, with %d events", got.State, f.count)
	}
	return faults
}

func contains(list []int64, v int64) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}
