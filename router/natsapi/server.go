package natsapi

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// Options configure a Server. All but Clock, Inboxes, Version and Registerer are required.
type Options struct {
	Service *router.Service
	// OpenInbox opens timers.add; see store.Store.
	OpenInbox func(context.Context) (*store.Inbox, error)
	// OpenTenantInbox opens the adds of tenants; required if the Service has tenants.
	OpenTenantInbox func(context.Context) (*store.Inbox, error)
	// Clock is the movable clock of a development node; nil for none.
	Clock Clock
	// Conn is the connection to serve the API on.
	Conn endpoint.Conn
	// Inboxes lists prefixes of reply subjects in addition to _INBOX….
	Inboxes schemas.Inboxes
	// Version shows up in $SRV.INFO; default 0.0.0.
	Version    string
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Server serves a router.Service on timers.add and timers.api. The Service is started
// before the Server, and stopped after it.
type Server struct {
	o      Options
	api    *api
	intake *intake
	// tenants is the intake of the adds of tenants; nil without tenants.
	tenants *intake

	mu               sync.Mutex
	started, stopped bool
}

// New checks the options; it starts nothing.
func New(o Options) (*Server, error) {
	if o.Service == nil || o.OpenInbox == nil || o.Conn == (endpoint.Conn{}) {
		return nil, schemas.Errorf(schemas.CodeConfig, "the router's NATS server needs a service, an inbox and a connection")
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("router: register metrics: %w", err)
	}
	s := &Server{o: o, api: newAPI(o, m), intake: newIntake(o.Service)}
	if len(o.Service.Tenants()) > 0 {
		if o.OpenTenantInbox == nil {
			return nil, schemas.Errorf(schemas.CodeConfig, "the router's NATS server needs an inbox for tenants")
		}
		s.tenants = newIntake(o.Service)
	}
	return s, nil
}

// Start starts to read adds and to serve the API. A server that was stopped cannot be
// started again.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return schemas.Errorf(schemas.CodeConfig, "a router that was stopped cannot be started again; make a new one")
	case s.started:
		return nil
	}
	inbox, err := s.o.OpenInbox(ctx)
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	s.intake.start(inbox)
	if err := s.startRest(ctx); err != nil {
		s.stopped = true
		return errors.Join(err, s.api.stop(), s.stopIntakes(ctx))
	}
	s.started = true
	return nil
}

// startRest starts what follows the intake of timers.add.
func (s *Server) startRest(ctx context.Context) error {
	if s.tenants != nil {
		inbox, err := s.o.OpenTenantInbox(ctx)
		if err != nil {
			return fmt.Errorf("router: adds of tenants: %w", err)
		}
		s.tenants.start(inbox)
	}
	return s.api.start()
}

// stopIntakes stops both intakes at the same time.
func (s *Server) stopIntakes(ctx context.Context) error {
	if s.tenants == nil || s.tenants.inbox == nil {
		return s.intake.stop(ctx)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.tenants.stop(ctx) }()
	err := s.intake.stop(ctx)
	return errors.Join(err, <-stopped)
}

// Stop ends both adapters and waits for what they have passed to the service. If ctx ends
// first, or after router.StopTimeout, the rest is left to the service's own Stop: adds that
// are not stored are delivered again to another router. It may be called more than once,
// and without Start.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.stopped {
		return nil
	}
	s.stopped = true
	ctx, cancel := context.WithTimeout(ctx, router.StopTimeout)
	defer cancel()
	return errors.Join(s.api.stop(), s.stopIntakes(ctx))
}
