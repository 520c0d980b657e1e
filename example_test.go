package belfry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// startBelfry runs Belfry on an embedded NATS server, for the examples. Programs connect to a
// server that "belfry serve" runs instead.
func startBelfry() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "belfry-example")
	if err != nil {
		log.Fatal(err)
	}
	url, stopServer, err := serve(dir)
	if err != nil {
		log.Fatal(err)
	}
	return url, func() {
		stopServer()
		os.RemoveAll(dir)
	}
}

// connected returns a client of a new Belfry, for the examples.
func connected() (c *belfry.Client, stop func()) {
	url, stopServer := startBelfry()
	c, err := belfry.Connect(context.Background(), url)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		c.Close()
		stopServer()
	}
}

// orderTimeout returns an event of the shop.
func orderTimeout(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/shop")
	e.SetType("order.timeout")
	return e
}

// waitFor waits until a timer has a state.
func waitFor(ctx context.Context, c *belfry.Client, id belfry.TimerID, state belfry.State) belfry.Timer {
	for {
		t, err := c.Get(ctx, id)
		if err != nil {
			log.Fatal(err)
		}
		if t.State == state {
			return t
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Add a timer, move it, and handle it when it fires.
func Example() {
	url, stop := startBelfry()
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
	r, err := c.Add(ctx, e, belfry.After(time.Hour), belfry.ToWorker("orders"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("added", r.Timer)
	if _, err := c.Reschedule(ctx, r.Timer, belfry.After(50*time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	err = c.Work(ctx, "orders", func(_ context.Context, run *belfry.Run) error {
		fmt.Println("fired", run.Event.ID(), "run", run.Run, "early:", run.Late() < 0)
		cancel() // Work returns when this handler has returned
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// added ml2ai6l95vcp3hc3fk0o71pouo
	// fired order-17 run 1 early: false
}

func ExampleConnect() {
	url, stop := startBelfry()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // bounds the connect
	defer cancel()
	c, err := belfry.Connect(ctx, url, nats.Name("shop"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.Conn().Opts.Name)
	// Output: shop
}

func ExampleNew() {
	url, stop := startBelfry()
	defer stop()
	nc, err := nats.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close() // the client does not close it
	c, err := belfry.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Get(context.Background(), belfry.NewTimerID("/shop", "order-1"))
	fmt.Println(errors.Is(err, belfry.ErrNotFound))
	// Output: true
}

func ExampleClient_Add() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	due := time.Now().Add(24 * time.Hour).Truncate(time.Millisecond)
	r, err := c.Add(ctx, orderTimeout("order-1"), belfry.At(due),
		belfry.WithService("orders"),
		belfry.WithCallback("https://shop.example/expired"),
		belfry.WithMaxAttempts(10),
		belfry.WithBackoff(time.Second, 10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.State, r.Due.Equal(due), r.Duplicate)

	_, err = c.Add(ctx, orderTimeout("order-1"), belfry.After(time.Hour))
	fmt.Println(errors.Is(err, belfry.ErrConflict)) // another timer has this source and id

	_, err = c.Add(ctx, orderTimeout("order-2"))
	fmt.Println(errors.Is(err, belfry.ErrInvalidAttribute)) // no due time
	// Output:
	// pending true false
	// true
	// true
}

// AddAsync adds many timers, each with its own answer.
func ExampleClient_AddAsync() {
	c, stop := connected()
	defer stop()

	pending := make([]belfry.Pending, 100)
	for i := range pending {
		var err error
		if pending[i], err = c.AddAsync(orderTimeout(fmt.Sprint("order-", i)), belfry.After(time.Hour)); err != nil {
			log.Fatal(err) // the event can never be a timer, or the connection is lost
		}
	}
	stored := 0
	for _, p := range pending {
		if err := p.Wait(context.Background()); err != nil {
			log.Fatal(err)
		}
		stored++
	}
	fmt.Println(stored, "are stored")
	// Output: 100 are stored
}

// AddBatch is the fastest way to add many timers.
func ExampleClient_AddBatch() {
	c, stop := connected()
	defer stop()

	var events []event.Event
	for i := range 1000 {
		events = append(events, orderTimeout(fmt.Sprint("order-", i)))
	}
	err := c.AddBatch(context.Background(), events, belfry.After(time.Hour), belfry.WithGroup("spring"))
	fmt.Println("added:", err)
	// Output: added: <nil>
}

func ExampleClient_Get() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	if _, err := c.Add(ctx, orderTimeout("order-3"), belfry.After(time.Hour), belfry.WithService("orders")); err != nil {
		log.Fatal(err)
	}
	t, err := c.Get(ctx, belfry.NewTimerID("/shop", "order-3"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.ID, t.Service, t.State, "due in the future:", t.Due.After(time.Now()), "fired:", !t.Fired.IsZero())
	// Output: order-3 orders pending due in the future: true fired: false
}

func ExampleClient_Cancel() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	r, err := c.Add(ctx, orderTimeout("order-18"), belfry.After(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	t, err := c.Cancel(ctx, r.Timer, belfry.By("ann@example.com"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.State, "by", t.History[0].By)
	// Output: cancelled by ann@example.com
}

func ExampleClient_Reschedule() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	r, err := c.Add(ctx, orderTimeout("order-4"), belfry.After(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	due := time.Date(2030, time.January, 2, 3, 4, 5, 0, time.UTC)
	t, err := c.Reschedule(ctx, r.Timer, belfry.At(due))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.Due)
	if _, err := c.Cancel(ctx, r.Timer); err != nil {
		log.Fatal(err)
	}
	_, err = c.Reschedule(ctx, r.Timer, belfry.After(time.Minute))
	fmt.Println(errors.Is(err, belfry.ErrAlreadyDone), err)
	// Output:
	// 2030-01-02 03:04:05 +0000 UTC
	// true cannot reschedule: the timer is cancelled
}

func ExampleClient_List() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	for i := range 3 {
		if _, err := c.Add(ctx, orderTimeout(fmt.Sprint("order-", i)), belfry.After(time.Hour), belfry.WithGroup("spring")); err != nil {
			log.Fatal(err)
		}
	}
	n := 0
	for t, err := range c.List(ctx, belfry.ListQuery{Group: "spring", States: []belfry.State{belfry.StatePending}}) {
		if err != nil {
			log.Fatal(err)
		}
		n++
		_ = t.ID
	}
	fmt.Println(n, "timers are pending")
	// Output: 3 timers are pending
}

// Export returns events that can be added to another cluster.
func ExampleClient_Export() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	if _, err := c.Add(ctx, orderTimeout("moving"), belfry.After(time.Hour), belfry.WithGroup("moving")); err != nil {
		log.Fatal(err)
	}
	q := belfry.ExportQuery{ListQuery: belfry.ListQuery{Group: "moving"}}
	for {
		page, err := c.Export(ctx, q)
		if err != nil {
			log.Fatal(err)
		}
		for _, t := range page.Timers {
			fmt.Println(t.State, json.Valid(t.Event)) // publish t.Event to timers.add of the other cluster
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	// Output: pending true
}

// A handler that gives up makes a dead letter. Replay calls it again.
func ExampleClient_SetFlow() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	// At most 100 calls a minute of https://api.example.com, 10 of them at once.
	r, err := c.SetFlow(ctx, "api.example.com", belfry.FlowLimit{Rate: "100/1m", Burst: 10}, belfry.FlowBy("ann@example.com"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Limit.Rate, "burst", r.Limit.Burst, "by", r.Limit.By)
	// One call at a time for each customer, whose timers have belfry.Flow("customer:42").
	if _, err = c.SetFlow(ctx, "customer:*", belfry.FlowLimit{Parallel: 1}); err != nil {
		log.Fatal(err)
	}
	st, err := c.GetFlow(ctx, "customer:42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(st.Limit.Key, "parallel", st.Limit.Parallel, "waiting", st.Keys[0].Waiting)
	// Output:
	// 100/1m burst 10 by ann@example.com
	// customer:* parallel 1 waiting 0
}

func ExampleClient_PauseFlow() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()

	r, err := c.PauseFlow(ctx, "api.example.com", "the API is being repaired")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("paused:", r.Limit.Paused, r.Limit.PauseNote)
	if r, err = c.ResumeFlow(ctx, "api.example.com"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("limited:", r.Limit != nil)
	// Output:
	// paused: true the API is being repaired
	// limited: false
}

func ExampleClient_DeadLetters() {
	c, stop := connected()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	r, err := c.Add(ctx, orderTimeout("order-5"), belfry.After(0), belfry.ToWorker("mail"))
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		first := true
		_ = c.Work(ctx, "mail", func(context.Context, *belfry.Run) error {
			if first {
				first = false
				return belfry.Permanent(errors.New("no such mailbox"))
			}
			return nil
		}, belfry.WithErrorHandler(func(*belfry.Run, error) {}))
	}()
	waitFor(ctx, c, r.Timer, belfry.StateFail)
	for d, err := range c.DeadLetters(ctx, "mail") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.ID, d.ErrorData)
	}
	if err := c.Replay(ctx, r.Timer); err != nil {
		log.Fatal(err)
	}
	fmt.Println(waitFor(ctx, c, r.Timer, belfry.StateSuccess).State)
	// Output:
	// order-5 no such mailbox
	// success
}

func ExampleClient_ReplayService() {
	c, stop := connected()
	defer stop()
	n, err := c.ReplayService(context.Background(), "mail", belfry.By("ann@example.com"))
	fmt.Println(n, err) // there are no dead letters
	// Output: 0 <nil>
}

// Programs in any language may publish to timers.add. Belfry keeps rejected events.
func ExampleClient_Rejections() {
	c, stop := connected()
	defer stop()
	if err := c.Conn().Publish(schemas.SubjectAdd, []byte(`{"specversion":"1.0","id":"order-6","source":"/shop","type":"t"}`)); err != nil {
		log.Fatal(err)
	}
	for n := 0; n == 0; {
		for r, err := range c.Rejections(context.Background()) {
			if err != nil {
				log.Fatal(err)
			}
			n++
			fmt.Println(r.ID, r.Code)
		}
	}
	// Output: order-6 invalid_attribute
}

// Work handles the timers that were added with ToWorker. Belfry records the outcome of the
// handler: here the second attempt succeeds.
func ExampleClient_Work() {
	c, stop := connected()
	defer stop()

	e := orderTimeout("order-20")
	if err := e.SetData(event.ApplicationJSON, map[string]int{"order": 20}); err != nil {
		log.Fatal(err)
	}
	r, err := c.Add(context.Background(), e, belfry.After(500*time.Millisecond), belfry.ToWorker("orders"), belfry.WithBackoff(10*time.Millisecond, time.Second))
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
		cancel() // Work returns when this handler has returned
		return nil
	}), belfry.WithErrorHandler(func(run *belfry.Run, err error) {
		fmt.Printf("%s, attempt %d: %v\n", run.Event.ID(), run.Attempt, err)
	}))
	fmt.Println("stopped:", err)
	t := waitFor(context.Background(), c, r.Timer, belfry.StateSuccess)
	fmt.Println(t.Attempts, "attempts:", t.Outcome.Response)
	// Output:
	// order-20, attempt 1: the shop is closed
	// stopped: <nil>
	// 2 attempts: expired order 20
}

// The result of a handler decides what becomes of an event: not now, another delivery, or a
// dead letter.
func ExampleClient_Handle() {
	c, stop := connected()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	if _, err := c.Add(ctx, orderTimeout("order-19"), belfry.After(0), belfry.WithService("mail")); err != nil {
		log.Fatal(err)
	}
	calls := 0
	err := c.Handle(ctx, "mail", func(_ context.Context, run *belfry.Run) error {
		calls++
		switch calls {
		case 1:
			return belfry.RetryAfter(20 * time.Millisecond) // not now, and no failure
		case 2:
			return errors.New("the mail server does not answer") // delivered again
		}
		cancel()
		return belfry.Permanent(errors.New("no such mailbox")) // a dead letter
	}, belfry.WithConcurrency(1), belfry.WithErrorHandler(func(run *belfry.Run, err error) {
		fmt.Printf("%s, delivery %d: %v\n", run.Event.ID(), run.Attempt, err)
	}))
	fmt.Println("stopped:", err)
	// Output:
	// order-19, delivery 2: the mail server does not answer
	// order-19, delivery 3: gave up, dead letter on timers.dead.mail: no such mailbox
	// stopped: <nil>
}

// A handler that must not act twice skips the keys that it has processed.
func ExampleFiring_Key() {
	f := belfry.Firing{Timer: belfry.NewTimerID("/shop", "order-17"), Run: 1}
	fmt.Println(f.Key())
	// Output: ml2ai6l95vcp3hc3fk0o71pouo.1
}

// Programs that subscribe to timers.fired themselves read the firing from the event.
func ExampleFiringOf() {
	e := orderTimeout("order-17")
	e.SetExtension("timerscheduled", "2027-01-15T08:00:00.000Z")
	e.SetExtension("timerfired", "2027-01-15T08:00:00.003Z")
	e.SetExtension("timerrun", "1")
	f, err := belfry.FiringOf(&e)
	fmt.Println(f.Scheduled, f.Late(), f.Run, err)
	// Output: 2027-01-15 08:00:00 +0000 UTC 3ms 1 <nil>
}
