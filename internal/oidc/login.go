package oidc

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/internal/token"
)

// maxExchanges bounds the concurrent requests for tokens. Any visitor can cause one with a made-up
// code.
const maxExchanges = 8

// errNoEndpoints is the reason of a failed login while the discovery document cannot be read.
const errNoEndpoints = "the OpenID Connect provider does not answer now; the log of this node has the reason: try again"

// login has the endpoints of the provider for a login. They are read at most every keysMaxAge, and
// after a failure at most every minFetch.
type login struct {
	// reading has an entry while the discovery document is read. Its holder alone may change the
	// fields below, with mu held.
	reading chan struct{}
	// exchanges has an entry for each request for tokens.
	exchanges chan struct{}
	failures  throttle.Log

	mu          sync.Mutex
	doc         document
	read, tried time.Time // zero for never
}

func newLogin() *login {
	return &login{reading: make(chan struct{}, 1), exchanges: make(chan struct{}, maxExchanges)}
}

// Attempt is a login that has begun. Only the browser that began it may finish it, so the caller
// must keep it where no other browser can reach it. All fields except State are secret.
type Attempt struct {
	// State names the login in the answer of the provider, and Nonce in its ID token. Verifier proves
	// to the provider that the code is redeemed by the node that began the login (PKCE, RFC 7636).
	State, Nonce, Verifier string
	// Redirect is the URL to which the provider sends the browser with its answer.
	Redirect string
}

// Session is a login that has succeeded.
type Session struct {
	// Token is a token of the provider that Verify accepts.
	Token string
	// Expires is the end of the token, to the second.
	Expires time.Time
}

// LogsIn reports whether people can log in: the settings have a client.
func (v *Verifier) LogsIn() bool { return v.c.ClientID != "" }

// Issuer returns the host of the provider, as a name for the login page.
func (v *Verifier) Issuer() string {
	u, err := url.Parse(v.c.Issuer)
	if err != nil {
		return v.c.Issuer // Check has parsed it
	}
	return u.Host
}

// Begin begins a login that ends at the URL redirect. It returns the URL of the provider to which the
// browser goes. The error is a *token.Error: 503 if the provider does not answer.
func (v *Verifier) Begin(ctx context.Context, redirect string) (string, Attempt, error) {
	doc, err := v.endpoints(ctx)
	if err != nil {
		return "", Attempt{}, err
	}
	a := Attempt{State: oauth2.GenerateVerifier(), Nonce: oauth2.GenerateVerifier(), Verifier: oauth2.GenerateVerifier(), Redirect: redirect}
	return v.client(&doc, redirect).AuthCodeURL(a.State, gooidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)), a, nil
}

// client returns the settings of the client for package oauth2.
func (v *Verifier) client(doc *document, redirect string) *oauth2.Config {
	style := oauth2.AuthStyleInParams
	if v.c.ClientSecret != "" && (len(doc.AuthMethods) == 0 || slices.Contains(doc.AuthMethods, "client_secret_basic")) {
		style = oauth2.AuthStyleInHeader
	}
	scopes := v.c.ClientScopes
	if len(scopes) == 0 {
		scopes = []string{gooidc.ScopeOpenID}
	}
	return &oauth2.Config{
		ClientID: v.c.ClientID, ClientSecret: v.c.ClientSecret, RedirectURL: redirect, Scopes: scopes,
		Endpoint: oauth2.Endpoint{AuthURL: doc.Authorize, TokenURL: doc.Token, AuthStyle: style},
	}
}

// endpoints returns the discovery document.
func (v *Verifier) endpoints(ctx context.Context) (document, error) {
	l := v.login
	select {
	case l.reading <- struct{}{}:
		defer func() { <-l.reading }()
	case <-ctx.Done():
		return document{}, token.Unavailable(errNoEndpoints)
	}
	now := v.keys.now()
	l.mu.Lock()
	doc, read, tried := l.doc, l.read, l.tried
	l.mu.Unlock()
	switch {
	case !read.IsZero() && now.Sub(read) < keysMaxAge:
		return doc, nil
	case !tried.IsZero() && now.Sub(tried) < minFetch:
		return document{}, token.Unavailable(errNoEndpoints)
	}
	doc, err := v.keys.discover(context.WithoutCancel(ctx)) // others wait for the same document
	if err == nil {
		err = cmp.Or(checkURL("authorization_endpoint", doc.Authorize), checkURL("token_endpoint", doc.Token))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = v.keys.now()
	if err != nil {
		v.c.Log.Warn().Err(err).Str("issuer", v.c.Issuer).Msg("nobody can log in at the OpenID Connect provider: its discovery document cannot be read; a later login makes the next try")
		return document{}, token.Unavailable(errNoEndpoints)
	}
	l.doc, l.read = doc, l.tried
	return doc, nil
}

// Finish ends a login with the parameters that the browser brings from the provider. Their code is valid
// once. The error is a *token.Error: 400 for an answer to another login, 401 if the provider refused
// the login or its tokens are not valid, 403 for a caller without a tenant or scopes, and 503 if the
// provider does not answer.
func (v *Verifier) Finish(ctx context.Context, a *Attempt, answer url.Values, now time.Time) (Session, error) {
	if !equal(answer.Get("state"), a.State) {
		return Session{}, badLogin("the answer belongs to another login: log in again")
	}
	doc, err := v.endpoints(ctx)
	if err != nil {
		return Session{}, err
	}
	// RFC 9207: without this check another provider could pass its code to this one.
	if iss := answer.Get("iss"); iss != v.c.Issuer && (answer.Has("iss") || doc.NamesIssuer) {
		return Session{}, badLogin("the answer comes from another OpenID Connect provider: log in again")
	}
	if code := answer.Get("error"); code != "" {
		return Session{}, token.Invalid(plain(fmt.Sprintf("the OpenID Connect provider has refused the login: %.80s %.200s", code, answer.Get("error_description"))))
	}
	t, err := v.exchange(ctx, &doc, a, answer.Get("code"))
	if err != nil {
		return Session{}, err
	}
	return v.session(ctx, t, a.Nonce, now)
}

func badLogin(reason string) error {
	return &token.Error{Status: http.StatusBadRequest, Reason: reason}
}

// equal compares secrets in constant time. "" equals no secret, not even "".
func equal(a, b string) bool { return b != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// exchange requests the tokens for a code.
func (v *Verifier) exchange(ctx context.Context, doc *document, a *Attempt, code string) (*oauth2.Token, error) {
	if code == "" {
		return nil, badLogin("the answer of the OpenID Connect provider has no code: log in again")
	}
	select {
	case v.login.exchanges <- struct{}{}:
		defer func() { <-v.login.exchanges }()
	default:
		return nil, token.Unavailable(fmt.Sprintf("%d logins are in progress, which is the limit: try again", maxExchanges))
	}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, v.keys.client)
	t, err := v.client(doc, a.Redirect).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err == nil {
		return t, nil
	}
	refusal, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refusal.ErrorCode != "" && refusal.Response.StatusCode < http.StatusInternalServerError {
		return nil, token.Invalid(plain(fmt.Sprintf("the OpenID Connect provider has refused the login: %.80s %.200s", refusal.ErrorCode, refusal.ErrorDescription)))
	}
	if ok {
		err = fmt.Errorf("POST %s: status %d", doc.Token, refusal.Response.StatusCode) // its body could have tokens
	}
	if suppressed, ok := v.login.failures.Allow(time.Now()); ok {
		v.c.Log.Warn().Err(err).Str("issuer", v.c.Issuer).Int("suppressed", suppressed).Msg("a login failed: the OpenID Connect provider returned no tokens")
	}
	return nil, token.Unavailable(errNoEndpoints)
}

// session checks the tokens of a login, and returns the token for its session: the access token if
// Verify accepts it, otherwise the ID token.
func (v *Verifier) session(ctx context.Context, t *oauth2.Token, nonce string, now time.Time) (Session, error) {
	raw, _ := t.Extra("id_token").(string)
	id, err := v.check(ctx, raw, now)
	if err != nil {
		return Session{}, err
	}
	var claims struct {
		Party string `json:"azp"`
	}
	if err := id.Claims(&claims); err != nil {
		return Session{}, token.Invalid("the claims of the ID token cannot be read")
	}
	switch {
	case !slices.Contains(id.Audience, v.c.ClientID), claims.Party != v.c.ClientID && (claims.Party != "" || len(id.Audience) > 1):
		return Session{}, token.Invalid("the ID token was made for another client")
	case !equal(id.Nonce, nonce):
		return Session{}, token.Invalid("the ID token belongs to another login: its nonce differs")
	case id.AccessTokenHash != "" && id.VerifyAccessToken(t.AccessToken) != nil:
		return Session{}, token.Invalid("the access token is not that of the ID token")
	}
	if IsToken(t.AccessToken) {
		access, err := v.check(ctx, t.AccessToken, now)
		if err == nil && access.Subject == id.Subject {
			if _, err := v.caller(access); err == nil {
				return Session{t.AccessToken, access.Expiry}, nil
			}
		}
	}
	if _, err := v.caller(id); err != nil {
		return Session{}, err
	}
	return Session{raw, id.Expiry}, nil
}
