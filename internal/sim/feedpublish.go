package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// This file has the processes that publish.

// publish publishes events one after the other. It repeats each until it is acknowledged.
func (p *feedProc) publish(ctx context.Context) {
	w := p.w
	p.spawn(func(ctx context.Context) { p.watch(ctx, false) })
	for w.faults {
		// Sometimes pause so long that no later event wakes the feed within the bound.
		pause := w.upTo(6 * time.Second)
		if w.rng.IntN(4) == 0 && w.mode == anyDies {
			pause += w.bound
		}
		p.sleep(ctx, pause)
		if w.mode != anyDies {
			// Publish a second event while the feed is put to rest, or soon after.
			w.stats.Published++
			p.publishOne(w.stats.Published)
			p.sleep(ctx, feedIdle/2+w.upTo(2*feedGrace))
			w.stats.Published++
			p.publishOne(w.stats.Published)
			p.sleep(ctx, w.bound)
			continue
		}
		for range 1 + w.rng.IntN(3) {
			w.stats.Published++
			p.publishOne(w.stats.Published)
		}
	}
}

func (p *feedProc) publishOne(id int) {
	p.spawn(func(ctx context.Context) {
		for done, ok := false, false; !ok; {
			done = false
			p.waker.Publish(ctx, p.w.feed, func(f func()) bool {
				f() // in this task: it waits for the outcome anyway
				return true
			}, func(ctx context.Context, f store.Feed) error { return p.waker.WakeFor(ctx, f, 0) }, func(answer func(uint64, bool, error)) {
				seq, duplicate, err := p.send(ctx, id)
				answer(seq, duplicate, err)
			}, func(_ uint64, _ bool, err error) { done, ok = true, err == nil })
			if !done {
				panic("a publish has no outcome")
			}
			if !ok {
				p.sleep(ctx, 100*time.Millisecond)
			}
		}
	})
}

// send stores an event, once for each id.
func (p *feedProc) send(ctx context.Context, id int) (seq uint64, duplicate bool, err error) {
	w := p.w
	err = p.call(ctx, func() error {
		for _, e := range w.stream {
			if e.id == id {
				seq, duplicate = e.seq, true
				return nil
			}
		}
		e := &feedEvent{id: id, seq: uint64(len(w.stream)) + 1}
		w.stream = append(w.stream, e)
		seq = e.seq
		w.offer(e)
		if w.mode == publishersDie {
			p.mayDie(2)
		}
		w.after(w.bound, func() {
			if !e.delivered && w.failure == "" {
				w.failure = fmt.Sprintf("event %d was not delivered within %s; the key is %+v", e.seq, w.bound, w.key)
			}
		})
		p.mayDie(6)
		return nil
	})
	return seq, duplicate, err
}

// wakeAgain wakes the feed for an event until that succeeds.
func (p *feedProc) wakeAgain(ctx context.Context, need uint64) {
	for p.waker.WakeFor(ctx, p.w.feed, need) != nil {
		p.sleep(ctx, 500*time.Millisecond)
	}
}

// watch follows the key. Its changes arrive late, and sometimes it breaks and begins again. If
// all is set, it begins with the present state of the key.
func (p *feedProc) watch(ctx context.Context, all bool) {
	w := p.w
	at := len(w.changes)
	if all && at > 0 {
		at--
	}
	for {
		for at < len(w.changes) {
			ch := w.changes[at]
			at++
			p.sleep(ctx, w.delay())
			p.changed(ch)
		}
		p.sleep(ctx, 20*time.Millisecond)
		breaks, longest := w.watchBreaks(p.serves)
		if !w.oneIn(breaks) {
			continue
		}
		p.sleep(ctx, w.upTo(longest))
		at = len(w.changes)
		if all && at > 0 {
			at--
		}
		for _, need := range p.waker.Missed() {
			p.spawn(func(ctx context.Context) { p.wakeAgain(ctx, need) })
		}
	}
}

// watchBreaks returns how often a watch breaks, once in so many looks, and for how long at most.
func (w *feedWorld) watchBreaks(serves bool) (oneIn int, longest time.Duration) {
	switch {
	case w.mode == publisherFinds && w.calm && !serves, w.mode == watchFails && serves: // a node checks again after each break
		return 5000, 5 * time.Second
	case w.mode == anyDies || serves:
		return 400, 5 * time.Second
	case w.mode == watchFails:
		return 100, 3 * w.bound
	default:
		return 100, 2 * feedGrace
	}
}

func (p *feedProc) changed(ch store.ServiceChange) {
	if ch.Awake {
		p.want()
		return
	}
	p.serving = nil
	if p.serves {
		p.spawn(func(ctx context.Context) { p.sawRest(ctx, ch) })
	}
	if need := p.waker.Rested(ch); need > 0 {
		p.spawn(func(ctx context.Context) { p.wakeAgain(ctx, need) })
	}
}
