package router

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// A cancel takes a fast path if the store still has the record that this process has created, or
// if many cancels are under way. It needs no goroutine per cancel. In the first case it writes at
// once, on the caller's goroutine. In the second it reads the record by a direct get, and the
// replica that answers may be behind. The compare-and-set of the cancel refuses a stale revision.
// Any other answer (no such timer, already fired, already cancelled) is not trusted: the cancel
// then takes the slow path, Operations.Cancel, which reads from the shard's leader.
//
//	           created here
//	request ──────────────────────┐
//	   │                          ▼
//	   └────▶ reading ─▶ queue ─▶ writing ─▶ queue ─▶ answered
//	             │         │                   │
//	             └─────────┴──── slow path ◀───┘
const (
	// fastCancelsFrom is the number of operations under way from which the fast path
	// reads by direct get. The server answers direct gets in the loop that takes this node's messages,
	// so they must be so frequent that the records read are in memory.
	fastCancelsFrom = 4
	// cancelWorkers is the number of goroutines that decode, write and answer.
	cancelWorkers = 2
	// peekTimeout bounds the read of the fast path.
	peekTimeout = 500 * time.Millisecond
)

// Stages of a fast cancel. The goroutine that moves a cancel to the next stage takes its next
// step.
const (
	stageReading int32 = iota
	stageWorking
	stageEnded // answered, or on the slow path
)

// fastCancel is a cancel on the fast path. It keeps its permit until it leaves the path.
type fastCancel struct {
	s       *Service
	ref     schemas.TimerRef
	id      schemas.TimerID
	by      schemas.Caller
	done    func(*store.Timer, error)
	started time.Time
	timer   *time.Timer
	stage   atomic.Int32

	cached  bool // t is from the store's cache
	peek    store.Peek
	before  *schemas.Schedule // of the record that was read; nil for a one-shot timer
	t       store.Timer
	written bool
	err     error // of the write
}

// Cancel cancels a timer that is pending, or queued for a retry. Cancelling a cancelled
// timer is no error. from is the verified part of the caller, q.By the caller's own claim.
// Errors: those of Get, already_fired, already_done.
func (s *Service) Cancel(ctx context.Context, q schemas.CancelRequest, from schemas.Caller) (store.Timer, error) {
	type answer struct {
		t   *store.Timer
		err error
	}
	done := make(chan answer, 1)
	s.CancelAsync(q, from, func(t *store.Timer, err error) { done <- answer{t, err} })
	select {
	case a := <-done:
		if a.err != nil {
			return store.Timer{}, a.err
		}
		return *a.t, nil
	case <-ctx.Done():
		return store.Timer{}, schemas.Errorf(schemas.CodeUnavailable, "the timer may have been cancelled: %w", context.Cause(ctx))
	}
}

// CancelAsync is Cancel without a waiting goroutine. done is called once, from any
// goroutine, within OperationTimeout; it must not block. CancelAsync blocks only for a
// place in the store's window.
func (s *Service) CancelAsync(q schemas.CancelRequest, from schemas.Caller, done func(*store.Timer, error)) {
	by, err := claimed(from, q.By)
	if err != nil {
		done(nil, err)
		return
	}
	id, err := q.Resolve(s.scope.Tenant)
	if err != nil {
		done(nil, err)
		return
	}
	if err := s.admit(s.quick); err != nil {
		done(nil, err)
		return
	}
	c := &fastCancel{s: s, ref: q.TimerRef, id: id, by: by, done: done, started: time.Now()}
	_, run := q.Run()
	if run { // it may have no record; see atRef
		c.slowPath()
		return
	}
	if c.t, c.cached = s.o.Store.Cached(id); c.cached {
		c.stage.Store(stageWorking)
		c.timer = time.AfterFunc(OperationTimeout, c.late)
		c.advance()
		return
	}
	if s.quick.used() < fastCancelsFrom {
		c.slowPath()
		return
	}
	c.timer = time.AfterFunc(peekTimeout, c.late)
	s.o.Store.PeekAsync(id, func(p store.Peek) {
		if c.peek = p; c.move(stageReading, stageWorking) {
			s.cancels <- c // has room for all that have a permit
		}
	})
}

func (c *fastCancel) move(from, to int32) bool { return c.stage.CompareAndSwap(from, to) }

// slowPath cancels on a goroutine of its own, in the rest of the time.
func (c *fastCancel) slowPath() {
	go func() {
		defer c.s.leave(c.s.quick)
		t, err := bounded(context.Background(), c.s, c.started.Add(OperationTimeout), func(ctx context.Context) (store.Timer, error) {
			return atRef(ctx, &c.s.ops, c.ref, func(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
				return c.s.ops.Cancel(ctx, id, c.by)
			})
		})
		if err != nil {
			c.done(nil, err)
			return
		}
		c.done(&t, nil)
	}()
}

// late runs when the read has taken peekTimeout, and when the operation's time is up.
func (c *fastCancel) late() {
	left := OperationTimeout - time.Since(c.started)
	switch {
	case c.move(stageReading, stageEnded):
		c.slowPath()
	case left > 0 && c.stage.Load() == stageWorking:
		time.AfterFunc(left, c.late)
	case c.move(stageWorking, stageEnded):
		c.done(nil, errSlow)
	}
}

// cancelLoop takes the next steps of fast cancels. A cancel that waits for the store is not
// in the queue.
func (s *Service) cancelLoop() {
	for c := range s.cancels {
		c.advance()
	}
}

// advance takes the next step of a cancel, and its last one if that was the answer.
func (c *fastCancel) advance() {
	s := c.s
	t, err := contain(s, c.step)
	if err == nil && t == nil {
		return // being written
	}
	c.timer.Stop()
	switch {
	case !c.move(stageWorking, stageEnded):
		s.leave(s.quick)
	case errors.Is(err, errSlowPath):
		c.slowPath()
	default:
		if err != nil {
			t = nil
		}
		c.done(t, err)
		s.leave(s.quick)
	}
}

// errSlowPath sends a cancel to the slow path.
var errSlowPath = errors.New("the cancel needs the slow path")

// step takes the next step of a cancel: it writes, or returns the answer. A write that is stored after the caller
// got errSlow counts as a change, too.
func (c *fastCancel) step() (*store.Timer, error) {
	switch {
	case c.written:
		if errors.Is(c.err, store.ErrRevision) {
			return nil, errSlowPath
		}
		if c.err == nil {
			c.s.changed(c.before, &c.t)
		}
		return &c.t, c.err
	case c.stage.Load() == stageEnded:
		return nil, errSlow // the caller has that answer already
	}
	if !c.cached {
		var err error
		if c.t, err = c.peek.Timer(); err != nil {
			return nil, errSlowPath
		}
	}
	c.before = c.t.Record.Schedule
	w, ok := c.s.ops.CancelStale(&c.t, c.by)
	if !ok {
		return nil, errSlowPath
	}
	c.s.o.Store.UpdateAsync(w, func(res store.Result) {
		c.t.Rev, c.err, c.written = res.Rev, res.Err, true
		c.s.cancels <- c
	})
	return nil, nil
}
