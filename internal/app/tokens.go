package app

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/token"
)

// tokens returns all tokens that the options have, without those of OIDC; nil for none.
func (o *Options) tokens() *token.Set { return o.HTTPTokens.WithAdmin(o.HTTPToken) }

// asksForToken reports whether HTTP asks for a token.
func (o *Options) asksForToken() bool { return o.tokens() != nil || o.OIDC.Issuer != "" }

// newOIDC returns the verifier of tokens of the OpenID Connect provider; nil without one.
func (o *Options) newOIDC() (*oidc.Verifier, error) {
	c := o.OIDC
	if c.Issuer == "" {
		if o.OIDCCA != "" || o.OIDCRedirect != "" || c.ClientID != "" || c.ClientSecret != "" || len(c.ClientScopes) > 0 || c.Audience != "" || c.NameClaim != "" || c.ScopesClaim != "" || c.Scopes != nil || c.TenantClaim != "" || c.Tenants != nil {
			return nil, badConfig("the settings oidc-… need oidc-issuer")
		}
		return nil, nil
	}
	c.Log = o.Log.With().Str("component", "oidc").Logger()
	c.Known = func(tenant string) bool {
		_, ok := o.Tenants[tenant]
		return ok
	}
	if o.OIDCCA != "" {
		t, err := (TLS{CA: o.OIDCCA}).Config()
		if err != nil {
			return nil, badConfig("oidc-ca: %w", err)
		}
		c.Roots = t.RootCAs
	}
	v, err := oidc.New(c)
	if err != nil {
		return nil, badConfig("oidc: %w", err)
	}
	return v, o.checkRedirect()
}

// checkRedirect returns an error unless the provider can lead people back to the console.
func (o *Options) checkRedirect() error {
	switch u, err := url.Parse(o.OIDCRedirect); {
	case o.OIDC.ClientID == "" && o.OIDCRedirect != "":
		return badConfig("oidc-redirect-url needs oidc-client-id")
	case o.OIDC.ClientID == "" || o.HTTP == NoHTTP:
	case o.OIDCRedirect == "" && !OnLoopback(o.HTTP):
		return badConfig("oidc-client-id needs oidc-redirect-url, the address of this node for people, such as https://belfry.example: http listens on %s, and the address in a request could be forged", o.HTTP)
	case o.OIDCRedirect == "":
	case err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !httpapi.LoopbackHost(u.Host)):
		return badConfig("oidc-redirect-url must be a URL such as https://belfry.example, without a path; http:// only for a loopback address")
	}
	return nil
}

// verifyWith returns the function that verifies tokens of the provider; nil without one.
func verifyWith(v *oidc.Verifier) token.Verify {
	if v == nil {
		return nil
	}
	return func(ctx context.Context, text string, now time.Time) (token.Identity, bool, error) {
		if !oidc.IsToken(text) {
			return token.Identity{}, false, nil
		}
		id, err := v.Verify(ctx, text, now)
		return id, true, err
	}
}

// checkTokens returns an error for a token of a tenant that does not exist.
func checkTokens(s *token.Set, tenants map[string]string) error {
	for _, t := range s.Tokens() {
		if _, ok := tenants[t.Tenant]; t.Tenant != "" && !ok {
			return badConfig("http-tokens: line %d: tenant %s of token %s is not in the setting tenants of this node", t.Line, t.Tenant, t.Name)
		}
	}
	return nil
}

// errTokensRemoved refuses a reload that would open HTTP to everybody.
var errTokensRemoved = badConfig("http-tokens and http-token-file were removed: a running node does not stop asking for tokens; restart it")

// checkReload returns an error for tokens that a running node cannot use.
func (a *App) checkReload(next *token.Set) error {
	if next == nil && a.verify == nil && a.tokens.Load() != nil {
		return errTokensRemoved
	}
	return checkTokens(next, a.o.Tenants)
}

// authorize returns the caller of a request that needs a scope. The error is a *token.Error.
func (a *App) authorize(r *http.Request, scope string) (token.Identity, error) {
	return a.tokens.Load().Authorize(r, scope, time.Now())
}

// mayObserve returns an error for a caller that may not see metrics and the details of
// readiness. They concern all tenants. A caller without a token must name this host by loopback, so that no
// web site reads them; see httpapi's guard.go.
func (a *App) mayObserve(r *http.Request) error {
	id, err := a.authorize(r, token.ScopeRead)
	switch {
	case err != nil:
		return err
	case id.Tenant != "":
		return token.Forbidden("this concerns all tenants; token " + id.Name + " is of tenant " + id.Tenant)
	case id.Name == "" && OnLoopback(a.o.HTTP) && !httpapi.LoopbackHost(r.Host):
		return &token.Error{Status: http.StatusForbidden, Reason: "without a token the header Host must be localhost or a loopback address, so that no web site can reach Belfry by a name of its own"}
	}
	return nil
}

// refuse answers a request that authorize has refused.
func (a *App) refuse(w http.ResponseWriter, err error) {
	status := http.StatusUnauthorized
	if e, ok := errors.AsType[*token.Error](err); ok {
		status = e.Status
		w.Header().Set("WWW-Authenticate", e.Challenge())
	}
	a.answer(w, status, map[string]string{"error": err.Error()})
}
