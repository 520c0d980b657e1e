package functions

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/schemas"
)

// Functions runs the callbacks of one process.
type Functions struct {
	o         Options
	policy    Policy
	semaphore *semaphore
	// results bounds the deliveries that record their result without a permit.
	results    chan struct{}
	metrics    *metrics
	live       *inFlight
	complaints throttle.Keyed
	wakes      *wakes
	flows      *flowControl
	orders     *orderControl

	// pulling ends when Stop is called, calling at the end of StopGrace, and recording at the
	// end of recordGrace.
	pulling, calling, recording context.Context
	stopPulling                 context.CancelCauseFunc
	stopCalling                 context.CancelCauseFunc
	stopRecording               context.CancelCauseFunc

	pullers    sync.WaitGroup // goroutines that pull, or start to
	deliveries sync.WaitGroup // one for each delivery
	background sync.WaitGroup // keepAlive, rest and watchOvertaken

	mu       sync.Mutex
	state    lifecycle
	stopped  chan struct{}
	services map[string]*service
	settings Settings
	active   int                      // feeds that are served
	rested   map[store.Feed]time.Time // when a feed served here was last put to rest
	checks   checks
}

type lifecycle uint8

const (
	created lifecycle = iota
	started
	stopping
)

// service is a service with a feed that this process serves.
type service struct {
	name  string
	label string // of metrics
	limit limit
	quota *quota
	// caller is replaced by Reconfigure.
	caller atomic.Pointer[caller]
	// pullers are by store.Kind, nil for a feed that is not served; Functions.mu guards them.
	pullers [2]*puller
	// waiting counts the events that wait in the consumers for slots of their flow keys.
	waiting slotsAhead
	work    sync.WaitGroup // pullers that run and deliveries; leave waits for it
}

// errStopping is the cause of cancellation after Stop.
var errStopping = errors.New("functions is stopping")

// New checks the options and registers the metrics. The callbacks start with Start. Errors:
// schemas.CodeConfig, and those of the Registerer.
func New(o Options) (*Functions, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	f := &Functions{
		o: o, metrics: m,
		policy:    Policy{ShortDelay: o.ShortDelay, MaxNotNow: o.MaxNotNow},
		semaphore: newSemaphore(o.Total),
		results:   make(chan struct{}, resultsPerPermit*o.Total),
		live:      newInFlight(o.AckWait),
		wakes:     newWakes(), rested: map[store.Feed]time.Time{},
		checks:   checks{byFeed: map[store.Feed]check{}},
		stopped:  make(chan struct{}),
		services: map[string]*service{},
		settings: o.Settings,
	}
	f.flows = newFlowControl(f)
	f.orders = newOrderControl(f)
	f.pulling, f.stopPulling = context.WithCancelCause(context.Background())
	f.calling, f.stopCalling = context.WithCancelCause(context.Background())
	f.recording, f.stopRecording = context.WithCancelCause(context.Background())
	return f, nil
}

// Start starts to make the callbacks of all services, including services that are added
// later. ctx bounds only the start. Errors: those of Store.WatchServices; an error if
// Start or Stop was called before.
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
	f.pullers.Go(func() { f.watch(changes) })
	f.pullers.Go(func() { f.admit(f.pulling) })
	f.background.Go(func() { f.rest(f.pulling) })
	f.background.Go(func() { f.watchOvertaken(f.pulling) })
	f.background.Go(func() { f.flows.replan(f.pulling) })
	f.background.Go(func() { f.live.keepAlive(f.recording) })
	return nil
}

// Stop ends the pulls, lets running callbacks finish for StopGrace (less if ctx ends
// earlier), cancels the others and returns when everything has ended. It always returns
// nil. The events of cancelled callbacks are redelivered, here or to another node, and the
// attempts are not counted. Stop may be called more than once, and without Start.
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
		f.pullers.Wait()
		f.drain(ctx)
	}
	f.stopCalling(errStopping)
	f.stopRecording(errStopping)
	f.deliveries.Wait()
	f.background.Wait()
	for _, s := range f.services {
		s.caller.Load().http.Close()
	}
	return nil
}

// InFlight returns how many deliveries this process handles now: waiting for a permit,
// being called, or having their result recorded.
func (f *Functions) InFlight() int { return f.live.count() }

// drain waits for the deliveries: StopGrace for the calls, then recordGrace for their
// results.
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
	f.o.Log.Warn().Int("callbacks", f.live.count()).Dur("grace", f.o.StopGrace).Msg("cancelled the callbacks that were still running; their events will be redelivered")
	f.stopCalling(errStopping)
	select {
	case <-done:
	case <-time.After(recordGrace):
	}
}

// watch follows the keys of the feeds: it queues a feed that wakes to be served, and stops
// serving, and checks, a feed that comes to rest.
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
				f.sawRest(c)
			}
		}
	}
}

// serve starts a puller for a feed that has none.
func (f *Functions) serve(k store.Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pulling.Err() != nil || !schemas.ValidServiceName(k.Service) {
		return
	}
	s := f.services[k.Service]
	if s == nil {
		if s = f.newService(k.Service); s == nil {
			return
		}
		f.services[k.Service] = s
	}
	if s.pullers[k.Kind] != nil {
		return
	}
	p := &puller{f: f, svc: s, kind: k.Kind, wake: s.quota.wake[k.Kind]}
	_, p.regular = f.rested[k]
	p.pulling, p.stop = context.WithCancel(f.pulling)
	p.touch()
	s.pullers[k.Kind] = p
	f.active++
	f.metrics.active.Set(float64(f.active))
	f.metrics.wakes.Inc()
	s.work.Add(1)
	f.pullers.Go(func() {
		defer s.work.Done()
		defer p.stop()
		p.run(p.pulling)
	})
}

// newService returns nil if the settings of the service are wrong.
func (f *Functions) newService(name string) *service {
	cfg := f.settings.configOf(name)
	c, err := f.newCaller(cfg, f.settings.rulesOf(name))
	if err != nil { // New and Reconfigure have checked the same settings
		f.o.Log.Error().Err(err).Str("service", name).Msg("service has no callbacks: its settings are wrong")
		return nil
	}
	limit := f.limitOf(cfg)
	s := &service{name: name, label: f.metrics.services.Label(name), quota: f.semaphore.add(limit, 2)}
	s.limit.Store(int64(limit))
	s.caller.Store(c)
	return s
}

// invoker returns the invoker for a callback's scheme.
func (f *Functions) invoker(c *caller, target string) callback.Invoker {
	if strings.HasPrefix(target, schemas.NATSScheme) {
		return f.o.NATS
	}
	return c.http
}

// random returns a random number in [0,1).
func random() float64 { return rand.Float64() }
