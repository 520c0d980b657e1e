package functions

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
)

// A feed without events comes to rest: its consumer is removed and its puller ends. With
// the last feed of a service the service leaves this process. Package store describes the
// key of a feed, and how an event that is published at that moment is found.
//
//	awake ── idle for ServiceIdle ──▶ resting ── an event is about to be published ──▶ awake
//
// Any number of nodes may try; the compare-and-set on the key decides. If a process dies
// between two steps, it leaves a consumer of a resting feed, which tidy removes, or an
// event after the floor, which the checks of every other node find: each node checks every
// feed that it sees at rest (checks.go).
const (
	// manyFeeds is the number of served feeds beyond which a feed may rest after
	// shortIdle instead of ServiceIdle, so that many services with one event each, at the
	// same time, do not all keep consumers. A feed that was woken within ServiceIdle of its
	// last rest is exempt: it would wake again at once.
	manyFeeds = 256
	shortIdle = 250 * time.Millisecond
	// maxWithoutWork bounds the feeds of a node that are awake without work: a feed whose
	// consumer is being created, or that has handled its events and waits to be put to
	// rest. At the bound, a feed is woken only when another has come to rest, so the memory
	// of a node does not grow with the number of services that fire at the same moment.
	// Feeds with work do not count: no service waits for another whose callee hangs.
	maxWithoutWork = 384
	// admitPace bounds how long a feed waits for another one to come to rest. It is the
	// interval between wakes while the store answers slowly.
	admitPace = 50 * time.Millisecond
	// maxRestInterval and minRestInterval bound the interval between two searches for idle
	// feeds.
	maxRestInterval = 5 * time.Second
	minRestInterval = 50 * time.Millisecond
	// restConcurrency bounds the feeds that are put to rest or checked at the same time.
	restConcurrency = 8
	// retryInterval is the interval between two searches of TIMERS_RETRY for services that
	// no node serves: builds below store.LevelRestingServices do not wake its feeds.
	retryInterval = 10 * time.Second
	// tidyInterval is the interval between two searches for consumers of resting feeds.
	tidyInterval = time.Hour
)

// wakes is the queue of the feeds that wait to be served.
type wakes struct {
	mu     sync.Mutex
	queue  []store.Feed
	queued map[store.Feed]struct{}
	// more is signalled when a feed is queued, less when this process stops serving one.
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

// admit serves the feeds in f.wakes until ctx is done.
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
		if f.o.ServiceIdle > 0 && f.o.Store.MayRest() && f.withoutWork() >= maxWithoutWork {
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

// served returns the number of feeds that this process serves.
func (f *Functions) served() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active
}

// withoutWork returns the number of served feeds that this process can put to rest: a feed
// without an event here or, as far as known, on another node, and not in regular use. Below
// maxWithoutWork feeds it returns the number of all served feeds.
func (f *Functions) withoutWork() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active < maxWithoutWork {
		return f.active
	}
	n := 0
	for _, s := range f.services {
		for _, p := range s.pullers {
			if p != nil && !p.regular && !p.elsewhere.Load() && p.idle(0) {
				n++
			}
		}
	}
	return n
}

// rest puts feeds to rest until ctx is done.
func (f *Functions) rest(ctx context.Context) {
	interval, never := min(max(f.o.ServiceIdle/4, minRestInterval), maxRestInterval), f.o.ServiceIdle < 0
	if never {
		interval = maxRestInterval
	}
	var retried, tidied time.Time
	for wait := minRestInterval; pause.For(ctx, wait); {
		now := time.Now()
		if now.Sub(retried) >= retryInterval {
			retried = now
			f.complain("search for retries", f.wakeRetries(ctx))
		}
		if now.Sub(tidied) >= tidyInterval && f.o.Store.MayRest() {
			if err := f.tidy(ctx); err != nil {
				f.complain("search for consumers of services at rest", err)
			} else {
				tidied = now
			}
		}
		haste := !never && f.served() > manyFeeds
		if !never && f.o.Store.MayRest() {
			f.restSome(ctx, f.idleFeeds(haste), haste)
		}
		f.checkSome(ctx)
		// Nodes that started together should not search at the same time.
		wait = time.Duration(float64(interval) * (0.75 + random()/2))
		if haste {
			wait = minRestInterval
		}
		if at, ok := f.checks.earliest(); ok {
			wait = max(min(wait, time.Until(at)), minRestInterval)
		}
	}
}

// complain logs an error of a call, unless another process was faster or functions stops.
func (f *Functions) complain(call string, err error) {
	if err != nil && !errors.Is(err, store.ErrRevision) && f.pulling.Err() == nil && f.complaints.Allow(call, time.Now()) {
		f.o.Log.Warn().Err(err).Str("call", call).Msg("putting idle services to rest failed; retrying")
	}
}

// idleFeeds returns the pullers whose feeds have been idle for long enough here. It also
// forgets rests that are more than ServiceIdle ago.
func (f *Functions) idleFeeds(haste bool) []*puller {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, at := range f.rested {
		if time.Since(at) > f.o.ServiceIdle {
			delete(f.rested, k)
		}
	}
	var out []*puller
	for _, s := range f.services {
		for _, p := range s.pullers {
			if p != nil && p.idle(f.idleFor(p, haste)) {
				out = append(out, p)
			}
		}
	}
	return out
}

// idleFor returns how long a feed must be idle before it may rest.
func (f *Functions) idleFor(p *puller, haste bool) time.Duration {
	if haste && !p.regular {
		return min(shortIdle, f.o.ServiceIdle)
	}
	return f.o.ServiceIdle
}

// restSome puts feeds to rest that are idle on all nodes, and checks them.
func (f *Functions) restSome(ctx context.Context, idle []*puller, haste bool) {
	restEach(idle, func(p *puller) {
		floor, done, err := f.restOne(ctx, p, haste)
		f.complain("put a service to rest", err)
		if done {
			f.check(ctx, check{feed: p.feed(), floor: floor, drop: true})
		}
	})
}

// restEach calls do for each element of all, restConcurrency at a time.
func restEach[T any](all []T, do func(T)) {
	var wg sync.WaitGroup
	at := make(chan struct{}, restConcurrency)
	for _, x := range all {
		at <- struct{}{}
		wg.Go(func() {
			defer func() { <-at }()
			do(x)
		})
	}
	wg.Wait()
}

// restOne puts a feed to rest if it is idle on all nodes. done is true if it did.
func (f *Functions) restOne(ctx context.Context, p *puller, haste bool) (floor uint64, done bool, err error) {
	r, err := f.rester().Rest(ctx, p.feed(), f.idleFor(p, haste))
	if r.InUse {
		p.elsewhere.Store(!r.Absent)
		p.touch() // so that the next try follows only after the idle time
	}
	if err != nil || !r.Done {
		return 0, false, err
	}
	f.metrics.rests.Inc()
	f.leave(p)
	return r.Floor, true, nil
}

func (f *Functions) rester() Rester { return Rester{Store: f.o.Store} }

// wakeRetries wakes the feeds of TIMERS_RETRY that have events and that this process does
// not serve.
func (f *Functions) wakeRetries(ctx context.Context) error {
	names, err := f.o.Store.RetryBacklog(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		k := store.Feed{Service: name, Kind: store.KindRetry}
		if f.serves(k) {
			continue
		}
		if err := f.o.Store.WakeService(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// tidy removes the consumers of resting feeds that a node left when it died.
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
		if _, err := f.rester().Check(ctx, k, st.Floor, true); err != nil {
			return err
		}
	}
	return nil
}

func (f *Functions) serves(k store.Feed) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[k.Service]
	return s != nil && s.pullers[k.Kind] != nil
}

// leave stops serving a feed, and with its last feed the service. It returns false if that
// was done before.
func (f *Functions) leave(p *puller) bool {
	s := p.svc
	f.mu.Lock()
	if f.services[s.name] != s || s.pullers[p.kind] != p {
		f.mu.Unlock()
		return false
	}
	s.pullers[p.kind] = nil
	f.active--
	f.metrics.active.Set(float64(f.active))
	f.rested[p.feed()] = time.Now()
	if s.pullers == [2]*puller{} {
		delete(f.services, s.name)
		f.background.Go(func() {
			s.work.Wait()
			f.semaphore.remove(s.quota)
			s.caller.Load().http.Close()
		})
	}
	f.mu.Unlock()
	p.stop()
	signal(f.wakes.less)
	return true
}

// leaveResting stops serving a feed whose key says that it rests. The feed may have been
// woken before this process stopped serving it, so leaveResting reads the key once more.
func (f *Functions) leaveResting(ctx context.Context, p *puller) {
	if !f.leave(p) {
		return
	}
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		st, err := f.o.Store.ServiceState(ctx, p.feed())
		if err == nil {
			if st.Awake {
				f.wakes.add(p.feed())
			}
			return
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// stopResting stops serving a feed if this process serves it.
func (f *Functions) stopResting(k store.Feed) {
	f.mu.Lock()
	var p *puller
	if s := f.services[k.Service]; s != nil {
		p = s.pullers[k.Kind]
	}
	f.mu.Unlock()
	if p != nil {
		f.leave(p)
	}
}
