package router

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Cancels that come many at a time take a shorter way than one by itself: none has
// a goroutine of its own, and the record is read by a direct get, which any replica
// may answer, and be behind. That is good enough to try the compare-and-set with,
// which refuses what is old. Whatever else it says (that there is no such timer, or
// that it has fired, or is cancelled) is not believed: the cancel then goes the way
// of one by itself, which asks the shard's leader.
//
//	request ─▶ reading ─▶ queue ─▶ writing ─▶ queue ─▶ answered
//	              │         │                   │
//	              └─────────┴── cancelTimer ◀───┘
const (
	// cancelsFrom is how many requests are under way when the short way begins. The
	// server reads for it inside the loop that takes this node's messages: it is for
	// when so much is read that what is read is in memory.
	cancelsFrom = 4
	// cancelWorkers decode, write and answer.
	cancelWorkers = 2
	// cancelPatience is how long a read may take before the leader is asked.
	cancelPatience = 500 * time.Millisecond
)

// Stages of a cancel on the short way. Whoever moves it to another sees to what
// comes then.
const (
	cancelReads int32 = iota
	cancelWorks
	cancelEnds // is answered, or another's to answer
)

// cancel is a cancel on the short way. It keeps its place until it has left that.
type cancel struct {
	r     *Router
	req   *nats.Msg
	ref   schemas.TimerRef
	by    schemas.Caller
	bad   error // the request is
	begun time.Time
	timer *time.Timer
	stage atomic.Int32

	peek    store.Peek
	t       store.Timer
	written bool
	err     error // of the write
}

// handleCancel takes a request. It blocks only for room in the store's window.
func (r *Router) handleCancel(req *nats.Msg) {
	if !r.enter("cancel", req, r.quick) {
		return
	}
	c := &cancel{r: r, req: req, begun: time.Now()}
	var id schemas.TimerID
	if id, c.bad = c.parse(); c.bad != nil || len(r.quick) < cancelsFrom {
		c.alone()
		return
	}
	c.timer = time.AfterFunc(cancelPatience, c.late)
	r.o.Store.PeekAsync(id, func(p store.Peek) {
		if c.peek = p; c.move(cancelReads, cancelWorks) {
			r.cancels <- c // has room for all that have a place
		}
	})
}

var (
	refBegin = []byte(`{"timer":"`)
	refBy    = []byte(`","by":"`)
	refEnd   = []byte(`"}`)
)

// parse reads what all clients here write without the JSON decoder.
func (c *cancel) parse() (schemas.TimerID, error) {
	from := callerOf(c.req)
	ref, by, ok := plainCancel(c.req.Data)
	if !ok {
		q, err := decode[schemas.CancelRequest](c.req)
		if err != nil {
			return schemas.TimerID{}, err
		}
		ref, by = q.TimerRef, q.By
	}
	var err error
	if c.by, err = claimed(from, by); err != nil {
		return schemas.TimerID{}, err
	}
	c.ref = ref
	return c.ref.Resolve()
}

// plainCancel reads a request of a timer id and a name without escapes.
func plainCancel(data []byte) (ref schemas.TimerRef, by string, ok bool) {
	text, ok := bytes.CutPrefix(data, refBegin)
	if text, ok2 := bytes.CutSuffix(text, refEnd); ok && ok2 && len(text) >= schemas.TimerIDLength {
		id, rest := text[:schemas.TimerIDLength], text[schemas.TimerIDLength:]
		name, named := bytes.CutPrefix(rest, refBy)
		if (named || len(rest) == 0) && !bytes.ContainsAny(name, `"\`) {
			return schemas.TimerRef{Timer: string(id)}, string(name), true
		}
	}
	return schemas.TimerRef{}, "", false
}

func (c *cancel) move(from, to int32) bool { return c.stage.CompareAndSwap(from, to) }

// alone goes the way of a cancel by itself, in what is left of its time.
func (c *cancel) alone() {
	go c.r.finish("cancel", c.req, c.r.quick, func() (any, error) {
		if c.bad != nil {
			return nil, c.bad
		}
		ctx, cancel := context.WithDeadlineCause(c.r.run, c.begun.Add(apiTimeout), errSlow)
		defer cancel()
		return c.r.cancelTimer(ctx, c.ref, c.by)
	})
}

// late is called when the read has taken long, and when all the time is up.
func (c *cancel) late() {
	left := apiTimeout - time.Since(c.begun)
	switch {
	case c.move(cancelReads, cancelEnds):
		c.alone()
	case left > 0 && c.stage.Load() == cancelWorks:
		time.AfterFunc(left, c.late)
	case c.move(cancelWorks, cancelEnds):
		c.r.respond("cancel", c.req, nil, errSlow)
	}
}

// cancelLoop takes cancels on. Those that wait for an answer of the store are not
// in its queue.
func (r *Router) cancelLoop() {
	for c := range r.cancels {
		v, err := r.contain(c.step)
		if err == nil && v == nil {
			continue // it is being written
		}
		c.timer.Stop()
		switch {
		case !c.move(cancelWorks, cancelEnds):
			r.leave(r.quick)
		case errors.Is(err, errAlone):
			c.alone()
		default:
			r.respond("cancel", c.req, v, err)
			r.leave(r.quick)
		}
	}
}

// errAlone sends a cancel the way of one by itself.
var errAlone = errors.New("it is not for the short way")

// step is what a cancel has to do next: write, or answer.
func (c *cancel) step() (any, error) {
	switch {
	case c.stage.Load() == cancelEnds:
		return nil, errSlow // and answered so
	case c.written:
		if errors.Is(c.err, store.ErrRevision) {
			return nil, errAlone
		}
		if c.err == nil {
			c.r.audit(c.t.ID, &c.t.Record)
		}
		return timerAnswer{&c.t}, c.err
	}
	var err error
	if c.t, err = c.peek.Timer(); err != nil {
		return nil, errAlone
	}
	rec := &c.t.Record
	if unchanged, err := rec.Cancel(c.r.nowMs(), c.by); err != nil || unchanged || !c.r.o.Store.AddForgotten(rec.AddedMs) {
		return nil, errAlone
	}
	c.r.o.Store.UpdateAsync(store.Write{ID: c.t.ID, Rev: c.t.Rev, Record: rec, TTL: c.r.o.Store.Retention()}, func(res store.Result) {
		c.t.Rev, c.err, c.written = res.Rev, res.Err, true
		c.r.cancels <- c
	})
	return nil, nil
}
