package belfry_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestWorkAcrossAccounts: a worker in another account than Belfry, with a service export of
// response type stream and the least permissions.
func TestWorkAcrossAccounts(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for a server with accounts")
	conf := t.TempDir() + "/nats.conf"
	if err := os.WriteFile(conf, []byte(`
listen: "127.0.0.1:-1"
jetstream { store_dir: "`+t.TempDir()+`" }
accounts {
  BELFRY {
    jetstream: enabled
    users: [ { user: belfry, password: x } ]
    exports: [ { service: "timers.api.>", response_type: stream } ]
    imports: [ { service: { account: ORDERS, subject: "timers.work.orders" } } ]
  }
  ORDERS {
    users: [ { user: orders, password: x, permissions: {
      publish: ["timers.api.>"], subscribe: ["_INBOX.>", "timers.work.orders"], allow_responses: { max: 10000, ttl: "13h" } } } ]
    exports: [ { service: "timers.work.orders", response_type: stream } ]
    imports: [ { service: { account: BELFRY, subject: "timers.api.>" } } ]
  }
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) {
		opts.NoLog, opts.NoSigs = true, true
		*o = *opts
	})
	node, err := app.New(app.Options{NATSURL: strings.Replace(srv.ClientURL(), "//", "//belfry:x@", 1), HTTP: app.NoHTTP, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop(context.Background()) })
	violation := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) })
	c, err := belfry.Connect(t.Context(), srv.ClientURL(), nats.UserInfo("orders", "x"), violation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	// Belfry notices across accounts that no worker runs.
	early := addWork(t, c, "orders", "early", belfry.WithMaxAttempts(1))
	until(t, c, early, "waiting", func(x belfry.Timer) bool {
		return x.State == belfry.StateRetrying && x.Outcome != nil && strings.Contains(x.Outcome.Error, "no worker")
	})
	worker(t, c, "orders", func(_ context.Context, run *belfry.Run) error {
		if run.Event.ID() == "long" {
			work := time.NewTimer(schemas.MinWorkSilence + time.Second) // the work
			defer work.Stop()
			<-work.C
		}
		run.SetResult("thanks")
		return nil
	})
	untilState(t, c, early, belfry.StateSuccess) // so the worker is connected
	long := addWork(t, c, "orders", "long", belfry.WithMaxAttempts(1), belfry.WithAttemptTimeout(time.Second))
	if got := untilState(t, c, long, belfry.StateSuccess); got.Attempts != 1 || got.Outcome.Response != "thanks" {
		t.Errorf("got %+v, %+v", got, got.Outcome)
	}
}

// TestWorkRefuses: Work returns an error at the start for bad options and permissions.
func TestWorkRefuses(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "other", Password: "x", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}}}
	})
	c, err := belfry.New(srv.Connect(nats.UserInfo("other", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Work(t.Context(), "orders", nothing); !errors.Is(err, belfry.ErrUnavailable) || !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("without permission: %v", err)
	}
	for name, err := range map[string]error{
		"tenant's account": c.HandleTenant(t.Context(), "A.B", nothing),
		"tenant's durable": c.HandleTenant(t.Context(), "ACME", nothing, belfry.WithDurable("x")),
		"tenant's wait":    c.HandleTenant(t.Context(), "ACME", nothing, belfry.WithAckWait(time.Second)),
		"tenant's limit":   c.HandleTenant(t.Context(), "ACME", nothing, belfry.WithMaxDeliver(0)),
		"no handler":       c.Work(t.Context(), "s", nil),
		"service":          c.Work(t.Context(), "a.b", nothing),
		"concurrency":      c.Work(t.Context(), "s", nothing, belfry.WithConcurrency(0)),
		"time-out":         c.Work(t.Context(), "s", nothing, belfry.WithHandlerTimeout(24*time.Hour)),
		"grace":            c.Work(t.Context(), "s", nothing, belfry.WithStopGrace(-1)),
	} {
		if schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Work(ended, "s", nothing); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestWorkJoins: a second request for a run whose handler is running, as from another node,
// does not start a second handler. Both requests are answered.
func TestWorkJoins(t *testing.T) {
	t.Parallel()
	c, err := belfry.New(natstest.Run(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	worker(t, c, "s", func(_ context.Context, run *belfry.Run) error {
		begun <- struct{}{}
		<-finish
		run.SetResult("once")
		return nil
	})
	_, data, err := schemas.EncodeEvent(newEvent("1"), schemas.ModeStructured)
	if err != nil {
		t.Fatal(err)
	}
	hdr, data := schemas.Body{Mode: schemas.ModeStructured, Data: data}.Message(schemas.Fired{ScheduledMs: 1, FiredMs: 2, Run: 1, Attempt: 1})
	hdr[nats.MsgIdHdr] = []string{"key.1"}
	nc := c.Conn()
	waittest.Until(t, "Work has subscribed", func() bool { return nc.NumSubscriptions() > 0 })
	request := func() *nats.Subscription {
		t.Helper()
		sub, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(&nats.Msg{Subject: "timers.work.s", Reply: sub.Subject, Header: hdr, Data: data}); err != nil {
			t.Fatal(err)
		}
		return sub
	}
	first := request()
	<-begun
	second := request()
	m, err := second.NextMsg(bound)
	if err != nil || m.Header.Get(schemas.HeaderWork) != schemas.WorkWorking {
		t.Fatalf("got %+v, %v", m, err)
	}
	close(finish)
	for _, sub := range []*nats.Subscription{first, second} {
		for word := schemas.WorkWorking; word == schemas.WorkWorking; {
			m, err := sub.NextMsg(bound)
			if err != nil {
				t.Fatal(err)
			}
			if word = m.Header.Get(schemas.HeaderWork); word != schemas.WorkWorking && (word != schemas.WorkDone || string(m.Data) != "once") {
				t.Errorf("%s %q", word, m.Data)
			}
		}
	}
	if len(begun) != 0 {
		t.Error("the handler ran twice")
	}
}

// TestWorkForeign: Work ignores a request whose reply subject is empty or not an inbox, and
// refuses a request that is not a fired event.
func TestWorkForeign(t *testing.T) {
	t.Parallel()
	c, err := belfry.New(natstest.Run(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	nc := c.Conn()
	stolen, err := nc.SubscribeSync("$KV.clock.>")
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 10)
	worker(t, c, "s", func(context.Context, *belfry.Run) error {
		t.Error("called")
		return nil
	}, belfry.WithErrorHandler(func(_ *belfry.Run, err error) { told <- err }))
	var m *nats.Msg
	waittest.Until(t, "Work answers", func() bool {
		if m, err = nc.Request("timers.work.s", []byte("hello"), bound); err != nil && !errors.Is(err, nats.ErrNoResponders) {
			t.Fatal(err)
		}
		return err == nil
	})
	if m.Header.Get(schemas.HeaderWork) != schemas.WorkPermanent || !strings.Contains((<-told).Error(), "not a fired event") {
		t.Errorf("%v %q", m.Header, m.Data)
	}
	for _, reply := range []string{"$KV.clock.clock.0", ""} {
		if err := nc.PublishMsg(&nats.Msg{Subject: "timers.work.s", Reply: reply, Data: []byte("hello")}); err != nil {
			t.Fatal(err)
		}
		if err := <-told; !strings.Contains(err.Error(), "is not an inbox") {
			t.Errorf("got error %v", err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := stolen.Pending(); n != 0 {
		t.Error("it was answered")
	}
}
