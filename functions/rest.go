package functions

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
)

// A feed without work comes to rest: it loses its consumer, its pulls and, with the
// service's other feed, the service's part of this process. Package store says how its
// key changes and how an event is found that comes at that moment.
//
//	awake ── idle for ServiceIdle ──▶ resting ── an event is about to be published ──▶ awake
//
// Any number of nodes may try; the compare-and-set on the key decides. A process that
// dies between two steps leaves a consumer of a resting feed, which tidy removes, or an
// event behind the floor, which the scheduler's sweeper finds.
const (
	// ease is how many feeds a node serves without hurry to be rid of them. Beyond, a
	// feed may rest after hasty instead of ServiceIdle, so that many services that have
	// one event each, at the same time, do not all hold consumers. A feed that was woken
	// within ServiceIdle of its last rest is left alone: it would come back at once.
	ease  = 256
	hasty = 250 * time.Millisecond
	// admitMost bounds the feeds of a node that are awake without work: those whose
	// consumer is being made, and those that have concluded and wait to be put to rest.
	// While there are so many, the next feed is woken when one of them has come to rest,
	// so the memory of a node does not grow with the number of services that fire at the
	// same moment. Feeds with work do not count: no service waits for another that hangs.
	admitMost = 384
	// admitPace bounds how long a feed waits for another to come to rest. It is the rate
	// of wakes while the store answers slowly.
	admitPace = 50 * time.Millisecond
	// Pauses between looks for idle feeds.
	maxRestLook   = 5 * time.Second
	hastyRestLook = 50 * time.Millisecond
	// restAtOnce bounds the feeds that are put to rest at a time.
	restAtOnce = 8
	// checkMost is how many checks follow each other before idle feeds are looked for.
	checkMost = 64
	// restRetry is the pause before a check that failed is repeated.
	restRetry = time.Second
	// retryLook is how often TIMERS_RETRY is searched for services that nobody serves:
	// nodes of versions before 0.9 do not wake its feeds.
	retryLook = 10 * time.Second
	// tidyLook is how often consumers of resting feeds are looked for.
	tidyLook = time.Hour
)

// wakes are the feeds that wait to be served, in order.
type wakes struct {
	mu     sync.Mutex
	queue  []store.Feed
	queued map[store.Feed]struct{}
	// more is signalled when the queue gets its first feed, less when a feed is left.
	more, less chan struct{}
}

func newWakes() *wakes {
	return &wakes{queued: map[store.Feed]struct{}{}, more: make(chan struct{}, 1), less: make(chan struct{}, 1)}
}

func (w *wakes) add(k store.Feed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.queued[k]; ok {
		return
	}
	w.queued[k] = struct{}{}
	w.queue = append(w.queue, k)
	signal(w.more)
}

func (w *wakes) next() (k store.Feed, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return k, false
	}
	k, w.queue = w.queue[0], w.queue[1:]
	delete(w.queued, k)
	return k, true
}

// signal fills a one-slot channel.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default: // it is full already
	}
}

// admit serves the feeds that were woken, until ctx is done.
func (f *Functions) admit(ctx context.Context) {
	for {
		k, ok := f.wakes.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-f.wakes.more:
			}
			continue
		}
		if f.o.ServiceIdle > 0 && f.o.Store.MayRest() && f.withoutWork() >= admitMost {
			pace := time.NewTimer(admitPace)
			select {
			case <-ctx.Done():
			case <-f.wakes.less:
			case <-pace.C:
			}
			pace.Stop()
		}
		if ctx.Err() != nil {
			return
		}
		f.serve(k)
	}
}

// served is how many feeds this process serves.
func (f *Functions) served() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active
}

// withoutWork is how many feeds this process serves that will come to rest by its own
// effort: they have no event here, no other node has work for them, and they are not in
// regular use.
func (f *Functions) withoutWork() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active < admitMost {
		return f.active
	}
	n := 0
	for _, s := range f.services {
		for _, d := range s.feeds {
			if d != nil && !d.regular && !d.elsewhere.Load() && d.idle(0) {
				n++
			}
		}
	}
	return n
}

// check is a look at a feed that this process has put to rest.
type check struct {
	feed  store.Feed
	floor uint64
	at    time.Time
	// last says that it is the one after ServiceGrace; the consumer is gone by then.
	last bool
}

// rest puts feeds to rest until ctx is done.
func (f *Functions) rest(ctx context.Context) {
	look, never := min(max(f.o.ServiceIdle/4, hastyRestLook), maxRestLook), f.o.ServiceIdle < 0
	if never {
		look = maxRestLook
	}
	var checks []check
	var retried, tidied time.Time
	for wait := hastyRestLook; pause.For(ctx, wait); {
		now := time.Now()
		if now.Sub(retried) >= retryLook {
			retried = now
			f.complain("look for retries", f.wakeRetries(ctx))
		}
		if now.Sub(tidied) >= tidyLook && f.o.Store.MayRest() {
			if err := f.tidy(ctx); err != nil {
				f.complain("look for consumers of services at rest", err)
			} else {
				tidied = now
			}
		}
		haste := !never && f.served() > ease
		if !never && f.o.Store.MayRest() {
			checks = append(checks, f.restSome(ctx, f.idleFeeds(haste), haste)...)
		}
		checks = f.checkSome(ctx, checks)
		// Nodes that started together should not look together.
		wait = time.Duration(float64(look) * (0.75 + random()/2))
		if haste {
			wait = hastyRestLook
		}
		for _, c := range checks {
			wait = max(min(wait, time.Until(c.at)), hastyRestLook)
		}
	}
}

func (f *Functions) complain(what string, err error) {
	if err != nil && !errors.Is(err, store.ErrRevision) && f.pulling.Err() == nil && f.complaints.Allow(what, time.Now()) {
		f.o.Log.Warn().Err(err).Str("call", what).Msg("putting idle services to rest failed; it is tried again")
	}
}

// idleFeeds are those that have had nothing to do for long enough, and forgets rests
// that are too long ago to count.
func (f *Functions) idleFeeds(haste bool) []*feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, at := range f.rested {
		if time.Since(at) > f.o.ServiceIdle {
			delete(f.rested, k)
		}
	}
	var out []*feed
	for _, s := range f.services {
		for _, d := range s.feeds {
			if d != nil && d.idle(f.idleFor(d, haste)) {
				out = append(out, d)
			}
		}
	}
	return out
}

// idleFor is how long a feed must be idle.
func (f *Functions) idleFor(d *feed, haste bool) time.Duration {
	if haste && !d.regular {
		return min(hasty, f.o.ServiceIdle)
	}
	return f.o.ServiceIdle
}

// restSome puts feeds to rest that are idle on all nodes, and returns the checks that
// follow.
func (f *Functions) restSome(ctx context.Context, idle []*feed, haste bool) []check {
	var mu sync.Mutex
	var out []check
	restEach(idle, func(d *feed) {
		floor, done, err := f.restOne(ctx, d, haste)
		f.complain("put a service to rest", err)
		if !done {
			return
		}
		if next, ok := f.checkNow(ctx, check{feed: d.key(), floor: floor}); ok {
			mu.Lock()
			out = append(out, next)
			mu.Unlock()
		}
	})
	return out
}

// restEach calls do for each of all, restAtOnce at a time.
func restEach[T any](all []T, do func(T)) {
	var wg sync.WaitGroup
	at := make(chan struct{}, restAtOnce)
	for _, x := range all {
		at <- struct{}{}
		wg.Go(func() {
			defer func() { <-at }()
			do(x)
		})
	}
	wg.Wait()
}

// restOne puts a feed to rest, if no node has had work for it.
func (f *Functions) restOne(ctx context.Context, d *feed, haste bool) (floor uint64, done bool, err error) {
	k := d.key()
	r, err := f.rester().Rest(ctx, k, f.idleFor(d, haste))
	if r.InUse {
		d.elsewhere.Store(!r.Absent)
		d.touch() // as if it had been used here, so that it is not asked about all the time
	}
	if err != nil || !r.Done {
		return 0, false, err
	}
	f.metrics.rests.Inc()
	f.leave(d)
	return r.Floor, true, nil
}

// checkSome makes the checks that are due and returns those that are left.
func (f *Functions) checkSome(ctx context.Context, checks []check) []check {
	now := time.Now()
	var mu sync.Mutex
	var left, due []check
	for _, c := range checks {
		if c.at.After(now) || len(due) >= checkMost {
			left = append(left, c)
		} else {
			due = append(due, c)
		}
	}
	restEach(due, func(c check) {
		if next, ok := f.checkNow(ctx, c); ok {
			mu.Lock()
			left = append(left, next)
			mu.Unlock()
		}
	})
	return left
}

// checkNow makes a check and returns the one that follows, if any.
func (f *Functions) checkNow(ctx context.Context, c check) (next check, ok bool) {
	resting, err := f.checkRest(ctx, c)
	switch {
	case err != nil:
		f.complain("look at a service at rest", err)
		c.at = time.Now().Add(restRetry)
		return c, true
	case resting && !c.last:
		c.at, c.last = time.Now().Add(f.o.Store.ServiceGrace()), true
		return c, true
	}
	return c, false
}

// checkRest looks at a feed that was put to rest. It returns whether the feed rests.
func (f *Functions) checkRest(ctx context.Context, c check) (resting bool, err error) {
	return f.rester().Check(ctx, c.feed, c.floor, c.last)
}

func (f *Functions) rester() Rester { return Rester{Store: f.o.Store} }

// wakeRetries wakes the feeds of retries that nobody serves.
func (f *Functions) wakeRetries(ctx context.Context) error {
	names, err := f.o.Store.RetryBacklog(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		k := store.Feed{Service: name, Kind: sourceRetry}
		if f.serves(k) {
			continue
		}
		if err := f.o.Store.WakeService(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// tidy removes the consumers of feeds that rest: a node may have died before it did.
func (f *Functions) tidy(ctx context.Context) error {
	feeds, err := f.o.Store.ServedFeeds(ctx)
	if err != nil {
		return err
	}
	for _, k := range feeds {
		if f.serves(k) {
			continue
		}
		st, err := f.o.Store.ServiceState(ctx, k)
		if err != nil {
			return err
		}
		if st.Awake {
			continue
		}
		if _, err := f.checkRest(ctx, check{feed: k, floor: st.Floor}); err != nil {
			return err
		}
	}
	return nil
}

func (f *Functions) serves(k store.Feed) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[k.Service]
	return s != nil && s.feeds[k.Kind] != nil
}

// leave ends the work for a feed, and for its service with the last of them. It
// returns false if that was done before.
func (f *Functions) leave(d *feed) bool {
	s := d.svc
	f.mu.Lock()
	if f.services[s.name] != s || s.feeds[d.source] != d {
		f.mu.Unlock()
		return false
	}
	s.feeds[d.source] = nil
	f.active--
	f.metrics.active.Set(float64(f.active))
	f.rested[d.key()] = time.Now()
	last := s.feeds == [2]*feed{}
	if last {
		delete(f.services, s.name)
		f.background.Add(1)
	}
	f.mu.Unlock()
	d.stop()
	signal(f.wakes.less)
	if last {
		go func() {
			defer f.background.Done()
			s.work.Wait()
			f.places.remove(s.seat)
			s.calling.Load().http.Close()
		}()
	}
	return true
}

// leaveResting leaves a feed that was found at rest. Its wake may have come while it
// was served still, so its key is read once more.
func (f *Functions) leaveResting(ctx context.Context, d *feed) {
	if !f.leave(d) {
		return
	}
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		st, err := f.o.Store.ServiceState(ctx, d.key())
		if err == nil {
			if st.Awake {
				f.wakes.add(d.key())
			}
			return
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// stopResting leaves a feed whose key says that it rests.
func (f *Functions) stopResting(k store.Feed) {
	f.mu.Lock()
	var d *feed
	if s := f.services[k.Service]; s != nil {
		d = s.feeds[k.Kind]
	}
	f.mu.Unlock()
	if d != nil {
		f.leave(d)
	}
}
