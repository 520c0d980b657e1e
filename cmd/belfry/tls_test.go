package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/belfryio/belfry/internal/natstest"
)

// authority is a CA for one test, which signs into files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ca   string // its own certificate's file
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.ca, _ = a.sign(name, a.cert)
	return a
}

// sign writes a certificate and its key; the first one signs itself.
func (a *authority) sign(name string, c *x509.Certificate) (certFile, keyFile string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.key == nil {
		a.key = key
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	if c == a.cert {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+"-key.pem", "EC PRIVATE KEY", keyDER)
}

func (a *authority) write(name, kind string, b []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *authority) leaf(name string, usage x509.ExtKeyUsage) (certFile, keyFile string) {
	a.t.Helper()
	return a.sign(name, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
	})
}

// tlsServer wants a client certificate of the authority.
func tlsServer(t *testing.T, a *authority, options ...natstest.Option) string {
	t.Helper()
	cert, key := a.leaf("server", x509.ExtKeyUsageServerAuth)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	srv := natstest.Run(t, append(options, func(o *server.Options) {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
		o.TLSVerify, o.TLSTimeout = true, 5
	})...)
	return "tls://" + srv.Addr().String()
}

// TestTLS: a node and the commands talk to a server that wants certificates; what
// does not fit is one line.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	url := tlsServer(t, ours)
	cert, key := ours.leaf("client", x509.ExtKeyUsageClientAuth)
	badCert, badKey := theirs.leaf("client", x509.ExtKeyUsageClientAuth)
	good := []string{"--tls-ca", ours.ca, "--tls-cert", cert, "--tls-key", key}

	n := serveOn(t, url, good...)
	n.nats = url
	if !strings.HasPrefix(n.log.text(), "{") || strings.Contains(n.log.text(), "PRIVATE") {
		t.Errorf("log: %s", n.log.text())
	}
	ok[added](t, n, append([]string{"add", "--in", "1h", "--id", "secure", "--source", "/s"}, good...)...)
	ok[map[string]any](t, n, append([]string{"get", "secure", "--source", "/s"}, good...)...)
	env := []string{"BELFRY_NATS_URL=" + url, "BELFRY_TLS_CA=" + ours.ca, "BELFRY_TLS_CERT=" + cert, "BELFRY_TLS_KEY=" + key}
	if r := belfryEnv(t, env, "", "ls"); r.code != exitOK || !strings.Contains(r.out, "secure") {
		t.Errorf("ls by the environment: %+v", r)
	}
	if r := belfryEnv(t, append(env, "BELFRY_NATS_URL="+strings.Replace(url, "tls://", "nats://", 1)), "", "ls"); r.code != exitOK {
		t.Errorf("a nats:// URL with certificates: %+v", r)
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
		{"another CA", exitUnreachable, "certificate signed by unknown authority", []string{"--tls-ca", theirs.ca, "--tls-cert", cert, "--tls-key", key}},
		// The server's reason and the end of its connection race; either names TLS.
		{"no certificate", exitUnreachable, "tls", []string{"--tls-ca", ours.ca}},
		{"another's certificate", exitUnreachable, "tls", []string{"--tls-ca", ours.ca, "--tls-cert", badCert, "--tls-key", badKey}},
		{"certificate without key", exitUsage, "tls-cert and tls-key", []string{"--tls-ca", ours.ca, "--tls-cert", cert}},
		{"another's key", exitUsage, "tls-cert and tls-key", []string{"--tls-ca", ours.ca, "--tls-cert", cert, "--tls-key", badKey}},
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

// credentials are of a user of an account with JetStream, and of one that the
// operator's account does not know.
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

// TestCreds: a server in operator mode, with TLS.
func TestCreds(t *testing.T) {
	t.Parallel()
	option, good, bad := credentials(t)
	a := newAuthority(t, "ours")
	url := tlsServer(t, a, option)
	cert, key := a.leaf("client", x509.ExtKeyUsageClientAuth)
	with := func(creds string) []string {
		return []string{"--tls-ca", a.ca, "--tls-cert", cert, "--tls-key", key, "--creds", creds}
	}
	n := serveOn(t, url, with(good)...)
	n.nats = url
	ok[added](t, n, append([]string{"add", "--in", "1h", "--id", "known", "--source", "/s"}, with(good)...)...)
	for _, cmd := range []string{"ls --timeout 60s", "serve --http -"} {
		args := append(strings.Fields(cmd), "--nats-url", url)
		belfryRun(t, append(args, with(bad)...)...).oneLine(t, exitUnreachable, "Authorization Violation")
		belfryRun(t, append(args, with(good)[:6]...)...).oneLine(t, exitUnreachable, "Authorization Violation")
		belfryRun(t, append(args, with(good+"x")...)...).oneLine(t, exitUsage, "no such file")
		belfryRun(t, append(args, with(cert)...)...).oneLine(t, exitUnreachable, "seed")
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	_, seed, _ := strings.Cut(string(b), "-----BEGIN USER NKEY SEED-----\n")
	if seed, _, _ = strings.Cut(seed, "\n"); len(seed) < 50 || strings.Contains(n.log.text(), seed) {
		t.Errorf("the seed is in the log, or not found: %d characters", len(seed))
	}
	n.stop(t)
}

// TestOldServer: a server that says in its greeting that it is too old. The real
// one is not at hand: what it says before it is asked for anything is all that
// the check needs.
func TestOldServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "INFO {\"server_id\":\"OLD\",\"version\":\"2.10.29\",\"proto\":1,\"headers\":true,\"jetstream\":true,\"max_payload\":1048576}\r\n")
				s := bufio.NewScanner(c)
				for s.Scan() {
					if strings.HasPrefix(s.Text(), "PING") {
						fmt.Fprint(c, "PONG\r\n")
					}
				}
			}()
		}
	}()
	belfryRun(t, "serve", "--http", "-", "--nats-url", "nats://"+l.Addr().String()).oneLine(t, exitUsage, "2.10.29", "2.11 or later")
}
