package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// bare is a NATS server with the streams that a client uses, and without Belfry. The test
// publishes the fired events.
type bare struct {
	t   *testing.T
	srv *natstest.Server
	c   *belfry.Client
	js  jetstream.JetStream
}

func newBare(t *testing.T) *bare {
	t.Helper()
	return newBareOn(t, natstest.Run(t), nil, nats.ReconnectWait(20*time.Millisecond))
}

// newBareAs restricts the client to the permissions.
func newBareAs(t *testing.T, p *server.Permissions, options ...nats.Option) *bare {
	t.Helper()
	srv := natstest.Run(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "all", Password: "x"}, {Username: "orders", Password: "x", Permissions: p}}
	})
	return newBareOn(t, srv, srv.Connect(nats.UserInfo("all", "x")), append(options, nats.UserInfo("orders", "x"))...)
}

// newBareOn creates the streams with admin, or with the connection of the client if admin is
// nil.
func newBareOn(t *testing.T, srv *natstest.Server, admin *nats.Conn, options ...nats.Option) *bare {
	t.Helper()
	testsize.Brief(t, "a server for each test", "TestHandle", "TestHandleJSON", "TestHandlePanics")
	b := &bare{t: t, srv: srv}
	var err error
	if b.c, err = belfry.Connect(t.Context(), srv.URL(), options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.c.Close)
	if admin == nil {
		admin = b.c.Conn()
	}
	b.js = natstest.JetStream(t, admin)
	b.stream(jetstream.StreamConfig{Name: schemas.StreamFired, Subjects: []string{schemas.SubjectFiredPrefix + ">"}})
	b.stream(jetstream.StreamConfig{Name: schemas.StreamDead, Subjects: []string{schemas.SubjectDeadPrefix + ">"}})
	return b
}

func (b *bare) stream(cfg jetstream.StreamConfig) {
	b.t.Helper()
	if _, err := b.js.CreateStream(b.t.Context(), cfg); err != nil {
		b.t.Fatal(err)
	}
}

// fire publishes n fired events of a service, as a scheduler does.
func (b *bare) fire(service string, from, n int) {
	b.t.Helper()
	now := time.Now().UnixMilli()
	for i := range n {
		_, data, err := schemas.EncodeEvent(newEvent(fmt.Sprint(from+i)), schemas.ModeStructured)
		if err != nil {
			b.t.Fatal(err)
		}
		body := schemas.Body{Mode: schemas.ModeStructured, Data: data}
		hdr, data := body.Message(schemas.Fired{ScheduledMs: now, FiredMs: now, Run: 1, Attempt: 1})
		if _, err := b.js.PublishMsg(b.t.Context(), &nats.Msg{Subject: schemas.SubjectFired(service), Header: hdr, Data: data}); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bare) info(durable string) *jetstream.ConsumerInfo {
	b.t.Helper()
	cons, err := b.js.Consumer(b.t.Context(), schemas.StreamFired, durable)
	if err != nil {
		b.t.Fatal(err)
	}
	info, err := cons.Info(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return info
}

// concluded waits until the server has processed all acknowledgements, which it queues.
func (b *bare) concluded(durable string) *jetstream.ConsumerInfo {
	b.t.Helper()
	var i *jetstream.ConsumerInfo
	waittest.Until(b.t, "consumer "+durable+" has nothing left", func() bool {
		i = b.info(durable)
		return i.NumAckPending == 0 && i.NumPending == 0
	}, func() string { return fmt.Sprintf("%d events are held, %d pending", i.NumAckPending, i.NumPending) })
	return i
}

// handle runs Handle and returns its error.
func (b *bare) handle(ctx context.Context, service string, h belfry.Handler, opts ...belfry.HandleOption) <-chan error {
	out := make(chan error, 1)
	go func() { out <- b.c.Handle(ctx, service, h, opts...) }()
	return out
}

func (b *bare) returned(out <-chan error) error {
	b.t.Helper()
	return waittest.Receive(b.t, "Handle returns", out)
}

func nothing(context.Context, *belfry.Run) error { return nil }

// once handles one event and stops.
func (b *bare) once(service string, opts ...belfry.HandleOption) error {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	b.fire(service, 0, 1)
	return b.returned(b.handle(ctx, service, func(context.Context, *belfry.Run) error { cancel(); return nil }, opts...))
}

// TestHandleHoldsNoMore: a Handle with all handlers running holds no further events: a second
// process gets the rest.
func TestHandleHoldsNoMore(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	b.fire("s", 0, 50)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	block, begun := make(chan struct{}), make(chan struct{}, 50)
	first := b.handle(ctx, "s", func(context.Context, *belfry.Run) error {
		begun <- struct{}{}
		<-block
		return nil
	}, belfry.WithConcurrency(3))
	for range 3 {
		<-begun
	}
	if n := b.info("s").NumAckPending; n != 3 {
		t.Errorf("%d events are held for 3 places", n)
	}
	var rest atomic.Int32
	ctx2, cancel2 := context.WithCancel(t.Context())
	defer cancel2()
	err := b.returned(b.handle(ctx2, "s", func(context.Context, *belfry.Run) error {
		if rest.Add(1) == 47 {
			cancel2()
		}
		return nil
	}))
	if err != nil {
		t.Error(err)
	}
	cancel()
	close(block)
	if err := b.returned(first); err != nil {
		t.Error(err)
	}
	if i := b.concluded("s"); i.Delivered.Consumer != 50 {
		t.Errorf("50 events were delivered %d times", i.Delivered.Consumer)
	}
}

// TestHandleStopsUnderLoad: several Handles are stopped one after the other under load. No
// event waits for its ack wait, and none is handled twice.
func TestHandleStopsUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	const n, rounds = 400, 8
	b.fire("s", 0, n)
	var handled sync.Map
	var count atomic.Int32
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		err := b.returned(b.handle(ctx, "s", func(_ context.Context, run *belfry.Run) error {
			if _, twice := handled.LoadOrStore(run.Event.ID(), true); twice {
				t.Errorf("%s was handled twice", run.Event.ID())
			}
			if k := count.Add(1); int(k) >= (round+1)*n/rounds {
				cancel()
			}
			return nil
		}, belfry.WithConcurrency(16), belfry.WithAckWait(time.Hour)))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	b.concluded("s")
	if count.Load() != n {
		t.Errorf("%d of %d handled", count.Load(), n)
	}
}

// TestHandleLetsRunnersFinish: a handler's context does not end with Handle's context.
func TestHandleLetsRunnersFinish(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	b.fire("s", 0, 1)
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	defer cancel()
	err := b.returned(b.handle(ctx, "s", func(hctx context.Context, _ *belfry.Run) error {
		cancel()
		if hctx.Err() != nil || hctx.Value(key{}) != "v" {
			t.Errorf("the handler's context: %v, %v", hctx.Err(), hctx.Value(key{}))
		}
		return nil
	}))
	if i := b.concluded("s"); err != nil || i.AckFloor.Stream != 1 {
		t.Errorf("%v; acknowledged up to %d", err, i.AckFloor.Stream)
	}
}

func TestHandlePanics(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	b.fire("s", 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told atomic.Int32
	var calls atomic.Int32
	err := b.returned(b.handle(ctx, "s", func(context.Context, *belfry.Run) error {
		if calls.Add(1) == 1 {
			panic("oh")
		}
		cancel()
		return nil
	}, belfry.WithErrorHandler(func(run *belfry.Run, err error) {
		var p *belfry.PanicError
		if errors.As(err, &p) && p.Value == "oh" && strings.Contains(string(p.Stack), "worker_test.go") && run.Event.ID() == "0" {
			told.Add(1)
		} else {
			t.Errorf("told %v", err)
		}
	})))
	if err != nil || told.Load() != 1 || calls.Load() != 2 {
		t.Errorf("%v; told %d times, called %d times", err, told.Load(), calls.Load())
	}
}

// TestHandleNoEvent: a message that is not a fired event is reported, and becomes an unchanged
// dead letter.
func TestHandleNoEvent(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	if _, err := b.js.Publish(t.Context(), schemas.SubjectFired("s"), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	var told atomic.Int32
	err := b.once("s", belfry.WithConcurrency(1), belfry.WithErrorHandler(func(run *belfry.Run, err error) {
		told.Add(1)
		if run != nil || !strings.Contains(err.Error(), "not a fired event") {
			t.Errorf("got %v, %v", run, err)
		}
	}))
	b.concluded("s")
	if err != nil || told.Load() != 1 {
		t.Errorf("%v; told %d times", err, told.Load())
	}
	if m := b.dead(1); string(m.Data) != "hello" || m.Header.Get(schemas.HeaderErrorCode) != "undecodable_event" {
		t.Errorf("%v %q", m.Header, m.Data)
	}
}

// TestHandleMaxDeliver: deliveries that end with RetryAfter count for WithMaxDeliver.
func TestHandleMaxDeliver(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	b.fire("s", 0, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	calls := map[string]int{}
	err := b.returned(b.handle(ctx, "s", func(_ context.Context, run *belfry.Run) error {
		mu.Lock()
		defer mu.Unlock()
		calls[run.Event.ID()]++
		if calls["0"] == 3 && calls["1"] == 3 {
			cancel()
		}
		return belfry.RetryAfter(-time.Second)
	}, belfry.WithMaxDeliver(3)))
	if err != nil || calls["0"] != 3 || calls["1"] != 3 {
		t.Errorf("%v; %v", err, calls)
	}
}

// TestHandleReconnects: Handle pulls again as soon as the server is back.
func TestHandleReconnects(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	got := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := b.handle(ctx, "s", func(_ context.Context, run *belfry.Run) error { got <- run.Event.ID(); return nil })
	for round := range 2 {
		b.fire("s", round, 1)
		select {
		case id := <-got:
			if id != fmt.Sprint(round) {
				t.Errorf("event %s in round %d", id, round)
			}
		case err := <-out:
			t.Fatalf("round %d: Handle returned %v", round, err)
		case <-time.After(bound):
			t.Fatalf("round %d: not handled", round)
		}
		if round == 0 {
			b.srv.Restart()
			waittest.Until(t, "the client has reconnected", func() bool { return b.c.Conn().IsConnected() && b.c.Conn().Stats().Reconnects > 0 })
		}
	}
	// A stop while the server is away does not wait for it.
	b.srv.Stop()
	cancel()
	if err := b.returned(out); err != nil {
		t.Error(err)
	}
}

// TestHandleEnds: Handle returns errors that waiting does not resolve.
func TestHandleEnds(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.c.Handle(ended, "none", nothing); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := b.js.Consumer(t.Context(), schemas.StreamFired, "none"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("it made a consumer: %v", err)
	}
	waiting := func() {
		t.Helper()
		waittest.Until(t, "Handle pulls", func() bool {
			cons, err := b.js.Consumer(t.Context(), schemas.StreamFired, "s")
			return err == nil && cons.CachedInfo().NumWaiting > 0
		})
	}
	out := b.handle(t.Context(), "s", nothing)
	waiting()
	if err := b.js.DeleteConsumer(t.Context(), schemas.StreamFired, "s"); err != nil {
		t.Fatal(err)
	}
	if err := b.returned(out); !errors.Is(err, belfry.ErrUnavailable) || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("its consumer was deleted: %v", err)
	}
	out = b.handle(t.Context(), "s", nothing)
	waiting()
	b.c.Close()
	if err := b.returned(out); !errors.Is(err, belfry.ErrUnavailable) {
		t.Errorf("the connection was closed: %v", err)
	}
	empty, err := belfry.New(natstest.Run(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	if err := empty.Handle(t.Context(), "s", nothing); !errors.Is(err, belfry.ErrUnavailable) || !strings.Contains(err.Error(), "is Belfry running") {
		t.Errorf("without Belfry: %v", err)
	}
}

// TestHandleLeavesConsumersAlone: Handle uses an existing consumer or refuses it, and changes
// it only with WithReconfigure.
func TestHandleLeavesConsumersAlone(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	create := func(cfg jetstream.ConsumerConfig) {
		t.Helper()
		if _, err := b.js.CreateConsumer(t.Context(), schemas.StreamFired, cfg); err != nil {
			t.Fatal(err)
		}
	}
	create(jetstream.ConsumerConfig{Durable: "mine", FilterSubject: "timers.fired.s", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 7 * time.Second, MaxAckPending: 77})
	create(jetstream.ConsumerConfig{Durable: "drops", FilterSubject: "timers.fired.s", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 7 * time.Second, MaxDeliver: 5})
	create(jetstream.ConsumerConfig{Durable: "all", FilterSubject: "timers.fired.>", AckPolicy: jetstream.AckExplicitPolicy})
	create(jetstream.ConsumerConfig{Durable: "unacked", FilterSubject: "timers.fired.s", AckPolicy: jetstream.AckNonePolicy})
	create(jetstream.ConsumerConfig{Durable: "belfry_orders", FilterSubject: "timers.fired.orders", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute})
	for name, c := range map[string]struct {
		service string
		opts    []belfry.HandleOption
		code    schemas.Code
	}{
		"another ack wait":       {"s", []belfry.HandleOption{belfry.WithDurable("mine"), belfry.WithAckWait(time.Second)}, schemas.CodeConfig},
		"bounded deliveries":     {"s", []belfry.HandleOption{belfry.WithDurable("drops"), belfry.WithMaxDeliver(5)}, schemas.CodeConfig},
		"another service's":      {"other", []belfry.HandleOption{belfry.WithDurable("mine"), belfry.WithReconfigure()}, schemas.CodeConfig},
		"several services'":      {"s", []belfry.HandleOption{belfry.WithDurable("all")}, schemas.CodeConfig},
		"without acknowledgment": {"s", []belfry.HandleOption{belfry.WithDurable("unacked")}, schemas.CodeConfig},
		"Belfry's own":           {"orders", []belfry.HandleOption{belfry.WithDurable("belfry_orders")}, schemas.CodeBadRequest},
		"Belfry's own, by name":  {"belfry_orders", nil, schemas.CodeBadRequest},
	} {
		if err := b.c.Handle(t.Context(), c.service, nothing, c.opts...); schemas.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if cfg := b.info("belfry_orders").Config; cfg.FilterSubject != "timers.fired.orders" || cfg.AckWait != time.Minute {
		t.Errorf("Belfry's own consumer was changed: %+v", cfg)
	}
	for _, opts := range [][]belfry.HandleOption{nil, {belfry.WithAckWait(7 * time.Second), belfry.WithMaxDeliver(5)}} {
		if err := b.once("s", append(opts, belfry.WithDurable("mine"))...); err != nil {
			t.Error(err)
		}
		if cfg := b.info("mine").Config; cfg.AckWait != 7*time.Second || cfg.MaxAckPending != 77 {
			t.Errorf("it was changed: %+v", cfg)
		}
	}
	if err := b.once("s", belfry.WithDurable("drops"), belfry.WithAckWait(9*time.Second), belfry.WithMaxDeliver(5), belfry.WithReconfigure()); err != nil {
		t.Error(err)
	}
	if cfg := b.info("drops").Config; cfg.AckWait != 9*time.Second || cfg.MaxDeliver != -1 || cfg.FilterSubject != "timers.fired.s" {
		t.Errorf("it was not changed as asked: %+v", cfg)
	}
	// Two Handles that start at the same time share one consumer.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			if err := b.c.Handle(ctx, "many", nothing, belfry.WithAckWait(3*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestAddErrors: Wait maps the errors of the stream to the errors of the client.
func TestAddErrors(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	b.stream(jetstream.StreamConfig{Name: schemas.StreamAdd, Subjects: []string{schemas.SubjectAdd}, MaxMsgs: 1, Discard: jetstream.DiscardNew, MaxMsgSize: 10_000})
	wait := func(id string, size int) error {
		t.Helper()
		e := newEvent(id)
		if err := e.SetData("text/plain", strings.Repeat("x", size)); err != nil {
			t.Fatal(err)
		}
		p, err := b.c.AddAsync(e, belfry.After(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(t.Context()); err != nil {
			if again := p.Wait(t.Context()); !errors.Is(again, err) {
				t.Errorf("first %v, then %v", err, again)
			}
			return err
		}
		return nil
	}
	if err := wait("1", 20_000); !errors.Is(err, belfry.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := wait("1", 10); err != nil {
		t.Error(err)
	}
	if err := wait("2", 10); !errors.Is(err, belfry.ErrStoreFull) {
		t.Errorf("full: %v", err)
	}
	if err := (belfry.Pending{}).Wait(t.Context()); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("of no add: %v", err)
	}
	b.srv.Stop()
	p, err := b.c.AddAsync(newEvent("3"), belfry.After(time.Hour))
	if err == nil {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = p.Wait(ctx)
	}
	if !errors.Is(err, belfry.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.c.AddBatch(ctx, []event.Event{newEvent("4")}, belfry.After(0)); !errors.Is(err, context.Canceled) || !errors.Is(err, belfry.ErrUnavailable) {
		t.Errorf("a batch after the end of its context: %v", err)
	}
}

// TestHandleWithLeastPermissions: the permissions of a service in nats.conf are sufficient for
// Handle.
func TestHandleWithLeastPermissions(t *testing.T) {
	t.Parallel()
	b := newBareAs(t, &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.CONSUMER.CREATE.TIMERS_FIRED.orders.timers.fired.orders", "$JS.API.CONSUMER.INFO.TIMERS_FIRED.orders",
			"$JS.API.CONSUMER.MSG.NEXT.TIMERS_FIRED.orders", "$JS.ACK.TIMERS_FIRED.orders.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_orders.>"}},
	}, nats.CustomInboxPrefix("_INBOX_orders"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) }))
	for range 2 { // creates the consumer, then finds it
		if err := b.once("orders"); err != nil {
			t.Fatal(err)
		}
	}
	b.concluded("orders")
}
