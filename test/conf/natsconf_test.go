// Package conf runs the production nats.conf of the repository on a real server.
package conf

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "belfry-test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER)
}

// start runs nats.conf as it is, but for the ports.
func start(t *testing.T) (url, ca string) {
	t.Helper()
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	for k, v := range map[string]string{
		"BELFRY_STORE": filepath.Join(dir, "js"), "BELFRY_CERT": cert, "BELFRY_KEY": key, "BELFRY_CA": cert,
		"BELFRY_PASSWORD": "belfry-pw", "ORDERS_PASSWORD": "orders-pw", "ADMIN_PASSWORD": "admin-pw",
	} {
		t.Setenv(k, v)
	}
	opts, err := server.ProcessConfigFile("../../nats.conf")
	if err != nil {
		t.Fatalf("nats.conf: %v", err)
	}
	if !opts.SyncAlways {
		t.Fatal("nats.conf does not sync always")
	}
	opts.Host, opts.Port, opts.HTTPPort, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, -1, true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(60 * time.Second) {
		t.Fatal("server did not start")
	}
	return "tls://" + s.Addr().String(), cert
}

func connect(t *testing.T, url, ca, user string) (*nats.Conn, chan error) {
	t.Helper()
	violations := make(chan error, 16)
	nc, err := nats.Connect(url, nats.RootCAs(ca), nats.UserInfo(user, user+"-pw"), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }))
	if err != nil {
		t.Fatalf("%s: %v", user, err)
	}
	t.Cleanup(nc.Close)
	return nc, violations
}

// refused waits for the server's word that the last act was not allowed.
func refused(t *testing.T, violations chan error, what string) {
	t.Helper()
	select {
	case err := <-violations:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(30 * time.Second):
		t.Errorf("%s was allowed", what)
	}
}

// TestProductionConfig loads nats.conf into a real server and shows what each of
// its users may, and may not, do.
func TestProductionConfig(t *testing.T) {
	url, ca := start(t)
	if _, err := nats.Connect(url, nats.RootCAs(ca), nats.UserInfo("orders", "wrong")); err == nil {
		t.Fatal("a wrong password was accepted")
	}
	if _, err := nats.Connect(url, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}), nats.UserInfo("orders", "orders-pw")); err == nil {
		t.Fatal("an unknown certificate was accepted")
	}
	belfry, err := nats.Connect(url, nats.RootCAs(ca), nats.UserInfo("belfry", "belfry-pw"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(belfry.Close)
	js, err := jetstream.New(belfry)
	if err != nil {
		t.Fatal(err)
	}
	for name, subjects := range map[string][]string{"TIMERS_ADD": {"timers.add"}, "TIMERS_FIRED": {"timers.fired.*"}} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.Publish(t.Context(), "timers.fired.orders", []byte("x")); err != nil {
		t.Fatal(err)
	}

	orders, violations := connect(t, url, ca, "orders")
	ojs, err := jetstream.New(orders)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ojs.Publish(t.Context(), "timers.add", []byte("{}")); err != nil {
		t.Errorf("orders cannot add: %v", err)
	}
	c, err := ojs.CreateOrUpdateConsumer(t.Context(), "TIMERS_FIRED", jetstream.ConsumerConfig{Durable: "orders", FilterSubject: "timers.fired.orders", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatalf("orders cannot consume its own events: %v", err)
	}
	m, err := c.Next(jetstream.FetchMaxWait(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Errorf("orders cannot acknowledge: %v", err)
	}
	for what, act := range map[string]func() error{
		"a fired event of its own making": func() error { return orders.Publish("timers.fired.orders", nil) },
		"another service's callback":      func() error { return orders.Publish("callbacks.billing.x", nil) },
		"writing a record":                func() error { return orders.Publish("$KV.timers_0.timer.x", nil) },
		"moving a clock":                  func() error { return orders.Publish("$KV.clock.clock.0", nil) },
		"deleting a stream":               func() error { return orders.Publish("$JS.API.STREAM.DELETE.TIMERS_FIRED", nil) },
		"another service's consumer": func() error {
			return orders.Publish("$JS.API.CONSUMER.CREATE.TIMERS_FIRED.x.timers.fired.billing", nil)
		},
		"reading another's inbox":   func() error { _, err := orders.SubscribeSync("_INBOX.>"); return err },
		"listening to other events": func() error { _, err := orders.SubscribeSync("timers.fired.>"); return err },
	} {
		if err := act(); err != nil {
			t.Fatal(err)
		}
		if err := orders.Flush(); err != nil {
			t.Fatal(err)
		}
		refused(t, violations, what)
	}

	// Callbacks: Belfry requests, orders answers.
	if _, err := orders.Subscribe("callbacks.orders.expire", func(m *nats.Msg) {
		if err := m.Respond([]byte("ok")); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := orders.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := belfry.Request("callbacks.orders.expire", nil, 30*time.Second); err != nil {
		t.Errorf("callback: %v", err)
	}
	admin, adminViolations := connect(t, url, ca, "admin")
	if err := admin.Publish("$KV.timers_0.timer.x", nil); err != nil {
		t.Fatal(err)
	}
	if err := admin.Flush(); err != nil {
		t.Fatal(err)
	}
	refused(t, adminViolations, "admin writing past the API")
}
