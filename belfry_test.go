package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerVariable); url != "" {
		workForever(url)
	}
	waittest.Parallel(8)
	goleak.VerifyTestMain(m)
}

// bound is the time limit of a wait in a test. No wait takes that long on a busy machine.
const bound = waittest.Bound

// serve runs Belfry with an embedded NATS server on a free port. Its data is in dir.
func serve(dir string) (url string, stop func(), err error) {
	a, err := app.New(app.Options{Data: dir, NATSListen: "127.0.0.1:0", HTTP: app.NoHTTP, AllowLoopback: true, Log: zerolog.Nop()})
	if err != nil {
		return "", nil, err
	}
	if err := a.Start(context.Background()); err != nil {
		return "", nil, err
	}
	return a.NATSURL(), func() {
		if err := a.Stop(context.Background()); err != nil {
			log.Print(err)
		}
	}, nil
}

func connect(t *testing.T) *belfry.Client {
	t.Helper()
	c, _ := connectURL(t)
	return c
}

// connectURL starts a node and returns a client of it, and the URL of its server.
func connectURL(t *testing.T) (c *belfry.Client, url string) {
	t.Helper()
	testsize.Brief(t, "a node for each test", "TestClient", "TestAsync", "TestScheduleOperations")
	url, stop, err := serve(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	c, err = belfry.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, url
}

func newEvent(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/shop")
	e.SetType("order.timeout")
	return e
}

func TestClient(t *testing.T) {
	t.Parallel()
	c := connect(t)
	ctx := t.Context()
	e := newEvent("1")
	if err := e.SetData("application/json", map[string]int{"order": 17}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Add(ctx, e, belfry.After(time.Hour), belfry.WithService("orders"), belfry.WithGroup("g"), belfry.WithMaxAttempts(3), belfry.WithBackoff(time.Second, time.Minute), belfry.WithAttemptTimeout(time.Second), belfry.WithCallback("nats:callbacks.x"))
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Extensions()) != 0 {
		t.Error("the caller's event was changed")
	}
	if again, err := c.Add(ctx, e, belfry.After(time.Hour), belfry.WithService("orders"), belfry.WithGroup("g"), belfry.WithMaxAttempts(3), belfry.WithBackoff(time.Second, time.Minute), belfry.WithAttemptTimeout(time.Second), belfry.WithCallback("nats:callbacks.x")); err != nil || !again.Duplicate || again.Timer != r.Timer {
		t.Errorf("got %+v, %v", again, err)
	}
	if _, err := c.Add(ctx, e, belfry.After(2*time.Hour)); !errors.Is(err, belfry.ErrConflict) {
		t.Errorf("got error %v", err)
	}
	at := time.Now().Add(3 * time.Hour).Truncate(time.Millisecond)
	moved, err := c.Reschedule(ctx, r.Timer, belfry.At(at))
	if err != nil || !moved.Due.Equal(at) {
		t.Errorf("got %+v, %v", moved, err)
	}
	if got, err := c.Get(ctx, belfry.NewTimerID("/shop", "1")); err != nil || got.State != belfry.StatePending || got.Group != "g" || !got.Due.Equal(at) || !got.Scheduled.Equal(at) || !got.Fired.IsZero() || !got.Done.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	for range 2 {
		if got, err := c.Cancel(ctx, r.Timer); err != nil || got.State != schemas.StateCancelled {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if _, err := c.Reschedule(ctx, r.Timer, belfry.After(time.Second)); !errors.Is(err, belfry.ErrAlreadyDone) {
		t.Errorf("got error %v", err)
	}
	if _, err := c.Get(ctx, schemas.NewTimerID("/shop", "none")); !errors.Is(err, belfry.ErrNotFound) {
		t.Errorf("got error %v", err)
	}
	if err := c.Replay(ctx, r.Timer); !errors.Is(err, belfry.ErrNotFound) {
		t.Errorf("got error %v", err)
	}
	if _, err := c.Add(ctx, newEvent("2")); schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
		t.Errorf("got error %v", err)
	}
	for d, err := range c.DeadLetters(ctx, "") {
		t.Errorf("got %v, %v", d, err)
	}
	var batch []event.Event
	for i := range 1200 {
		batch = append(batch, newEvent(fmt.Sprint("b", i)))
	}
	if err := c.AddBatch(ctx, batch, belfry.After(time.Hour), belfry.WithService("batch")); err != nil {
		t.Fatal(err)
	}
	// The adds are durable; the router stores the timers later.
	n := 0
	waittest.Until(t, "every timer of the batch is listed", func() bool {
		n = 0
		for tm, err := range c.List(ctx, belfry.ListQuery{Service: "batch"}) {
			if err != nil || tm.State != schemas.StatePending {
				t.Fatalf("got %+v, %v", tm, err)
			}
			n++
		}
		return n == len(batch)
	}, func() string { return fmt.Sprintf("%d of %d are", n, len(batch)) })
}

// TestOwnConsumers: Handle refuses the names of Belfry's own consumers.
func TestOwnConsumers(t *testing.T) {
	t.Parallel()
	c := connect(t)
	// Nothing answers this callback, so Belfry keeps the consumer of the service.
	if _, err := c.Add(t.Context(), newEvent("1"), belfry.After(0), belfry.WithService("orders"), belfry.WithCallback("nats:callbacks.x")); err != nil {
		t.Fatal(err)
	}
	js := natstest.JetStream(t, c.Conn())
	var own []string
	waittest.Until(t, "Belfry has a consumer that calls back", func() bool {
		stream, err := js.Stream(t.Context(), schemas.StreamFired)
		if err != nil {
			t.Fatal(err)
		}
		for name := range stream.ConsumerNames(t.Context()).Name() {
			own = append(own, name)
		}
		return len(own) > 0
	})
	for _, name := range own {
		if err := c.Handle(t.Context(), "orders", nothing, belfry.WithDurable(name)); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFiringOf(t *testing.T) {
	t.Parallel()
	e := newEvent("1")
	for _, step := range []struct{ name, value string }{{"timerscheduled", "2027-01-15T08:00:00.001Z"}, {"timerfired", "2027-01-15T08:00:00.004Z"}, {"timerrun", "7"}} {
		if f, err := belfry.FiringOf(&e); schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
			t.Errorf("without %s: %+v %v", step.name, f, err)
		}
		e.SetExtension(step.name, step.value) // texts, as in binary mode
	}
	f, err := belfry.FiringOf(&e)
	if err != nil || f.Run != 7 || f.Late() != 3*time.Millisecond || f.Scheduled.UnixMilli() != 1_800_000_000_001 || !strings.HasSuffix(f.Key(), ".7") {
		t.Errorf("got %+v, %v", f, err)
	}
	id, err := belfry.ParseTimerID(f.Timer.String())
	if err != nil || id != f.Timer {
		t.Errorf("%s %v", id, err)
	}
}

// TestRefusedLogins: a client reconnects after the server has refused its login several times.
func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "this test starts a server twice")
	var logins natstest.Logins
	s := natstest.Run(t, logins.Option)
	c, err := belfry.Connect(t.Context(), s.URL(), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	logins.Refuse("belfry client")
	s.Restart()
	waittest.Until(t, "the client is refused three times", func() bool { return logins.Refused(1, 3) || c.Conn().IsClosed() })
	logins.Allow()
	waittest.Until(t, "the client is connected", func() bool { return c.Conn().IsConnected() || c.Conn().IsClosed() })
	if c.Conn().IsClosed() {
		t.Errorf("after refused logins the connection has ended: %v", c.Conn().LastError())
	}
}

// TestRequestWithoutConnection: a call without a connection sends nothing once its context has ended. A call whose context
// lasts is carried out when the connection is back.
func TestRequestWithoutConnection(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "this test starts two nodes")
	dir := t.TempDir()
	o := app.Options{Data: dir, NATSListen: "127.0.0.1:0", HTTP: app.NoHTTP, Log: zerolog.Nop()}
	run := func() *app.App {
		a, err := app.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := run()
	o.NATSListen = strings.TrimPrefix(a.NATSURL(), "nats://")
	c, err := belfry.Connect(t.Context(), a.NATSURL(), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := c.Add(t.Context(), newEvent("later"), belfry.After(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the client notices the loss", c.Conn().IsReconnecting)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Cancel(short, r.Timer); !errors.Is(err, belfry.ErrUnavailable) || !strings.Contains(err.Error(), "not sent") {
		t.Errorf("cancel without a connection: got %v, want an error that says that nothing was sent", err)
	}
	long, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		i, err := c.Get(long, r.Timer)
		if err == nil && i.State != belfry.StatePending {
			err = fmt.Errorf("the timer is %s, want pending: the cancel was sent later", i.State)
		}
		got <- err
	}()
	a = run()
	t.Cleanup(func() { a.Stop(context.Background()) })
	if err := waittest.Receive(t, "the answer of the new node", got); err != nil && !strings.Contains(err.Error(), "is a Belfry router running") {
		t.Error(err)
	}
	i, err := c.Get(t.Context(), r.Timer)
	if err != nil || i.State != belfry.StatePending {
		t.Errorf("after the connection is back the timer is %s (%v), want pending", i.State, err)
	}
}

func TestConnectRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"nats://user:secret@127.0.0.1:1", "nats://a:secret@127.0.0.1:1,nats://b:secret@127.0.0.1:1", "nats://127.0.0.1:1, nats://b:secret@127.0.0.1:2", "nats://user:sec ret@127.0.0.1:1", "nats://user:secret@127.0.0.1:port"} {
		_, err := belfry.Connect(t.Context(), url)
		if !errors.Is(err, belfry.ErrUnavailable) || strings.Contains(fmt.Sprintf("%+v", err), "sec") {
			t.Errorf("%s: %v", url, err)
		}
		for ; err != nil; err = errors.Unwrap(err) {
			if strings.Contains(err.Error(), "sec") {
				t.Errorf("%s: a cause tells the password: %v", url, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := belfry.Connect(ctx, "nats://127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	c := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for _, id := range []string{"fine", "later", "fails", "never"} {
		if _, err := c.Add(ctx, newEvent(id), belfry.After(0), belfry.WithService("h")); err != nil {
			t.Fatal(err)
		}
	}
	var calls [4]atomic.Int32
	hctx, stop := context.WithCancel(ctx)
	defer stop()
	finished := func() {
		if calls[0].Load() == 1 && calls[1].Load() == 2 && calls[2].Load() == 2 && calls[3].Load() == 1 {
			stop()
		}
	}
	err := c.Handle(hctx, "h", func(_ context.Context, run *belfry.Run) error {
		defer finished()
		e := run.Event
		if f, err := belfry.FiringOf(e); err != nil || f != run.Firing || run.Service != "h" || f.Run != 1 || f.Late() < 0 || f.Late() > bound || f.Key() != belfry.NewTimerID("/shop", e.ID()).MsgID(1) {
			t.Errorf("got %+v, %v", f, err)
		}
		switch e.ID() {
		case "fine":
			calls[0].Add(1)
		case "later":
			if calls[1].Add(1) == 1 {
				return belfry.RetryAfter(10 * time.Millisecond)
			}
		case "fails":
			if calls[2].Add(1) == 1 {
				return errors.New("once")
			}
		case "never":
			calls[3].Add(1)
			return belfry.Permanent(errors.New("no"))
		}
		return nil
	}, belfry.WithDurable("mine"), belfry.WithConcurrency(4), belfry.WithAckWait(2*bound))
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("calls: %d %d %d %d", calls[0].Load(), calls[1].Load(), calls[2].Load(), calls[3].Load())
	}
}
