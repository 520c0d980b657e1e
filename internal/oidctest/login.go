package oidctest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"testing"

	"github.com/google/uuid"
)

// Client is the OAuth client of the provider, for the authorization code flow with PKCE.
type Client struct {
	ID, Secret string
	// Redirect is the only URL that the provider sends codes to.
	Redirect string
	// Signer signs the tokens.
	Signer *Signer
	// IDToken and AccessToken change the claims of the tokens, see Claims. With a nil AccessToken the
	// access token is no JSON Web Token.
	IDToken, AccessToken map[string]any
	// Asks makes the provider show a page with a link that continues the login, as for a person.
	Asks bool
	// Refuses makes the provider answer with this error, such as access_denied.
	Refuses string
	// Reuses makes the provider accept a code more than once.
	Reuses bool
}

// grant is a code that can be exchanged for tokens.
type grant struct{ redirect, challenge, nonce string }

// logins is the state of the endpoints of a login.
type logins struct {
	client Client
	codes  map[string]grant
	// exchanged is the number of requests for tokens.
	exchanged int
}

// SetClient sets the only client.
func (p *Provider) SetClient(c Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logins.client = c
}

// Exchanges returns the number of requests for tokens.
func (p *Provider) Exchanges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logins.exchanged
}

// serveLogins adds the endpoints of a login.
func (p *Provider) serveLogins(t *testing.T, mux *http.ServeMux) {
	p.logins.codes = map[string]grant{}
	mux.HandleFunc("GET /auth", p.authorize)
	mux.HandleFunc("GET /login", p.authorize)
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) { p.exchange(t, w, r) })
}

// authorize is the authorization endpoint.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, c := r.URL.Query(), &p.logins.client
	switch {
	case p.down:
		w.WriteHeader(http.StatusBadGateway)
		return
	case c.ID == "" || q.Get("client_id") != c.ID || q.Get("redirect_uri") != c.Redirect:
		http.Error(w, "unknown client or redirect", http.StatusBadRequest)
		return
	case q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" || q.Get("state") == "" || q.Get("nonce") == "":
		http.Error(w, "a parameter is missing", http.StatusBadRequest)
		return
	case c.Asks && r.URL.Path == "/auth":
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<!doctype html><html lang="en"><title>Provider</title><link rel="icon" href="data:,"><h1>Provider</h1><a id="anna" href="/login?%s">I am Anna</a>`, html.EscapeString(r.URL.RawQuery))
		return
	}
	answer := url.Values{"state": {q.Get("state")}}
	if c.Refuses != "" {
		answer.Set("error", c.Refuses)
		answer.Set("error_description", "<b>not today</b>")
	} else {
		code := uuid.NewString()
		p.logins.codes[code] = grant{c.Redirect, q.Get("code_challenge"), q.Get("nonce")}
		answer.Set("code", code)
	}
	http.Redirect(w, r, c.Redirect+"?"+answer.Encode(), http.StatusFound)
}

// exchange is the token endpoint.
func (p *Provider) exchange(t *testing.T, w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logins.exchanged++
	if p.down {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	refuse := func(status int, code string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":%q,"error_description":"refused by the test"}`, code)
	}
	c := &p.logins.client
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	if id != c.ID || subtle.ConstantTimeCompare([]byte(secret), []byte(c.Secret)) == 0 {
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	}
	code := r.PostFormValue("code")
	g, ok := p.logins.codes[code]
	if !c.Reuses {
		delete(p.logins.codes, code)
	}
	proof := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if !ok || r.PostFormValue("grant_type") != "authorization_code" || r.PostFormValue("redirect_uri") != g.redirect || base64.RawURLEncoding.EncodeToString(proof[:]) != g.challenge {
		refuse(http.StatusBadRequest, "invalid_grant")
		return
	}
	access := "opaque-" + uuid.NewString()
	if c.AccessToken != nil {
		access = c.Signer.Sign(t, p.Claims(c.AccessToken))
	}
	hash := sha256.Sum256([]byte(access))
	changes := map[string]any{"aud": c.ID, "nonce": g.nonce, "at_hash": base64.RawURLEncoding.EncodeToString(hash[:16])}
	maps.Copy(changes, c.IDToken)
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(map[string]any{"access_token": access, "token_type": "Bearer", "expires_in": 300, "id_token": c.Signer.Sign(t, p.Claims(changes))}); err != nil {
		t.Error(err)
	}
}
