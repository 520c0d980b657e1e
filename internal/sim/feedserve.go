package sim

import (
	"context"
	"time"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/store"
)

// This file has the processes of functions, which serve the feed.

// serve runs a process of functions.
func (p *feedProc) serve(ctx context.Context) {
	p.serves = true
	p.spawn(func(ctx context.Context) { p.watch(ctx, true) })
	rester := functions.Rester{Store: p}
	for {
		p.sleep(ctx, 200*time.Millisecond+p.w.upTo(200*time.Millisecond))
		if p.serving == nil || p.busy > 0 || p.w.now-p.used < feedIdle {
			continue
		}
		r, err := rester.Rest(ctx, p.w.feed, feedIdle)
		if r.InUse {
			p.used = p.w.now
		}
		if err != nil || !r.Done {
			continue
		}
		p.serving = nil
		p.spawn(func(ctx context.Context) { p.check(ctx, rester, r.Floor, true) })
	}
}

// check makes both checks of a feed that rests. The first one removes the consumer if drop is
// true.
func (p *feedProc) check(ctx context.Context, r functions.Rester, floor uint64, drop bool) {
	for range 2 {
		resting, err := r.Check(ctx, p.w.feed, floor, drop)
		for ; err != nil; resting, err = r.Check(ctx, p.w.feed, floor, drop) {
			p.sleep(ctx, time.Second)
		}
		if !resting {
			return
		}
		drop = false
		p.sleep(ctx, feedGrace)
	}
}

// sawRest checks a feed that another process has put to rest: after the grace, and at once if
// that was a while ago.
func (p *feedProc) sawRest(ctx context.Context, ch store.ServiceChange) {
	if p.w.mode == publisherFinds {
		return
	}
	if p.w.now-time.Duration(ch.Since.UnixNano()) < feedOld {
		p.sleep(ctx, feedGrace)
	}
	p.check(ctx, functions.Rester{Store: p}, ch.Floor, false)
}

// want starts a task that serves the feed, unless there is one.
func (p *feedProc) want() {
	if !p.serves || p.wanted {
		return
	}
	p.wanted = true
	p.spawn(func(ctx context.Context) {
		defer func() { p.wanted = false }()
		for wait := 50 * time.Millisecond; ; p.sleep(ctx, wait) {
			st, err := p.ServiceState(ctx, p.w.feed)
			if err != nil {
				continue
			}
			if !st.Awake {
				p.serving = nil
				return
			}
			c, err := p.consumer(ctx, st.Floor)
			if err != nil {
				continue
			}
			p.serving, p.used = c, p.w.now
			for !c.deleted && p.serving == c {
				p.sleep(ctx, 20*time.Millisecond) // until the server reports that the consumer is gone
			}
		}
	})
}
