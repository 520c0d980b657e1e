package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/belfrytest"
)

// TestExpire: an order expires 15 minutes after it was placed, unless it was paid. The clock of
// the test moves, so that takes about a second.
func TestExpire(t *testing.T) {
	t.Parallel()
	b := belfrytest.New(t)
	s := newShop(b.Client())
	ctx, stop := context.WithCancel(t.Context())
	conn, stopped := b.Client().Conn(), make(chan error, 1)
	before := conn.NumSubscriptions()
	go func() { stopped <- b.Client().Work(ctx, "orders", belfry.HandleJSON(s.expire)) }()
	for conn.NumSubscriptions() == before {
		time.Sleep(time.Millisecond) // until Work has subscribed
	}
	for _, number := range []int{17, 18, 19} {
		if err := s.place(ctx, number); err != nil {
			t.Fatal(err)
		}
	}
	s.change(19, func(o *order) { o.locked = true })

	b.Advance(14 * time.Minute)
	if err := s.pay(ctx, 18); err != nil {
		t.Fatal(err)
	}
	b.Advance(time.Minute)
	if err := s.pay(ctx, 17); !errors.Is(err, errTooLate) {
		t.Errorf("pay after 15 minutes: got %v, want %v", err, errTooLate)
	}
	s.change(19, func(o *order) {
		if o.expired {
			t.Error("the locked order has expired")
		}
		o.locked = false
	})
	b.Advance(time.Minute) // the handler asked for another call after 30 s

	for number, expired := range map[int]bool{17: true, 18: false, 19: true} {
		s.change(number, func(o *order) {
			if o.expired != expired {
				t.Errorf("order %d: expired is %t, want %t", number, o.expired, expired)
			}
		})
	}
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// change changes or looks at an order.
func (s *shop) change(number int, f func(o *order)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.orders[number])
}
