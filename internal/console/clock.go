package console

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

// This file serves the clock of a development node, which every page shows in a bar.

// clockRoutes are the forms of the bar.
var clockRoutes = []route{
	{"POST", "/clock/advance", token.ScopeAdmin, true, advanceClock},
	{"POST", "/clock/run-until-idle", token.ScopeAdmin, true, runClock},
}

// clockBound bounds one form. It must stay below the time-out of the HTTP server.
const clockBound = 15 * time.Second

// showClock returns the clock for the bar; nil on other nodes, and for a caller who may not see it.
func (q *request) showClock() *schemas.ClockReply {
	c := q.console.o.Clock
	if c == nil || q.ops == nil || q.id.Tenant != "" {
		return nil
	}
	r, err := c.ClockGet(q.Context(), struct{}{})
	if err != nil {
		return nil
	}
	return &r
}

// advanceClock moves the clock ahead by a duration.
func advanceClock(q *request) (view, error) {
	by := q.PostFormValue("by")
	return q.moveClock(func(ctx context.Context, c httpapi.Clock, r *schemas.ClockReply) (schemas.ClockReply, error) {
		if r.More {
			return c.ClockTo(ctx, schemas.ClockToRequest{At: schemas.FormatTime(r.Target.UnixMilli())})
		}
		return c.ClockAdvance(ctx, schemas.ClockAdvanceRequest{By: by})
	})
}

// runClock moves the clock until no timer is due in the future.
func runClock(q *request) (view, error) {
	return q.moveClock(func(ctx context.Context, c httpapi.Clock, _ *schemas.ClockReply) (schemas.ClockReply, error) {
		return c.ClockRunUntilIdle(ctx, schemas.ClockIdleRequest{})
	})
}

// moveClock repeats a move until it is complete or clockBound is over, and returns to the page of the
// form.
func (q *request) moveClock(move func(context.Context, httpapi.Clock, *schemas.ClockReply) (schemas.ClockReply, error)) (view, error) {
	c := q.console.o.Clock
	if c == nil {
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "the clock of this node cannot be moved: only \"belfry dev\" starts a node with a movable clock")
	}
	var r schemas.ClockReply
	notice := "moved-clock"
	for begun := time.Now(); ; {
		var err error
		if r, err = move(q.Context(), c, &r); err != nil {
			return view{}, err
		}
		if !r.More {
			break
		}
		if time.Since(begun) > clockBound {
			notice = "moving-clock"
			break
		}
	}
	if r.Stopped {
		notice = "endless-clock"
	}
	return view{location: pageOf(q.Request), notice: notice}, nil
}

// pageOf returns the path of the page with the form of a request.
func pageOf(r *http.Request) string {
	from, err := url.Parse(r.Referer())
	if err != nil || from.Host != r.Host || from.Path == "" {
		return "/"
	}
	return from.EscapedPath()
}
