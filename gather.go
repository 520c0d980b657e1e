package belfry

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Where the server syncs every write, a publish by itself takes an fsync, and an
// atomic batch of any size takes two. So when AddAsync has many under way and each
// takes that long, the next ones gather while a batch is written and go as one
// themselves. Where single publishes are quick, batches would only cost more. Which
// it is nobody has to say: it is measured.
const (
	// gatherDepth is how many publishes have to be under way for what one takes to
	// be told from them.
	gatherDepth = 128
	// gatherFrom is what a publish takes, at least, for a batch to be tried.
	gatherFrom = 40 * time.Microsecond
	// gatherSingles go by themselves before others gather: few are quicker so.
	gatherSingles = 16
	// gatherRoom bounds what waits for a batch.
	gatherRoom = 3000
	// gatherTries is how many batches are held against it.
	gatherTries = 8
	// gatherAgain is after how long it is looked at anew which is quicker; after
	// a batch that was not, for twice as long each time, up to gatherRest.
	gatherAgain = 10 * time.Second
	gatherRest  = 5 * time.Minute
)

// gatherer is a client's AddAsync.
type gatherer struct {
	c     *Client
	from  time.Duration // gatherFrom, but for tests
	begun time.Time
	room  chan struct{}
	// next is when it is measured again, since begun.
	next atomic.Int64

	// on says that adds gather; running that a goroutine sends what has.
	on, measuring atomic.Bool

	mu      sync.Mutex
	queue   []gathered
	running bool
	single  time.Duration // what a publish took by itself
	batched time.Duration // what one of a batch takes, on the average of some
	batches int           // that batched is of
	rest    time.Duration
}

// gathered is an add that waits for others.
type gathered struct {
	msg   *nats.Msg
	state *pendingState
}

func newGatherer(c *Client) *gatherer {
	return &gatherer{c: c, from: gatherFrom, begun: time.Now(), room: make(chan struct{}, gatherRoom), rest: gatherAgain}
}

func (g *gatherer) now() time.Duration { return time.Since(g.begun) }

// add publishes m, or has it gather with others. Adds go out in the order in which
// they come.
func (g *gatherer) add(m *nats.Msg) (Pending, error) {
	g.mu.Lock()
	wait := g.running || g.on.Load()
	g.mu.Unlock()
	if !wait {
		p, err := g.c.publish(m)
		if err == nil {
			g.measure(p)
		}
		return p, err
	}
	if limit := int(g.c.nc.MaxPayload()); limit > 0 && len(m.Data) > limit {
		return Pending{}, g.c.tooLarge(len(m.Data), nats.ErrMaxPayload)
	}
	select {
	case g.room <- struct{}{}:
	default:
		t := time.NewTimer(asyncStall)
		defer t.Stop()
		select {
		case g.room <- struct{}{}:
		case <-t.C:
			return Pending{}, schemas.Errorf(schemas.CodeUnavailable, "add not published: %d wait, and none was taken for %s", gatherRoom, asyncStall)
		}
	}
	a := gathered{msg: m, state: &pendingState{done: make(chan struct{}), went: make(chan struct{})}}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, a)
	if !g.running {
		g.running = true
		go g.send()
	}
	return Pending{s: a.state}, nil
}

// measure finds out what a publish takes, from one that goes behind many.
func (g *gatherer) measure(p Pending) {
	begun := g.now()
	if begun < time.Duration(g.next.Load()) || g.c.noBatches.Load() {
		return
	}
	depth := g.c.js.PublishAsyncPending()
	if depth < gatherDepth || !g.measuring.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer g.measuring.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), asyncTimeout)
		defer cancel()
		if p.Wait(ctx) != nil {
			return // its caller is told
		}
		now := g.now()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.single = (now - begun) / time.Duration(depth)
		g.batched, g.batches = 0, 0
		g.on.Store(g.single >= g.from)
		g.next.Store(int64(now + g.rest))
	}()
}

// judge keeps to batches, or goes back to single publishes.
func (g *gatherer) judge(n int, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if n >= batchMessages/2 {
		g.batches++
		g.batched += (took/time.Duration(n) - g.batched) / time.Duration(min(g.batches, gatherTries))
	}
	switch {
	case g.from == 0: // a test
	case g.batches >= gatherTries && g.batched > g.single:
		g.on.Store(false)
		g.rest = min(2*g.rest, gatherRest)
		g.next.Store(int64(now + g.rest))
	case now > time.Duration(g.next.Load()):
		g.on.Store(false) // measure anew
		g.rest = gatherAgain
	}
}

// send sends what has gathered, until nothing is left.
func (g *gatherer) send() {
	var alone []Pending // single publishes that may be under way
	for {
		g.mu.Lock()
		n := len(g.queue)
		if n == 0 {
			g.running = false
			g.mu.Unlock()
			return
		}
		batches := g.on.Load() && !g.c.noBatches.Load()
		if batches && n < batchLeast && len(alone) >= gatherSingles {
			g.mu.Unlock()
			// The oldest: they are answered in order. Meanwhile others gather.
			_ = alone[0].Wait(context.Background()) // bounded by asyncTimeout; its caller is told
			alone = alone[1:]
			continue
		}
		if !batches || n < batchLeast {
			n = 1
		} else {
			n = gatheredLength(g.queue)
		}
		part := g.queue[:n:n]
		if g.queue = g.queue[n:]; len(g.queue) == 0 {
			g.queue = nil
		}
		g.mu.Unlock()
		for range part {
			<-g.room
		}
		if n == 1 {
			if p := g.publish(part[0]); batches {
				alone = append(alone, p)
			} else {
				g.measure(p)
			}
			continue
		}
		g.batch(part)
	}
}

// gatheredLength is how many adds make the next batch.
func gatheredLength(queue []gathered) int {
	bytes := 0
	for i, a := range queue {
		if bytes += len(a.msg.Data); i == batchMessages || i > 0 && bytes > batchBytes {
			return i
		}
	}
	return len(queue)
}

// publish sends one by itself.
func (g *gatherer) publish(a gathered) Pending {
	p, err := g.c.publish(a.msg)
	if err != nil {
		a.state.settle(err)
		return Pending{s: a.state}
	}
	a.state.ok, a.state.errs = p.s.ok, p.s.errs
	close(a.state.went)
	return Pending{s: a.state}
}

// batch sends many at once. One that is refused costs the others nothing: they
// go by themselves then.
func (g *gatherer) batch(part []gathered) {
	msgs := make([]*nats.Msg, len(part))
	for i, a := range part {
		if msgs[i] = a.msg; a.msg.Header == nil {
			a.msg.Header = nats.Header{}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), asyncTimeout)
	defer cancel()
	begun := time.Now()
	err := g.c.atomic(ctx, msgs)
	switch {
	case errors.Is(err, errRefused):
		for _, a := range part {
			g.publish(a)
		}
		return
	case err == nil:
		g.judge(len(part), time.Since(begun))
	default:
		err = addError(err)
	}
	for _, a := range part {
		a.state.settle(err)
	}
}
