package app

import (
	"context"
	"time"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/devclock"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/router/natsapi"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// clock is the cluster's time as the roles read it.
type clock interface {
	scheduler.Time
	router.Time
	functionsTime
}

// functionsTime is the part of the time that functions read.
type functionsTime interface{ SteadyFor() time.Duration }

// Settings of a development node.
const (
	// developmentSweepDelay disables the sweeper, which would read every second that a move of the
	// clock passes.
	developmentSweepDelay = 20 * 365 * 24 * time.Hour
	// developmentShortDelay makes every retry wait in the wheel, which follows the clock, and none
	// in its consumer.
	developmentShortDelay = time.Nanosecond
)

// checkDevelopment validates the options of a development node.
func (o *Options) checkDevelopment() error {
	switch {
	case o.Frozen && !o.Development:
		return badConfig("only the clock of a development node can be frozen")
	case !o.Development:
		return nil
	case !o.embedded():
		return badConfig("a development node needs the embedded server: its clock moves for no other node")
	case !o.runs(RoleRouter) || !o.runs(RoleScheduler) || !o.runs(RoleFunctions):
		return badConfig("a development node runs the roles router, scheduler and functions")
	}
	return nil
}

// develop changes the configuration c to the configuration of a development store.
func (o *Options) develop(c *store.Config) {
	c.Development = true
	c.DedupWindow, c.IndexKeep = store.DevelopmentDedupWindow, store.DevelopmentIndexKeep
	if c.Geometry == (schemas.Geometry{}) {
		c.Geometry = schemas.DefaultGeometry()
		c.Geometry.Shards = 1
	}
}

// startClock sets the clock of the roles.
func (a *App) startClock(ctx context.Context) error {
	a.clock = a.time
	if a.moved == nil {
		return nil
	}
	a.moved.Follow(a.time)
	a.clock = a.moved
	m, err := devclock.Open(ctx, a.moved, a.store, a.o.Frozen, a.component("clock"))
	if err != nil {
		return err
	}
	a.mover = m
	return nil
}

// natsClock returns the clock that NATS requests move; nil on other nodes.
func (a *App) natsClock() natsapi.Clock {
	if a.mover == nil {
		return nil
	}
	return a.mover
}

// httpClock is natsClock for HTTP.
func (a *App) httpClock() httpapi.Clock {
	if a.moved == nil {
		return nil
	}
	return movableClock{a}
}

// startMover lets requests move the clock. The roles must exist.
func (a *App) startMover() error {
	if a.mover == nil {
		return nil
	}
	a.onStop("clock", 0, func(context.Context) error {
		a.mover.Stop()
		return nil
	})
	return a.mover.Start(developmentNode{a})
}

// developmentNode implements devclock.Node for the mover.
type developmentNode struct{ a *App }

// Wake implements devclock.Node.
func (n developmentNode) Wake() { n.a.roles.scheduler.Wake() }

// Quiet implements devclock.Node.
func (n developmentNode) Quiet(atMs int64, seen []uint64) bool {
	return n.a.roles.scheduler.Quiet(atMs, seen)
}

// Routed implements devclock.Node.
func (n developmentNode) Routed() (through uint64, settled bool) { return n.a.roles.nats.Routed() }

// movableClock is the clock of a development node for HTTP. HTTP begins before the roles, so until
// then its methods return unavailable.
type movableClock struct{ a *App }

func (c movableClock) mover() (*devclock.Mover, error) {
	if m := c.a.moving.Load(); m != nil {
		return m, nil
	}
	return nil, schemas.Errorf(schemas.CodeUnavailable, "the node is not ready: %s; nothing was done: try again", *c.a.phase.Load())
}

// ClockGet implements httpapi.Clock.
func (c movableClock) ClockGet(ctx context.Context, q struct{}) (schemas.ClockReply, error) {
	return onMover(ctx, c, q, (*devclock.Mover).ClockGet)
}

// ClockAdvance implements httpapi.Clock.
func (c movableClock) ClockAdvance(ctx context.Context, q schemas.ClockAdvanceRequest) (schemas.ClockReply, error) {
	return onMover(ctx, c, q, (*devclock.Mover).ClockAdvance)
}

// ClockTo implements httpapi.Clock.
func (c movableClock) ClockTo(ctx context.Context, q schemas.ClockToRequest) (schemas.ClockReply, error) {
	return onMover(ctx, c, q, (*devclock.Mover).ClockTo)
}

// ClockRunUntilIdle implements httpapi.Clock.
func (c movableClock) ClockRunUntilIdle(ctx context.Context, q schemas.ClockIdleRequest) (schemas.ClockReply, error) {
	return onMover(ctx, c, q, (*devclock.Mover).ClockRunUntilIdle)
}

func onMover[Q any](ctx context.Context, c movableClock, q Q, f func(*devclock.Mover, context.Context, Q) (schemas.ClockReply, error)) (schemas.ClockReply, error) {
	m, err := c.mover()
	if err != nil {
		return schemas.ClockReply{}, err
	}
	return f(m, ctx, q)
}

// shortDelay returns functions.Options.ShortDelay.
func (o *Options) shortDelay() time.Duration {
	if o.Development {
		return developmentShortDelay
	}
	return functions.DefaultShortDelay
}
