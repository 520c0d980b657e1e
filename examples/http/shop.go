package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

type order struct{ paid, locked, expired bool }

// shop is in memory here. A real service has tables, and writes the key of the run in the
// transaction that expires the order.
type shop struct {
	mu     sync.Mutex
	orders map[int]*order
	done   map[string]bool
}

func (s *shop) expire(_ context.Context, key string, e event.Event) (string, error) {
	var data struct{ Order int }
	if err := e.DataAs(&data); err != nil {
		return "", fmt.Errorf("%w: %w", errNever, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[key] {
		return "done before", nil
	}
	o := s.orders[data.Order]
	switch {
	case o == nil:
		return "", fmt.Errorf("%w: there is no order %d", errNever, data.Order)
	case o.locked:
		return "", notNow{30 * time.Second}
	}
	o.expired = !o.paid
	s.done[key] = true
	return fmt.Sprintf("order %d: expired %t", data.Order, o.expired), nil
}
