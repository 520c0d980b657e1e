// Package oidc verifies tokens of an OpenID Connect provider: JSON Web Tokens that the provider has
// signed, as ID tokens or access tokens. It also logs people in at the provider, to get such a token
// for the console.
//
//	token ─▶ signature, by a key of the provider ─▶ issuer, audience, times ─▶ claims ─▶ token.Identity
//
//	Begin ─▶ the browser goes to the provider, which sends it back with a code ─▶ Finish ─▶ token
//
// # Guarantees
//
//   - Only asymmetric algorithms are accepted: not "none", and no HMAC, which would use the public key
//     as a secret.
//   - A key that the provider has withdrawn is not accepted for longer than keysMaxAge while the
//     provider answers, and keysMaxStale while it does not.
//   - Tokens without a valid signature cause at most one request to the provider in minFetch.
//
// # Failures
//
// A Verifier sends no request before its first token, so a node starts while the provider is down.
// Until the provider has answered once, tokens are refused with status 503, and a later token makes
// the next try. Afterwards its keys are kept.
//
// The cryptography and the checks of the claims are those of go-oidc. The package has no goroutine
// that outlives a call.
package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/token"
)

const (
	// skew is the tolerated difference between the clocks of the provider and the node.
	skew = 30 * time.Second
	// maxTokenBytes bounds a token. It is the bound of all headers of a request.
	maxTokenBytes = 16 << 10
	// maxNameBytes bounds the name of a caller, in bytes.
	maxNameBytes = 120
	// NamePrefix begins the name of every caller, so that no caller has the name of another kind of
	// token.
	NamePrefix = "oidc:"
)

// algorithms are the signature algorithms that are accepted.
var algorithms = []string{
	gooidc.RS256, gooidc.RS384, gooidc.RS512, gooidc.PS256, gooidc.PS384, gooidc.PS512,
	gooidc.ES256, gooidc.ES384, gooidc.ES512, gooidc.EdDSA,
}

// Config describes a provider and its claims. Issuer and Audience are required.
type Config struct {
	// Issuer is the URL of the provider, exactly as in its tokens. Its discovery document is at
	// /.well-known/openid-configuration below it. It begins with https://, or on loopback http://.
	Issuer string
	// The claim aud must contain Audience, or ClientID if it is set.
	Audience string
	// ClientID is the OAuth client of the login to the console; "" for no login. ClientSecret is its
	// secret, "" for a public client. ClientScopes are the OAuth scopes of a login; default openid.
	ClientID, ClientSecret string
	ClientScopes           []string
	// Roots are the CAs of the provider's certificate; nil for the CAs of the system.
	Roots *x509.CertPool

	// A claim is named by its name, or by the path to it in nested objects: realm_access.roles.

	// NameClaim is the claim with the name of the caller; default sub.
	NameClaim string
	// ScopesClaim is the claim with the caller's roles: a list, or a text of words; default scope.
	// Scopes maps each role to scopes; default DefaultScopes. A role that is not in it has no scopes.
	ScopesClaim string
	Scopes      map[string]token.Scopes
	// TenantClaim is the claim with the caller's tenant; "" if every caller belongs to the default
	// tenant. Tenants maps the values of the claim to tenants, "" for the default tenant; nil if the
	// values are the tenants themselves.
	TenantClaim string
	Tenants     map[string]string
	// Known reports whether a tenant exists; required with TenantClaim.
	Known func(tenant string) bool
	// Log gets a line for each failed request to the provider.
	Log zerolog.Logger
}

// DefaultScopes returns the default of Config.Scopes: each role belfry:read, belfry:write,
// belfry:admin and belfry:payload has the scope of its name.
func DefaultScopes() map[string]token.Scopes {
	out := map[string]token.Scopes{}
	for _, scope := range token.AllScopes() {
		out["belfry:"+scope] = token.Scopes{scope}
	}
	return out
}

// Check returns an error for settings that cannot be used.
func (c *Config) Check() error {
	u, err := url.Parse(c.Issuer)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return errors.New("the issuer must be a URL such as https://login.example.com/realms/shop")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return errors.New("the issuer must begin with https://: without TLS an attacker on the network could replace its keys")
	case c.Audience == "":
		return errors.New("an audience is needed: without it a token that the provider has made for another program would be accepted")
	case c.TenantClaim == "" && c.Tenants != nil:
		return errors.New("tenants need a tenant claim")
	case c.ClientID == "" && (c.ClientSecret != "" || len(c.ClientScopes) > 0):
		return errors.New("a client secret and client scopes need a client id")
	case len(c.ClientScopes) > 0 && !slices.Contains(c.ClientScopes, gooidc.ScopeOpenID):
		return errors.New("the client scopes must include openid: without it the provider returns no ID token")
	}
	for role, scopes := range c.Scopes {
		for _, scope := range scopes {
			if !slices.Contains(token.AllScopes(), scope) {
				return fmt.Errorf("role %.80s: scope %.40q is not one of %s", role, scope, strings.Join(token.AllScopes(), ", "))
			}
		}
	}
	for value, tenant := range c.Tenants {
		if tenant != "" && !c.Known(tenant) {
			return fmt.Errorf("value %.80s: tenant %.80s is not in the setting tenants of this node", value, tenant)
		}
	}
	return nil
}

func loopback(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	c     Config
	keys  *keys
	login *login
}

// New returns a verifier. It sends no request. The errors are those of Config.Check.
func New(c Config) (*Verifier, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.NameClaim == "" {
		c.NameClaim = "sub"
	}
	if c.ScopesClaim == "" {
		c.ScopesClaim = "scope"
	}
	if c.Scopes == nil {
		c.Scopes = DefaultScopes()
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		// Requests are rare, so no connection stays open.
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxDocumentBytes,
	}
	keys := newKeys(c.Issuer, &http.Client{Transport: bounded{transport}, Timeout: fetchTimeout, CheckRedirect: noRedirect}, c.Log)
	return &Verifier{c: c, keys: keys, login: newLogin()}, nil
}

// IsToken reports whether a text has the form of a JSON Web Token, whose header is a JSON object.
func IsToken(text string) bool {
	return strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2
}

// Verify checks a token at the time now, and returns its caller. Its error is a *token.Error: 401 for
// a token that is not valid, 403 for a caller without a tenant or scopes, and 503 if the provider's
// keys cannot be read.
func (v *Verifier) Verify(ctx context.Context, text string, now time.Time) (token.Identity, error) {
	t, err := v.check(ctx, text, now)
	if err != nil {
		return token.Identity{}, err
	}
	return v.caller(t)
}

// check verifies the signature, issuer, audience and times of a token. Errors are those of Verify.
func (v *Verifier) check(ctx context.Context, text string, now time.Time) (*gooidc.IDToken, error) {
	if len(text) > maxTokenBytes {
		return nil, token.Invalid("the token is too long")
	}
	payload, err := v.keys.payload(ctx, text)
	switch {
	case errors.Is(err, errUnavailable):
		return nil, token.Unavailable(err.Error())
	case err != nil:
		return nil, token.Invalid("the token was refused: " + err.Error())
	}
	checks := gooidc.NewVerifier(v.c.Issuer, signed(payload), &gooidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algorithms, SkipExpiryCheck: true})
	t, err := checks.Verify(ctx, text)
	if err != nil {
		return nil, token.Invalid("the token was refused: " + plain(strings.TrimPrefix(err.Error(), "oidc: ")))
	}
	if !slices.Contains(t.Audience, v.c.Audience) && (v.c.ClientID == "" || !slices.Contains(t.Audience, v.c.ClientID)) {
		return nil, token.Invalid(fmt.Sprintf("the token was refused: expected audience %s, got %s", plain(v.c.Audience), plain(fmt.Sprint(t.Audience))))
	}
	if err := checkTimes(t, now); err != nil {
		return nil, token.Invalid(err.Error())
	}
	return t, nil
}

// caller returns the caller that a token names.
func (v *Verifier) caller(t *gooidc.IDToken) (token.Identity, error) {
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return token.Identity{}, token.Invalid("the claims of the token are not a JSON object")
	}
	return v.identity(claims)
}

// signed is the payload of a token whose signature keys has verified already. It implements the
// KeySet of go-oidc, whose verifier would lose the type of an error of keys.
type signed []byte

// VerifySignature implements oidc.KeySet.
func (s signed) VerifySignature(context.Context, string) ([]byte, error) { return s, nil }

// plain replaces the characters that a header WWW-Authenticate cannot have.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '\''
		}
		return r
	}, text)
}

// checkTimes checks exp and nbf. A token without exp has expired.
func checkTimes(t *gooidc.IDToken, now time.Time) error {
	if !now.Before(t.Expiry.Add(skew)) {
		return fmt.Errorf("the token has expired at %s", t.Expiry.UTC().Format(time.RFC3339))
	}
	var more struct {
		NotBefore *json.Number `json:"nbf"`
	}
	if err := t.Claims(&more); err != nil {
		return errors.New("nbf of the token is not a number")
	}
	if more.NotBefore == nil {
		return nil
	}
	sec, err := more.NotBefore.Float64()
	if err != nil || now.Add(skew).Before(time.Unix(int64(sec), 0)) {
		return errors.New("the token is not valid yet")
	}
	return nil
}

// identity maps claims to a caller.
func (v *Verifier) identity(claims map[string]any) (id token.Identity, err error) {
	name, ok := claim(claims, v.c.NameClaim).(string)
	if !ok || name == "" || len(name) > maxNameBytes || plain(name) != name {
		return id, token.Invalid(fmt.Sprintf("claim %s of the token must be a name of 1 to %d printable characters", v.c.NameClaim, maxNameBytes))
	}
	id.Name = NamePrefix + name
	if id.Tenant, err = v.tenant(claims); err != nil {
		return token.Identity{}, err
	}
	for _, role := range words(claim(claims, v.c.ScopesClaim)) {
		for _, scope := range v.c.Scopes[role] {
			if !slices.Contains(id.Scopes, scope) {
				id.Scopes = append(id.Scopes, scope)
			}
		}
	}
	if len(id.Scopes) == 0 {
		return token.Identity{}, token.Forbidden(fmt.Sprintf("claim %s of the token has no role with a scope", v.c.ScopesClaim))
	}
	return id, nil
}

// tenant returns the tenant of a caller. It refuses a token without a tenant, because a caller of the
// default tenant can have more rights.
func (v *Verifier) tenant(claims map[string]any) (string, error) {
	if v.c.TenantClaim == "" {
		return "", nil
	}
	tenant, ok := claim(claims, v.c.TenantClaim).(string)
	if ok && v.c.Tenants != nil {
		tenant, ok = v.c.Tenants[tenant]
	} else if ok {
		ok = tenant != ""
	}
	if !ok || tenant != "" && !v.c.Known(tenant) {
		return "", token.Forbidden(fmt.Sprintf("claim %s of the token names no tenant of this node", v.c.TenantClaim))
	}
	return tenant, nil
}

// claim returns the value of a claim, by its name or by its path; nil for none.
func claim(claims map[string]any, name string) any {
	if v, ok := claims[name]; ok {
		return v
	}
	first, rest, nested := strings.Cut(name, ".")
	if inner, ok := claims[first].(map[string]any); ok && nested {
		return claim(inner, rest)
	}
	return nil
}

// words returns the texts of a list, or the words of a text.
func words(value any) (out []string) {
	switch v := value.(type) {
	case string:
		return strings.Fields(v)
	case []any:
		for _, item := range v {
			if s, ok := item.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out
}
