package app

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/belfryio/belfry/internal/console"
	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// newHTTPAPI returns the HTTP API of a node with a router.
func (a *App) newHTTPAPI() (*httpapi.API, error) {
	return httpapi.New(httpapi.Config{
		Service: a.httpService, Authorize: a.authorizeAPI, Loopback: OnLoopback(a.o.HTTP),
		Fired: a.fired, FiredAfter: a.firedAfter, FiredNewest: a.firedNewest, Status: a.status, Doctor: a.examine, Clock: a.httpClock(),
		MaxEvent: func() int { return a.store.MaxMessage() }, // asked once there is a service
		Log:      a.component("http"), Registerer: a.reg,
	})
}

// newConsole returns the web pages of a node with the HTTP API.
func (a *App) newConsole() *console.Console {
	provider := a.provider
	if provider != nil && !provider.LogsIn() {
		provider = nil
	}
	return console.New(console.Config{
		Provider: provider, Redirect: a.o.OIDCRedirect,
		Service:   func(id httpapi.Identity, revision uint64) (console.Operations, error) { return a.service(id, revision) },
		Authorize: a.authorizeAPI, Loopback: OnLoopback(a.o.HTTP), API: a.api, Status: a.status, Doctor: a.examine,
		History: a.history,
		NowMs:   func() int64 { return a.clock.LatestNs() / int64(time.Millisecond) }, // asked once there is a service
		Clock:   a.httpClock(),
		Log:     a.component("console"),
	})
}

// history returns the search index of this node; nil without one.
func (a *App) history() visibility.Reader {
	if v := a.Visibility(); v != nil {
		return v
	}
	return nil
}

// httpService returns the operations for a caller of the HTTP API.
func (a *App) httpService(id httpapi.Identity, revision uint64) (httpapi.Operations, error) {
	return a.service(id, revision)
}

// service returns the operations for a caller of the HTTP API or the console.
func (a *App) service(id httpapi.Identity, revision uint64) (*router.Service, error) {
	s := a.routing.Load()
	if s == nil {
		return nil, schemas.Errorf(schemas.CodeUnavailable, "the node is not ready: %s; nothing was done: try again", *a.phase.Load())
	}
	s = s.In(router.Scope{Tenant: id.Tenant, All: id.AllTenants})
	if revision != 0 {
		s = s.AtRevision(revision)
	}
	return s, nil
}

// authorizeAPI returns the caller of a request to the HTTP API.
func (a *App) authorizeAPI(r *http.Request, scope string) (httpapi.Identity, error) {
	id, err := a.authorize(r, scope)
	if refusal, ok := errors.AsType[*token.Error](err); ok {
		return httpapi.Identity{}, httpapi.Refused(refusal.Status, refusal.Challenge(), refusal.Reason)
	}
	return httpapi.Identity{Name: id.Name, Tenant: id.Tenant, AllTenants: id.AllTenants(), Payload: id.Scopes.Has(token.ScopePayload)}, err
}

// fired passes the fired events of a service to a stream of the HTTP API.
func (a *App) fired(ctx context.Context, id httpapi.Identity, service string, after uint64, begun func(uint64), fn func(*store.Letter)) error {
	scope := router.Scope{Tenant: id.Tenant, All: id.AllTenants}
	subject, err := scope.FiredSubject(service)
	if err != nil {
		return err
	}
	log := a.component("http")
	return a.store.FollowFired(ctx, subject, after, begun, fn, func(err error) {
		log.Debug().Err(err).Str("service", service).Msg("a stream of fired events was interrupted; resuming")
	})
}

// firedAfter passes the stored fired events of a service to a stream of the HTTP API.
func (a *App) firedAfter(ctx context.Context, id httpapi.Identity, service string, after uint64, fn func(*store.Letter) bool) error {
	scope := router.Scope{Tenant: id.Tenant, All: id.AllTenants}
	subject, err := scope.FiredSubject(service)
	if err != nil {
		return err
	}
	return a.store.FiredEvents(ctx, subject, after, fn)
}

func (a *App) firedNewest(ctx context.Context) (uint64, error) { return a.store.FiredNewest(ctx) }

// status reads the state of the cluster.
func (a *App) status(ctx context.Context) (*status.Status, error) {
	look, err := store.Look(a.nc, a.o.Timeout)
	if err != nil {
		return nil, err
	}
	defer look.Close()
	return status.Read(ctx, a.nc, look)
}

// examine runs the doctor with the settings of this node. It uses a separate connection, because a
// missing permission is an error of the connection, which the node's own connection would log.
func (a *App) examine(ctx context.Context) ([]doctor.Finding, error) {
	nc, err := a.Connect("belfry doctor")
	if err != nil {
		return nil, schemas.Errorf(schemas.CodeUnavailable, "connect to NATS: %w", err)
	}
	defer nc.Close()
	return doctor.Examine(ctx, doctor.Options{
		Conn: nc, Store: a.o.StoreConfig(), Safe: a.o.Profile == ProfileSafe, Loopback: a.o.embedded() && OnLoopback(a.o.NATSListen), Timeout: a.o.Timeout,
	})
}
