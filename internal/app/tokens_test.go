package app

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

// tokenSet returns tokens with these scopes, and their secrets by name.
func tokenSet(t *testing.T, tokens ...token.Token) (*token.Set, map[string]string) {
	t.Helper()
	secrets, lines := map[string]string{}, []string{}
	for _, tok := range tokens {
		secrets[tok.Name] = token.Generate()
		tok.Hash = token.HashOf(secrets[tok.Name])
		lines = append(lines, tok.String())
	}
	s, err := token.Parse([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return s, secrets
}

// TestTokensOfTenants: a token names a tenant of the settings. It sees no metrics and no details
// of readiness, which concern all tenants.
func TestTokensOfTenants(t *testing.T) {
	t.Parallel()
	set, secrets := tokenSet(t, token.Token{Name: "ops", Scopes: token.Scopes{"admin"}}, token.Token{Name: "acme", Tenant: "acme", Scopes: token.AllScopes()})
	o := Options{NATSURL: "nats://127.0.0.1:1", HTTP: NoHTTP, HTTPTokens: set, Tenants: map[string]string{"acme": "ACME"}, Callbacks: options(t).Callbacks}
	o.Callbacks.Tenants = map[string]schemas.TenantAllowance{"acme": {}}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	get := func(path, name string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+secrets[name])
		w := httptest.NewRecorder()
		a.handler().ServeHTTP(w, r)
		return w
	}
	if w := get("/metrics", "ops"); w.Code != http.StatusOK {
		t.Errorf("/metrics with a token without a tenant: got status %d: %s, want 200", w.Code, w.Body)
	}
	if w := get("/metrics", "acme"); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "token acme is of tenant acme") || !strings.Contains(w.Header().Get("WWW-Authenticate"), "insufficient_scope") {
		t.Errorf("/metrics with a token of a tenant: got status %d: %s, want 403 and the tenant", w.Code, w.Body)
	}
	if w := get("/readyz", "ops"); !strings.Contains(w.Body.String(), "phase") {
		t.Errorf("/readyz with a token without a tenant: got %s, want details", w.Body)
	}
	if w := get("/readyz", "acme"); w.Body.String() != "{\"ready\":false}\n" {
		t.Errorf("/readyz with a token of a tenant: got %s, want only the status", w.Body)
	}
	o.Tenants = map[string]string{"globex": "GLOBEX"}
	if err := o.Validate(); schemas.CodeOf(err) != schemas.CodeConfig || !strings.Contains(err.Error(), "line 2: tenant acme of token acme") {
		t.Errorf("a token of a tenant that does not exist: got error %v, want one with line 2 and its tenant", err)
	}
}

// TestObserveByOtherName: without tokens, a request that names this host by anything but loopback, as that of
// a web site whose name points here, gets no metrics and no details of readiness. Probes get the status.
func TestObserveByOtherName(t *testing.T) {
	t.Parallel()
	a, err := New(Options{NATSURL: "nats://127.0.0.1:1", HTTP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	get := func(path, host string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		a.handler().ServeHTTP(w, r)
		return w
	}
	for _, host := range []string{"localhost:8420", "127.0.0.1", "[::1]:8420"} {
		if w := get("/metrics", host); w.Code != http.StatusOK {
			t.Errorf("/metrics with Host %s: got status %d: %s, want 200", host, w.Code, w.Body)
		}
		if w := get("/readyz", host); !strings.Contains(w.Body.String(), "phase") {
			t.Errorf("/readyz with Host %s: got %s, want details", host, w.Body)
		}
	}
	const other = "evil.example:8420"
	if w := get("/metrics", other); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "Host") {
		t.Errorf("/metrics with Host %s: got status %d: %s, want 403 and the header", other, w.Code, w.Body)
	}
	if w := get("/readyz", other); w.Code != http.StatusServiceUnavailable || w.Body.String() != "{\"ready\":false}\n" {
		t.Errorf("/readyz with Host %s: got status %d: %s, want only the status", other, w.Code, w.Body)
	}
	if w := get("/healthz", other); w.Code != http.StatusOK {
		t.Errorf("/healthz with Host %s: got status %d, want 200", other, w.Code)
	}
}
