package functions

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/functions/natscall"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/schemas"
)

// Functions runs the callbacks of one process.
type Functions struct {
	o      Options
	policy policy
	places *places
	// outcomes bounds those that are written without holding a place.
	outcomes   chan struct{}
	metrics    *metrics
	nats       *natscall.Invoker
	live       *inFlight
	complaints throttle.Keyed
	wakes      *wakes

	// pulling ends when Stop is called, calling when running callbacks must end,
	// writing when their outcomes must be written.
	pulling, calling, writing context.Context
	stopPulling               context.CancelCauseFunc
	stopCalling               context.CancelCauseFunc
	stopWriting               context.CancelCauseFunc

	feeds      sync.WaitGroup // goroutines that pull
	deliveries sync.WaitGroup // one per message
	background sync.WaitGroup // heartbeat and reconnects

	mu       sync.Mutex
	state    lifecycle
	stopped  chan struct{}
	services map[string]*service
	settings Settings
	active   int                      // feeds of services
	rested   map[store.Feed]time.Time // when feeds came to rest that were served here
	// pulls is the context of the pulls of this connection; a reconnect replaces it.
	pulls      context.Context
	renewPulls context.CancelFunc
}

type lifecycle uint8

const (
	created lifecycle = iota
	started
	stopping
)

// service is one service's part.
type service struct {
	name, label string
	limit       limit
	seat        *seat
	// calling is replaced by Reconfigure.
	calling atomic.Pointer[calling]
	// feeds are those that are served, by source; Functions.mu guards them.
	feeds [2]*feed
	work  sync.WaitGroup // deliveries
}

// Causes of cancellation.
var (
	errStopping    = errors.New("functions is stopping")
	errReconnected = errors.New("the connection was replaced")
)

// New checks the options and makes Functions, not yet running.
func New(o Options) (*Functions, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := o.Check(); err != nil { // now, not at the first callback
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	f := &Functions{
		o: o, metrics: m,
		policy:   policy{short: o.ShortDelay, maxNotNow: o.MaxNotNow},
		places:   newPlaces(o.Total),
		outcomes: make(chan struct{}, outcomesPerPlace*o.Total),
		nats:     natscall.New(o.Conn),
		live:     newInFlight(o.AckWait),
		wakes:    newWakes(), rested: map[store.Feed]time.Time{},
		stopped:  make(chan struct{}),
		services: map[string]*service{},
		settings: o.Settings,
	}
	f.pulling, f.stopPulling = context.WithCancelCause(context.Background())
	f.calling, f.stopCalling = context.WithCancelCause(context.Background())
	f.writing, f.stopWriting = context.WithCancelCause(context.Background())
	f.pulls, f.renewPulls = context.WithCancel(f.pulling)
	return f, nil
}

// Start begins to serve every service that has callbacks, now and later. ctx
// bounds the start alone. Errors: what the store answers.
func (f *Functions) Start(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != created {
		return errors.New("functions: started or stopped before")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	changes, err := f.o.Store.WatchServices(f.pulling)
	if err != nil {
		return err
	}
	f.state = started
	f.feeds.Go(func() { f.watch(changes) })
	f.feeds.Go(func() { f.admit(f.pulling) })
	f.background.Go(func() { f.rest(f.pulling) })
	f.background.Go(func() { f.watchOvertaken(f.pulling) })
	f.background.Add(2)
	go func() {
		defer f.background.Done()
		f.live.keepAlive(f.writing)
	}()
	go func() {
		defer f.background.Done()
		f.watchConnection()
	}()
	return nil
}

// Stop ends the pulls, lets running callbacks finish for StopGrace (less if ctx
// ends before), cancels the rest and returns when all is done. Callbacks that
// were cancelled are redelivered, here or elsewhere, and not counted as attempts.
// Stop may be called more than once, and without Start.
func (f *Functions) Stop(ctx context.Context) error {
	f.mu.Lock()
	first, ran := f.state != stopping, f.state == started
	f.state = stopping
	f.mu.Unlock()
	if !first {
		<-f.stopped
		return nil
	}
	defer close(f.stopped)
	f.stopPulling(errStopping)
	if ran {
		f.feeds.Wait()
		f.drain(ctx)
	}
	f.stopCalling(errStopping)
	f.stopWriting(errStopping)
	f.renewPulls()
	f.deliveries.Wait()
	f.background.Wait()
	f.nats.Close()
	for _, s := range f.services {
		s.calling.Load().http.Close()
	}
	return nil
}

// InFlight is how many deliveries this process works on now: calling, waiting for
// a place, or being concluded.
func (f *Functions) InFlight() int { return f.live.count() }

// drain waits for the deliveries: StopGrace for the calls, then stopWrites for
// their outcomes.
func (f *Functions) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.deliveries.Wait()
	}()
	grace := time.NewTimer(f.o.StopGrace)
	defer grace.Stop()
	select {
	case <-done:
		return
	case <-grace.C:
	case <-ctx.Done():
	}
	f.o.Log.Warn().Int("callbacks", f.live.count()).Dur("grace", f.o.StopGrace).Msg("callbacks still running are cancelled; they will be redelivered")
	f.stopCalling(errStopping)
	select {
	case <-done:
	case <-time.After(stopWrites):
	}
}

// watch follows the keys of the services: a feed that is awake is to be served, one that
// rests is left.
func (f *Functions) watch(changes <-chan store.ServiceChange) {
	for {
		select {
		case <-f.pulling.Done():
			return
		case c, ok := <-changes:
			if !ok {
				if f.pulling.Err() == nil {
					f.o.Log.Error().Msg("the watch of services ended: new services get no callbacks until a restart")
				}
				return
			}
			if c.Awake {
				f.wakes.add(c.Feed)
			} else {
				f.stopResting(c.Feed)
			}
		}
	}
}

// serve starts a feed, once, and with the first of its service the service.
func (f *Functions) serve(k store.Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pulling.Err() != nil || !schemas.ValidService(k.Service) {
		return
	}
	s := f.services[k.Service]
	if s == nil {
		if s = f.newService(k.Service); s == nil {
			return
		}
		f.services[k.Service] = s
	}
	if s.feeds[k.Kind] != nil {
		return
	}
	d := &feed{f: f, svc: s, source: k.Kind, wake: s.seat.wake[k.Kind]}
	_, d.regular = f.rested[k]
	d.pulling, d.stop = context.WithCancel(f.pulling)
	d.touch()
	s.feeds[k.Kind] = d
	f.active++
	f.metrics.active.Set(float64(f.active))
	f.metrics.wakes.Inc()
	f.feeds.Go(func() {
		defer d.stop()
		d.run(d.pulling)
	})
}

// newService makes a service's part of this process; nil if its settings are wrong.
func (f *Functions) newService(name string) *service {
	cfg := f.settings.Services[name]
	c, err := f.newCalling(cfg, f.settings.rules(&cfg))
	if err != nil { // New and Reconfigure have checked the same settings
		f.o.Log.Error().Err(err).Str("service", name).Msg("service has no callbacks: its settings are wrong")
		return nil
	}
	limit := f.limitOf(cfg)
	s := &service{name: name, label: f.metrics.services.Label(name), seat: f.places.add(limit, 2)}
	s.limit.Store(int64(limit))
	s.calling.Store(c)
	return s
}

// invoker picks by the callback's scheme.
func (f *Functions) invoker(c *calling, target string) callback.Invoker {
	if strings.HasPrefix(target, natscall.Scheme) {
		return f.nats
	}
	return c.http
}

// watchConnection renews the pulls when the connection is back: the server has
// forgotten those of the old one, and their heartbeat would notice late.
func (f *Functions) watchConnection() {
	ch := f.o.Conn.StatusChanged(nats.CONNECTED)
	defer f.o.Conn.RemoveStatusListener(ch)
	for {
		select {
		case <-f.pulling.Done():
			return
		case _, ok := <-ch:
			if !ok {
				return
			}
			f.mu.Lock()
			f.renewPulls()
			f.pulls, f.renewPulls = context.WithCancel(f.pulling)
			f.mu.Unlock()
		}
	}
}

// pullContext is the parent of pulls begun now.
func (f *Functions) pullContext() context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pulls
}

// random is in [0,1).
func random() float64 { return rand.Float64() }
