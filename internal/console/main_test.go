package console_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) {
	waittest.Parallel(8)
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}

// startNode starts a node on loopback; change may set further options.
func startNode(t *testing.T, change func(*app.Options)) *app.App {
	t.Helper()
	o := app.Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: app.ProfileFast, Shards: 2,
		AllowLoopback: true, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	}
	if change != nil {
		change(&o)
	}
	a, err := app.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("Stop: got error %v, want none", err)
		}
	})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// browser is a client with cookies, as a browser without JavaScript has them.
type browser struct {
	http *http.Client
	base string
	// pages has the names of all pages that were loaded.
	pages sync.Map
}

var pageName = regexp.MustCompile(`<body data-page="([a-z]+)">`)

// seen reports whether the browser has loaded a page.
func (b *browser) seen(name string) bool {
	_, ok := b.pages.Load(name)
	return ok
}

func newBrowser(t *testing.T, a *app.App) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{http: &http.Client{Jar: jar, Transport: transport, Timeout: 2 * waittest.Bound}, base: "http://" + a.HTTPAddr()}
}

// page is an answer.
type page struct {
	status int
	body   string
	header http.Header
	// path is the path and query at which redirects have ended.
	path string
}

func (b *browser) do(t *testing.T, r *http.Request) page {
	t.Helper()
	resp, err := b.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if m := pageName.FindSubmatch(body); m != nil {
		b.pages.Store(string(m[1]), true)
	}
	return page{resp.StatusCode, string(body), resp.Header, resp.Request.URL.RequestURI()}
}

// get loads a page. header are names and values in turn.
func (b *browser) get(t *testing.T, path string, header ...string) page {
	t.Helper()
	return b.send(t, http.MethodGet, path, nil, header...)
}

// post sends a form as a page of the console does.
func (b *browser) post(t *testing.T, path string, form url.Values, header ...string) page {
	t.Helper()
	return b.send(t, http.MethodPost, path, form, append([]string{"Sec-Fetch-Site", "same-origin"}, header...)...)
}

// send sends a request, and repeats it while the answer is unavailable.
func (b *browser) send(t *testing.T, method, path string, form url.Values, header ...string) (p page) {
	t.Helper()
	waittest.Available(t, method+" "+path, func() bool {
		p = b.sendOnce(t, method, path, form, header...)
		return p.status == http.StatusServiceUnavailable
	}, func() string { return p.body })
	return p
}

func (b *browser) sendOnce(t *testing.T, method, path string, form url.Values, header ...string) page {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, b.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return b.do(t, r)
}

// want ends the test unless a page has a status, and fails it unless all texts are in it.
func (p page) want(t *testing.T, status int, texts ...string) page {
	t.Helper()
	if p.status != status {
		t.Fatalf("%s: got status %d, want %d: %s", p.path, p.status, status, p.body)
	}
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Errorf("%s: got %s, want %s in it", p.path, p.body, text)
		}
	}
	return p
}

// without fails the test if a text is in the page.
func (p page) without(t *testing.T, texts ...string) page {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			t.Errorf("%s: got %q in the page, want it absent: %s", p.path, text, p.body)
		}
	}
	return p
}

// timer returns the timer id in the path of the page of a timer.
func (p page) timer(t *testing.T) string {
	t.Helper()
	id, ok := strings.CutPrefix(p.path, "/timers/")
	id, _, _ = strings.Cut(id, "?")
	if _, err := schemas.ParseTimerID(id); !ok || err != nil {
		t.Fatalf("got path %s, want that of a timer", p.path)
	}
	return id
}

// add adds a timer by the form.
func (b *browser) add(t *testing.T, fields ...string) page {
	t.Helper()
	return b.post(t, "/new", form(fields...)).want(t, http.StatusOK)
}

// form returns a form of names and values in turn.
func form(fields ...string) url.Values {
	values := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		values.Add(fields[i], fields[i+1])
	}
	return values
}

// tokens returns tokens, and their secrets by name.
func tokens(t *testing.T, list ...token.Token) (*token.Set, map[string]string) {
	t.Helper()
	secrets, lines := map[string]string{}, []string{}
	for _, tok := range list {
		secrets[tok.Name] = token.Generate()
		tok.Hash = token.HashOf(secrets[tok.Name])
		lines = append(lines, tok.String())
	}
	s, err := token.Parse([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return s, secrets
}

// login logs in with a token, and returns the page that follows.
func (b *browser) login(t *testing.T, secret string) page {
	t.Helper()
	return b.post(t, "/login", form("token", secret, "next", "/timers"))
}
