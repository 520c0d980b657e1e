// Command worker expires orders that were not paid, as a worker of Belfry.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/belfryio/belfry"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := belfry.Connect(ctx, cmp.Or(os.Getenv("NATS_URL"), "nats://127.0.0.1:4222"))
	if err != nil {
		return err
	}
	defer c.Close()
	s := newShop(c)
	if err := s.place(ctx, 17); err != nil {
		return err
	}
	fmt.Println("serving orders")
	// Work returns when ctx has ended and the handlers have returned.
	if err := c.Work(ctx, "orders", belfry.HandleJSON(s.expire), belfry.WithConcurrency(4)); err != nil {
		return err
	}
	fmt.Println("stopped")
	return nil
}
