// Command nats answers callbacks over NATS.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	closed := make(chan struct{})
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return err
	}
	s := &shop{orders: map[int]*order{17: {}, 19: {locked: true}}, done: map[string]bool{}}
	service, err := micro.AddService(nc, micro.Config{Name: "orders", Version: "1.0.0", QueueGroup: "orders"})
	if err != nil {
		return err
	}
	if err := service.AddEndpoint("expire", micro.HandlerFunc(s.answer), micro.WithEndpointSubject("callbacks.orders.expire")); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Println("serving callbacks.orders.expire")
	<-ctx.Done()
	if err := nc.Drain(); err != nil { // takes no more requests, and answers the ones that have arrived
		return err
	}
	<-closed
	return nil
}

type order struct{ paid, locked, expired bool }

// shop is in memory here. A real service has tables, and writes the key of the run in the
// transaction that expires the order.
type shop struct {
	mu     sync.Mutex
	orders map[int]*order
	done   map[string]bool
}

// errLocked asks Belfry to call again after a while. It uses up no attempt.
var errLocked = errors.New("the order is being changed")

func (s *shop) answer(r micro.Request) {
	result, err := s.expire(r.Headers().Get("Idempotency-Key"), r.Data())
	switch {
	case err == nil:
		_ = r.Respond([]byte(result))
	case errors.Is(err, errLocked):
		_ = r.Error("503", err.Error(), nil, micro.WithHeaders(micro.Headers{"Retry-After": {"30"}}))
	default:
		_ = r.Error("500", err.Error(), nil)
	}
}

func (s *shop) expire(key string, data []byte) (string, error) {
	var d struct{ Order int }
	if err := json.Unmarshal(data, &d); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[key] {
		return "done before", nil
	}
	o := s.orders[d.Order]
	switch {
	case o == nil:
		return "", fmt.Errorf("there is no order %d", d.Order)
	case o.locked:
		return "", errLocked
	}
	o.expired = !o.paid
	s.done[key] = true
	return fmt.Sprintf("order %d: expired %t", d.Order, o.expired), nil
}
