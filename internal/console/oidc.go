package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

const (
	// A login at the OpenID Connect provider begins at beginPath. The provider sends the browser to
	// callbackPath.
	beginPath    = "/login/oidc"
	callbackPath = "/login/callback"
	// loginCookie is the cookie with a login that has begun.
	loginCookie = "belfry_login"
	// loginTime bounds the time that a person has for the login at the provider.
	loginTime = 10 * time.Minute
	// maxNext bounds the path of the page after a login, in bytes: it is in the cookie of the login, and
	// browsers keep cookies of at most 4 KiB.
	maxNext = 1024
)

// pendingLogin is a login that has begun. It is in a cookie of the browser, encrypted with a key of
// this process. So only that browser can finish it, and visitors cannot fill this node's memory with
// logins.
type pendingLogin struct {
	oidc.Attempt
	Next string // the path of the page after the login
	Ends time.Time
}

// seal encrypts and authenticates the logins that have begun.
type seal struct{ aead cipher.AEAD }

// newSeal returns a seal with a new key.
func newSeal() seal {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never returns an error
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // the cipher is AES
	}
	return seal{aead}
}

// close returns a login as text.
func (s seal) close(p *pendingLogin) (string, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, data, nil)), nil
}

// open returns the login of a text, unless another process has sealed it, or it has ended at a time.
func (s seal) open(text string, now time.Time) (p pendingLogin, ok bool) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return p, false
	}
	if data, err = s.aead.Open(nil, nil, data, nil); err != nil || json.Unmarshal(data, &p) != nil {
		return pendingLogin{}, false
	}
	return p, now.Before(p.Ends)
}

// cookieOf returns the cookie of a login; an empty text removes it from the browser. The mode is
// SameSite=Lax, because the browser must send the cookie when the provider, another site, leads back.
func (c *Console) cookieOf(text string, r *http.Request) *http.Cookie {
	k := &http.Cookie{Name: loginCookie, Value: text, Path: "/login", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: c.secureOrigin(r), MaxAge: int(loginTime / time.Second)}
	if text == "" {
		k.MaxAge = -1
	}
	return k
}

// secureOrigin reports whether browsers reach the console by HTTPS, directly or through a proxy that
// terminates TLS.
func (c *Console) secureOrigin(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(c.o.Redirect, "https:")
}

// redirect returns the URL to which the provider sends the browser. Without the setting it is the
// address of the request, which must be a loopback address: an attacker could choose any other Host.
func (c *Console) redirect(r *http.Request) (string, error) {
	switch {
	case c.o.Redirect != "":
		return strings.TrimSuffix(c.o.Redirect, "/") + callbackPath, nil
	case !c.o.Loopback || !httpapi.LoopbackHost(r.Host):
		return "", schemas.Errorf(schemas.CodeConfig, "the provider must know the address of this console: give the setting oidc-redirect-url, such as https://belfry.example")
	}
	u := url.URL{Scheme: "http", Host: r.Host, Path: callbackPath}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u.String(), nil
}

// beginLogin leads the browser to the provider. A request from another site is led to the login page
// instead, so no other site can begin a login.
func (c *Console) beginLogin(w http.ResponseWriter, r *http.Request) {
	next := local(r.URL.Query().Get("next"))
	if len(next) > maxNext {
		next = "/"
	}
	if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" && from != "none" {
		http.Redirect(w, r, "/login?next="+url.QueryEscape(next), http.StatusSeeOther)
		return
	}
	q := &request{Request: r, console: c}
	release, err := c.enter()
	if err != nil {
		c.fail(q, w, err)
		return
	}
	defer release()
	to, err := c.redirect(r)
	if err != nil {
		c.fail(q, w, err)
		return
	}
	address, attempt, err := c.o.Provider.Begin(r.Context(), to)
	if err != nil {
		c.refuseLogin(q, w, next, err)
		return
	}
	sealed, err := c.seal.close(&pendingLogin{Attempt: attempt, Next: next, Ends: time.Now().Add(loginTime)})
	if err != nil {
		c.fail(q, w, err)
		return
	}
	http.SetCookie(w, c.cookieOf(sealed, r))
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// finishLogin begins a session with the answer of the provider. It answers with a page that leads on,
// not with a redirect: after a redirect from another site a browser would not send the cookie of the
// session (SameSite=Strict).
func (c *Console) finishLogin(w http.ResponseWriter, r *http.Request) {
	q := &request{Request: r, console: c}
	w.Header().Set("Referrer-Policy", "no-referrer") // the URL of this page contains the code
	release, err := c.enter()
	if err != nil {
		c.fail(q, w, err)
		return
	}
	defer release()
	sealed := ""
	if k, err := r.Cookie(loginCookie); err == nil {
		sealed = k.Value
	}
	http.SetCookie(w, c.cookieOf("", r))
	pending, ok := c.seal.open(sealed, time.Now())
	if !ok {
		c.refuseLogin(q, w, "/", &token.Error{Status: http.StatusBadRequest, Reason: "this browser has begun no login here in the last " + schemas.FormatDuration(loginTime) + ": log in again"})
		return
	}
	name, ends, err := c.logIn(r, &pending)
	if err != nil {
		c.refuseLogin(q, w, pending.Next, err)
		return
	}
	c.sessions.end(sessionName(r))
	k := cookie(name, ends, r)
	k.Secure = c.secureOrigin(r)
	http.SetCookie(w, k)
	c.answer(q, w, &view{name: "reopen", title: "Belfry", data: pending.Next})
}

// logIn begins a session, and returns the value of its cookie and its end.
func (c *Console) logIn(r *http.Request, pending *pendingLogin) (name string, ends time.Time, err error) {
	s, err := c.o.Provider.Finish(r.Context(), &pending.Attempt, r.URL.Query(), time.Now())
	if err != nil {
		return "", time.Time{}, err
	}
	probe := r.Clone(r.Context())
	probe.Header.Set("Authorization", "Bearer "+s.Token)
	if _, err := c.o.Authorize(probe, token.ScopeRead); err != nil {
		return "", time.Time{}, err
	}
	if !c.sessions.use(pending.State, pending.Ends) {
		return "", time.Time{}, &token.Error{Status: http.StatusBadRequest, Reason: "this login has been used: log in again"}
	}
	name, ends = c.sessions.begin(s.Token, s.Expires)
	return name, ends, nil
}

// refuseLogin is the page to log in, with the reason why a login at the provider failed.
func (c *Console) refuseLogin(q *request, w http.ResponseWriter, next string, err error) {
	status, _, detail := httpapi.Explain(err)
	if e, ok := errors.AsType[*token.Error](err); ok {
		status, detail = e.Status, e.Reason
	}
	c.answer(q, w, &view{status: status, name: "login", title: "Log in", data: c.loginPage(next, detail)})
}
