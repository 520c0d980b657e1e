package natsapi

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// Pauses before an add that was delayed is delivered again: the first, and the bound up to
// which it doubles.
const (
	retryPause = 100 * time.Millisecond
	retryMax   = 2 * time.Second
)

// workingInterval is the interval of InProgress for a group. It must stay well below
// RouterAckWait.
const workingInterval = store.RouterAckWait / 2

// adder is the part of router.Service that stores adds.
type adder interface {
	AddAll(ctx context.Context, adds []*router.Add)
}

// intake passes the adds of TIMERS_ADD to a service.
type intake struct {
	service adder
	inbox   *store.Inbox
	// read ends reading; pass ends passing adds to a busy service.
	read, pass       context.Context
	endRead, endPass context.CancelFunc
	reader           sync.WaitGroup
	groups           sync.WaitGroup
	// seen is the last sequence that was delivered, and busy the number of groups under way.
	seen atomic.Uint64
	busy atomic.Int64
}

func newIntake(s adder) *intake {
	in := &intake{service: s}
	in.pass, in.endPass = context.WithCancel(context.Background())
	in.read, in.endRead = context.WithCancel(in.pass)
	return in
}

func (in *intake) start(inbox *store.Inbox) {
	in.inbox = inbox
	in.reader.Go(func() { inbox.Read(in.read, router.MaxBatch, in.handle) })
}

// stop ends reading and waits until all adds are settled, or ctx ends. Adds that are
// settled later are acknowledged one by one.
func (in *intake) stop(ctx context.Context) error {
	in.endRead()
	defer context.AfterFunc(ctx, in.endPass)()
	in.reader.Wait()
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		in.groups.Wait()
	}()
	select {
	case <-settled:
	case <-ctx.Done():
	}
	in.inbox.Close()
	in.endPass()
	return nil
}

// handle passes one group to the service. It blocks while the service is busy.
func (in *intake) handle(msgs []*store.Add) {
	g := newGroup(in, msgs)
	adds := make([]*router.Add, len(msgs))
	for i := range g.adds {
		adds[i] = &g.adds[i].Add
	}
	in.service.AddAll(in.pass, adds)
}

// group is a group of adds under way. Until all are settled it sends InProgress to the server, so
// that a slow store does not cause redeliveries.
type group struct {
	in    *intake
	adds  []delivery
	open  atomic.Int64 // adds not settled
	mu    sync.Mutex
	timer *time.Timer
}

// delivery is one add of a group.
type delivery struct {
	router.Add
	g    *group
	msg  *store.Add
	done atomic.Bool
}

func newGroup(in *intake, msgs []*store.Add) *group {
	g := &group{in: in, adds: make([]delivery, len(msgs))}
	g.open.Store(int64(len(msgs)))
	for i, m := range msgs {
		d := &g.adds[i]
		d.g, d.msg = g, m
		d.Header, d.Data, d.Seq, d.Account, d.Receiver = m.Header, m.Data, m.Seq, m.Account, d
		d.Returned, d.Old = m.Deliveries > 1, m.Old
		// Rounded up: a timer counted from the add is never early.
		d.AddedMs = m.Stored.Add(time.Millisecond - 1).UnixMilli()
	}
	in.groups.Add(1)
	in.busy.Add(1)
	in.saw(msgs[len(msgs)-1].Seq)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(workingInterval, g.working)
	return g
}

// saw raises seen. The inbox may pass two groups at the same time.
func (in *intake) saw(seq uint64) {
	for seen := in.seen.Load(); seq > seen && !in.seen.CompareAndSwap(seen, seq); {
		seen = in.seen.Load()
	}
}

func (g *group) working() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open.Load() == 0 {
		return
	}
	for i := range g.adds {
		if d := &g.adds[i]; !d.done.Load() {
			d.msg.Working()
		}
	}
	g.timer.Reset(workingInterval)
}

// Settle implements router.Receiver.
func (d *delivery) Settle(o router.Outcome) {
	d.done.Store(true)
	if o.Result == router.Delayed {
		wait := schemas.RetryAfterOf(o.Err) // of an add that has reserved its time
		if wait <= 0 {
			wait = min(retryPause<<min(max(d.msg.Deliveries, 1)-1, 10), retryMax)
		}
		d.msg.Retry(wait)
	} else {
		d.msg.Done()
	}
	if d.g.open.Add(-1) == 0 {
		d.g.end()
	}
}

func (g *group) end() {
	g.mu.Lock()
	g.timer.Stop()
	g.mu.Unlock()
	g.in.busy.Add(-1)
	g.in.groups.Done()
}
