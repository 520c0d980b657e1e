// Package conf runs the repository's nats.conf files on real servers.
package conf

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
)

const (
	file  = "../../nats.conf"
	bound = 60 * time.Second
)

// TestProductionConfig loads nats.conf into a real server and checks the rights of
// each of its users. The attacks are in test/e2e.
func TestProductionConfig(t *testing.T) {
	t.Parallel()
	s := natstest.RunProduction(t, file, nil)
	if _, err := nats.Connect("tls://"+s.Addr().String(), nats.RootCAs(s.CA), nats.UserInfo("orders", "wrong")); err == nil {
		t.Fatal("a wrong password was accepted")
	}
	if _, err := nats.Connect("tls://"+s.Addr().String(), nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}), nats.UserInfo("orders", "orders-pw")); err == nil {
		t.Fatal("an unknown certificate was accepted")
	}
	if !s.SyncsAlways() {
		t.Fatal("nats.conf does not sync every write")
	}
	belfry := s.ConnectAs("belfry")
	js := natstest.JetStream(t, belfry)
	for name, subjects := range map[string][]string{"TIMERS_ADD": {"timers.add"}, "TIMERS_FIRED": {"timers.fired.*"}, "TIMERS_DEAD": {"timers.dead.*"}} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects}); err != nil {
			t.Fatal(err)
		}
	}
	orders := s.ConnectAs("orders")
	ojs := natstest.JetStream(t, orders)

	// An add: the PubAck crosses accounts.
	ack, err := ojs.Publish(t.Context(), "timers.add", []byte("{}"))
	if err != nil || ack.Stream != "TIMERS_ADD" {
		t.Fatalf("orders cannot add: %+v, %v", ack, err)
	}

	// The events of the team's own service, live.
	own, err := orders.SubscribeSync("timers.>")
	if err != nil {
		t.Fatal(err)
	}
	flush(t, orders)
	for _, subject := range []string{"timers.fired.billing", "timers.fired.orders", "timers.dead.billing", "timers.dead.orders"} {
		if _, err := js.Publish(t.Context(), subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"timers.fired.orders", "timers.dead.orders"} {
		if m, err := own.NextMsg(bound); err != nil || m.Subject != want {
			t.Fatalf("orders received %+v, %v; want %s", m, err, want)
		}
	}

	// The events of the past, through the consumer that an operator has created.
	ajs := natstest.JetStream(t, s.ConnectAs("admin"))
	if _, err := ajs.CreateConsumer(t.Context(), "TIMERS_FIRED", jetstream.ConsumerConfig{Durable: "orders", FilterSubject: "timers.fired.orders", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	bjs, err := jetstream.NewWithAPIPrefix(orders, "JS.BELFRY.API", jetstream.WithDefaultTimeout(bound))
	if err != nil {
		t.Fatal(err)
	}
	c, err := bjs.Consumer(t.Context(), "TIMERS_FIRED", "orders")
	if err != nil {
		t.Fatalf("orders cannot use its consumer: %v", err)
	}
	m, err := c.Next(jetstream.FetchMaxWait(bound))
	if err != nil || m.Subject() != "timers.fired.orders" {
		t.Fatalf("got %+v, %v", m, err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Errorf("orders cannot acknowledge: %v", err)
	}
	if info, err := c.Info(t.Context()); err != nil || info.NumAckPending != 0 || info.NumPending != 0 {
		t.Errorf("got %+v, %v", info, err)
	}

	if err := own.Unsubscribe(); err != nil { // else it would also receive the callbacks
		t.Fatal(err)
	}

	// Callbacks: Belfry sends a request, and orders answers, first with progress.
	for _, subject := range []string{"callbacks.orders.expire", "timers.work.orders"} {
		if _, err := belfry.Request(subject, nil, bound); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s without a subscriber: %v", subject, err)
		}
		if _, err := orders.Subscribe(subject, func(m *nats.Msg) {
			if err := errors.Join(m.Respond([]byte("working")), m.Respond([]byte("done"))); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		flush(t, orders)
		answers, err := belfry.SubscribeSync(belfry.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		if err := belfry.PublishRequest(subject, answers.Subject, nil); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"working", "done"} {
			if m, err := answers.NextMsg(bound); err != nil || string(m.Data) != want {
				t.Errorf("%s: %+v, %v; want %s", subject, m, err, want)
			}
		}
	}
	if _, err := belfry.Request("callbacks.billing.expire", nil, bound); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a callback to a subject that no account exports: %v", err)
	}
}

func flush(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if err := nc.FlushTimeout(bound); err != nil {
		t.Fatal(err)
	}
}
