package jet

import (
	"context"
	"errors"
	"time"
)

// Work-around 6 (docs/internals/nats-server.md). A request that reaches a stream while it
// has no leader is never answered, not even by the leader that is elected a moment later.
// Nor does a server answer that loses the lead of the cluster's metadata: it drops the
// proposals that are pending. Requests that may be repeated are hedged: sent again long
// before Options.Timeout, so that callers notice a new leader at once and not up to five
// seconds later.
const (
	// hedgeAfter is how long the first request may stay without any answer. A healthy
	// leader answers in milliseconds.
	hedgeAfter = 750 * time.Millisecond
	// hedgeEvery is the time between later requests. Each of these is waited for to the
	// end, so that a slow server gets the chance to answer one of them.
	hedgeEvery = time.Second
)

var errSilent = errors.New("no answer yet")

// hedge calls try, which must be repeatable, until one call is answered or ctx ends. A
// try calls heard when the first part of an answer has arrived; from then on hedge waits
// for that try alone.
func hedge[T any](ctx context.Context, try func(ctx context.Context, heard func()) (T, error)) (T, error) {
	first, cancel := context.WithCancelCause(ctx)
	silence := time.AfterFunc(hedgeAfter, func() { cancel(errSilent) })
	v, err := try(first, func() { silence.Stop() })
	silence.Stop()
	silent := errors.Is(context.Cause(first), errSilent)
	cancel(nil)
	if err == nil || !silent {
		return v, err
	}
	if err := ctx.Err(); err != nil {
		return v, err // rather than the cancellation of the first try
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
	ticker := time.NewTicker(hedgeEvery)
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
