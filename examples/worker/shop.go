package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
)

// order is also the data of the event.
type order struct {
	Number                int
	paid, locked, expired bool
}

// shop is in memory here. A real service has tables, and writes the key of the run in the
// transaction that expires the order.
type shop struct {
	belfry *belfry.Client
	mu     sync.Mutex
	orders map[int]*order
	done   map[string]bool
}

func newShop(c *belfry.Client) *shop {
	return &shop{belfry: c, orders: map[int]*order{}, done: map[string]bool{}}
}

// place stores an order, and adds the timer that expires it. Adding the same event again
// changes nothing, so a caller that got an error calls place again.
func (s *shop) place(ctx context.Context, number int) error {
	s.mu.Lock()
	s.orders[number] = &order{Number: number}
	s.mu.Unlock()
	e := event.New()
	e.SetID(fmt.Sprint("order-", number))
	e.SetSource("/shop")
	e.SetType("order.timeout")
	if err := e.SetData(event.ApplicationJSON, order{Number: number}); err != nil {
		return err
	}
	_, err := s.belfry.Add(ctx, e, belfry.After(15*time.Minute), belfry.ToWorker("orders"))
	return err
}

// errTooLate says that the order has expired, or expires at the moment.
var errTooLate = errors.New("the order has expired")

// pay cancels the timer. If that succeeds, the order never expires.
func (s *shop) pay(ctx context.Context, number int) error {
	_, err := s.belfry.Cancel(ctx, belfry.NewTimerID("/shop", fmt.Sprint("order-", number)), belfry.By("checkout"))
	if errors.Is(err, belfry.ErrAlreadyFired) {
		return errTooLate
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders[number].paid = true
	return nil
}

// expire is the handler of the worker.
func (s *shop) expire(_ context.Context, run *belfry.Run, data order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[run.Key()] {
		return nil // an attempt whose answer got lost
	}
	o := s.orders[data.Number]
	switch {
	case o == nil:
		return belfry.Permanent(fmt.Errorf("there is no order %d", data.Number)) // a dead letter
	case o.locked:
		return belfry.RetryAfter(30 * time.Second) // not now: uses no attempt
	}
	o.expired = true
	s.done[run.Key()] = true
	run.SetResult(fmt.Sprintf("order %d expired", data.Number)) // belfry get shows it
	return nil
}
