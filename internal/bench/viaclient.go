package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// This file adds timers with the Go client. It creates the events as a user's program would.

// clientEvent returns the event of timer n for the Go client.
func (a *Adder) clientEvent(n int) (event.Event, error) {
	e := event.New()
	e.SetID(a.ID(n))
	e.SetSource(source)
	e.SetType("belfry.bench")
	return e, e.SetData(event.ApplicationJSON, a.pad)
}

// clientOptions returns the options with which timer n is added.
func (a *Adder) clientOptions(n int, dueMs int64) []belfry.AddOption {
	opts := []belfry.AddOption{belfry.At(time.UnixMilli(dueMs)), belfry.WithService(a.serviceOf(n))}
	if a.callback != "" {
		opts = append(opts, belfry.WithCallback(a.callback))
	}
	return opts
}

// call adds a timer with Client.Add.
func (a *Adder) call(ctx context.Context, c *belfry.Client, n int, dueMs int64) error {
	e, err := a.clientEvent(n)
	if err != nil {
		return err
	}
	r, err := c.Add(ctx, e, a.clientOptions(n, dueMs)...)
	switch {
	case err != nil:
		return err
	case r.Timer != a.Timer(n):
		return errors.New("the answer names another timer")
	}
	return nil
}

// clientAsync adds timers with Client.AddAsync, with up to window of them unacknowledged.
func (a *Adder) clientAsync(ctx context.Context, nc *nats.Conn, take func() (int, bool), due func(int) int64) error {
	c, err := belfry.New(nc)
	if err != nil {
		return err
	}
	return a.inFlight(ctx, take, func(n int) (func() error, error) {
		e, err := a.clientEvent(n)
		if err != nil {
			return nil, err
		}
		p, err := c.AddAsync(e, a.clientOptions(n, due(n))...)
		return func() error { return p.Wait(ctx) }, err // the client bounds the wait
	})
}

// clientBatches adds timers with Client.AddBatch, one batch at a time. Due time and service are
// attributes of each event, because the options of a batch apply to all its events.
func (a *Adder) clientBatches(ctx context.Context, nc *nats.Conn, take func() (int, bool), due func(int) int64) error {
	c, err := belfry.New(nc)
	if err != nil {
		return err
	}
	for numbers := gather(take); len(numbers) > 0; numbers = gather(take) {
		events := make([]event.Event, len(numbers))
		for i, n := range numbers {
			if events[i], err = a.clientEvent(n); err != nil {
				return err
			}
			events[i].SetExtension(schemas.AttrAt, schemas.FormatTime(due(n)))
			events[i].SetExtension(schemas.AttrService, a.serviceOf(n))
		}
		var opts []belfry.AddOption
		if a.callback != "" {
			opts = append(opts, belfry.WithCallback(a.callback))
		}
		bctx, cancel := context.WithTimeout(ctx, addTimeout)
		err := c.AddBatch(bctx, events, opts...)
		cancel()
		if err != nil {
			return fmt.Errorf("a batch of adds was not acknowledged: %w", err)
		}
		a.done.Add(int64(len(numbers)))
	}
	return nil
}

// gather takes the timers of one batch; none if there are no more.
func gather(take func() (int, bool)) []int {
	numbers := make([]int, 0, batchSize)
	for len(numbers) < batchSize {
		n, ok := take()
		if !ok {
			break
		}
		numbers = append(numbers, n)
	}
	return numbers
}
