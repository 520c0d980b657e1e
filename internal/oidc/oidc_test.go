package oidc_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/oidctest"
	"github.com/belfryio/belfry/internal/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is a provider of package oidctest.
type provider struct {
	*oidctest.Provider
	t *testing.T
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	return &provider{oidctest.New(t), t}
}

func (p *provider) config() oidc.Config {
	return oidc.Config{Issuer: p.URL, Audience: "belfry", Roots: p.Roots(), Log: zerolog.Nop(), Known: func(tenant string) bool { return tenant == "acme" || tenant == "globex" }}
}

func (p *provider) verifier(c oidc.Config) *oidc.Verifier {
	p.t.Helper()
	v, err := oidc.New(c)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// refused fails the test unless a token is refused with a status and a reason.
func refused(t *testing.T, what string, v *oidc.Verifier, text string, status int, reason string) {
	t.Helper()
	id, err := v.Verify(t.Context(), text, time.Now())
	e, ok := errors.AsType[*token.Error](err)
	if !ok || e.Status != status || !strings.Contains(e.Reason, reason) || id.Name != "" {
		t.Errorf("%s: got %+v, %v, want status %d and %q", what, id, err, status, reason)
		return
	}
	if strings.ContainsAny(e.Reason, "\"\\\n") {
		t.Errorf("%s: the reason %q has characters that a header must not have", what, e.Reason)
	}
}

// TestVerify: a token of the provider names its caller, whatever the kind of key.
func TestVerify(t *testing.T) {
	t.Parallel()
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.PS384, jose.ES256} {
		p := newProvider(t)
		key := oidctest.NewSigner(t, "k1", alg)
		p.Publish(oidctest.NewSigner(t, "k0", jose.RS256), key)
		v := p.verifier(p.config())
		for range 3 {
			id, err := v.Verify(t.Context(), key.Sign(t, p.Claims(nil)), time.Now())
			if err != nil || id.Name != "oidc:anna" || id.Tenant != "" || !slices.Equal(id.Scopes, token.Scopes{"read", "write"}) {
				t.Errorf("%s: got %+v, %v", alg, id, err)
			}
		}
		if n := p.Fetches(); n != 1 {
			t.Errorf("%s: the keys were read %d times, want once", alg, n)
		}
		unnamed := &oidctest.Signer{Key: key.Key, ID: "", Alg: alg}
		if _, err := v.Verify(t.Context(), unnamed.Sign(t, p.Claims(nil)), time.Now()); err != nil {
			t.Errorf("%s: a token that does not name its key: %v", alg, err)
		}
	}
}

// TestRefusals: a token that is forged, of another provider, for another program, or too old is
// refused, with the reason.
func TestRefusals(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key, ec, stranger := oidctest.NewSigner(t, "k1", jose.RS256), oidctest.NewSigner(t, "k2", jose.ES256), oidctest.NewSigner(t, "k1", jose.RS256)
	p.Publish(key, ec)
	v := p.verifier(p.config())
	oidc.NewClock(v, time.Now())
	now := time.Now()
	for what, c := range map[string]struct {
		change map[string]any
		reason string
	}{
		"another issuer":           {map[string]any{"iss": "https://evil.example"}, "different provider"},
		"another issuer's path":    {map[string]any{"iss": p.URL + "/"}, "different provider"},
		"no issuer":                {map[string]any{"iss": nil}, "different provider"},
		"another audience":         {map[string]any{"aud": "shop"}, "expected audience"},
		"no audience":              {map[string]any{"aud": nil}, "expected audience"},
		"expired":                  {map[string]any{"exp": now.Add(-time.Minute).Unix()}, "has expired"},
		"no expiry":                {map[string]any{"exp": nil}, "has expired"},
		"valid later":              {map[string]any{"nbf": now.Add(10 * time.Minute).Unix()}, "not valid yet"},
		"a time that is no number": {map[string]any{"nbf": "soon"}, "token"},
		"no name":                  {map[string]any{"sub": nil}, "claim sub"},
		"a long name":              {map[string]any{"sub": strings.Repeat("x", 200)}, "claim sub"},
		"a name with a line end":   {map[string]any{"sub": "a\nb"}, "claim sub"},
		"a name that is a list":    {map[string]any{"sub": []string{"a"}}, "token"},
	} {
		refused(t, what, v, key.Sign(t, p.Claims(c.change)), http.StatusUnauthorized, c.reason)
	}
	for _, scope := range []any{nil, "", "openid", 17, []any{1, nil}, map[string]any{"belfry:read": true}, "BELFRY:READ"} {
		refused(t, fmt.Sprintf("scope %v", scope), v, key.Sign(t, p.Claims(map[string]any{"scope": scope})), http.StatusForbidden, "no role")
	}

	good := key.Sign(t, p.Claims(nil))
	parts := strings.Split(good, ".")
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Key.Public())
	if err != nil {
		t.Fatal(err)
	}
	hmac := func(secret []byte) string {
		return oidctest.Sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: secret, KeyID: "k1"}}, p.Claims(nil))
	}
	const form, signature = "not a JSON Web Token", "no key of the provider"
	for what, c := range map[string]struct{ text, reason string }{
		"a key of somebody else":               {stranger.Sign(t, p.Claims(nil)), signature},
		"a key with an unknown name":           {(&oidctest.Signer{Key: stranger.Key, ID: "k9", Alg: jose.RS256}).Sign(t, p.Claims(nil)), signature},
		"another key's name":                   {(&oidctest.Signer{Key: key.Key, ID: "k2", Alg: jose.RS256}).Sign(t, p.Claims(nil)), signature},
		"another algorithm than that of a key": {(&oidctest.Signer{Key: key.Key, ID: "k1", Alg: jose.RS512}).Sign(t, p.Claims(nil)), signature},
		"changed claims":                       {parts[0] + "." + part(p.Claims(map[string]any{"sub": "root"})) + "." + parts[2], signature},
		"no signature":                         {parts[0] + "." + parts[1] + ".", signature},
		"algorithm none":                       {part(map[string]any{"alg": "none"}) + "." + parts[1] + ".", form},
		"algorithm None":                       {part(map[string]any{"alg": "None", "kid": "k1"}) + "." + parts[1] + "." + parts[2], form},
		"the public key as a secret":           {hmac(public), form},
		"another secret":                       {hmac([]byte(strings.Repeat("s", 32))), form},
		"a key in the header":                  {part(map[string]any{"alg": "RS256", "jwk": jose.JSONWebKey{Key: stranger.Key.Public()}}) + "." + parts[1] + "." + parts[2], signature},
		"an unknown critical header":           {part(map[string]any{"alg": "RS256", "kid": "k1", "crit": []string{"x"}, "x": 1}) + "." + parts[1] + "." + parts[2], ""},
		"no token":                             {"eyJ.e.e", form},
		"a long token":                         {"eyJ" + strings.Repeat("x", 20_000) + ".e.e", "too long"},
	} {
		refused(t, what, v, c.text, http.StatusUnauthorized, c.reason)
	}
	if n := p.Fetches(); n != 1 {
		t.Errorf("forged tokens made the verifier read the keys %d times", n)
	}
	if _, err := v.Verify(t.Context(), good, now); err != nil {
		t.Errorf("the unchanged token: %v", err)
	}
}

// TestSkew: clocks may differ by half a minute.
func TestSkew(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := oidctest.NewSigner(t, "k1", jose.ES256)
	p.Publish(key)
	v := p.verifier(p.config())
	now := time.Now()
	text := key.Sign(t, p.Claims(map[string]any{"nbf": now.Unix(), "exp": now.Add(time.Minute).Unix()}))
	for after, ok := range map[time.Duration]bool{-40 * time.Second: false, -20 * time.Second: true, 0: true, 80 * time.Second: true, 100 * time.Second: false} {
		if _, err := v.Verify(t.Context(), text, now.Add(after)); (err == nil) != ok {
			t.Errorf("%s after the token was made: %v, want accepted: %v", after, err, ok)
		}
	}
}

// TestRotation: a new key of the provider is used, and a withdrawn one refused after keysMaxAge. While
// the provider is down its keys are used for keysMaxStale.
func TestRotation(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	first, second := oidctest.NewSigner(t, "k1", jose.RS256), oidctest.NewSigner(t, "k2", jose.ES256)
	p.Publish(first)
	v := p.verifier(p.config())
	clock := oidc.NewClock(v, time.Now())
	check := func(what string, s *oidctest.Signer, status int) {
		t.Helper()
		_, err := v.Verify(t.Context(), s.Sign(t, p.Claims(nil)), time.Now())
		got := http.StatusOK
		if e, ok := errors.AsType[*token.Error](err); ok {
			got = e.Status
		}
		if got != status {
			t.Errorf("%s: got status %d (%v), want %d", what, got, err, status)
		}
	}
	check("the first key", first, 200)
	p.Publish(first, second)
	check("a new key, just after the keys were read", second, 401)
	clock.Advance(oidc.MinFetch)
	check("a new key", second, 200)
	check("the key before it", first, 200)
	p.Publish(second)
	clock.Advance(oidc.KeysMaxAge)
	check("a withdrawn key", first, 401)
	p.SetDown(true)
	clock.Advance(oidc.KeysMaxAge)
	check("a key while the provider is down", second, 200)
	check("a withdrawn key while the provider is down", first, 401)
	clock.Advance(oidc.KeysMaxStale)
	check("a key after the provider was down for long", second, 503)
	p.SetDown(false)
	clock.Advance(oidc.MinFetch)
	check("a key when the provider is back", second, 200)
}

// TestProviderDown: a verifier starts without its provider. Its tokens are refused with 503 until the
// provider answers.
func TestProviderDown(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := oidctest.NewSigner(t, "k1", jose.RS256)
	p.Publish(key)
	p.SetDown(true)
	v := p.verifier(p.config())
	clock := oidc.NewClock(v, time.Now())
	text := key.Sign(t, p.Claims(nil))
	for range 3 {
		refused(t, "the provider is down", v, text, http.StatusServiceUnavailable, "log of this node")
	}
	p.SetDown(false)
	refused(t, "just after the provider was down", v, text, http.StatusServiceUnavailable, "try again")
	clock.Advance(oidc.MinFetch)
	if _, err := v.Verify(t.Context(), text, time.Now()); err != nil {
		t.Errorf("the provider is back: %v", err)
	}

	c := p.config()
	c.Roots = x509.NewCertPool()
	refused(t, "a certificate of an unknown CA", p.verifier(c), text, http.StatusServiceUnavailable, "try again")
	c = p.config()
	c.Issuer += "/other"
	refused(t, "no discovery document", p.verifier(c), text, http.StatusServiceUnavailable, "try again")
}

// TestForeignDiscovery: a discovery document that names another issuer, or keys without TLS, is not used.
func TestForeignDiscovery(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]map[string]any{
		"another issuer": {"issuer": "https://evil.example"}, "keys without TLS": {"jwks_uri": "http://192.0.2.1/keys"}, "no keys": {"jwks_uri": ""},
	} {
		p := newProvider(t)
		key := oidctest.NewSigner(t, "k1", jose.RS256)
		p.Publish(key)
		mux := http.NewServeMux()
		srv := httptest.NewTLSServer(mux)
		t.Cleanup(srv.Close)
		mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
			doc := map[string]any{"issuer": srv.URL, "jwks_uri": p.URL + "/keys"}
			for name, v := range change {
				doc[name] = v
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(doc)
		})
		c := p.config()
		c.Issuer = srv.URL
		c.Roots.AddCert(srv.Certificate())
		refused(t, what, p.verifier(c), key.Sign(t, p.Claims(map[string]any{"iss": srv.URL})), http.StatusServiceUnavailable, "try again")
	}
}

// TestClaims: claims are mapped to a name, a tenant and scopes.
func TestClaims(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := oidctest.NewSigner(t, "k1", jose.ES256)
	p.Publish(key)
	c := p.config()
	c.NameClaim, c.ScopesClaim, c.TenantClaim = "email", "realm_access.roles", "https://shop.example/tenant"
	c.Scopes = map[string]token.Scopes{"ops": {"admin", "payload"}, "users": {"read", "write"}, "readers": {"read"}}
	claims := func(tenant any, roles ...string) string {
		return key.Sign(t, p.Claims(map[string]any{"email": "anna@shop.example", "realm_access": map[string]any{"roles": roles}, "https://shop.example/tenant": tenant}))
	}
	v := p.verifier(c)
	id, err := v.Verify(t.Context(), claims("acme", "users", "readers", "nobody"), time.Now())
	if err != nil || id.Name != "oidc:anna@shop.example" || id.Tenant != "acme" || !slices.Equal(id.Scopes, token.Scopes{"read", "write"}) {
		t.Errorf("got %+v, %v", id, err)
	}
	for _, tenant := range []any{nil, "", "other", 1, []string{"acme"}} {
		refused(t, fmt.Sprintf("tenant %v", tenant), v, claims(tenant, "ops"), http.StatusForbidden, "names no tenant")
	}
	refused(t, "another role", v, claims("acme", "guest"), http.StatusForbidden, "no role")
	refused(t, "no roles", v, claims("acme"), http.StatusForbidden, "no role")

	c.Tenants = map[string]string{"Acme Inc.": "acme", "staff": ""}
	v = p.verifier(c)
	for value, want := range map[string]string{"Acme Inc.": "acme", "staff": ""} {
		if id, err := v.Verify(t.Context(), claims(value, "ops"), time.Now()); err != nil || id.Tenant != want || id.AllTenants() != (want == "") {
			t.Errorf("tenant %s: got %+v, %v", value, id, err)
		}
	}
	for _, tenant := range []any{"acme", "", nil} {
		refused(t, fmt.Sprintf("tenant %v that is not mapped", tenant), v, claims(tenant, "ops"), http.StatusForbidden, "names no tenant")
	}
}

// TestConfig: settings that would accept tokens of others are refused.
func TestConfig(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]oidc.Config{
		"must be a URL":     {Issuer: "login.example", Audience: "belfry"},
		"must be a":         {Issuer: "https://login.example?x=1", Audience: "belfry"},
		"https://: without": {Issuer: "http://login.example", Audience: "belfry"},
		"audience":          {Issuer: "https://login.example"},
		"tenant claim":      {Issuer: "https://login.example", Audience: "belfry", Tenants: map[string]string{"a": "b"}},
		"is not one of":     {Issuer: "https://login.example", Audience: "belfry", Scopes: map[string]token.Scopes{"a": {"root"}}},
		"setting tenants":   {Issuer: "https://login.example", Audience: "belfry", TenantClaim: "t", Tenants: map[string]string{"a": "b"}, Known: func(string) bool { return false }},
	} {
		if _, err := oidc.New(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: got %v, want %q", c, err, what)
		}
	}
	for _, issuer := range []string{"https://login.example/realms/shop", "http://127.0.0.1:8080", "http://localhost:1"} {
		if _, err := oidc.New(oidc.Config{Issuer: issuer, Audience: "belfry"}); err != nil {
			t.Errorf("%s: %v", issuer, err)
		}
	}
}

// TestWaiting: while the provider does not answer, only a few tokens wait for it. The others are refused
// at once.
func TestWaiting(t *testing.T) {
	t.Parallel()
	asked, leave := make(chan struct{}, 1), make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-leave
		w.WriteHeader(http.StatusBadGateway)
	}))
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	v, err := oidc.New(oidc.Config{Issuer: srv.URL, Audience: "belfry", Roots: pool, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	text := oidctest.NewSigner(t, "k1", jose.ES256).Sign(t, map[string]any{"sub": "anna"})
	const tokens = oidc.MaxWaiting + 20
	done := make(chan error, tokens)
	for range tokens {
		go func() {
			_, err := v.Verify(t.Context(), text, time.Now())
			done <- err
		}()
	}
	<-asked
	for range tokens - 1 - oidc.MaxWaiting {
		if err := <-done; err == nil {
			t.Error("a token was accepted")
		}
	}
	close(leave)
	for range 1 + oidc.MaxWaiting {
		<-done
	}
}
