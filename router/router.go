package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Store is what the router needs of the store; *store.Store has it.
type Store interface {
	Geometry() schemas.Geometry
	Retention() time.Duration
	Conn() *nats.Conn
	AddConsumer(ctx context.Context) (jetstream.Consumer, error)
	RegisterService(ctx context.Context, svc string) error
	Create(ctx context.Context, timers []store.Write) []store.Result
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	Update(ctx context.Context, w store.Write) (uint64, error)
	PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error
	Publish(ctx context.Context, m store.Msg) (seq uint64, duplicate bool, err error)
	FiredSince(ctx context.Context, subjects []string, since time.Time, ids map[string]struct{}) (map[string]struct{}, error)
	List(ctx context.Context, q store.ListQuery) (store.ListPage, error)
	DeadList(ctx context.Context, q store.DeadQuery) (store.DeadPage, error)
	DeadDelete(ctx context.Context, seq uint64) error
}

// Time is the cluster's time; *clustertime.Service has it.
type Time interface {
	// LatestNs is the leader's clock in Unix nanoseconds, never behind it.
	LatestNs() int64
	Ready(ctx context.Context) error
}

// Options configure a Router.
type Options struct {
	Store  Store
	Time   Time
	Limits schemas.Limits
	// Version shows up in $SRV.INFO; default 0.0.0.
	Version    string
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Bounds of the router.
const (
	maxBatch    = 512  // adds validated and written together
	maxParallel = 4    // such groups at a time
	pullBuffer  = 1024 // written well within the consumer's ack wait, also when each write is synced
	apiParallel = 256  // requests at a time; more are refused
	slowAPI     = 8    // of these, lists and replays
	apiTimeout  = 4 * time.Second
	retryPause  = 100 * time.Millisecond
	drainPause  = 10 * time.Millisecond // without an add that was pulled: none is left
	retryMax    = 2 * time.Second
	drainBound  = 5 * time.Second
)

// Router serves adds and the API on one node. Nodes share the work.
type Router struct {
	o       Options
	m       *metrics
	batcher *batcher

	mu     sync.Mutex
	cancel context.CancelCauseFunc
	msgs   jetstream.MessagesContext
	svc    micro.Service
	wg     sync.WaitGroup
	api    sync.WaitGroup
	// reading is the reader of timers.add.
	reading sync.WaitGroup
	pulling context.CancelFunc
	// gate is held while a request enters api; closed says that none may.
	gate   sync.Mutex
	closed bool
	slots  chan struct{}
	slow   chan struct{}
	run    context.Context
}

var errStopping = errors.New("router is stopping")

// New checks the options; it starts nothing.
func New(o Options) (*Router, error) {
	if o.Store == nil || o.Time == nil {
		return nil, schemas.Errorf(schemas.CodeConfig, "router needs a store and a time source")
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("router: register metrics: %w", err)
	}
	return &Router{o: o, m: m, slots: make(chan struct{}, apiParallel), slow: make(chan struct{}, slowAPI)}, nil
}

// Start begins to consume adds and to serve the API, until Stop.
func (r *Router) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil {
		return nil
	}
	if err := r.o.Time.Ready(ctx); err != nil {
		return fmt.Errorf("router: the cluster's time is not known: %w", err)
	}
	cons, err := r.o.Store.AddConsumer(ctx)
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	msgs, err := cons.Messages(jetstream.PullMaxMessages(pullBuffer), jetstream.PullHeartbeat(2*time.Second), jetstream.PullExpiry(10*time.Second))
	if err != nil {
		return fmt.Errorf("router: consume %s: %w", schemas.StreamAdd, err)
	}
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	pull, pulling := context.WithCancel(run)
	r.run, r.cancel, r.msgs, r.pulling = run, cancel, msgs, pulling
	r.batcher = newBatcher(r)
	r.wg.Go(r.batcher.loop)
	r.reading.Go(func() {
		r.read(pull, msgs)
		// Waits no longer for what comes, but takes what is there.
		for {
			m, err := msgs.Next(jetstream.NextMaxWait(drainPause))
			if err != nil || r.run.Err() != nil {
				return
			}
			r.take(m)
		}
	})
	if err := r.serveAPI(); err != nil {
		msgs.Stop()
		cancel(errStopping)
		r.reading.Wait()
		r.batcher.close()
		r.wg.Wait()
		return err
	}
	return nil
}

// Stop takes in nothing new, finishes what is under way, and returns. It may be
// called more than once, and without Start.
func (r *Router) Stop(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel == nil || r.msgs == nil {
		return nil
	}
	err := r.svc.Stop()
	// What was pulled already is finished here: left unacknowledged it would come to
	// another router only after AckWait.
	r.msgs.Drain()
	r.pulling()
	r.msgs = nil
	// The service drains in the background: requests may still come.
	r.gate.Lock()
	r.closed = true
	r.gate.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Whoever puts into the batcher has ended before it is closed.
		r.api.Wait()
		r.reading.Wait()
		r.batcher.close()
		r.wg.Wait()
	}()
	t := time.NewTimer(drainBound)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		// What waits for a silent store is delivered again to the next router.
		r.cancel(errStopping)
	case <-ctx.Done():
		r.cancel(errStopping)
	}
	r.cancel(errStopping)
	<-done
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("router: stop the API: %w", err)
	}
	return nil
}

// enter counts a request into api, unless the router is stopping.
func (r *Router) enter() bool {
	r.gate.Lock()
	defer r.gate.Unlock()
	if r.closed {
		return false
	}
	r.api.Add(1)
	return true
}

// read hands the adds of the stream to the batcher, until ctx ends.
func (r *Router) read(ctx context.Context, msgs jetstream.MessagesContext) {
	failing := false
	for {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		switch {
		case ctx.Err() != nil && err != nil, errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return
		case err != nil:
			// A missed heartbeat, or a server that is gone: the iterator pulls anew.
			if !failing {
				r.o.Log.Warn().Err(err).Msg("adds cannot be read; trying again")
			}
			failing = true
			if !pause(ctx, retryPause) {
				return
			}
			continue
		}
		failing = false
		r.take(m)
	}
}

// take hands one add to the batcher.
func (r *Router) take(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		r.o.Log.Error().Err(err).Str("subject", m.Subject()).Msg("message without JetStream's metadata skipped")
		return
	}
	r.batcher.put(&add{
		hdr: m.Headers(), data: m.Data(), msg: m, seq: meta.Sequence.Stream,
		// Rounded up: a timer counted from the add is never early.
		addedMs: meta.Timestamp.Add(time.Millisecond - 1).UnixMilli(),
	})
}

// pause waits for d, or returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
