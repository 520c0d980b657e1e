package store

import (
	"context"
	"errors"
	"time"
)

// A request that reaches a stream while it has no leader is never answered, also
// not by the leader that is elected a moment later. So what may be repeated is
// asked again long before Config.Timeout: the store is back for its users when it
// is back, and not up to five seconds after.
const (
	// firstPatience is how long the first request may stay without any answer. A
	// leader that is well answers in milliseconds.
	firstPatience = 750 * time.Millisecond
	// askAgain is between later requests. Each of these is waited for to the end, so
	// that a slow server is not asked for ever without being heard.
	askAgain = time.Second
)

var errSilent = errors.New("nobody answered yet")

// again does what may be repeated until one try is answered or ctx ends. A try
// calls heard when the first part of an answer is there; from then on it is
// waited for.
func again[T any](ctx context.Context, try func(ctx context.Context, heard func()) (T, error)) (T, error) {
	first, cancel := context.WithCancelCause(ctx)
	patience := time.AfterFunc(firstPatience, func() { cancel(errSilent) })
	v, err := try(first, func() { patience.Stop() })
	patience.Stop()
	silent := errors.Is(context.Cause(first), errSilent)
	cancel(nil)
	if err == nil || !silent {
		return v, err
	}
	if err := ctx.Err(); err != nil {
		return v, err // and not that the first try was cut off
	}
	type answer struct {
		v   T
		err error
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	answers := make(chan answer)
	ask := func() {
		v, err := try(ctx, func() {})
		select {
		case answers <- answer{v, err}:
		case <-ctx.Done():
		}
	}
	ticker := time.NewTicker(askAgain)
	defer ticker.Stop()
	go ask()
	for {
		select {
		case a := <-answers:
			return a.v, a.err
		case <-ticker.C:
			go ask()
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}
