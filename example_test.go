package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
)

// Example adds a timer, moves it, and handles it when it fires.
func Example() {
	dir, err := os.MkdirTemp("", "belfry-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, stop, err := serve(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := belfry.Connect(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := event.New()
	e.SetID("order-17")
	e.SetSource("/shop")
	e.SetType("order.timeout")
	r, err := c.Add(ctx, e, belfry.After(time.Hour), belfry.WithService("orders"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("added", r.Timer)
	if _, err := c.Reschedule(ctx, r.Timer, belfry.After(50*time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	err = c.Handle(ctx, "orders", func(_ context.Context, run *belfry.Run) error {
		fmt.Println("fired", run.Event.ID(), "run", run.Run, "early:", run.Late() < 0)
		cancel() // Handle returns once this handler has
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// added ml2ai6l95vcp3hc3fk0o71pouo
	// fired order-17 run 1 early: false
}

func ExampleClient_Cancel() {
	dir, err := os.MkdirTemp("", "belfry-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, stop, err := serve(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	ctx := context.Background()
	c, err := belfry.Connect(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	r, err := c.Add(ctx, newEvent("order-18"), belfry.After(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	t, err := c.Cancel(ctx, r.Timer)
	fmt.Println(t.State, err)
	_, err = c.Reschedule(ctx, r.Timer, belfry.After(time.Minute))
	fmt.Println(errors.Is(err, belfry.ErrAlreadyDone), err)
	// Output:
	// cancelled <nil>
	// true cannot reschedule: the timer is cancelled
}

// Work serves timers that were added with ToWorker. What the handler returns is what
// Get says: here a second attempt succeeds.
func ExampleClient_Work() {
	dir, err := os.MkdirTemp("", "belfry-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, stop, err := serve(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	c, err := belfry.Connect(context.Background(), url)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := newEvent("order-20")
	if err := e.SetData(event.ApplicationJSON, map[string]int{"order": 20}); err != nil {
		log.Fatal(err)
	}
	r, err := c.Add(context.Background(), e, belfry.After(0), belfry.ToWorker("orders"), belfry.WithBackoff(10*time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	type order struct{ Order int }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err = c.Work(ctx, "orders", belfry.HandleJSON(func(_ context.Context, run *belfry.Run, o order) error {
		if run.Attempt == 1 {
			return errors.New("the shop is closed")
		}
		run.SetResult(fmt.Sprint("expired order ", o.Order))
		cancel() // Work returns once this handler has
		return nil
	}), belfry.WithErrorHandler(func(run *belfry.Run, err error) {
		fmt.Printf("%s, attempt %d: %v\n", run.Event.ID(), run.Attempt, err)
	}))
	fmt.Println("stopped:", err)
	t := belfry.Timer{}
	for t.State != belfry.StateSuccess { // the outcome is written down
		if t, err = c.Get(context.Background(), r.Timer); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(t.Attempts, "attempts:", t.Outcome.Response)
	// Output:
	// order-20, attempt 1: the shop is closed
	// stopped: <nil>
	// 2 attempts: expired order 20
}

// A handler says what becomes of an event: done, later, never, or tried again.
func ExampleClient_Handle() {
	dir, err := os.MkdirTemp("", "belfry-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, stop, err := serve(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := belfry.Connect(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	if _, err := c.Add(ctx, newEvent("order-19"), belfry.After(0), belfry.WithService("mail")); err != nil {
		log.Fatal(err)
	}
	tries := 0
	err = c.Handle(ctx, "mail", func(_ context.Context, run *belfry.Run) error {
		tries++
		switch tries {
		case 1:
			return belfry.RetryAfter(20 * time.Millisecond) // not now, and no failure
		case 2:
			return errors.New("the mail server is away") // told to OnError, tried again
		}
		cancel()
		return belfry.Permanent(errors.New("no such mailbox")) // reported to OnError, dead letter
	}, belfry.WithConcurrency(1), belfry.WithErrorHandler(func(run *belfry.Run, err error) {
		fmt.Printf("%s, delivery %d: %v\n", run.Event.ID(), run.Attempt, err)
	}))
	fmt.Println("stopped:", err)
	// Output:
	// order-19, delivery 2: the mail server is away
	// order-19, delivery 3: gave up, dead letter on timers.dead.mail: no such mailbox
	// stopped: <nil>
}

// AddBatch is the fast way to add many; List finds them again.
func ExampleClient_AddBatch() {
	dir, err := os.MkdirTemp("", "belfry-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, stop, err := serve(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	ctx := context.Background()
	c, err := belfry.Connect(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	var events []event.Event
	for i := range 1000 {
		events = append(events, newEvent(fmt.Sprint("order-", i)))
	}
	if err := c.AddBatch(ctx, events, belfry.After(time.Hour), belfry.WithGroup("spring")); err != nil {
		log.Fatal(err)
	}
	// The adds are durable; the timers appear as the router takes them.
	n := 0
	for n < len(events) {
		n = 0
		for _, err := range c.List(ctx, belfry.ListQuery{Group: "spring", States: []belfry.State{belfry.StatePending}}) {
			if err != nil {
				log.Fatal(err)
			}
			n++
		}
	}
	fmt.Println(n, "timers wait")
	_, err = c.Cancel(ctx, belfry.NewTimerID("/shop", "order-7")) // known by source and id alone
	fmt.Println("cancelled:", err)
	// Output:
	// 1000 timers wait
	// cancelled: <nil>
}
