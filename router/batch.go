package router

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// add is one add under way: from the stream (msg set) or from the API (reply set).
type add struct {
	hdr     nats.Header
	data    []byte
	addedMs int64
	// seq and deliveries are the stream's.
	seq, deliveries uint64
	msg             jetstream.Msg
	reply           func(schemas.AddReply, error)
	// settled is set by whoever answers or acknowledges it, first.
	settled atomic.Bool

	spec schemas.Spec
	rec  schemas.Record
}

// settle reports whether the caller is the one to answer.
func (a *add) settle() bool { return a.settled.CompareAndSwap(false, true) }

// linger is how long after a group the next one begins, if all that waits came by
// the stream: nobody waits for those, and in groups of two or three each add costs
// half as much again. It is what a timer that is due at once may be late by, and
// that only while adds come faster than this.
const linger = 2 * time.Millisecond

// batcher groups adds: whatever waits while others are being written, and what the
// stream brings within linger.
type batcher struct {
	in      chan *add
	hurry   chan struct{} // somebody waits, or too many do
	slots   chan struct{}
	process func([]*add)
}

func newBatcher(process func([]*add)) *batcher {
	return &batcher{in: make(chan *add, maxBatch), hurry: make(chan struct{}, 1), slots: make(chan struct{}, maxParallel), process: process}
}

// put blocks while the batcher is full: the back-pressure of the way in.
func (b *batcher) put(a *add) {
	b.in <- a
	if a.msg == nil || len(b.in) > maxBatch/2 {
		select {
		case b.hurry <- struct{}{}:
		default:
		}
	}
}

func (b *batcher) close() { close(b.in) }

func (b *batcher) loop() {
	var wg sync.WaitGroup
	defer wg.Wait()
	var last time.Time
	for a := range b.in {
		b.slots <- struct{}{}
		if rest := linger - time.Since(last); rest > 0 && a.msg != nil {
			b.wait(rest)
		}
		last = time.Now()
		select {
		case <-b.hurry: // of one that is gathered now
		default:
		}
		batch := b.gather(a)
		wg.Go(func() {
			defer func() { <-b.slots }()
			b.process(batch)
		})
	}
}

// wait waits for d, or for somebody in a hurry.
func (b *batcher) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.hurry:
	}
}

// gather takes what waits, without waiting for more.
func (b *batcher) gather(first *add) []*add {
	batch := append(make([]*add, 0, 16), first)
	for len(batch) < maxBatch {
		select {
		case a, ok := <-b.in:
			if !ok {
				return batch
			}
			batch = append(batch, a)
		default:
			return batch
		}
	}
	return batch
}

// process validates and writes a batch. Every add of it is settled when it
// returns: stored, refused, or left to its stream to be delivered again.
func (r *Router) process(batch []*add) {
	r.m.batch.Observe(float64(len(batch)))
	defer r.keep(batch)()
	good := make([]*add, 0, len(batch))
	var bad []refusal
	for _, a := range batch {
		if a.settled.Load() {
			continue // its caller has given up
		}
		if err := r.validate(a); err != nil {
			bad = append(bad, refusal{a, err})
			continue
		}
		good = append(good, a)
	}
	r.write(good)
	// After the good ones: these may wait for timers.rejected.
	r.reject(bad)
}

// keep tells the stream, as long as the batch is under way, that it is: a slow
// store is no reason to deliver the same adds again.
func (r *Router) keep(batch []*add) (stop func()) {
	done := make(chan struct{})
	t := time.AfterFunc(store.RouterAckWait/2, func() {
		tick := time.NewTicker(store.RouterAckWait / 2)
		defer tick.Stop()
		for {
			for _, a := range batch {
				if a.msg != nil && !a.settled.Load() {
					// A failure only means a redelivery, which is a duplicate.
					_ = a.msg.InProgress()
				}
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		t.Stop()
		close(done)
	}
}
