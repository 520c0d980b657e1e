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
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// App is one Belfry node.
type App struct {
	o   Options
	reg *prometheus.Registry

	reloads *reloads

	listener net.Listener // of HTTP, nil for none
	httpTLS  *tls.Config  // nil for HTTP in the clear
	level    store.FormatLevel
	failed   chan error // what ends a running node

	// mu is held by Start and Stop, which exclude each other.
	mu      sync.Mutex
	started bool
	stopped bool
	stopErr error
	// undo holds what Stop does, last first.
	undo []undo

	// Written by Start before running is stored.
	own   *embedded // the server; nil for another's
	nc    *nats.Conn
	store *store.Store
	time  *clustertime.Service
	roles roles
	node  string
	// syncs is what is known of the server's sync setting, as in store.Presence.
	syncs   string
	phase   atomic.Pointer[string] // what Start is doing, for /readyz
	running atomic.Bool
	// calling is roles.functions, for the beat, which begins before the roles do.
	calling atomic.Pointer[functions.Functions]
}

// undo is one step of Stop, with the time that it may take.
type undo struct {
	name  string
	bound time.Duration // 0: what is left
	do    func(context.Context) error
}

// New checks the options and takes what can be taken without waiting: the data
// folder's lock and the HTTP port. Errors: ErrInUse, and those of
// schemas.CodeConfig.
func New(o Options) (*App, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	// Before the port is taken: a missing file is the user's mistake also while
	// another node has the port.
	if _, err := o.credentials(); err != nil {
		return nil, err
	}
	httpTLS, err := o.HTTPTLS.config("http-tls")
	if err != nil {
		return nil, err
	}
	if _, err := o.NATSTLS.config("nats-tls"); err != nil {
		return nil, err
	}
	level, err := storeLevel()
	if err != nil {
		return nil, err
	}
	a := &App{o: o, failed: make(chan error, 1), httpTLS: httpTLS, level: level}
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
	var err error
	if a.reg, err = newRegistry(a); err == nil {
		a.reloads, err = newReloads(a.reg)
	}
	return err
}

func (a *App) onStop(name string, bound time.Duration, do func(context.Context) error) {
	a.undo = append(a.undo, undo{name, bound, do})
}

func (a *App) setPhase(s string) { a.phase.Store(&s) }

// Start brings everything up and returns when timers are served. The node lives
// until Stop, whatever becomes of ctx. A Start that fails has stopped the node.
// Errors: ErrInUse, ErrUnreachable, ErrStopped, and those of schemas.CodeConfig.
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
	nc, err := connect(&a.o, a.own, "belfry "+a.node)
	if err != nil {
		return err
	}
	a.nc = nc
	a.onStop("connection", flushBound, a.disconnect)
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
	a.onStop("store", 0, func(context.Context) error {
		a.store.Close()
		return nil
	})
	a.setPhase("reading the cluster's time")
	a.announce()
	a.time = clustertime.NewService(a.readTime, a.beatInterval(), a.component("time"))
	a.time.Start()
	a.onStop("time", 0, func(context.Context) error {
		a.time.Stop()
		return nil
	})
	if err := a.time.Ready(ctx); err != nil {
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

// disconnect closes the connection. A request that was cut off, such as the
// making of a stream, is still worked on: the embedded server must be done with
// it when it shuts down. Another server's silence is no failure of ours.
func (a *App) disconnect(ctx context.Context) error {
	defer a.nc.Close()
	if err := a.nc.FlushWithContext(ctx); err != nil && a.o.embedded() {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// leaveSilentServer closes the connection to a server that does not answer, so
// that nothing waits for it: every call ends at once, and tells that. It reports
// whether it did.
func (a *App) leaveSilentServer(ctx context.Context) bool {
	if a.o.embedded() || a.nc == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	if a.nc.IsConnected() && a.nc.FlushWithContext(ctx) == nil {
		return false
	}
	a.o.Log.Warn().Str("server", a.NATSURL()).Msg("the NATS server does not answer: stopping without it; callbacks that run now will be made again, and shards be taken over after the lease")
	a.nc.Close()
	return true
}

// Stop drains and releases everything, in the order of the package comment.
// It returns the first call's error when called again.
func (a *App) Stop(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stop(ctx)
}

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
		if alone { // nothing can be stored, nor handed over
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

// Wait returns when ctx ends, with nil, or when the node has failed.
func (a *App) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-a.failed:
		return err
	}
}

// fail ends Wait with the error; the first one counts.
func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}

// Node is this process's name among those that share the store.
func (a *App) Node() string { return a.node }

// HTTPAddr is where health and metrics are served, or "".
func (a *App) HTTPAddr() string {
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// NATSURL is where clients connect, without credentials. Only after Start.
func (a *App) NATSURL() string {
	if a.own != nil {
		return a.own.ClientURL()
	}
	return schemas.RedactURLs(a.o.NATSURL)
}

// Connect makes another connection to the node's server, without a socket if it
// is the embedded one. Only after Start; the caller closes it.
func (a *App) Connect(name string) (*nats.Conn, error) { return connect(&a.o, a.own, name) }

// Store is the open store. Only after Start.
func (a *App) Store() *store.Store { return a.store }

// Registry holds the node's metrics.
func (a *App) Registry() *prometheus.Registry { return a.reg }
