package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/natstest"
)

// tlsServer starts a server that requires a client certificate of the authority.
func tlsServer(t *testing.T, a *certtest.Authority, options ...natstest.Option) string {
	t.Helper()
	cert, key := a.Files("server", x509.ExtKeyUsageServerAuth)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, append(options, func(o *server.Options) {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
		o.TLSVerify, o.TLSTimeout = true, 5
	})...)
	return "tls://" + srv.Addr().String()
}

// TestTLS: a node and the commands connect to a server that requires certificates. A
// wrong or missing certificate gives one line.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := certtest.New(t), certtest.New(t)
	url := tlsServer(t, ours)
	cert, key := ours.Files("client", x509.ExtKeyUsageClientAuth)
	badCert, badKey := theirs.Files("client", x509.ExtKeyUsageClientAuth)
	good := []string{"--tls-ca", ours.File(), "--tls-cert", cert, "--tls-key", key}

	n := serveOn(t, url, good...)
	n.nats = url
	if !strings.HasPrefix(n.log.String(), "{") || strings.Contains(n.log.String(), "PRIVATE") {
		t.Errorf("got log %s, want JSON without a private key", n.log.String())
	}
	ok[added](t, n, append([]string{"add", "--in", "1h", "--id", "secure", "--source", "/s"}, good...)...)
	ok[map[string]any](t, n, append([]string{"get", "secure", "--source", "/s"}, good...)...)
	env := []string{"BELFRY_NATS_URL=" + url, "BELFRY_TLS_CA=" + ours.File(), "BELFRY_TLS_CERT=" + cert, "BELFRY_TLS_KEY=" + key}
	if r := belfryEnv(t, env, "", "ls"); r.code != exitOK || !strings.Contains(r.out, "secure") {
		t.Errorf("ls with the environment's TLS settings: got %v, want exit code 0 and the timer secure", r)
	}
	if r := belfryEnv(t, append(env, "BELFRY_NATS_URL="+strings.Replace(url, "tls://", "nats://", 1)), "", "ls"); r.code != exitOK {
		t.Errorf("ls with a nats:// URL and certificates: got %v, want exit code 0", r)
	}

	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		code  int
		want  string
		flags []string
	}{
		{"no CA", exitUnreachable, "certificate signed by unknown authority", []string{"--tls-cert", cert, "--tls-key", key}},
		{"another CA", exitUnreachable, "certificate signed by unknown authority", []string{"--tls-ca", theirs.File(), "--tls-cert", cert, "--tls-key", key}},
		// The server's error and the end of the connection arrive in either order; both
		// mention TLS.
		{"no certificate", exitUnreachable, "tls", []string{"--tls-ca", ours.File()}},
		{"another's certificate", exitUnreachable, "tls", []string{"--tls-ca", ours.File(), "--tls-cert", badCert, "--tls-key", badKey}},
		{"certificate without key", exitUsage, "tls-cert and tls-key", []string{"--tls-ca", ours.File(), "--tls-cert", cert}},
		{"another's key", exitUsage, "tls-cert and tls-key", []string{"--tls-ca", ours.File(), "--tls-cert", cert, "--tls-key", badKey}},
		{"CA is no certificate", exitUsage, "no certificate", []string{"--tls-ca", notPEM}},
		{"no such file", exitUsage, "no such file", []string{"--tls-ca", notPEM + "x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, cmd := range []string{"ls --timeout 60s", "serve --http -"} {
				belfryRun(t, append(append(strings.Fields(cmd), "--nats-url", url), tt.flags...)...).oneLine(t, tt.code, tt.want)
			}
		})
	}
	n.stop(t)
}

// credentials returns the credentials of a user with JetStream, and those of a user whose
// account the operator does not know.
func credentials(t *testing.T) (option natstest.Option, good, bad string) {
	t.Helper()
	pair := func(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
		k, err := create()
		if err != nil {
			t.Fatal(err)
		}
		pub, err := k.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return k, pub
	}
	encode := func(c jwt.Claims, k nkeys.KeyPair) string {
		token, err := c.Encode(k)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	creds := func(account nkeys.KeyPair) string {
		k, pub := pair(nkeys.CreateUser)
		seed, err := k.Seed()
		if err != nil {
			t.Fatal(err)
		}
		b, err := jwt.FormatUserConfig(encode(jwt.NewUserClaims(pub), account), seed)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "user.creds")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	operator, operatorPub := pair(nkeys.CreateOperator)
	_, systemPub := pair(nkeys.CreateAccount)
	account, accountPub := pair(nkeys.CreateAccount)
	stranger, _ := pair(nkeys.CreateAccount)
	claims := jwt.NewAccountClaims(accountPub)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: 1 << 30, MemoryStorage: 1 << 20, Streams: -1, Consumer: -1}
	resolver := &server.MemAccResolver{}
	for pub, c := range map[string]jwt.Claims{accountPub: claims, systemPub: jwt.NewAccountClaims(systemPub)} {
		if err := resolver.Store(pub, encode(c, operator)); err != nil {
			t.Fatal(err)
		}
	}
	trusted, err := jwt.DecodeOperatorClaims(encode(jwt.NewOperatorClaims(operatorPub), operator))
	if err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{trusted}, resolver, systemPub
	}, creds(account), creds(stranger)
}

// TestCreds: a node and the commands connect to a server in operator mode, with TLS.
func TestCreds(t *testing.T) {
	t.Parallel()
	option, good, bad := credentials(t)
	a := certtest.New(t)
	url := tlsServer(t, a, option)
	cert, key := a.Files("client", x509.ExtKeyUsageClientAuth)
	with := func(creds string) []string {
		return []string{"--tls-ca", a.File(), "--tls-cert", cert, "--tls-key", key, "--creds", creds}
	}
	n := serveOn(t, url, with(good)...)
	n.nats = url
	ok[added](t, n, append([]string{"add", "--in", "1h", "--id", "known", "--source", "/s"}, with(good)...)...)
	for _, cmd := range []string{"ls --timeout 60s", "serve --http -"} {
		args := append(strings.Fields(cmd), "--nats-url", url)
		belfryRun(t, append(args, with(bad)...)...).oneLine(t, exitUnreachable, "Authorization Violation")
		belfryRun(t, append(args, with(good)[:6]...)...).oneLine(t, exitUnreachable, "Authorization Violation")
		belfryRun(t, append(args, with(good+"x")...)...).oneLine(t, exitUsage, "no such file")
		belfryRun(t, append(args, with(cert)...)...).oneLine(t, exitUsage, "not a NATS credentials file: it has no seed of a user")
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	_, seed, _ := strings.Cut(string(b), "-----BEGIN USER NKEY SEED-----\n")
	if seed, _, _ = strings.Cut(seed, "\n"); len(seed) < 50 || strings.Contains(n.log.String(), seed) {
		t.Errorf("got a seed of %d characters, want 50 or more, and none of it in the log", len(seed))
	}
	n.stop(t)
}

// TestOldServer: serve refuses a server whose version is too old.
func TestOldServer(t *testing.T) {
	t.Parallel()
	belfryRun(t, "serve", "--http", "-", "--nats-url", natstest.Greeting(t, "2.10.29")).oneLine(t, exitUsage, "2.10.29", "2.11 or later")
}
