package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

const (
	// maxRequests bounds the requests that are carried out at a time.
	maxRequests = 64
	// maxForm bounds the body of a form, in bytes. It must exceed the encoded form of New with the
	// largest event.
	maxForm = 4 << 20
	// maxLogin bounds the body of a login, which anybody may send. It must exceed the encoded form with
	// the longest token, of 16 KiB, and a path.
	maxLogin = 32 << 10
)

// Operations are the operations of a router; *router.Service has them.
type Operations interface {
	httpapi.Operations
	Get(ctx context.Context, ref schemas.TimerRef) (store.Timer, error)
}

// Config configures a console. All fields but Loopback, Provider, Redirect, Clock and Log are required.
type Config struct {
	// Service returns the operations for a caller. They change a timer only at revision, if it is
	// not 0. An error has a schemas.Code.
	Service func(id httpapi.Identity, revision uint64) (Operations, error)
	// Authorize returns the caller of a request that needs a scope: by its header Authorization.
	// Its error is an *httpapi.Error.
	Authorize func(r *http.Request, scope string) (httpapi.Identity, error)
	// Loopback is as in httpapi.Config.
	Loopback bool
	// Provider is the OpenID Connect provider of the login; nil for none. Redirect is the base URL of
	// this console, to which the provider sends browsers; "" to take it from the header Host of
	// requests, which must then name a loopback address.
	Provider *oidc.Verifier
	Redirect string
	// API serves /v1/stream, which the tail follows. The forms of the console count as its bodies.
	API *httpapi.API
	// Status and Doctor are as in httpapi.Config.
	Status func(context.Context) (*status.Status, error)
	Doctor func(context.Context) ([]doctor.Finding, error)
	// History returns the search index of this node, nil without one.
	History func() visibility.Reader
	// NowMs is the cluster's time, in Unix milliseconds.
	NowMs func() int64
	// Clock is the clock of a development node; nil on other nodes.
	Clock httpapi.Clock
	Log   zerolog.Logger
}

// Console is the handler of all pages.
type Console struct {
	o        Config
	mux      *http.ServeMux
	sessions *sessions
	seal     seal
	origin   http.CrossOriginProtection
	permits  chan struct{}
	// overviews has an entry for each request for the status or the doctor, at most maxOverviews.
	overviews chan struct{}
}

// New returns a console.
func New(o Config) *Console {
	c := &Console{o: o, mux: http.NewServeMux(), sessions: newSessions(), seal: newSeal(), permits: make(chan struct{}, maxRequests), overviews: make(chan struct{}, maxOverviews)}
	for i := range routes {
		rt := &routes[i]
		c.mux.HandleFunc(rt.String(), func(w http.ResponseWriter, r *http.Request) { c.serve(rt, w, r) })
	}
	c.mux.HandleFunc("GET /tail/events", c.follow)
	c.mux.HandleFunc("GET /static/{file}", serveStatic)
	c.mux.HandleFunc("GET /login", c.showLogin)
	c.mux.HandleFunc("POST /login", c.login)
	c.mux.HandleFunc("POST /logout", c.logout)
	if o.Provider != nil {
		c.mux.HandleFunc("GET "+beginPath, c.beginLogin)
		c.mux.HandleFunc("GET "+callbackPath, c.finishLogin)
	}
	c.mux.HandleFunc("/", c.serveNone)
	return c
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if err := c.origin.Check(r); err != nil {
		c.fail(&request{Request: r, console: c}, w, httpapi.Refused(http.StatusForbidden, "", "a web page of another site has made this request: "+err.Error()))
		return
	}
	c.mux.ServeHTTP(w, r)
}

// secure sets the headers of every answer.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// request is a request for a page.
type request struct {
	*http.Request
	console *Console
	id      httpapi.Identity
	ops     Operations
	// Can are the rights of the caller.
	can rights
}

// rights say what a caller may do.
type rights struct{ Write, Admin, Payload bool }

// serve makes a page, or carries out a change.
func (c *Console) serve(rt *route, w http.ResponseWriter, r *http.Request) {
	q := &request{Request: c.authenticated(r), console: c}
	release, err := q.admitForm(rt, w)
	defer release()
	if err != nil {
		c.fail(q, w, err)
		return
	}
	v, err := q.carryOut(rt)
	if err != nil {
		c.fail(q, w, err)
		return
	}
	c.answer(q, w, &v)
}

// authenticated returns the request with the token of its session in the header Authorization. A
// request that has this header already does not come from a browser, and is returned as it is.
func (c *Console) authenticated(r *http.Request) *http.Request {
	text := c.sessions.token(sessionName(r))
	if text == "" || r.Header.Get("Authorization") != "" {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+text)
	return r
}

// enter takes a permit to make a page, which release returns.
func (c *Console) enter() (release func(), err error) {
	select {
	case c.permits <- struct{}{}:
		return func() { <-c.permits }, nil
	default:
		return nil, schemas.Errorf(schemas.CodeUnavailable, "%d pages are being made, which is the limit; nothing was done: try again", maxRequests)
	}
}

// admitForm admits a request and reads its form. The client decides how fast the form arrives, so the
// request has no permit meanwhile. The bytes of the form count for the limits of the API until release
// is called.
func (q *request) admitForm(rt *route, w http.ResponseWriter) (release func(), err error) {
	release = func() {}
	if err := q.admit(rt.scope); err != nil {
		return release, err
	}
	if rt.shared && q.id.Tenant != "" {
		return release, httpapi.Refused(http.StatusForbidden, "", "this concerns all tenants; token "+q.id.Name+" belongs to tenant "+q.id.Tenant)
	}
	q.Body, release = q.console.o.API.HoldBody(q.id, q.Body)
	return release, q.readForm(w, maxForm)
}

// carryOut calls the handler of a route.
func (q *request) carryOut(rt *route) (view, error) {
	release, err := q.console.enter()
	if err != nil {
		return view{}, err
	}
	defer release()
	revision, err := q.revision()
	if err != nil {
		return view{}, err
	}
	if q.ops, err = q.console.o.Service(q.id, revision); err != nil {
		return view{}, err
	}
	return rt.handle(q)
}

// admit sets the caller and its rights.
func (q *request) admit(scope string) (err error) {
	o := &q.console.o
	if q.id, err = o.Authorize(q.Request, scope); err != nil {
		return err
	}
	if err := q.id.AdmitHost(q.Request, o.Loopback); err != nil {
		return err
	}
	has := func(scope string) bool {
		_, err := o.Authorize(q.Request, scope)
		return err == nil
	}
	q.can = rights{Write: has(token.ScopeWrite), Admin: has(token.ScopeAdmin), Payload: q.id.Payload}
	return nil
}

// readForm reads the query and, of a change, the form, of at most the given bytes. Nothing else reads the
// body of a request.
func (q *request) readForm(w http.ResponseWriter, most int64) error {
	q.Body = http.MaxBytesReader(w, q.Body, most)
	err := q.ParseForm()
	switch _, large := errors.AsType[*http.MaxBytesError](err); {
	case large:
		return schemas.Errorf(schemas.CodeTooLarge, "the form has more than %d bytes, the limit", most)
	case schemas.CodeOf(err) == schemas.CodeUnavailable: // see httpapi.API.HoldBody
		return err
	case err != nil:
		return schemas.Errorf(schemas.CodeBadRequest, "the form cannot be read: %w", err)
	}
	return nil
}

// caller returns the caller for the history of a timer.
func (q *request) caller() schemas.Caller { return schemas.Caller{User: q.id.Name} }

// ref returns the timer in the path.
func (q *request) ref() schemas.TimerRef { return schemas.TimerRef{Timer: q.PathValue("timer")} }

// text returns a field of the form or query, without space around it.
func (q *request) text(name string) string { return strings.TrimSpace(q.Form.Get(name)) }

// fail answers a request that was not carried out.
func (c *Console) fail(q *request, w http.ResponseWriter, err error) {
	status, title, detail := httpapi.Explain(err)
	if status == http.StatusUnauthorized && q.Method == http.MethodGet && q.Header.Get("HX-Request") == "" {
		switch name := sessionName(q.Request); {
		case name != "":
			c.sessions.end(name)
		case q.Header.Get("Sec-Fetch-Site") == "cross-site":
			// The browser did not send the cookie, because another site led here (SameSite=Strict). It sends
			// the cookie when this page loads the same address again.
			c.answer(q, w, &view{name: "reopen", title: "Belfry", data: local(q.URL.RequestURI())})
			return
		}
		http.Redirect(w, q.Request, "/login?next="+url.QueryEscape(q.URL.RequestURI()), http.StatusSeeOther)
		return
	}
	c.answer(q, w, &view{status: status, name: "error", title: title, data: detail})
}

// serveNone answers a request for a page that does not exist.
func (c *Console) serveNone(w http.ResponseWriter, r *http.Request) {
	q := &request{Request: c.authenticated(r), console: c}
	if err := q.admit(token.ScopeRead); err != nil {
		c.fail(q, w, err)
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if _, pattern := c.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host}); pattern != "/" && pattern != "" {
			w.Header().Set("Allow", method)
			c.answer(q, w, &view{status: http.StatusMethodNotAllowed, name: "error", title: "no such method at this path", data: "This path takes " + method + "."})
			return
		}
	}
	c.answer(q, w, &view{status: http.StatusNotFound, name: "error", title: "no such page", data: "There is no page at this path."})
}

// showHome leads to the first page.
func showHome(*request) (view, error) { return view{location: "/timers"}, nil }

// showLogin is the page to log in.
func (c *Console) showLogin(w http.ResponseWriter, r *http.Request) {
	next := local(r.URL.Query().Get("next"))
	if _, err := c.o.Authorize(c.authenticated(r), token.ScopeRead); err == nil {
		http.Redirect(w, r, next, http.StatusSeeOther) // no login is needed
		return
	}
	c.answer(&request{Request: r, console: c}, w, &view{name: "login", title: "Log in", data: c.loginPage(next, "")})
}

// loginData is the data of the login page. Provider is the host of the OpenID Connect provider; ""
// for none.
type loginData struct{ Next, Problem, Provider string }

// loginPage returns the data of the login page.
func (c *Console) loginPage(next, problem string) loginData {
	d := loginData{Next: next, Problem: problem}
	if c.o.Provider != nil {
		d.Provider = c.o.Provider.Issuer()
	}
	return d
}

// login begins a session with the token of a form.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	q := &request{Request: r, console: c}
	if err := q.readForm(w, maxLogin); err != nil {
		c.fail(q, w, err)
		return
	}
	text, next := q.text("token"), local(q.Form.Get("next"))
	probe := r.Clone(r.Context())
	probe.Header.Set("Authorization", "Bearer "+text)
	id, err := c.o.Authorize(probe, token.ScopeRead)
	if err != nil {
		status, _, detail := httpapi.Explain(err)
		c.answer(q, w, &view{status: status, name: "login", title: "Log in", data: c.loginPage(next, detail)})
		return
	}
	c.sessions.end(sessionName(r))
	if id.Name != "" { // a node without tokens needs no session
		name, ends := c.sessions.begin(text, time.Time{})
		http.SetCookie(w, cookie(name, ends, r))
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// logout ends the session of the request.
func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	c.sessions.end(sessionName(r))
	http.SetCookie(w, cookie("", time.Time{}, r))
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// local returns a path of this console, with its query; the first page for any other text.
func local(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return cmp.Or(u.RequestURI(), "/")
}
