package sim

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// This file simulates the NATS servers of a feed: the key, the stream and the consumer.

// put changes the key by compare-and-set.
func (w *feedWorld) put(rev uint64, st store.ServiceState) error {
	if w.key.Rev != rev {
		return store.ErrRevision
	}
	w.revs++
	st.Rev = w.revs
	w.key = st
	w.changes = append(w.changes, store.ServiceChange{Feed: w.feed, Awake: st.Awake, Rev: st.Rev, Floor: st.Floor, Since: time.Unix(0, int64(w.now))})
	return nil
}

// ServiceState reads the key. It and the following methods implement store.FeedKeys and
// functions.RestStore.
func (p *feedProc) ServiceState(ctx context.Context, _ store.Feed) (st store.ServiceState, err error) {
	err = p.call(ctx, func() error {
		st = p.w.key
		return nil
	})
	return st, err
}

// PutActive makes the feed awake.
func (p *feedProc) PutActive(ctx context.Context, _ store.Feed, floor, rev uint64) (next uint64, err error) {
	err = p.call(ctx, func() error {
		err := p.w.put(rev, store.ServiceState{Awake: true, Floor: floor})
		if err == nil {
			p.w.stats.Wakes++
		}
		next = p.w.key.Rev
		return err
	})
	return next, err
}

// RestService puts the feed to rest.
func (p *feedProc) RestService(ctx context.Context, _ store.Feed, rev, floor uint64) error {
	return p.call(ctx, func() error {
		err := p.w.put(rev, store.ServiceState{Floor: floor})
		if err == nil {
			p.w.stats.Rests++
			if p.w.mode == publisherFinds {
				p.mayDie(1)
			} else {
				p.mayDie(4)
			}
		}
		return err
	})
}

// WakeService wakes the feed.
func (p *feedProc) WakeService(ctx context.Context, f store.Feed) error {
	if p.waker.Awake(f) {
		return nil
	}
	return p.waker.WakeFor(ctx, f, 0)
}

// ServiceActivity looks at the consumer.
func (p *feedProc) ServiceActivity(ctx context.Context, _ store.Feed) (a store.ServiceActivity, err error) {
	err = p.call(ctx, func() error {
		c := p.w.cons
		if c == nil {
			a = store.ServiceActivity{Busy: true, Absent: true}
			return nil
		}
		a = store.ServiceActivity{Idle: p.w.now - c.last, Busy: len(c.pending) > 0, Floor: max(c.floor, c.acked)}
		return nil
	})
	return a, err
}

// ServiceBacklog reports whether there is an event after a floor.
func (p *feedProc) ServiceBacklog(ctx context.Context, f store.Feed, floor uint64) (left bool, err error) {
	err = p.call(ctx, func() error {
		left = false
		for _, e := range p.w.stream {
			left = left || !e.removed && (f.Kind == store.KindRetry || e.seq > floor)
		}
		if left {
			p.w.stats.Behind++
		}
		return nil
	})
	return left, err
}

// DropService removes the consumer.
func (p *feedProc) DropService(ctx context.Context, _ store.Feed) error {
	return p.call(ctx, func() error {
		if c := p.w.cons; c != nil {
			c.deleted = true
			p.w.cons = nil
		}
		return nil
	})
}

// consumer makes the consumer, or finds it.
func (p *feedProc) consumer(ctx context.Context, floor uint64) (c *feedConsumer, err error) {
	w := p.w
	err = p.call(ctx, func() error {
		if w.cons == nil {
			if w.feed.Kind == store.KindRetry || floor > uint64(len(w.stream)) {
				floor = 0
			}
			w.cons = &feedConsumer{floor: floor, last: w.now, pending: map[uint64]bool{}}
			for _, e := range w.stream {
				if e.seq > floor && !e.removed {
					w.offer(e)
				}
			}
		}
		c = w.cons
		return nil
	})
	return c, err
}

// offer hands an event to the consumer.
func (w *feedWorld) offer(e *feedEvent) {
	if c := w.cons; c != nil {
		c.pending[e.seq] = true
		w.deliver(c, e)
	}
}

// deliver hands an event to a process that serves, and repeats that until the event is
// acknowledged.
func (w *feedWorld) deliver(c *feedConsumer, e *feedEvent) {
	if c.deleted || !c.pending[e.seq] {
		return
	}
	var serving []*feedProc
	for _, p := range w.procs {
		if !p.dead && p.serving == c {
			serving = append(serving, p)
		}
	}
	if len(serving) == 0 {
		w.after(50*time.Millisecond, func() { w.deliver(c, e) })
		return
	}
	p := serving[w.rng.IntN(len(serving))]
	c.last = w.now
	w.after(feedAckWait, func() { w.deliver(c, e) })
	p.spawn(func(ctx context.Context) {
		p.busy++
		p.used = w.now
		p.sleep(ctx, w.upTo(300*time.Millisecond))
		if !e.delivered {
			e.delivered = true
			w.stats.Delivered++
		}
		p.busy--
		p.used = w.now
		_ = p.call(ctx, func() error { // if the request is lost, the event is delivered again
			if !c.deleted && c.pending[e.seq] {
				delete(c.pending, e.seq)
				c.last, e.removed = w.now, w.feed.Kind == store.KindRetry
				if len(c.pending) == 0 {
					c.acked = uint64(len(w.stream))
				}
			}
			return nil
		})
	})
}
