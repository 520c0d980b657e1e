package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/functions/natscall"
	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/cpuspare"
	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/router/natsapi"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// roles holds the parts that run on this node; the others are nil.
type roles struct {
	router    *router.Service
	nats      *natsapi.Server // serves router
	scheduler *scheduler.Scheduler
	functions *functions.Functions
	calls     *natscall.Invoker // makes the NATS callbacks of functions
	// visibility is the search index of router.
	visibility *visibility.Visibility
}

func (a *App) component(name string) zerolog.Logger {
	return a.o.Log.With().Str("component", name).Logger()
}

func (a *App) storeConfig() store.Config {
	c := a.o.StoreConfig()
	c.Node, c.Level, c.DirectGets = a.node, a.level, a.directGets
	if a.moved != nil {
		c.Moved = a.moved.Map
	}
	return c
}

// StoreConfig returns the store's configuration, without the node's name.
func (o *Options) StoreConfig() store.Config {
	c := store.Config{
		Replicas: o.Replicas, Retention: o.Retention, IndexKeep: o.indexKeep(), Timeout: o.Timeout,
		GroupCommit: o.groupCommit(), FiredMaxAge: o.FiredMaxAge, DeadMaxAge: o.DeadMaxAge, RejectedMaxAge: o.RejectedMaxAge,
		FiredMaxPerService: o.FiredMaxPerService, MaxServices: o.MaxServices, Tenants: len(o.Tenants) > 0, TenantFired: o.firedAccounts(),
	}
	if o.Limits.MaxPayload > 0 {
		c.MaxPayload = o.Limits.MaxPayload + schemas.PayloadReserve
	}
	if o.Shards > 0 {
		c.Geometry = schemas.DefaultGeometry()
		c.Geometry.Shards = o.Shards
	}
	if o.Development {
		o.develop(&c)
	}
	return c
}

// groupCommit reports whether the store commits writes in groups: the server syncs every write.
func (o *Options) groupCommit() bool { return o.Profile == ProfileSafe && o.Replicas <= 1 }

// indexKeep returns the lifetime of index entries after their due time. It grows with the
// sweep delay, because the sweeper needs the index. It is at least the default, because
// other nodes of the store, with other settings, rely on that; see
// scheduler.Options.IndexKeep.
func (o *Options) indexKeep() time.Duration {
	sweep := o.SweepDelay
	if sweep == 0 {
		sweep = scheduler.DefaultSweepDelay
	}
	return max(store.DefaultIndexKeep, 3*sweep, 2*(sweep+time.Minute))
}

// openError converts the store's "unavailable" to ErrUnreachable: while the node starts, it
// means that the server does not answer.
func openError(err error) error {
	if errors.Is(err, schemas.ErrUnavailable) {
		return errorOf(ErrUnreachable, err, "open the store: %v", err)
	}
	return err
}

// sharedLogEvery is the interval of the log lines about another process with the name of this node.
const sharedLogEvery = time.Minute

// readTime makes one heartbeat: it writes the node's presence and reads it back. Its
// timeout is short, because a store without a leader drops requests without an answer.
func (a *App) readTime(ctx context.Context) (clustertime.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	if f := a.calling.Load(); f != nil {
		a.store.Announce(func(p *store.Presence) { p.InFlight = f.InFlight() })
	}
	if s := a.firing.Load(); s != nil {
		a.store.Announce(func(p *store.Presence) { p.Waits = s.CalendarWaits() })
	}
	if v := a.searching.Load(); v != nil {
		state := searchState(v.Progress())
		a.store.Announce(func(p *store.Presence) { p.Search = state })
	}
	st, err := a.store.Beat(ctx)
	if a.store.Shared() {
		if _, ok := a.sharedLog.Allow(time.Now()); ok {
			log := a.component("node")
			log.Error().Str("node", a.node).Msg("another process uses the name of this node: only one of them fires the shards of that name; give each process its own --node")
		}
	}
	return clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, err
}

// heartbeatInterval returns the heartbeat interval. It is short enough for other nodes to notice
// a missing heartbeat within half a lease.
func (a *App) heartbeatInterval() time.Duration {
	lease := a.o.Lease
	if lease == 0 {
		lease = scheduler.DefaultLease
	}
	return min(clustertime.DefaultInterval, lease/3)
}

// announce writes the node's roles and settings into its presence.
func (a *App) announce() {
	started := time.Now().UTC()
	names := make([]string, 0, len(a.o.Roles))
	for _, r := range a.o.Roles {
		names = append(names, string(r))
	}
	a.store.Announce(func(p *store.Presence) {
		p.Release, p.Roles, p.Started, p.Sync, p.Profile = a.o.Version, names, started, a.syncs, string(a.o.Profile)
		p.Settings, p.Zones = a.o.shared(), calendar.ZoneDataVersion
	})
}

// shared lists the settings that should be the same on all nodes of a store. Every node
// writes the ages into the streams when it starts, so the node that started last decides.
// retention is the TTL of the records that a node finishes itself. A node refuses the callbacks
// of tenants that it does not know.
func (o *Options) shared() map[string]string {
	out := map[string]string{}
	for _, s := range []struct {
		name       string
		value, def time.Duration
	}{
		{"lease", o.Lease, scheduler.DefaultLease}, {"retention", o.Retention, store.DefaultRetention}, {"sweep-delay", o.SweepDelay, scheduler.DefaultSweepDelay},
		{"fired-max-age", o.FiredMaxAge, store.DefaultFiredMaxAge}, {"dead-max-age", o.DeadMaxAge, store.DefaultDeadMaxAge}, {"rejected-max-age", o.RejectedMaxAge, store.DefaultRejectedMaxAge},
	} {
		out[s.name] = cmp.Or(s.value, s.def).String()
	}
	out["tenants"] = o.tenantList()
	return out
}

// nowMs returns the upper bound of the cluster's time, in Unix milliseconds.
func (a *App) nowMs() int64 { return a.clock.LatestNs() / int64(time.Millisecond) }

// startRoles creates all roles before it starts any. It starts the router last, so that the
// other roles already run when it accepts timers.
func (a *App) startRoles(ctx context.Context) error {
	if err := a.makeRoles(); err != nil {
		return err
	}
	r := &a.roles
	if r.visibility != nil {
		a.searching.Store(r.visibility)
		a.onStop("visibility", 0, func(context.Context) error {
			r.visibility.Stop()
			return nil
		})
		r.visibility.Start()
	}
	if r.scheduler != nil {
		a.firing.Store(r.scheduler)
		a.onStop("scheduler", releaseBound, r.scheduler.Stop)
		if err := r.scheduler.Start(ctx); err != nil {
			return err
		}
	}
	a.onStop("router and functions", drainBound, r.drain)
	if err := a.startMover(); err != nil {
		return err
	}
	if r.functions != nil {
		a.calling.Store(r.functions)
		if err := r.functions.Start(ctx); err != nil {
			return err
		}
	}
	if r.router != nil {
		if err := r.router.Start(ctx); err != nil {
			return err
		}
		a.routing.Store(r.router)
		if err := r.nats.Start(ctx); err != nil {
			return err
		}
	}
	a.moving.Store(a.mover)
	// Flush, so that the server has every subscription before Start returns.
	flush, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer after %s", connectTimeout))
	defer cancel()
	if err := a.nc.FlushWithContext(flush); err != nil {
		return errorOf(ErrUnreachable, err, "the NATS server does not answer: %v", err)
	}
	return nil
}

func (a *App) makeRoles() (err error) {
	if a.o.runs(RoleVisibility) {
		if a.roles.visibility, err = visibility.New(a.visibilityOptions()); err != nil {
			return err
		}
	}
	if a.o.runs(RoleScheduler) {
		if a.roles.scheduler, err = scheduler.New(a.schedulerOptions()); err != nil {
			return err
		}
	}
	if a.o.runs(RoleFunctions) {
		a.roles.calls = natscall.New(a.nc)
		if a.roles.functions, err = functions.New(a.functionsOptions()); err != nil {
			return err
		}
	}
	if a.o.runs(RoleRouter) {
		if a.roles.router, err = router.New(a.routerOptions()); err != nil {
			return err
		}
		a.roles.nats, err = natsapi.New(natsapi.Options{
			Service: a.roles.router, OpenInbox: a.store.OpenInbox, OpenTenantInbox: a.store.OpenTenantInbox, Conn: endpoint.On(a.nc), Inboxes: a.o.InboxPrefixes, Version: a.o.Version,
			Log: a.component("router"), Registerer: a.reg, Clock: a.natsClock(),
		})
	}
	return err
}

func (a *App) schedulerOptions() scheduler.Options {
	o := scheduler.Options{
		Store: a.store, Time: a.clock, Node: a.node,
		// This process has the folder's lock, so no other process with this name runs.
		NodeExclusive: a.o.embedded() && a.o.Node == "",
		Lease:         a.o.Lease, Heartbeat: a.o.Heartbeat, Horizon: a.o.Horizon, SweepDelay: a.o.SweepDelay,
		IndexKeep: a.store.IndexKeep(), Retention: a.store.Retention(), Spare: cpuspare.New().Spare,
		Tracing: a.tracer, Log: a.component("scheduler"), Registerer: a.reg,
	}
	if a.o.Development {
		o.SweepDelay = developmentSweepDelay
	}
	return o
}

func (a *App) functionsOptions() functions.Options {
	return functions.Options{
		Node:  a.node,
		Store: a.store, NATS: a.roles.calls, Now: a.nowMs, SteadyFor: a.clock.SteadyFor, ShortDelay: a.o.shortDelay(), Tracing: a.tracer, Log: a.component("functions"), Registerer: a.reg,
		Concurrency: a.o.Concurrency, Total: a.o.TotalConcurrency, Retention: a.store.Retention(),
		StopGrace: callbackGrace, ServiceIdle: a.o.ServiceIdle, Settings: a.o.Callbacks, UserAgent: "belfry/" + a.o.Version,
		AllowLoopback: a.o.AllowLoopback, AllowPrivate: a.o.AllowPrivate, AllowPrefixes: a.o.AllowPrefixes,
	}
}

func (a *App) routerOptions() router.Options {
	o := router.Options{
		Store: a.store, Dedup: a.store.NewDedupCheck(), Time: a.clock, Limits: a.o.Limits, Callbacks: a.o.Callbacks.Policy(),
		Linger: a.store.GroupCommits(), Tracing: a.tracer, Log: a.component("router"), Registerer: a.reg,
	}
	if a.roles.visibility != nil {
		o.History = visibility.Answers{Visibility: a.roles.visibility}
	}
	if len(a.o.Tenants) > 0 {
		o.Accounts, o.TenantDedup = a.o.tenantAccounts(), a.store.NewDedupCheck()
	}
	return o
}

// drain stops the router and functions concurrently; they are independent.
func (r *roles) drain(ctx context.Context) error {
	routed := make(chan error, 1)
	go func() {
		var err error
		if r.router != nil {
			ctx, cancel := context.WithTimeout(ctx, router.StopTimeout) // for both together
			defer cancel()
			err = r.nats.Stop(ctx)
			r.router.Stop(ctx)
		}
		routed <- err
	}()
	var err error
	if r.functions != nil {
		err = r.functions.Stop(ctx)
		r.calls.Close()
	}
	return errors.Join(<-routed, err)
}
