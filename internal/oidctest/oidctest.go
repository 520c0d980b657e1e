// Package oidctest is an OpenID Connect provider for tests: it serves its discovery document and its keys
// on loopback, logs people in without a password, and signs real tokens.
package oidctest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Provider is an OpenID Connect provider: it has the discovery document, the keys and the endpoints of a
// login, and signs tokens.
type Provider struct {
	// URL is the issuer.
	URL string
	srv *httptest.Server

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	down    bool
	logins  logins
	fetches atomic.Int32
}

// New starts a provider over TLS, without keys.
func New(t *testing.T) *Provider {
	t.Helper()
	return start(t, httptest.NewTLSServer)
}

// NewPlain starts a provider without TLS, for a browser that trusts no other certificates.
func NewPlain(t *testing.T) *Provider {
	t.Helper()
	return start(t, httptest.NewServer)
}

func start(t *testing.T, serve func(http.Handler) *httptest.Server) *Provider {
	t.Helper()
	p := &Provider{}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.fetches.Add(1)
		p.mu.Lock()
		set := jose.JSONWebKeySet{Keys: slices.Clone(p.keys)}
		p.mu.Unlock()
		answer(w, set)
	})
	p.serveLogins(t, mux)
	p.srv = serve(mux)
	p.URL = p.srv.URL
	t.Cleanup(p.srv.Close)
	return p
}

// Publish replaces the keys.
func (p *Provider) Publish(keys ...*Signer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = nil
	for _, k := range keys {
		p.keys = append(p.keys, jose.JSONWebKey{Key: k.Key.Public(), KeyID: k.ID, Algorithm: string(k.Alg), Use: "sig"})
	}
}

// SetDown makes the provider answer every request with an error while down is true.
func (p *Provider) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// Roots returns the CA of a provider over TLS.
func (p *Provider) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.srv.Certificate())
	return pool
}

// Transport returns a transport that trusts the CA of a provider over TLS. The caller closes its idle
// connections.
func (p *Provider) Transport() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.Roots(), MinVersion: tls.VersionTLS12}}
}

// Signer is a private key of a provider.
type Signer struct {
	Key crypto.Signer
	ID  string // the name of the key in the set and in tokens
	Alg jose.SignatureAlgorithm
}

// NewSigner makes a key for an algorithm: ES256, or one of RSA.
func NewSigner(t *testing.T, id string, alg jose.SignatureAlgorithm) *Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	if alg == jose.ES256 {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Signer{key, id, alg}
}

// Sign signs claims.
func (s *Signer) Sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	return Sign(t, jose.SigningKey{Algorithm: s.Alg, Key: jose.JSONWebKey{Key: s.Key, KeyID: s.ID}}, claims)
}

// Sign signs claims with any key.
func Sign(t *testing.T, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signing, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signing.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Claims returns the claims of a valid token of the provider, with changes; nil removes a claim.
func (p *Provider) Claims(changes map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{"iss": p.URL, "aud": []string{"belfry", "other"}, "sub": "anna", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix(), "scope": "openid belfry:read belfry:write"}
	for name, v := range changes {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
	return c
}

// Fetches returns the number of requests for the keys.
func (p *Provider) Fetches() int32 { return p.fetches.Load() }

// CAFile writes the CA of the provider into a temporary PEM file.
func (p *Provider) CAFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
