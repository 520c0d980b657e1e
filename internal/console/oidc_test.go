package console_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/oidctest"
	"github.com/belfryio/belfry/schemas"
)

// provided is a node whose console logs people in at a provider.
type provided struct {
	*oidctest.Provider
	app    *app.App
	client oidctest.Client
}

func startProvided(t *testing.T, change func(*app.Options)) *provided {
	t.Helper()
	p := &provided{Provider: oidctest.New(t)}
	key := oidctest.NewSigner(t, "k1", jose.ES256)
	p.Publish(key)
	p.app = startNode(t, func(o *app.Options) {
		o.OIDC, o.OIDCCA = oidc.Config{Issuer: p.URL, Audience: "belfry", ClientID: "console"}, p.CAFile(t)
		if change != nil {
			change(o)
		}
	})
	p.client = oidctest.Client{ID: "console", Redirect: "http://" + p.app.HTTPAddr() + "/login/callback", Signer: key}
	p.SetClient(p.client)
	return p
}

// set changes the client.
func (p *provided) set(change func(*oidctest.Client)) {
	c := p.client
	change(&c)
	p.SetClient(c)
}

// browser returns a browser that trusts the provider, and stops at redirects.
func (p *provided) browser(t *testing.T) *browser {
	t.Helper()
	b := newBrowser(t, p.app)
	transport := p.Transport()
	t.Cleanup(transport.CloseIdleConnections)
	b.http.Transport = transport
	b.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return b
}

// atProvider begins a login and returns the path of the console, with the answer of the provider, to
// which that leads the browser.
func (p *provided) atProvider(t *testing.T, b *browser, next string) string {
	t.Helper()
	to := b.get(t, "/login/oidc?"+url.Values{"next": {next}}.Encode()).want(t, 303).header.Get("Location")
	if !strings.HasPrefix(to, p.URL+"/auth?") {
		t.Fatalf("got a login that leads to %s, want the provider", to)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	back := b.do(t, r).want(t, 302).header.Get("Location")
	path, ok := strings.CutPrefix(back, b.base)
	if !ok {
		t.Fatalf("got an answer that leads to %s, want the console", back)
	}
	return path
}

// TestProvider: people log in at a provider, with the scopes and the end of its tokens, and log out; an
// answer that is not that to their login logs nobody in.
func TestProvider(t *testing.T) {
	t.Parallel()
	p := startProvided(t, nil)
	b := p.browser(t)
	b.get(t, "/timers?state=fail").want(t, 303)
	host := strings.TrimPrefix(p.URL, "https://")
	b.get(t, "/login?next=/timers?state=fail").want(t, 200, "Log in with "+host, `href="/login/oidc?next=%2Ftimers%3Fstate%3Dfail"`, "With a token")

	path := p.atProvider(t, b, "/timers?state=fail")
	stranger := p.browser(t)
	stranger.get(t, path, "Sec-Fetch-Site", "cross-site").want(t, 400, "this browser has begun no login here") // login CSRF: a link with the code of somebody else
	stranger.get(t, "/timers").want(t, 303)

	done := b.get(t, path, "Sec-Fetch-Site", "cross-site").want(t, 200, `content="0;url=/timers?state=fail"`)
	cookies := strings.Join(done.header.Values("Set-Cookie"), "\n")
	for _, want := range []string{"belfry_session=", "HttpOnly", "SameSite=Strict", "belfry_login=; Path=/login; Max-Age=0"} {
		if !strings.Contains(cookies, want) {
			t.Errorf("got cookies %s, want %s in them", cookies, want)
		}
	}
	b.get(t, "/timers").want(t, 200, "oidc:anna", "Log out", "/new")
	b.get(t, path).want(t, 400) // the login is gone from the browser
	b.post(t, "/logout", form()).want(t, 303)
	b.get(t, "/timers").want(t, 303)

	t.Run("reused code", func(t *testing.T) {
		p.set(func(c *oidctest.Client) { c.Reuses = true })
		b := p.browser(t)
		path := p.atProvider(t, b, "/")
		sealed := b.http.Jar.Cookies(mustParse(t, b.base+"/login"))
		b.get(t, path).want(t, 200, "leads on")
		thief := p.browser(t)
		thief.http.Jar.SetCookies(mustParse(t, b.base+"/login"), sealed)
		thief.get(t, path).want(t, 400, "has been used")
	})
	t.Run("answers", func(t *testing.T) {
		for what, c := range map[string]struct {
			client func(*oidctest.Client)
			status int
			text   string
		}{
			"refused":        {func(c *oidctest.Client) { c.Refuses = "access_denied" }, 401, "access_denied &lt;b&gt;not today"},
			"another nonce":  {func(c *oidctest.Client) { c.IDToken = map[string]any{"nonce": "x"} }, 401, "nonce"},
			"another issuer": {func(c *oidctest.Client) { c.IDToken = map[string]any{"iss": "https://evil.example"} }, 401, "different provider"},
			"no scope read":  {func(c *oidctest.Client) { c.IDToken = map[string]any{"scope": "belfry:payload"} }, 403, "needs scope read"},
		} {
			p.set(c.client)
			b := p.browser(t)
			b.get(t, p.atProvider(t, b, "/dead")).want(t, c.status, c.text, "Log in with", `next=%2Fdead"`).without(t, "<b>not")
			if b.get(t, "/timers").status != 303 {
				t.Errorf("%s: got a session", what)
			}
		}
		p.set(func(*oidctest.Client) {})
		b := p.browser(t)
		path := p.atProvider(t, b, "/")
		b.get(t, strings.Replace(path, "state=", "state=x", 1)).want(t, 400, "another login")
		b.get(t, "/login/callback?code=x&state=x", "Cookie", "belfry_login="+strings.Repeat("A", 400)).want(t, 400, "begun no login")
	})
	t.Run("paths", func(t *testing.T) {
		for _, next := range []string{"//evil.example/x", `/\evil.example`, "https://evil.example/", "javascript:alert(1)", "/" + strings.Repeat("x", 2000)} {
			b := p.browser(t)
			b.get(t, p.atProvider(t, b, next)).want(t, 200, `content="0;url=/"`).without(t, "evil", "alert")
		}
		// Another site, or another Host, begins no login.
		for _, from := range []string{"cross-site", "same-site"} {
			if to := b.get(t, "/login/oidc?next=/dead", "Sec-Fetch-Site", from).want(t, 303).header.Get("Location"); to != "/login?next=%2Fdead" {
				t.Errorf("got a login of another site that leads to %s, want the page to log in", to)
			}
		}
		b.get(t, "/login/oidc", "Host", "evil.example").want(t, 500, "oidc-redirect-url")
	})
	t.Run("scopes and end", func(t *testing.T) {
		p.set(func(c *oidctest.Client) { c.AccessToken = map[string]any{"scope": "belfry:read"} })
		b := p.browser(t)
		cookies := strings.Join(b.get(t, p.atProvider(t, b, "/")).want(t, 200).header.Values("Set-Cookie"), "\n")
		_, text, _ := strings.Cut(cookies, "belfry_session=")
		_, text, _ = strings.Cut(text, "Max-Age=")
		text, _, _ = strings.Cut(text, ";")
		if n, err := strconv.Atoi(text); err != nil || n <= 0 || n > 3600 {
			t.Errorf("got cookies %s, want that of a session of an hour, as the token", cookies)
		}
		b.get(t, "/timers").want(t, 200, "oidc:anna").without(t, `href="/new"`)
		b.get(t, "/new").want(t, 403, "needs scope write")
	})
	t.Run("provider down", func(t *testing.T) {
		p.set(func(*oidctest.Client) {})
		b := p.browser(t)
		path := p.atProvider(t, b, "/")
		p.SetDown(true)
		defer p.SetDown(false)
		b.sendOnce(t, http.MethodGet, path, nil).want(t, 503, "the OpenID Connect provider does not answer now", "Log in with").without(t, p.URL)
	})
}

// TestProviderTenant: the tenant of a token is that of the session.
func TestProviderTenant(t *testing.T) {
	t.Parallel()
	p := startProvided(t, func(o *app.Options) { o.OIDC.TenantClaim = "org"; o.OIDC.Tenants = map[string]string{"staff": ""} })
	b := p.browser(t)
	b.get(t, p.atProvider(t, b, "/")).want(t, 403, "claim org of the token names no tenant")
	p.set(func(c *oidctest.Client) { c.IDToken = map[string]any{"org": "staff"} })
	b.get(t, p.atProvider(t, b, "/")).want(t, 200)
	b.get(t, "/timers").want(t, 200, "oidc:anna")
}

// TestNoProvider: without a client nothing of a login at a provider is there; a redirect URL in the
// settings is that of the login, also for a request that names another host.
func TestNoProvider(t *testing.T) {
	t.Parallel()
	none := newBrowser(t, startProvided(t, func(o *app.Options) { o.OIDC.ClientID = "" }).app)
	none.get(t, "/login").want(t, 200, "Token").without(t, "Log in with")
	for _, path := range []string{"/login/oidc", "/login/callback"} {
		none.get(t, path).want(t, 200, "Log in").without(t, "Log in with")
	}
	p := startProvided(t, func(o *app.Options) { o.OIDCRedirect = "https://belfry.example/" })
	r := p.browser(t).get(t, "/login/oidc", "Host", "evil.example").want(t, 303)
	to := mustParse(t, r.header.Get("Location")).Query().Get("redirect_uri")
	if to != "https://belfry.example/login/callback" || !strings.Contains(r.header.Get("Set-Cookie"), "Secure") {
		t.Errorf("got redirect %s and cookie %s, want that of the settings, and a cookie for HTTPS", to, r.header.Get("Set-Cookie"))
	}
	for what, change := range map[string]func(*app.Options){
		"oidc-redirect-url needs": func(o *app.Options) { o.OIDC.ClientID, o.OIDCRedirect = "", "https://belfry.example" },
		"must be a URL":           func(o *app.Options) { o.OIDCRedirect = "http://belfry.example" },
		"without a path":          func(o *app.Options) { o.OIDCRedirect = "https://belfry.example/console" },
		"needs oidc-redirect-url": func(o *app.Options) { o.HTTP = "0.0.0.0:0" },
		"need a client id":        func(o *app.Options) { o.OIDC.ClientID, o.OIDC.ClientSecret = "", "x" },
		"must include openid":     func(o *app.Options) { o.OIDC.ClientScopes = []string{"profile"} },
	} {
		o := app.Options{Data: t.TempDir(), HTTP: "127.0.0.1:0", NATSListen: "127.0.0.1:0", OIDC: oidc.Config{Issuer: "https://login.example", Audience: "belfry", ClientID: "console"}}
		change(&o)
		if err := o.Validate(); schemas.CodeOf(err) != schemas.CodeConfig || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
	}
}
