package belfry

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// This file has the operations on the clock of a development node, which "belfry dev" and package
// belfrytest start. On other nodes they return ErrUnavailable.

// Clock describes the clock of a development node, and the effect of a move.
type Clock = schemas.ClockReply

// clockPatience is the time without progress after which a move of the clock fails.
const clockPatience = 30 * time.Second

// Clock returns the clock of a development node. Errors: ErrUnavailable.
func (c *Client) Clock(ctx context.Context) (Clock, error) {
	var r Clock
	err := c.call(ctx, "clock.get", struct{}{}, &r)
	return r, clockError(err)
}

// AdvanceClock moves the clock of a development node ahead by d. All timers that become due fire
// in due order. The clock waits at each due time until the callbacks have a result, or wait for a
// later attempt. Events without a callback are published when AdvanceClock returns, but their
// consumers may still handle them. AdvanceClock returns when the clock has reached its target.
// Errors: ErrBadRequest for a negative duration or a time after the year 2200; ErrUnavailable if a
// callback has no result after 30 seconds, or if ctx ends. The clock then stays at the due time of
// that callback.
func (c *Client) AdvanceClock(ctx context.Context, d time.Duration) (Clock, error) {
	return c.moveClock(ctx, "clock.advance", schemas.ClockAdvanceRequest{By: d.String()})
}

// MoveClock is AdvanceClock to a time. A time that the clock has passed is an ErrBadRequest.
func (c *Client) MoveClock(ctx context.Context, to time.Time) (Clock, error) {
	return c.moveClock(ctx, "clock.to", schemas.ClockToRequest{At: to.Format(time.RFC3339Nano)})
}

// ClockOption changes a call of [Client.RunClockUntilIdle].
type ClockOption interface {
	applyClock(*schemas.ClockIdleRequest)
}

type clockOption func(*schemas.ClockIdleRequest)

func (f clockOption) applyClock(q *schemas.ClockIdleRequest) { f(q) }

// ClockUntil makes the clock stop at a time. That is no error.
func ClockUntil(t time.Time) ClockOption {
	return clockOption(func(q *schemas.ClockIdleRequest) { q.Until = t.Format(time.RFC3339Nano) })
}

// ClockMax makes the clock stop after n due times, 1 to 1,000,000, with an error if more are left.
// The default is 1,000.
func ClockMax(n int) ClockOption {
	return clockOption(func(q *schemas.ClockIdleRequest) { q.Max = n })
}

// RunClockUntilIdle moves the clock of a development node from one due time to the next, as
// AdvanceClock does, until no timer is due in the future. A schedule without an end is always due
// again: give ClockUntil or ClockMax. Errors: those of AdvanceClock; ErrBadRequest if timers are left
// after ClockMax due times.
func (c *Client) RunClockUntilIdle(ctx context.Context, opts ...ClockOption) (Clock, error) {
	q := schemas.ClockIdleRequest{Max: schemas.DefaultClockSteps}
	for _, o := range opts {
		o.applyClock(&q)
	}
	most := q.Max
	var sum Clock
	last := time.Now()
	for {
		var r Clock
		if err := c.call(ctx, "clock.run-until-idle", q, &r); err != nil {
			return sum, clockError(err)
		}
		last = addClock(&sum, &r, last)
		if err := clockEnd(ctx, &r, last); err != nil {
			return sum, err
		}
		if !r.More && !r.Stopped {
			return sum, nil
		}
		if q.Max -= r.Steps; r.Stopped || q.Max <= 0 {
			return sum, endless(&r, most)
		}
	}
}

// endless returns the error of a clock that ClockMax has stopped.
func endless(r *Clock, most int) error {
	if len(r.Endless) == 0 {
		return schemas.Errorf(schemas.CodeBadRequest, "the clock has passed %d due times, which is the limit, and %d timers still have one: allow more, or a time at which to stop", most, r.Pending)
	}
	ids := make([]string, len(r.Endless))
	for i, id := range r.Endless {
		ids[i] = id.String()
	}
	return schemas.Errorf(schemas.CodeBadRequest, "the clock has passed %d due times, which is the limit, and is never idle: schedules without an end (%s); give a time at which to stop", most, strings.Join(ids, ", "))
}

// moveClock sends a request that moves the clock, and repeats it until the clock has reached its
// target.
func (c *Client) moveClock(ctx context.Context, verb string, q any) (Clock, error) {
	var sum Clock
	last := time.Now()
	for {
		var r Clock
		if err := c.call(ctx, verb, q, &r); err != nil {
			return sum, clockError(err)
		}
		last = addClock(&sum, &r, last)
		if err := clockEnd(ctx, &r, last); err != nil || !r.More {
			return sum, err
		}
		verb, q = "clock.to", schemas.ClockToRequest{At: r.Target.Format(time.RFC3339Nano)}
	}
}

// addClock adds an answer to the sum of a move. It returns when the clock made progress last.
func addClock(sum, r *Clock, last time.Time) time.Time {
	if r.Steps > 0 || r.Fired > 0 {
		last = time.Now()
	}
	steps, fired := sum.Steps+r.Steps, sum.Fired+r.Fired
	*sum = *r
	sum.Steps, sum.Fired = steps, fired
	return last
}

// clockEnd returns an error if a move must not go on.
func clockEnd(ctx context.Context, r *Clock, last time.Time) error {
	switch {
	case !r.More:
		return nil
	case ctx.Err() != nil:
		return schemas.Errorf(schemas.CodeUnavailable, "the clock is at %s and has not reached its target: %w", schemas.FormatTime(r.Now.UnixMilli()), context.Cause(ctx))
	case time.Since(last) > clockPatience && len(r.Waiting) > 0:
		return schemas.Errorf(schemas.CodeUnavailable, "the clock waits at %s: the callback of timer %s has no result after %s", schemas.FormatTime(r.Now.UnixMilli()), r.Waiting[0], clockPatience)
	case time.Since(last) > clockPatience:
		return schemas.Errorf(schemas.CodeUnavailable, "the clock waits at %s, and nothing has happened for %s", schemas.FormatTime(r.Now.UnixMilli()), clockPatience)
	}
	return nil
}

// clockError explains the error of a node whose clock cannot be moved.
func clockError(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return schemas.Errorf(schemas.CodeUnavailable, "no node has a movable clock: only \"belfry dev\" and package belfrytest start such a node (%w)", nats.ErrNoResponders)
	}
	return err
}
