package natstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Production is a server that runs the repository's nats.conf.
type Production struct {
	*Server
	// CA is the PEM file of the CA that clients have to trust.
	CA string
}

// RunProduction starts a server with the nats.conf at path, as it is except for the
// addresses, which are on loopback with random ports. Each user's password is the
// user's name and "-pw"; that of sys is "admin-pw". edit, unless it is nil, changes the
// text of the file first.
func RunProduction(tb testing.TB, path string, edit func(conf string) string) *Production {
	tb.Helper()
	conf, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	text := string(conf)
	if edit != nil {
		text = edit(text)
	}
	dir := tb.TempDir()
	cert, key := certificate(tb, dir)
	// The server takes variables from the file itself before the environment.
	defined := fmt.Sprintf("BELFRY_STORE: %q\nBELFRY_CERT: %q\nBELFRY_KEY: %q\nBELFRY_CA: %q\n", filepath.Join(dir, "js"), cert, key, cert)
	passwords := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$([A-Z]+)_PASSWORD`).FindAllStringSubmatch(text, -1) {
		if !passwords[m[1]] {
			passwords[m[1]] = true
			defined += fmt.Sprintf("%s_PASSWORD: %q\n", m[1], strings.ToLower(m[1])+"-pw")
		}
	}
	file := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(file, []byte(defined+text), 0o600); err != nil {
		tb.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	opts.Host, opts.Port, opts.HTTPPort, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, -1, true, true
	p := &Production{Server: &Server{opts: *opts, tb: tb}, CA: cert}
	tb.Cleanup(p.Stop)
	p.launch()
	p.await()
	return p
}

// SyncsAlways reports whether the server syncs every write.
func (p *Production) SyncsAlways() bool { return p.opts.SyncAlways }

// URLOf is the server's address with a user's credentials.
func (p *Production) URLOf(user string) string {
	return fmt.Sprintf("tls://%s:%s-pw@%s", user, user, p.Addr())
}

// ConnectAs connects as a user until the test ends.
func (p *Production) ConnectAs(user string, options ...nats.Option) *nats.Conn {
	p.tb.Helper()
	return connect(p.tb, p.URLOf(user), append([]nats.Option{nats.RootCAs(p.CA)}, options...))
}

// AddTeam edits nats.conf as its comments say: it repeats the account of team orders,
// and each line of account BELFRY that names orders, for another team.
func AddTeam(team string) func(conf string) string {
	return func(conf string) string {
		rename := strings.NewReplacer("orders", team, "ORDERS", strings.ToUpper(team))
		begin := strings.Index(conf, "\n  ORDERS {")
		end := begin + strings.Index(conf[begin:], "\n  }\n") + len("\n  }\n")
		var out strings.Builder
		for line := range strings.Lines(conf[:begin]) {
			out.WriteString(line)
			if strings.HasPrefix(strings.TrimSpace(line), "{") && strings.Contains(line, "orders") {
				out.WriteString(rename.Replace(line))
			}
		}
		return out.String() + conf[begin:end] + rename.Replace(conf[begin:end]) + conf[end:]
	}
}

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(tb testing.TB, dir string) (cert, key string) {
	tb.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "belfry-test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(priv)
	if err != nil {
		tb.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return p
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER)
}
