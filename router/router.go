package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Store is what the router needs of the store; *store.Store has it.
type Store interface {
	Geometry() schemas.Geometry
	Retention() time.Duration
	Conn() *nats.Conn
	MaxMessage() int
	OpenInbox(ctx context.Context) (*store.Inbox, error)
	RegisterService(ctx context.Context, svc string) error
	Create(ctx context.Context, timers []store.Write) []store.Result
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	PeekAsync(id schemas.TimerID, done func(store.Peek))
	Update(ctx context.Context, w store.Write) (uint64, error)
	UpdateAsync(w store.Write, done func(store.Result))
	AddForgotten(addedMs int64) bool
	ForgetAdd(ctx context.Context, addedMs int64, same func(map[string][]string, []byte) bool) error
	PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
	List(ctx context.Context, q store.ListQuery) (store.ListPage, error)
	DeadList(ctx context.Context, q store.DeadQuery) (store.DeadPage, error)
	RejectedList(ctx context.Context, q store.RejectedQuery) (store.RejectedPage, error)
	OpenCallback(id schemas.TimerID, sealed string) (string, error)
	DeadDelete(ctx context.Context, seq uint64) error
}

// DedupCheck finds adds whose record has expired since an earlier delivery stored it;
// *store.DedupCheck has it.
type DedupCheck interface {
	Needed(k store.AddKey, nowMs int64) bool
	Fired(ctx context.Context, nowMs int64, keys []store.AddKey) (map[schemas.TimerID]struct{}, error)
	Stored(startMs int64, seq uint64)
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
	Dedup  DedupCheck
	Time   Time
	Limits schemas.Limits
	// Inboxes lists prefixes of reply subjects in addition to _INBOX….
	Inboxes schemas.Inboxes
	// Callbacks restricts the callbacks of adds, until SetCallbacks replaces it; nil allows
	// all.
	Callbacks *schemas.CallbackPolicy
	// Version shows up in $SRV.INFO; default 0.0.0.
	Version    string
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Bounds of the router.
const (
	maxBatch    = 512  // adds validated and written together
	maxParallel = 4    // such groups at a time
	maxFanOut   = 16   // duplicates looked at, or refusals published, at a time by one group
	apiAdds     = 1024 // adds under way for callers of the API; more are refused
	apiParallel = 256  // other requests at a time
	apiSlow     = 8    // lists and replays at a time
	apiTimeout  = 4 * time.Second
	retryPause  = 100 * time.Millisecond
	retryMax    = 2 * time.Second
	drainBound  = 5 * time.Second
)

// Router serves adds and the API on one node. Nodes share the work.
type Router struct {
	o       Options
	m       *metrics
	geo     schemas.Geometry
	ills    *ills
	batcher *batcher
	inbox   *store.Inbox
	// refusals throttles log lines about rejected adds.
	refusals refusalLog
	// replies throttles log lines about reply subjects that are not inboxes.
	replies refusalLog
	// callbacks is replaced by SetCallbacks.
	callbacks atomic.Pointer[schemas.CallbackPolicy]
	parse     func(nats.Header, []byte, int64, schemas.Limits) (schemas.Body, schemas.Spec, error)

	mu     sync.Mutex
	cancel context.CancelCauseFunc
	svc    *endpoint.Service
	wg     sync.WaitGroup
	api    sync.WaitGroup
	// reading is the reader of timers.add.
	reading sync.WaitGroup
	pulling context.CancelFunc
	// gate is held while a request enters api; closed says that none may.
	gate   sync.Mutex
	closed bool
	// places bound the requests under way, by kind.
	adds, quick, slow chan struct{}
	// cancels are those that wait for a step on the short way.
	cancels chan *cancel
	run     context.Context
}

var errStopping = errors.New("router is stopping")

// New checks the options; it starts nothing.
func New(o Options) (*Router, error) {
	if o.Store == nil || o.Dedup == nil || o.Time == nil {
		return nil, schemas.Errorf(schemas.CodeConfig, "router needs a store, a dedup check and a time source")
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("router: register metrics: %w", err)
	}
	geo := o.Store.Geometry()
	r := &Router{
		o: o, m: m, geo: geo, ills: newIlls(geo.Shards, o.Log), parse: schemas.ParseAdd,
		adds: make(chan struct{}, apiAdds), quick: make(chan struct{}, apiParallel), slow: make(chan struct{}, apiSlow),
		cancels: make(chan *cancel, apiParallel),
	}
	r.callbacks.Store(o.Callbacks)
	return r, nil
}

// SetCallbacks replaces the restrictions of callbacks for further adds.
func (r *Router) SetCallbacks(p *schemas.CallbackPolicy) { r.callbacks.Store(p) }

// Start begins to consume adds and to serve the API, until Stop. A router that
// was stopped is not started again.
func (r *Router) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return schemas.Errorf(schemas.CodeConfig, "a router that was stopped cannot be started again; make a new one")
	case r.cancel != nil:
		return nil
	}
	if err := r.o.Time.Ready(ctx); err != nil {
		return fmt.Errorf("router: the cluster's time is not known: %w", err)
	}
	inbox, err := r.o.Store.OpenInbox(ctx)
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	r.inbox = inbox
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	pull, pulling := context.WithCancel(run)
	r.run, r.cancel, r.pulling = run, cancel, pulling
	r.batcher = newBatcher(r.process)
	r.wg.Go(r.batcher.loop)
	for range cancelWorkers {
		r.wg.Go(r.cancelLoop)
	}
	r.reading.Go(func() { inbox.Read(pull, maxBatch, r.take) })
	if err := r.serveAPI(); err != nil {
		cancel(errStopping)
		r.shut()
		r.api.Wait() // requests may have come already
		r.reading.Wait()
		r.batcher.close()
		close(r.cancels)
		r.wg.Wait()
		r.inbox.Close()
		return err
	}
	return nil
}

// Stop takes in nothing new, finishes what is under way, and returns. It may be
// called more than once, and without Start.
func (r *Router) Stop(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel == nil || r.closed {
		return nil
	}
	err := r.svc.Stop()
	r.pulling()
	r.shut() // the service drains in the background: requests may still come
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Whoever puts into the batcher has ended before it is closed.
		r.api.Wait()
		r.reading.Wait()
		r.batcher.close()
		close(r.cancels)
		r.wg.Wait()
		r.inbox.Close()
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

// shut lets no request in any more.
func (r *Router) shut() {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.closed = true
}

// open counts a request into api, unless the router is stopping.
func (r *Router) open() bool {
	r.gate.Lock()
	defer r.gate.Unlock()
	if r.closed {
		return false
	}
	r.api.Add(1)
	return true
}

// take has a group of adds of the stream processed. It blocks while enough groups are,
// which is the back-pressure on TIMERS_ADD.
func (r *Router) take(group []*store.Add) {
	adds := make([]*add, 0, len(group))
	for _, m := range group {
		adds = append(adds, &add{
			hdr: m.Header, data: m.Data, msg: m, seq: m.Seq, deliveries: m.Deliveries,
			// Rounded up: a timer counted from the add is never early.
			addedMs: m.Stored.Add(time.Millisecond - 1).UnixMilli(),
		})
	}
	r.batcher.run(adds)
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
