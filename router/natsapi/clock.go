package natsapi

import (
	"context"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/schemas"
)

// Clock is the movable clock of a development node; see package internal/devclock.
type Clock interface {
	ClockGet(ctx context.Context, none struct{}) (schemas.ClockReply, error)
	ClockAdvance(ctx context.Context, q schemas.ClockAdvanceRequest) (schemas.ClockReply, error)
	ClockTo(ctx context.Context, q schemas.ClockToRequest) (schemas.ClockReply, error)
	ClockRunUntilIdle(ctx context.Context, q schemas.ClockIdleRequest) (schemas.ClockReply, error)
}

// clockShared is a reason of ownAccount.
const clockShared = "all accounts share the clock, so only Belfry's own account moves it"

// clockVerbs returns the operations on the clock of a development node.
func (a *api) clockVerbs(c Clock) []verb {
	own := func(name string, h handler) func(*endpoint.Request) { return a.serve(name, ownAccount(clockShared, h)) }
	return []verb{
		{"clock.get", "the clock of a development node, with the next due time", own("clock.get", clockRequest(c, Clock.ClockGet))},
		{"clock.advance", "move the clock: {by}; everything due fires in order", own("clock.advance", clockRequest(c, Clock.ClockAdvance))},
		{"clock.to", "move the clock to a time: {at}", own("clock.to", clockRequest(c, Clock.ClockTo))},
		{"clock.run-until-idle", "move the clock from one due time to the next: {until, max}", own("clock.run-until-idle", clockRequest(c, Clock.ClockRunUntilIdle))},
	}
}

// clockRequest is the handler of an operation on a clock.
func clockRequest[Q any](c Clock, f func(Clock, context.Context, Q) (schemas.ClockReply, error)) handler {
	return query(func(ctx context.Context, q Q) (schemas.ClockReply, error) { return f(c, ctx, q) })
}

// Routed returns the last sequence of TIMERS_ADD that was delivered here, and whether all adds
// that were delivered are settled.
func (s *Server) Routed() (through uint64, settled bool) {
	through = s.intake.seen.Load()
	return through, s.intake.busy.Load() == 0
}
