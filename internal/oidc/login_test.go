package oidc_test

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/oidctest"
	"github.com/belfryio/belfry/internal/token"
)

const redirect = "https://belfry.example/login/callback"

// loginProvider returns a provider with one client, and a verifier that logs in as that.
func loginProvider(t *testing.T, change func(*oidctest.Client, *oidc.Config)) (*provider, *oidc.Verifier) {
	t.Helper()
	p := newProvider(t)
	key := oidctest.NewSigner(t, "k1", jose.ES256)
	p.Publish(key)
	client, c := oidctest.Client{ID: "console", Redirect: redirect, Signer: key}, p.config()
	c.ClientID = client.ID
	if change != nil {
		change(&client, &c)
	}
	p.SetClient(client)
	return p, p.verifier(c)
}

// visit follows the address of a login as a browser does, and returns the answer of the provider.
func (p *provider) visit(t *testing.T, address string) url.Values {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := p.Transport()
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil || to.Scheme+"://"+to.Host+to.Path != redirect {
		t.Fatalf("got status %d and location %v, %v; want the redirect of the client", resp.StatusCode, to, err)
	}
	return to.Query()
}

// begin begins a login, and returns it with the answer of the provider.
func (p *provider) begin(t *testing.T, v *oidc.Verifier) (oidc.Attempt, url.Values) {
	t.Helper()
	address, a, err := v.Begin(t.Context(), redirect)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(address, a.Verifier) {
		t.Errorf("the address %s has the proof of the login", address)
	}
	return a, p.visit(t, address)
}

// TestLogin: a login returns a token that Verify accepts: the access token if it is one, and otherwise
// the ID token; for a public client and for one with a secret.
func TestLogin(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(*oidctest.Client, *oidc.Config)
		access bool
		scopes string
	}{
		"ID token": {func(*oidctest.Client, *oidc.Config) {}, false, "read,write"},
		"secret":   {func(c *oidctest.Client, o *oidc.Config) { c.Secret, o.ClientSecret = "s3cret", "s3cret" }, false, "read,write"},
		"access token": {func(c *oidctest.Client, _ *oidc.Config) {
			c.AccessToken, c.IDToken = map[string]any{"scope": "belfry:read belfry:payload"}, map[string]any{"scope": nil}
		}, true, "read,payload"},
		"access token for another program": {func(c *oidctest.Client, _ *oidc.Config) { c.AccessToken = map[string]any{"aud": "shop"} }, false, "read,write"},
		"access token of somebody else":    {func(c *oidctest.Client, _ *oidc.Config) { c.AccessToken = map[string]any{"sub": "bert"} }, false, "read,write"},
		"access token without scopes":      {func(c *oidctest.Client, _ *oidc.Config) { c.AccessToken = map[string]any{"scope": "openid"} }, false, "read,write"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p, v := loginProvider(t, c.change)
			a, answer := p.begin(t, v)
			s, err := v.Finish(t.Context(), &a, answer, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			id, err := v.Verify(t.Context(), s.Token, time.Now())
			if err != nil || id.Name != "oidc:anna" || strings.Join(id.Scopes, ",") != c.scopes {
				t.Errorf("got %+v, %v, want anna with %s", id, err, c.scopes)
			}
			if left := time.Until(s.Expires); left <= 0 || left > time.Hour {
				t.Errorf("got %s until the token expires, want an hour", left)
			}
		})
	}
}

// TestLoginAttacks: no answer but that of the provider to this very login begins a session, once.
func TestLoginAttacks(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		client func(*oidctest.Client)
		answer func(p *provider, v *oidc.Verifier, a *oidc.Attempt, answer url.Values)
		status int
		reason string
	}{
		"another state":        {nil, func(_ *provider, _ *oidc.Verifier, _ *oidc.Attempt, q url.Values) { q.Set("state", "x") }, 400, "another login"},
		"no state":             {nil, func(_ *provider, _ *oidc.Verifier, _ *oidc.Attempt, q url.Values) { q.Del("state") }, 400, "another login"},
		"no state, none begun": {nil, func(_ *provider, _ *oidc.Verifier, a *oidc.Attempt, q url.Values) { q.Del("state"); a.State = "" }, 400, "another login"},
		"another provider's answer": {nil, func(_ *provider, _ *oidc.Verifier, _ *oidc.Attempt, q url.Values) {
			q.Set("iss", "https://evil.example")
		}, 400, "another OpenID Connect provider"},
		"no code":                    {nil, func(_ *provider, _ *oidc.Verifier, _ *oidc.Attempt, q url.Values) { q.Del("code") }, 400, "no code"},
		"an invented code":           {nil, func(_ *provider, _ *oidc.Verifier, _ *oidc.Attempt, q url.Values) { q.Set("code", "x") }, 401, "invalid_grant"},
		"a stolen code, other proof": {nil, func(_ *provider, _ *oidc.Verifier, a *oidc.Attempt, _ url.Values) { a.Verifier += "x" }, 401, "invalid_grant"},
		"the code of another login": {nil, func(p *provider, v *oidc.Verifier, _ *oidc.Attempt, q url.Values) {
			_, other := p.begin(p.t, v)
			q.Set("code", other.Get("code"))
		}, 401, "invalid_grant"},
		"another redirect":   {nil, func(_ *provider, _ *oidc.Verifier, a *oidc.Attempt, _ url.Values) { a.Redirect += "/x" }, 401, "invalid_grant"},
		"a refusal":          {func(c *oidctest.Client) { c.Refuses = "access_denied" }, nil, 401, "access_denied <b>not today</b>"},
		"a wrong secret":     {func(c *oidctest.Client) { c.Secret = "other" }, nil, 401, "invalid_client"},
		"another nonce":      {func(c *oidctest.Client) { c.IDToken = map[string]any{"nonce": "x"} }, nil, 401, "nonce"},
		"no nonce":           {func(c *oidctest.Client) { c.IDToken = map[string]any{"nonce": nil} }, nil, 401, "nonce"},
		"another issuer":     {func(c *oidctest.Client) { c.IDToken = map[string]any{"iss": "https://evil.example"} }, nil, 401, "different provider"},
		"another client":     {func(c *oidctest.Client) { c.IDToken = map[string]any{"aud": "shop"} }, nil, 401, "expected audience"},
		"the API's audience": {func(c *oidctest.Client) { c.IDToken = map[string]any{"aud": "belfry"} }, nil, 401, "another client"},
		"another party":      {func(c *oidctest.Client) { c.IDToken = map[string]any{"azp": "shop"} }, nil, 401, "another client"},
		"two audiences":      {func(c *oidctest.Client) { c.IDToken = map[string]any{"aud": []string{"console", "shop"}} }, nil, 401, "another client"},
		"another access token": {func(c *oidctest.Client) {
			c.AccessToken, c.IDToken = map[string]any{}, map[string]any{"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}
		}, nil, 401, "access token is not that"},
		"an expired token": {func(c *oidctest.Client) { c.IDToken = map[string]any{"exp": 1} }, nil, 401, "has expired"},
		"no role":          {func(c *oidctest.Client) { c.IDToken = map[string]any{"scope": "openid"} }, nil, 403, "no role"},
		"a forged key":     {func(c *oidctest.Client) { c.Signer = oidctest.NewSigner(t, "k1", jose.ES256) }, nil, 401, "no key of the provider"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p, v := loginProvider(t, func(client *oidctest.Client, _ *oidc.Config) {
				if c.client != nil {
					c.client(client)
				}
			})
			a, answer := p.begin(t, v)
			if c.answer != nil {
				c.answer(p, v, &a, answer)
			}
			failed(t, v, &a, answer, c.status, c.reason)
		})
	}
}

// failed fails the test unless a login ends with a status and a reason.
func failed(t *testing.T, v *oidc.Verifier, a *oidc.Attempt, answer url.Values, status int, reason string) {
	t.Helper()
	s, err := v.Finish(t.Context(), a, answer, time.Now())
	e, ok := errors.AsType[*token.Error](err)
	if !ok || e.Status != status || !strings.Contains(e.Reason, reason) || s.Token != "" {
		t.Errorf("got a token of %d bytes, %v, want status %d and %q", len(s.Token), err, status, reason)
	}
}

// TestLoginCode: a code is valid once.
func TestLoginCode(t *testing.T) {
	t.Parallel()
	p, v := loginProvider(t, nil)
	a, answer := p.begin(t, v)
	if _, err := v.Finish(t.Context(), &a, answer, time.Now()); err != nil {
		t.Fatal(err)
	}
	failed(t, v, &a, answer, 401, "invalid_grant")
}

// TestLoginProviderDown: while the provider is down, nobody can begin or end a login, and each of them
// does not make a request of its own. Afterwards both go on.
func TestLoginProviderDown(t *testing.T) {
	t.Parallel()
	p, v := loginProvider(t, nil)
	clock := oidc.NewClock(v, time.Now())
	p.SetDown(true)
	for range 3 {
		_, _, err := v.Begin(t.Context(), redirect)
		if e, ok := errors.AsType[*token.Error](err); !ok || e.Status != http.StatusServiceUnavailable || strings.Contains(e.Reason, p.URL) {
			t.Fatalf("got %v, want status 503 without the address of the provider", err)
		}
	}
	p.SetDown(false)
	if _, _, err := v.Begin(t.Context(), redirect); err == nil {
		t.Error("the discovery document was read again at once")
	}
	clock.Advance(oidc.MinFetch)
	a, answer := p.begin(t, v)
	p.SetDown(true)
	failed(t, v, &a, answer, http.StatusServiceUnavailable, "does not answer")
	if n := p.Exchanges(); n != 1 {
		t.Errorf("got %d requests for tokens, want 1", n)
	}
	p.SetDown(false)
	if _, err := v.Finish(t.Context(), &a, maps.Clone(answer), time.Now()); err != nil {
		t.Error(err)
	}
}
