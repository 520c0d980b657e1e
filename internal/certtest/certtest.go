// Package certtest issues TLS certificates for tests: for 127.0.0.1, valid for an hour.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a private CA.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is the CA's certificate.
	PEM []byte
}

// New makes a CA.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb}
	a.PEM, _ = a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// Issue returns a certificate and its key in PEM. name is its common name.
func (a *Authority) Issue(name string, usage ...x509.ExtKeyUsage) (cert, key []byte) {
	a.tb.Helper()
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: usage, KeyUsage: x509.KeyUsageDigitalSignature,
	})
}

// Files writes a certificate and its key into temporary files.
func (a *Authority) Files(name string, usage ...x509.ExtKeyUsage) (certFile, keyFile string) {
	a.tb.Helper()
	cert, key := a.Issue(name, usage...)
	return a.write(cert), a.write(key)
}

// File writes the CA's certificate into a temporary file.
func (a *Authority) File() string {
	a.tb.Helper()
	return a.write(a.PEM)
}

// Pool has only the CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue signs a certificate; the first certificate, which is the CA's, signs itself.
func (a *Authority) issue(c *x509.Certificate) (cert, key []byte) {
	a.tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.tb.Fatal(err)
	}
	now := time.Now()
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(now.UnixNano()), now.Add(-time.Hour), now.Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, private
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &private.PublicKey, signer)
	if err != nil {
		a.tb.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.tb.Fatal(err)
		}
		a.key = private
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func (a *Authority) write(text []byte) string {
	a.tb.Helper()
	path := filepath.Join(a.tb.TempDir(), "tls.pem")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		a.tb.Fatal(err)
	}
	return path
}
