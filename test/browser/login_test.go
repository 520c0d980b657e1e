package browser

import (
	"net"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/oidctest"
)

// TestProviderLogin: a user follows a link to a page, logs in at an OpenID Connect provider of another site, comes
// back to that page, and logs out.
func TestProviderLogin(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	p := oidctest.NewPlain(t)
	key := oidctest.NewSigner(t, "k1", jose.ES256)
	p.Publish(key)
	a := startNode(t, func(o *app.Options) {
		o.OIDC = oidc.Config{Issuer: p.URL, Audience: "belfry", ClientID: "console", ClientSecret: "s3cret"}
	})
	_, port, err := net.SplitHostPort(a.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t, a)
	b.base = "http://localhost:" + port // another site than the provider, at 127.0.0.1
	p.SetClient(oidctest.Client{ID: "console", Secret: "s3cret", Redirect: b.base + "/login/callback", Signer: key, Asks: true})

	b.open("/timers?state=fail")
	b.sees("Log in with " + strings.TrimPrefix(p.URL, "http://"))
	for _, text := range b.barriers() {
		t.Errorf("the login: %s", text)
	}
	b.click("#provider")
	b.click("#anna")
	b.until("the page is that of the link", `location.pathname === "/timers" && location.search === "?state=fail"`)
	b.sees("oidc:anna")
	b.open("/new")
	b.until("the session goes on", `document.querySelector("input[name=cron]")`)
	b.press("Log out")
	b.until("the session has ended", `location.pathname === "/login"`)
	b.open("/timers")
	b.until("another page needs a login", `location.pathname === "/login"`)
}
