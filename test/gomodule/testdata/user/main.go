// Command user is a program of a module that uses Belfry's Go client. It adds two timers, cancels one, and
// handles the other. Its arguments are the URL of the server, and a service that no other program uses.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c, err := belfry.Connect(ctx, os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	service := os.Args[2]
	var later belfry.Receipt
	available(ctx, func() (err error) {
		later, err = c.Add(ctx, order(service+"-later"), belfry.After(time.Hour))
		return err
	})
	available(ctx, func() error {
		_, err := c.Cancel(ctx, later.Timer)
		return err
	})
	available(ctx, func() error {
		_, err := c.Add(ctx, order(service+"-now"), belfry.After(time.Millisecond), belfry.ToWorker(service))
		return err
	})
	handled := make(chan string, 1)
	work, stop := context.WithCancel(ctx)
	defer stop()
	err = c.Work(work, service, func(_ context.Context, r *belfry.Run) error {
		handled <- r.Event.ID()
		stop()
		return nil
	})
	if err != nil && work.Err() == nil {
		log.Fatal(err)
	}
	select {
	case id := <-handled:
		fmt.Println(runtime.Version(), "handled", id)
	case <-ctx.Done():
		log.Fatal(ctx.Err())
	}
}

// available calls do until the node is available.
func available(ctx context.Context, do func() error) {
	for {
		err := do()
		if err == nil {
			return
		}
		if !errors.Is(err, belfry.ErrUnavailable) || ctx.Err() != nil {
			log.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// order returns an event of the shop.
func order(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/shop")
	e.SetType("order.timeout")
	return e
}
