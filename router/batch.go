package router

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

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
	msg             *store.Add
	reply           func(schemas.AddReply, error)
	// settled is set by whoever answers or acknowledges it, first.
	settled atomic.Bool

	spec schemas.Spec
	rec  schemas.Record
}

// settle reports whether the caller is the one to answer.
func (a *add) settle() bool { return a.settled.CompareAndSwap(false, true) }

// batcher has adds processed in groups, at most maxParallel of them at a time:
// those of the stream as they are read, and of the API's whatever waits meanwhile.
type batcher struct {
	in      chan *add
	slots   chan struct{}
	groups  sync.WaitGroup
	process func([]*add)
}

func newBatcher(process func([]*add)) *batcher {
	return &batcher{in: make(chan *add, maxBatch), slots: make(chan struct{}, maxParallel), process: process}
}

// put blocks while the batcher is full: the back-pressure of the way in.
func (b *batcher) put(a *add) { b.in <- a }

// run has a group processed; it blocks while enough of them are.
func (b *batcher) run(group []*add) {
	b.slots <- struct{}{}
	b.start(group)
}

// start is for who has taken a slot.
func (b *batcher) start(group []*add) {
	b.groups.Go(func() {
		defer func() { <-b.slots }()
		b.process(group)
	})
}

// close ends loop; nobody may put or run any more.
func (b *batcher) close() { close(b.in) }

// loop runs what is put in, until close, and until all groups are processed.
func (b *batcher) loop() {
	defer b.groups.Wait()
	for a := range b.in {
		b.slots <- struct{}{} // and while it waits for one, others come
		b.start(b.gather(a))
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
					a.msg.Working()
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
