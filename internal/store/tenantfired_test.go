package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestTenantFiredFirst: the copy of a tenant's event is stored before the event. While it cannot be
// stored, the event is not. A publish that is repeated stores both once.
func TestTenantFiredFirst(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	js := natstest.JetStream(t, nc)
	tenants := map[string]string{"acme": "ACME"}
	s := open(t, nc, func(c *store.Config) { c.Tenants, c.TenantFired = true, tenants })
	publish := func(svc, id string) error {
		_, _, err := s.Publish(t.Context(), store.Msg{
			Subject: schemas.SubjectFired(svc), MsgID: id, Data: []byte("e"),
			Header: nats.Header{"ce-id": {id}, schemas.HeaderClaim: {"c"}},
		})
		return err
	}
	stored := func(stream string, want ...string) {
		t.Helper()
		st, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		if n := st.CachedInfo().State.Msgs; n != uint64(len(want)) {
			t.Errorf("%s has %d messages, want %d", stream, n, len(want))
		}
		for seq, subject := range want {
			m, err := st.GetMsg(t.Context(), uint64(seq+1))
			if err != nil {
				t.Fatal(err)
			}
			if claim := m.Header.Get(schemas.HeaderClaim); m.Subject != subject || (claim == "") != (stream == schemas.StreamTenantFired) {
				t.Errorf("%s: message %d is on %s with the claim %q, want %s", stream, seq+1, m.Subject, claim, subject)
			}
		}
	}
	if err := js.DeleteStream(t.Context(), schemas.StreamTenantFired); err != nil {
		t.Fatal(err)
	}
	if err := publish("acme=orders", "1.1"); !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("without the stream of copies: %v, want ErrUnavailable", err)
	}
	stored(schemas.StreamFired)
	for _, svc := range []string{"orders", "globex=orders"} {
		if err := publish(svc, svc+".1"); err != nil {
			t.Errorf("an event of another account: %v", err)
		}
	}
	open(t, nc, func(c *store.Config) { c.Node, c.Tenants, c.TenantFired = "n2", true, tenants })
	for range 2 {
		if err := publish("acme=orders", "1.1"); err != nil {
			t.Fatal(err)
		}
	}
	stored(schemas.StreamFired, "timers.fired.orders", "timers.fired.globex=orders", "timers.fired.acme=orders")
	stored(schemas.StreamTenantFired, "timers.t.ACME.fired.orders")
	if _, err := js.Consumer(t.Context(), schemas.StreamTenantFired, "ACME"); err != nil {
		t.Errorf("the consumer of the account: %v", err)
	}
	// A store without such tenants does not make the stream.
	other := natstest.Run(t).Connect()
	open(t, other, func(c *store.Config) { c.Tenants = true })
	if _, err := natstest.JetStream(t, other).Stream(t.Context(), schemas.StreamTenantFired); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without TenantFired: %v, want no stream", err)
	}
}

// TestTenantFiredOvertaken: a tenant's consumer that does not read is reported when the stream of
// copies drops its events. The consumer of a reader that keeps up is not.
func TestTenantFiredOvertaken(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	js := natstest.JetStream(t, nc)
	s := open(t, nc, func(c *store.Config) {
		c.Tenants, c.TenantFired = true, map[string]string{"acme": "ACME", "globex": "GLOBEX"}
	})
	copies, err := js.Stream(t.Context(), schemas.StreamTenantFired)
	if err != nil {
		t.Fatal(err)
	}
	cfg := copies.CachedInfo().Config
	cfg.MaxBytes = 1 << 20
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	publish := func(svc string, n int) {
		t.Helper()
		errs := make(chan error, n)
		for i := range n {
			m := store.Msg{Subject: schemas.SubjectFired(svc), MsgID: fmt.Sprintf("%s.%d", svc, i), Data: make([]byte, 2000)}
			s.PublishAsync(m, func(_ uint64, _ bool, err error) { errs <- err })
		}
		for range n {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("globex=orders", 1)
	globex, err := js.Consumer(t.Context(), schemas.StreamTenantFired, "GLOBEX")
	if err != nil {
		t.Fatal(err)
	}
	m, err := globex.Next(jetstream.FetchMaxWait(time.Minute))
	if err != nil || m.DoubleAck(t.Context()) != nil {
		t.Fatal(err)
	}
	publish("acme=orders", 100)
	if got, err := s.OvertakenConsumers(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("before the stream is full: %+v %v", got, err)
	}
	publish("acme=mail", 900)
	publish("globex=mail", 1) // unread, but not about to leave the stream
	got, err := s.OvertakenConsumers(t.Context())
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v %v, want one consumer", got, err)
	}
	const want = "consumer ACME of TIMERS_TENANT_FIRED is overtaken: it has missed at least 1 events of timers.t.ACME.fired.*, which the limit bytes removed"
	if o := got[0]; o.Why != store.LimitBytes || o.Belfry || !strings.HasPrefix(o.Problem(), want) {
		t.Errorf("%+v: %s, want %s", o, o.Problem(), want)
	}
}
