package httpapi

import (
	"context"
	"net/http"

	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

// Clock is the movable clock of a development node; *devclock.Mover has it.
type Clock interface {
	ClockGet(ctx context.Context, none struct{}) (schemas.ClockReply, error)
	ClockAdvance(ctx context.Context, q schemas.ClockAdvanceRequest) (schemas.ClockReply, error)
	ClockTo(ctx context.Context, q schemas.ClockToRequest) (schemas.ClockReply, error)
	ClockRunUntilIdle(ctx context.Context, q schemas.ClockIdleRequest) (schemas.ClockReply, error)
}

// clockRoutes are the operations on the clock of a development node. Other nodes refuse them.
var clockRoutes = []route{
	{"GET", "/v1/clock", token.ScopeRead, nil, shared(showClock)},
	{"POST", "/v1/clock/advance", token.ScopeAdmin, nil, shared(clockRequest(Clock.ClockAdvance))},
	{"POST", "/v1/clock/to", token.ScopeAdmin, nil, shared(clockRequest(Clock.ClockTo))},
	{"POST", "/v1/clock/run-until-idle", token.ScopeAdmin, nil, shared(clockRequest(Clock.ClockRunUntilIdle))},
}

// clock returns the clock of the node.
func (q *request) clock() (Clock, error) {
	if c := q.api.o.Clock; c != nil {
		return c, nil
	}
	return nil, badRequest("the clock of this node cannot be moved: only \"belfry dev\" starts a node with a movable clock")
}

// showClock is GET /v1/clock.
func showClock(q *request) (answer, error) {
	c, err := q.clock()
	if err != nil {
		return answer{}, err
	}
	r, err := c.ClockGet(q.Context(), struct{}{})
	return answer{status: http.StatusOK, body: r}, err
}

// clockRequest is the handler of a request that moves the clock.
func clockRequest[Q any](move func(Clock, context.Context, Q) (schemas.ClockReply, error)) func(*request) (answer, error) {
	return func(q *request) (answer, error) {
		var b Q
		if err := q.options(&b); err != nil {
			return answer{}, err
		}
		c, err := q.clock()
		if err != nil {
			return answer{}, err
		}
		r, err := move(c, q.Context(), b)
		return answer{status: http.StatusOK, body: r}, err
	}
}
