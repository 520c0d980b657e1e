package console_test

import (
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/console"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/waittest"
)

// evil is a text that runs a script where it is not escaped: in a text, an attribute, a title or a script.
const evil = `"'></title></textarea></script><img src=x onerror=alert(1)>{{.}}`

// testXSS: no field of an event, answer of a callee, note or parameter is markup on any page.
func testXSS(t *testing.T, b *browser) {
	answers := func(status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(evil))
		}))
		t.Cleanup(s.Close)
		return s.URL + "/?" + url.QueryEscape(evil)
	}
	escaped := func(p page) page {
		t.Helper()
		return p.without(t, "<img", "onerror=alert(1)>", "</title></textarea>")
	}
	fields := []string{"source", "/" + url.PathEscape(evil), "type", evil, "group", evil, "svc", "evil", "data", evil}
	with := func(more ...string) []string { return append(append([]string{}, fields...), more...) }
	pending := escaped(b.add(t, with("in", "1h", "id", evil+"1")...)).timer(t)
	failed := escaped(b.add(t, with("in", "1ms", "id", evil+"2", "callback", answers(http.StatusGone))...)).timer(t)
	fine := escaped(b.add(t, with("in", "1ms", "id", evil+"3", "callback", answers(http.StatusOK))...)).timer(t)
	schedule := escaped(b.add(t, with("cron", "30 2 * * *", "id", evil+"4")...)).timer(t)
	if p := b.get(t, "/timers/"+pending); !strings.Contains(p.body, html.EscapeString(`<img src=x`)) {
		t.Errorf("got no escaped text on the page, so it shows nothing that could be markup: %s", p.body)
	}
	waittest.Until(t, "the callbacks have answered", func() bool {
		return strings.Contains(b.get(t, "/timers/"+failed).body, "state fail") && strings.Contains(b.get(t, "/timers/"+fine).body, "state success")
	})
	escaped(b.get(t, "/timers/"+fine).want(t, 200, "&lt;img src=x"))
	waittest.Until(t, "the page of the service has an answer", func() bool {
		return strings.Contains(escaped(b.get(t, "/services/evil")).body, "<code>&#34;&#39;&gt;&lt;/title")
	}, func() string { return b.get(t, "/services/evil").body })
	escaped(b.post(t, "/timers/"+pending+"/pause", form("note", evil)).want(t, 200, "&lt;img src=x"))
	escaped(b.post(t, "/timers/"+schedule+"/pause", form("note", evil)).want(t, 200))
	escaped(b.post(t, "/timers/"+schedule+"/edit", form("cron", evil)))
	escaped(b.post(t, "/timers/"+schedule+"/edit", form("cron", "15 3 * * *", "tz", evil)))
	escaped(b.post(t, "/timers/"+schedule+"/backfill", form("from", evil, "to", evil)))
	escaped(b.post(t, "/timers/"+schedule+"/resume", form("catchup", evil)))
	escaped(b.post(t, "/timers/"+pending+"/move", form("at", evil)))
	escaped(b.post(t, "/timers/cancel", form("timer", pending, "timer", evil)).want(t, 200))
	escaped(b.post(t, "/timers/reschedule", form("timer", pending, "timer", evil, "in", "2h")).want(t, 200))
	escaped(b.post(t, "/timers/reschedule", form("timer", pending, "at", evil)).want(t, 400))
	for _, path := range []string{"/timers/cancel-all", "/timers/reschedule-all"} {
		escaped(b.post(t, path, form("group", evil, "in", "2h")).want(t, 200, "&lt;img src=x"))
		escaped(b.post(t, path, form("service", evil, "group", evil, "state", evil, "in", evil, "cursor", evil, "confirm", "yes", "done", evil, "refused", evil, "reason", evil+"=1")))
		escaped(b.post(t, path, form("service", "evil", "state", evil, "in", "1h")).want(t, 400))
	}
	for _, path := range []string{"/dead/replay", "/dead/discard"} {
		escaped(b.post(t, path, form("letter", evil)).want(t, 400))
		escaped(b.post(t, path, form("letter", "1", "rate", evil, "cursor", evil, "reason", evil+"=1", "confirm", "yes")))
	}
	escaped(b.post(t, "/dead/discard", form("letter", b.letterOf(t, "evil"))).want(t, 200, "&lt;img src=x"))
	escaped(b.post(t, "/groups/pause", form("group", evil, "note", evil)).want(t, 200, "&lt;img src=x"))
	escaped(b.post(t, "/groups/resume", form("group", evil, "catchup", evil)).want(t, 200))
	escaped(b.post(t, "/limits/set", form("key", evil, "rate", evil)).want(t, 400, "&lt;img src=x"))
	escaped(b.post(t, "/limits/set", form("key", "evil", "rate", "1/m", "burst", evil)).want(t, 400, "&lt;img src=x"))
	for _, change := range []string{"pause", "resume", "reset", "delete"} {
		escaped(b.post(t, "/limits/"+change, form("key", evil, "note", evil, "revision", evil)).want(t, 400))
		escaped(b.post(t, "/limits/"+change, form("key", evil, "note", evil)).want(t, 400))
	}
	escaped(b.post(t, "/limits/pause", form("key", "service:evil", "note", evil)).want(t, 200, "&lt;img src=x"))
	escaped(b.post(t, "/calendars/set", form("name", evil, "dates", evil)).want(t, 400, "&lt;img src=x"))
	escaped(b.post(t, "/calendars/"+url.PathEscape(evil)+"/delete", form("revision", "1")).want(t, 400))
	escaped(b.post(t, "/new", form("in", evil, "svc", evil, "callback", evil, "data", evil)).want(t, 422, "&lt;img src=x"))
	escaped(b.post(t, "/login", form("token", evil, "next", evil)))
	q := url.QueryEscape(evil)
	for _, path := range []string{
		"/timers/" + pending, "/timers/" + failed, "/timers/" + schedule, "/timers/" + schedule + "?at=" + q, "/timers/" + schedule + "/runs", "/timers/" + schedule + "/runs?cursor=" + q,
		"/timers", "/timers?q=" + q + "&source=" + q, "/timers?state=" + q, "/timers?service=" + q, "/timers?group=" + q, "/timers?cursor=" + q, "/timers/" + url.PathEscape(evil),
		"/schedules", "/schedules?group=" + q, "/new?in=" + q + "&data=" + q, "/new?cron=" + q + "&tz=" + q + "&exclude=" + q, "/dead", "/dead?service=" + q, "/dead?host=" + q + "&cursor=" + q, "/groups", "/groups?group=" + q, "/groups?cursor=" + q, "/orders", "/orders?service=" + q + "&cursor=" + q,
		"/limits", "/limits/key?key=service:evil", "/limits/key?key=" + q, "/limits?done=" + q, "/calendars", "/calendars/" + url.PathEscape(evil), "/timers?group=" + q + "&state=pending", "/rejected", "/tail?service=" + q, "/cluster", "/login?next=" + q,
		"/timers/" + pending + "?done=" + q, "/services/evil", "/services/" + url.PathEscape(evil), "/services/evil?tenant=" + q, "/" + url.PathEscape(evil),
	} {
		escaped(b.get(t, path))
	}
}

// testRejected: what was rejected, with its data, is text on the page.
func testRejected(t *testing.T, b *browser, a *app.App) {
	nc, err := nats.Connect(a.NATSURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if err := nc.Publish("timers.add", []byte(evil)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the rejection is on the page", func() bool {
		p := b.get(t, "/rejected").without(t, "<img")
		return strings.Contains(p.body, "&lt;img src=x")
	})
}

// testCrossSite: no change comes from another site, whatever the browser says about it, and no site
// reaches the console by a name of its own.
func testCrossSite(t *testing.T, b *browser) {
	id := b.add(t, "in", "1h", "id", "cross-site", "source", "/shop").timer(t)
	paths := []string{"/login", "/logout"}
	for _, rt := range console.Routes() {
		if rt.Method == http.MethodPost {
			paths = append(paths, strings.NewReplacer("{timer}", id, "{name}", "holidays").Replace(rt.Path))
		}
	}
	for _, path := range paths {
		for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}, {"Origin", "null"}} {
			b.send(t, http.MethodPost, path, form("timer", id, "confirm", "yes"), header...).want(t, 403, "another site")
		}
	}
	for _, host := range []string{"evil.example", "127.0.0.1.evil.example", "evil.example:8420"} {
		b.get(t, "/timers/"+id, "Host", host).want(t, 403).without(t, "cross-site")
		b.get(t, "/tail/events?service=orders", "Host", host).want(t, 403)
		b.get(t, "/nothing", "Host", host).want(t, 403)
	}
	b.get(t, "/timers/"+id).want(t, 200, "pending")
	p := b.get(t, "/timers", "Origin", "http://evil.example")
	for name := range p.header {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("got header %s, want none of CORS", name)
		}
	}
}

// testTricks: odd paths, methods and sizes get an answer that says what is wrong, and have no effect.
func testTricks(t *testing.T, b *browser) {
	for path, status := range map[string]int{
		"/static/..%2fconsole.go": 404, "/static/%2e%2e%2fvendored.txt": 404, "/static/templates": 404, "/static/": 404, "/timers/..%2f..%2fv1%2fstatus": 400, "/timers/%00": 400, "/TIMERS": 404,
		"/timers/" + strings.Repeat("a", 4000): 400, "/new?in=%zz": 400, "/timers?limit=%ff": 200,
	} {
		b.get(t, path).want(t, status)
	}
	b.send(t, http.MethodDelete, "/timers", nil).want(t, 405)
	b.send(t, http.MethodPut, "/new", nil).want(t, 405)
	b.get(t, "/timers/cancel").want(t, 400)
	b.post(t, "/timers/cancel", form()).want(t, 400, "no timer is selected")
	large := form("in", "1h", "data", strings.Repeat("x", console.MaxForm))
	b.post(t, "/new", large).want(t, 413, "the limit")
	// Anybody may send a login.
	b.post(t, "/login", form("token", strings.Repeat("x", console.MaxLogin))).want(t, 413, "the limit")
	many := url.Values{}
	for range 501 {
		many.Add("timer", token.Generate())
	}
	b.post(t, "/timers/cancel", many).want(t, 400, "the limit is 500")
	b.post(t, "/timers/reschedule", many).want(t, 400, "in or at")
	for range 2001 {
		many.Add("letter", "1")
	}
	for _, path := range []string{"/dead/replay", "/dead/discard"} {
		b.post(t, path, form()).want(t, 400, "no dead letter is selected")
		b.post(t, path, form("letter", "0")).want(t, 400, "sequence")
		b.post(t, path, many).want(t, 400, "the limit is 2000")
	}
	b.post(t, "/groups/pause", form()).want(t, 400, "name a group")
	b.post(t, "/timers/cancel-all", form()).want(t, 400, "by service or group")
	b.get(t, "/limits/set").want(t, 405)
	b.get(t, "/calendars/none").want(t, 404)
	b.get(t, "/static/console.js").want(t, 200, "EventSource")
}

// TestLogin: without a token nothing of a timer is on any page; a session ends with its token, and a
// token gets what its scopes admit.
func TestLogin(t *testing.T) {
	t.Parallel()
	set, secrets := tokens(t, token.Token{Name: "writer", Scopes: token.Scopes{"read", "write", "payload"}}, token.Token{Name: "reader", Scopes: token.Scopes{"read"}}, token.Token{Name: "operator", Scopes: token.Scopes{"admin"}})
	var o app.Options
	a := startNode(t, func(next *app.Options) { next.HTTPTokens = set; o = *next })
	stranger, writer, reader, operator := newBrowser(t, a), newBrowser(t, a), newBrowser(t, a), newBrowser(t, a)
	writer.login(t, secrets["writer"]).want(t, 200, "writer", "Log out")
	id := writer.add(t, "in", "1h", "id", "order-17", "source", "/shop", "callback", "https://shop.example/hook/s3cret", "data", `{"card":"4711"}`).want(t, 200, "4711", "s3cret").timer(t)
	for _, rt := range console.Routes() {
		path := strings.NewReplacer("{timer}", id, "{name}", "holidays", "{$}", "").Replace(rt.Path)
		if rt.Method == http.MethodGet {
			p := stranger.get(t, path).want(t, 200, "Log in").without(t, "order-17", "4711")
			if !strings.HasPrefix(p.path, "/login?next=") {
				t.Errorf("%s leads to %s, want the login", path, p.path)
			}
			continue
		}
		stranger.post(t, path, form("timer", id, "confirm", "yes")).want(t, 401).without(t, "order-17", "4711")
		reader.login(t, secrets["reader"])
		reader.post(t, path, form("timer", id, "confirm", "yes", "in", "1h")).want(t, 403)
	}
	stranger.get(t, "/tail/events").want(t, 401)
	stranger.get(t, "/nothing").want(t, 200, "Log in").without(t, "<nav")
	if !stranger.seen("login") {
		t.Error("the stranger did not see the page to log in")
	}
	stranger.login(t, "wrong").want(t, 401, "Log in")
	stranger.login(t, token.Generate()).want(t, 401)
	stranger.get(t, "/timers", "Cookie", "belfry_session=guess").want(t, 200, "Log in")

	stranger.get(t, "/timers?state=fail", "Sec-Fetch-Site", "cross-site").want(t, 200, `content="0;url=/timers?state=fail"`).without(t, "<nav", "order-17")
	if !stranger.seen("reopen") {
		t.Error("a link of another site did not lead to the page that opens it again")
	}

	reader.get(t, "/timers/"+id).want(t, 200, "order-17").without(t, "4711", "s3cret", "Cancel the timer", "/move")
	reader.get(t, "/timers").want(t, 200, "order-17").without(t, "s3cret", "checkbox", `href="/new"`)
	reader.get(t, "/new").want(t, 403)
	reader.get(t, "/limits").want(t, 200).without(t, "<form method=\"post\" action=\"/limits")
	reader.get(t, "/calendars").want(t, 200).without(t, "/calendars/set")
	writer.get(t, "/limits/key?key=api.example.com").want(t, 200, "No limit").without(t, "<form method=\"post\" action=\"/limits")
	writer.post(t, "/limits/set", form("key", "api.example.com", "rate", "1/s", "confirm", "yes")).want(t, 403)
	writer.post(t, "/calendars/set", form("name", "holidays", "dates", "2027-12-25", "confirm", "yes")).want(t, 403)
	reader.get(t, "/groups").want(t, 200).without(t, "<form method=\"post\" action=\"/groups")
	reader.get(t, "/dead").want(t, 200).without(t, "/dead/discard")
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the answer has 4711")) }))
	t.Cleanup(target.Close)
	writer.add(t, "in", "1ms", "id", "order-18", "svc", "called", "callback", target.URL+"/hook/s3cret")
	waittest.Until(t, "the page of the service has the call", func() bool { return strings.Contains(writer.get(t, "/services/called").body, "the answer has 4711") })
	reader.get(t, "/services/called").want(t, 200, "The last call", target.URL, "need scope payload").without(t, "4711", "s3cret")
	reader.get(t, "/timers?error=s3cret").want(t, 200).without(t, "From the search index", `name="error"`)
	reader.get(t, "/cluster").want(t, 200).without(t, "/cluster/doctor")
	reader.get(t, "/cluster/doctor").want(t, 403)
	operator.login(t, secrets["operator"])
	operator.get(t, "/cluster/doctor").want(t, 200, "Findings")
	operator.get(t, "/timers/"+id).want(t, 200, "Cancel the timer").without(t, "4711", "s3cret")
	writer.get(t, "/timers/"+id).want(t, 200, "pending", "order-17")

	cookies := writer.http.Jar.Cookies(mustParse(t, writer.base))
	if len(cookies) != 1 || strings.Contains(cookies[0].Value, secrets["writer"]) {
		t.Fatalf("got cookies %v, want one without the token", cookies)
	}
	tail := writer.open(t, "/tail/events?service=called")
	writer.post(t, "/logout", form()).want(t, 200, "Log in")
	late := time.AfterFunc(30*time.Second, func() { _ = tail.Close() })
	defer late.Stop()
	if _, err := io.Copy(io.Discard, tail); err != nil {
		t.Errorf("a tail after the logout: %v, want its end", err)
	}
	writer.get(t, "/timers", "Cookie", cookies[0].Name+"="+cookies[0].Value).want(t, 200, "Log in")

	o.HTTPTokens, _ = tokens(t, token.Token{Name: "other", Scopes: token.AllScopes()})
	if err := a.Reconfigure(o); err != nil {
		t.Fatal(err)
	}
	reader.get(t, "/timers").want(t, 200, "Log in")
}

// TestCookie: scripts and other sites cannot use the cookie of a session.
func TestCookie(t *testing.T) {
	t.Parallel()
	set, secrets := tokens(t, token.Token{Name: "writer", Scopes: token.AllScopes()})
	a := startNode(t, func(o *app.Options) { o.HTTPTokens = set })
	b := newBrowser(t, a)
	b.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	p := b.post(t, "/login", form("token", secrets["writer"], "next", "//evil.example/")).want(t, 303)
	got := p.header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="} {
		if !strings.Contains(got, want) {
			t.Errorf("got cookie %q, want %s in it", got, want)
		}
	}
	if to := p.header.Get("Location"); to != "/" {
		t.Errorf("got the login lead to %q, want /", to)
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
