package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/devclock"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// App is one Belfry node.
type App struct {
	o   Options
	reg *prometheus.Registry

	reloads *reloads

	listener net.Listener              // of HTTP, nil for none
	httpTLS  *tls.Config               // nil for HTTP without TLS
	tokens   atomic.Pointer[token.Set] // that HTTP accepts; nil if it asks for none
	provider *oidc.Verifier            // the OpenID Connect provider; nil without one
	verify   token.Verify              // of provider; nil without one
	api      *httpapi.API              // nil on a node without HTTP or without a router
	level    store.FormatLevel
	tracer   *tracing.Tracer // nil without traces
	failed   chan error      // the error that ends a running node

	// mu is held by Start and Stop, which exclude each other.
	mu      sync.Mutex
	started bool
	stopped bool
	stopErr error
	// undo is a stack of the steps of Stop.
	undo []undo

	// Written by Start before running is stored.
	own        *embedded // the embedded server; nil with NATSURL
	nc         *nats.Conn
	directGets *nats.Conn // see store.Config.DirectGets
	store      *store.Store
	time       *clustertime.Service
	// clock is the cluster's time for the roles: time, or moved on a development node.
	clock clock
	moved *devclock.Clock // nil on other nodes, and so is mover
	mover *devclock.Mover
	roles roles
	node  string
	// syncs is the server's sync setting as far as it is known; see store.Presence.
	syncs string
	// sharedLog throttles lines about another process with the name of this node.
	sharedLog throttle.Log
	phase     atomic.Pointer[string] // current step of Start, for /readyz
	running   atomic.Bool
	// calling is roles.functions. The heartbeat reads it, and begins before the roles.
	calling atomic.Pointer[functions.Functions]
	// firing is roles.scheduler, also for the heartbeat.
	firing atomic.Pointer[scheduler.Scheduler]
	// routing is roles.router once it runs. The HTTP server reads it, and begins before the roles.
	routing atomic.Pointer[router.Service]
	// searching is roles.visibility once it runs.
	searching atomic.Pointer[visibility.Visibility]
	// moving is the mover of a development node once it runs.
	moving atomic.Pointer[devclock.Mover]
}

// undo is one step of Stop, with the time that it may take.
type undo struct {
	name  string
	bound time.Duration // 0 for the remaining time of Stop
	do    func(context.Context) error
}

// New checks the options, locks the data folder and opens the HTTP port. It does not wait.
// The caller must call Stop, also without Start. Errors: ErrInUse, and errors of
// schemas.CodeConfig.
func New(o Options) (*App, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	// Read the files before opening the port, so that a missing file is reported even while
	// another node uses the port.
	httpTLS, err := o.readFiles()
	if err != nil {
		return nil, err
	}
	level, err := storeLevel()
	if err != nil {
		return nil, err
	}
	provider, err := o.newOIDC()
	if err != nil {
		return nil, err
	}
	a := &App{o: o, failed: make(chan error, 1), httpTLS: httpTLS, level: level, provider: provider, verify: verifyWith(provider)}
	if o.Development {
		a.moved = devclock.New()
	}
	a.tokens.Store(a.o.tokens().WithVerify(a.verify))
	a.warnReadable()
	a.o.warnInsecure()
	a.setPhase("not started")
	if err := a.acquire(); err != nil {
		return nil, errors.Join(err, a.Stop(context.Background()))
	}
	return a, nil
}

func (a *App) acquire() error {
	a.node = a.o.Node
	if a.o.embedded() {
		unlock, err := lockFolder(a.o.Data)
		if err != nil {
			return err
		}
		a.onStop("data folder", 0, unlock)
		if a.node == "" {
			if a.node, err = folderNode(a.o.Data); err != nil {
				return err
			}
		}
	} else if a.node == "" {
		a.node = hostNode()
	}
	unlock, err := a.o.lockIndex()
	if err != nil {
		return err
	}
	a.onStop("history folder", 0, unlock)
	if a.o.HTTP != NoHTTP {
		l, err := listen(context.Background(), "http", a.o.HTTP)
		if err != nil {
			return err
		}
		a.listener = l
		a.onStop("http port", 0, func(context.Context) error {
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	if a.reg, err = newRegistry(a); err == nil {
		a.reloads, err = newReloads(a.reg)
	}
	if err == nil {
		a.tracer, err = tracing.New(a.o.Tracing, tracing.Node{Name: a.node, Version: a.o.Version}, a.reg, a.component("tracing"))
		a.onStop("tracing", traceBound, a.tracer.Stop) // after the roles, which make the spans
	}
	if err == nil && a.listener != nil && a.o.runs(RoleRouter) {
		a.api, err = a.newHTTPAPI()
	}
	return err
}

func (a *App) onStop(name string, bound time.Duration, do func(context.Context) error) {
	a.undo = append(a.undo, undo{name, bound, do})
}

func (a *App) setPhase(s string) { a.phase.Store(&s) }

// Start starts the node and returns when it serves timers. ctx bounds only the start; the
// node runs until Stop. If Start fails, it stops the node. Errors: ErrInUse,
// ErrUnreachable, ErrStopped, and errors of schemas.CodeConfig.
func (a *App) Start(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.stopped:
		return ErrStopped
	case a.started:
		return errors.New("app: started before")
	}
	a.started = true
	if err := a.start(ctx); err != nil {
		stop, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), StopTimeout, errStopTimeout)
		defer cancel()
		return errors.Join(err, a.stop(stop))
	}
	a.setPhase("running")
	a.running.Store(true)
	return nil
}

func (a *App) start(ctx context.Context) error {
	a.serveHTTP()
	if a.o.embedded() {
		own, err := startEmbedded(ctx, &a.o, a.setPhase, a.fail)
		if err != nil {
			return err
		}
		a.own = own
		a.onStop("nats-server", 0, own.Stop)
	}
	a.setPhase("connecting to NATS")
	ends := failWhenClosed(a.fail)
	nc, err := connect(&a.o, a.own, "belfry "+a.node, ends)
	if err != nil {
		return err
	}
	a.nc = nc
	a.onStop("connection", flushBound, a.disconnect)
	if a.directGets, err = connect(&a.o, a.own, "belfry "+a.node+" direct gets", ends); err != nil {
		return err
	}
	warn, err := a.checkDurability(ctx)
	if err != nil {
		return err
	}
	a.setPhase("opening the store")
	if a.store, err = store.Open(ctx, nc, a.storeConfig(), a.component("store")); err != nil {
		return openError(err)
	}
	warn()
	a.warnShared(ctx)
	a.onStop("store", 0, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, leaveBound)
		defer cancel()
		if err := a.store.Leave(ctx); err != nil {
			log := a.component("store")
			log.Debug().Err(err).Msg("this node's presence was not removed: it disappears in a minute")
		}
		a.store.Close()
		return nil
	})
	a.setPhase("reading the cluster's time")
	a.announce()
	a.sharedLog.Every = sharedLogEvery
	a.time = clustertime.NewService(a.readTime, a.heartbeatInterval(), a.component("time"))
	if a.own != nil {
		a.time.SameClock() // the embedded server is not clustered, so it leads every stream
	}
	a.time.Start()
	a.onStop("time", 0, func(context.Context) error {
		a.time.Stop()
		return nil
	})
	if err := a.time.Ready(ctx); err != nil {
		return err
	}
	if err := a.startClock(ctx); err != nil {
		return err
	}
	if err := a.startStoreMetrics(); err != nil {
		return err
	}
	a.setPhase("starting the roles")
	if err := a.startRoles(ctx); err != nil {
		return err
	}
	if a.own != nil { // the first step of Stop: no restart while the node stops
		a.onStop("watching nats-server", 0, a.own.Unwatch)
	}
	return nil
}

// disconnect flushes and closes the connections. The embedded server may still process an
// interrupted request, such as the creation of a stream, and must finish it before it
// shuts down. If another server does not answer, that is not an error of this node.
func (a *App) disconnect(ctx context.Context) error {
	defer a.close()
	for _, nc := range a.connections() {
		if err := nc.FlushWithContext(ctx); err != nil && a.o.embedded() {
			return fmt.Errorf("flush: %w", err)
		}
	}
	return nil
}

// connections returns the node's connections.
func (a *App) connections() []*nats.Conn {
	if a.directGets == nil {
		return []*nats.Conn{a.nc}
	}
	return []*nats.Conn{a.nc, a.directGets}
}

// close closes the node's connections.
func (a *App) close() {
	for _, nc := range a.connections() {
		nc.SetClosedHandler(nil)
		nc.Close()
	}
}

// leaveSilentServer closes the connections if the server does not answer, so that all calls
// fail at once instead of waiting. It reports whether it has closed them.
func (a *App) leaveSilentServer(ctx context.Context) bool {
	if a.o.embedded() || a.nc == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	if a.nc.IsConnected() && a.nc.FlushWithContext(ctx) == nil {
		return false
	}
	a.o.Log.Warn().Str("server", a.NATSURL()).Msg("the NATS server does not answer: stopping without it. Running callbacks will be repeated, and other nodes take the shards over when the lease expires")
	a.close()
	return true
}

// Stop drains and releases everything, in the order of the package comment. Further calls
// return the error of the first one.
func (a *App) Stop(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stop(ctx)
}

// leaveBound bounds the removal of the node's presence, which otherwise expires by its TTL.
const leaveBound = time.Second

var errStopTimeout = fmt.Errorf("stopping took longer than %s", StopTimeout)

func (a *App) stop(ctx context.Context) error {
	if a.stopped {
		return a.stopErr
	}
	a.stopped = true
	a.running.Store(false)
	a.setPhase("stopping")
	alone := a.leaveSilentServer(ctx)
	for len(a.undo) > 0 {
		u := a.undo[len(a.undo)-1]
		a.undo = a.undo[:len(a.undo)-1]
		if alone { // without the server no write and no hand-over can succeed
			u.bound = min(u.bound, aloneBound)
		}
		a.setPhase("stopping: " + u.name)
		if err := u.run(ctx); err != nil {
			a.stopErr = errors.Join(a.stopErr, fmt.Errorf("stop %s: %w", u.name, err))
		}
	}
	a.setPhase("stopped")
	return a.stopErr
}

func (u undo) run(ctx context.Context) error {
	if u.bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, u.bound, fmt.Errorf("not done after %s", u.bound))
		defer cancel()
	}
	return u.do(ctx)
}

// Run starts the node, waits until ctx ends or the node fails, and stops it
// within StopTimeout. It returns nil after a clean stop.
func (a *App) Run(ctx context.Context) error {
	if err := a.Start(ctx); err != nil {
		return err
	}
	err := a.Wait(ctx)
	stop, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), StopTimeout, errStopTimeout)
	defer cancel()
	return errors.Join(err, a.Stop(stop))
}

// Wait waits until ctx ends, and then returns nil, or until the node fails, and then returns
// its error.
func (a *App) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-a.failed:
		return err
	}
}

// fail makes Wait return err. Only the first call has an effect.
func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}

// Node returns the node's name, unique among the nodes of the store.
func (a *App) Node() string { return a.node }

// HTTPAddr returns the address of health and metrics, or "" without HTTP.
func (a *App) HTTPAddr() string {
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// NATSURL returns the URL for clients, without credentials. Call it only after Start.
func (a *App) NATSURL() string {
	if a.own != nil {
		return a.own.ClientURL()
	}
	return schemas.RedactURLs(a.o.NATSURL)
}

// Connect opens another connection to the node's server, without a socket if the server is
// embedded. Call it only after Start; the caller closes the connection.
func (a *App) Connect(name string) (*nats.Conn, error) { return connect(&a.o, a.own, name) }

// Store returns the open store. Call it only after Start.
func (a *App) Store() *store.Store { return a.store }

// Registry returns the registry of the node's metrics.
func (a *App) Registry() *prometheus.Registry { return a.reg }
