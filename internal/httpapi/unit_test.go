package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// fake is a service whose answers the test decides.
type fake struct {
	httpapi.Operations
	add      func() error
	describe func(context.Context) (schemas.TimerInfo, error)
}

func (f fake) Add(context.Context, map[string][]string, []byte) (schemas.AddReply, error) {
	return schemas.AddReply{State: schemas.StatePending}, f.add()
}

func (f fake) AddAsync(_ map[string][]string, _ []byte, done func(schemas.AddReply, error)) {
	go func() { done(schemas.AddReply{State: schemas.StatePending}, f.add()) }()
}

func (f fake) Inspect(ctx context.Context, _ schemas.GetRequest) (schemas.TimerInfo, error) {
	return f.describe(ctx)
}

func (f fake) Search(context.Context, schemas.SearchRequest) (schemas.SearchReply, error) {
	return schemas.SearchReply{Freshness: schemas.Freshness{From: schemas.FromHistory}, Timers: []schemas.TimerInfo{}}, nil
}

func (f fake) Cancel(context.Context, schemas.CancelRequest, schemas.Caller) (store.Timer, error) {
	if f.add == nil {
		return store.Timer{}, nil
	}
	return store.Timer{}, f.add()
}

func fakeConfig(f fake) httpapi.Config {
	return httpapi.Config{
		Service:   func(httpapi.Identity, uint64) (httpapi.Operations, error) { return f, nil },
		Authorize: func(*http.Request, string) (httpapi.Identity, error) { return httpapi.Identity{Payload: true}, nil },
		MaxEvent:  func() int { return 1 << 10 },
		FiredAfter: func(context.Context, httpapi.Identity, string, uint64, func(*store.Letter) bool) error {
			return nil
		},
		FiredNewest: func(context.Context) (uint64, error) { return 7, nil },
	}
}

func newFakeAPI(t *testing.T, f fake) *httpapi.API {
	t.Helper()
	a, err := httpapi.New(fakeConfig(f))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// serveFake serves a fake to a caller of all scopes.
func serveFake(t *testing.T, f fake, change func(*httpapi.Config)) *client {
	t.Helper()
	o := fakeConfig(f)
	if change != nil {
		change(&o)
	}
	a, err := httpapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return newClient(t, s.URL)
}

// TestEveryCode: each error code of the router has its status, the guide says so, and 429 and 503
// say when to try again.
func TestEveryCode(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| <a id=\"([a-z_]+)\"></a>`([a-z_]+)` \\| ([0-9]+) \\|").FindAllStringSubmatch(string(b), -1) {
		if m[1] == m[2] {
			documented[m[1]], _ = strconv.Atoi(m[3])
		}
	}
	source, err := os.ReadFile("../../schemas/errors.go")
	if err != nil {
		t.Fatal(err)
	}
	var fails error
	c := serveFake(t, fake{add: func() error { return fails }}, nil)
	for _, m := range regexp.MustCompile(`(?m)^\tCode\w+ +Code = "([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		code := m[1]
		status, ok := httpapi.Codes()[code]
		if !ok {
			t.Errorf("code %s has no status", code)
		}
		fails = &schemas.Error{Code: schemas.Code(code), Msg: "why", RetryAfter: 2100 * time.Millisecond}
		if code != string(schemas.CodeLimited) {
			fails = schemas.Errorf(schemas.Code(code), "why")
		}
		r := c.send(t, "POST", "/v1/timers?in=1h", "").want(t, status, `"detail":"why"`, `"code":"`+code+`"`)
		want := map[int]string{429: "3", 503: "1"}[status]
		if got := r.header.Get("Retry-After"); got != want {
			t.Errorf("code %s: got Retry-After %q, want %q", code, got, want)
		}
	}
	for code, status := range httpapi.Codes() {
		if documented[code] != status {
			t.Errorf("docs/http.md says status %d for %s, want %d", documented[code], code, status)
		}
	}
	for code := range documented {
		if httpapi.Codes()[code] == 0 {
			t.Errorf("docs/http.md describes %s, which does not exist", code)
		}
	}
	fails = fmt.Errorf("no code")
	c.send(t, "POST", "/v1/timers?in=1h", "").want(t, 503, `"unavailable"`)
}

// TestBatchThatMaySucceed: a batch with an event that may be stored later is a 503, also if another
// event is invalid, so that its sender repeats it.
func TestBatchThatMaySucceed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	errs := []error{nil, schemas.Errorf(schemas.CodeInvalidEvent, "bad"), schemas.Errorf(schemas.CodeUnavailable, "busy"), schemas.Errorf(schemas.CodeInvalidEvent, "bad")}
	c := serveFake(t, fake{add: func() error {
		mu.Lock()
		defer mu.Unlock()
		err := errs[0]
		errs = errs[1:]
		return err
	}}, nil)
	event := `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`
	r := c.send(t, "POST", "/v1/events", "["+event+","+event+","+event+","+event+"]", "Content-Type", "application/cloudevents-batch+json").want(t, 503, "3 of 4 events", "busy")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// TestTooManyRequests: requests beyond the limit are refused with 503 and have no effect, and others
// are served once there is room.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}, httpapi.MaxRequests), make(chan struct{})
	a, err := httpapi.New(httpapi.Config{
		Service: func(httpapi.Identity, uint64) (httpapi.Operations, error) {
			return fake{describe: func(context.Context) (schemas.TimerInfo, error) {
				entered <- struct{}{}
				<-leave
				return schemas.TimerInfo{}, schemas.ErrNotFound
			}}, nil
		},
		Authorize: func(*http.Request, string) (httpapi.Identity, error) { return httpapi.Identity{}, nil }, MaxEvent: func() int { return 1 },
	})
	if err != nil {
		t.Fatal(err)
	}
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest("GET", "/v1/timers/x", nil))
		return w
	}
	var served sync.WaitGroup
	for range httpapi.MaxRequests {
		served.Go(func() { get() })
	}
	for range httpapi.MaxRequests {
		waittest.Receive(t, "a request", entered)
	}
	one := make(chan *httptest.ResponseRecorder, 1)
	go func() { one <- get() }()
	var w *httptest.ResponseRecorder
	select {
	case w = <-one:
	case <-entered:
		w = &httptest.ResponseRecorder{Code: http.StatusOK}
	}
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("beyond the limit: got %d %s, want 503 and Retry-After", w.Code, w.Body)
	}
	close(leave)
	served.Wait()
	if w = get(); w.Code != http.StatusNotFound {
		t.Errorf("after the others: got %d %s, want 404", w.Code, w.Body)
	}
}

// TestRefusedCaller: a caller that Authorize refuses gets its reason and challenge, and no
// operation is made. A node that is not ready answers 503.
func TestRefusedCaller(t *testing.T) {
	t.Parallel()
	scopes := make(chan string, 8)
	c := serveFake(t, fake{add: func() error { t.Error("the operation was made"); return nil }}, func(o *httpapi.Config) {
		o.Authorize = func(r *http.Request, scope string) (httpapi.Identity, error) {
			scopes <- r.Method + " " + scope
			return httpapi.Identity{}, httpapi.Refused(http.StatusUnauthorized, `Bearer realm="belfry"`, "no token")
		}
	})
	for method, scope := range map[string]string{"GET": "read", "POST": "write", "PATCH": "write", "DELETE": "write"} {
		r := c.send(t, method, "/v1/timers", "{}", "Content-Type", "application/json").want(t, 401, `"unauthenticated"`, "no token")
		if got := <-scopes; got != method+" "+scope || r.header.Get("WWW-Authenticate") != `Bearer realm="belfry"` {
			t.Errorf("%s: got scope %s and headers %v, want scope %s and the challenge", method, got, r.header, scope)
		}
	}
	if r := c.send(t, "GET", "/v1/openapi.yaml", ""); r.status != 200 || string(r.body) != string(httpapi.Document) {
		t.Errorf("the document: got status %d", r.status)
	}
	starting := serveFake(t, fake{}, func(o *httpapi.Config) {
		o.Service = func(httpapi.Identity, uint64) (httpapi.Operations, error) {
			return nil, schemas.Errorf(schemas.CodeUnavailable, "the node starts")
		}
	})
	starting.send(t, "POST", "/v1/timers?in=1h", "").want(t, 503, "the node starts")
}

// TestScopes: what only reads needs scope read, changes of what all tenants share need admin, and
// every other operation needs write. A token of a tenant reaches nothing that all share.
func TestScopes(t *testing.T) {
	t.Parallel()
	var scope string
	c := serveFake(t, fake{}, func(o *httpapi.Config) {
		o.Authorize = func(_ *http.Request, need string) (httpapi.Identity, error) {
			scope = need
			return httpapi.Identity{}, httpapi.Refused(http.StatusForbidden, "", "no")
		}
	})
	tenant := serveFake(t, fake{}, func(o *httpapi.Config) {
		o.Authorize = func(*http.Request, string) (httpapi.Identity, error) {
			return httpapi.Identity{Name: "x", Tenant: "acme"}, nil
		}
	})
	for _, route := range httpapi.Routes() {
		method, path, _ := strings.Cut(route, " ")
		path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "x")
		shared := regexp.MustCompile("^/v1/(flows|calendars|status|doctor|clock)").MatchString(path)
		want := "write"
		switch {
		case path == "/v1/openapi.yaml":
			continue // it needs none
		case path == "/v1/doctor":
			want = "admin"
		case method == "GET":
			want = "read"
		case shared:
			want = "admin"
		}
		scope = ""
		c.send(t, method, path, "").want(t, 403)
		if scope != want {
			t.Errorf("%s needs scope %s, want %s", route, scope, want)
		}
		if shared {
			tenant.send(t, method, path, "").want(t, 403, "this concerns all tenants")
		}
	}
}

// TestBodyLimit: a body that exceeds the limit is not passed on.
func TestBodyLimit(t *testing.T) {
	t.Parallel()
	c := serveFake(t, fake{add: func() error { t.Error("the operation was made"); return nil }}, nil)
	for _, path := range []string{"/v1/events", "/v1/timers", "/v1/timers?in=1h"} {
		c.send(t, "POST", path, strings.Repeat(" ", 1<<10+1), "Content-Type", "application/json").want(t, 413, "1024 bytes")
	}
	c.send(t, "PATCH", "/v1/timers", strings.Repeat(" ", 64<<10+1), "Content-Type", "application/json").want(t, 413)
	c.send(t, "POST", "/v1/events", strings.Repeat(" ", 8<<20+1), "Content-Type", "application/cloudevents-batch+json").want(t, 413)
}

// TestConceal: without scope payload an answer has nothing of what a callee answers, and no path of
// its URL.
func TestConceal(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000).UTC()
	info := func(context.Context) (schemas.TimerInfo, error) {
		return schemas.TimerInfo{
			ID: "1", Source: "/s", Type: "t", Service: "x", State: schemas.StateFail, Scheduled: now, Due: now, Revision: 7,
			Callback: "https://h.example/hook-1?key=2", Outcome: &schemas.OutcomeInfo{Error: `Post "https://h.example/hook-1?key=2": refused by /hook-1?key=2`, Response: "data-3"},
			LastAttempts: []schemas.AttemptInfo{{Attempt: 1, At: now, Error: `Post "https://h.example/hook-1?key=2": refused`, Response: "data-3"}},
		}, nil
	}
	path := "/v1/timers/" + schemas.NewTimerID("/s", "1").String()
	serveFake(t, fake{describe: info}, nil).send(t, "GET", path, "").want(t, 200, "hook-1?key=2", "data-3")
	r := serveFake(t, fake{describe: info}, func(o *httpapi.Config) {
		o.Authorize = func(*http.Request, string) (httpapi.Identity, error) { return httpapi.Identity{Name: "x"}, nil }
	}).send(t, "GET", path, "").want(t, 200, `"callback":"https://h.example"`, "refused by /…")
	for _, secret := range []string{"hook-1", "key=2", "data-3"} {
		if strings.Contains(string(r.body), secret) {
			t.Errorf("without scope payload: got %s in %s", secret, r.body)
		}
	}
}

// TestConcealCallbacks: without scope payload an answer has no path of a callback, also of a path below a base-url, of
// a URL that a callee redirects to, and of a URL that the limit of an error has cut.
func TestConcealCallbacks(t *testing.T) {
	t.Parallel()
	long := "https://h.example/SECRET" + strings.Repeat("-more", 200)
	for callback, c := range map[string]struct{ shown, text string }{
		"/hooks/SECRET":                {"/…", "calling https://base.example/v1/hooks/SECRET failed: EOF"},
		"/SECRET,with;marks":           {"/…", "calling https://base.example/v1/SECRET,with;marks failed: EOF"},
		"https://h.example":            {"https://h.example", "HTTP status 302 (Found): a URL that redirects to https://login.example.com/reset/SECRET"},
		"https://h.example/SECRET%20x": {"https://h.example", "https://h.example/SECRET%20x did not answer"},
		long:                           {"https://h.example", ("calling " + long + " failed: EOF")[:schemas.MaxOutcomeError]},
		"nats:orders":                  {"nats:orders", "NATS subject orders answered with error code 1: no https://h.example/SECRET"},
		"":                             {"", "no worker at https://h.example/SECRET"},
	} {
		info := schemas.TimerInfo{Callback: callback, Outcome: &schemas.OutcomeInfo{Error: c.text}, LastAttempts: []schemas.AttemptInfo{{Error: c.text}}}
		httpapi.Identity{}.Conceal(&info)
		all := info.Callback + " " + info.Outcome.Error + " " + info.LastAttempts[0].Error
		if info.Callback != c.shown || strings.Contains(all, "SECRET") || strings.Contains(all, "marks") || strings.Contains(all, "more") {
			t.Errorf("%.60s: got callback %q and errors %q, want %q and no path", callback, info.Callback, all, c.shown)
		}
	}
}

// TestConcealText: without scope payload the texts of lists have no path of a URL.
func TestConcealText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "",
		"3 calls, 5/s, and/or 2027/01":         "3 calls, 5/s, and/or 2027/01",
		`Post "https://h.example/a?b=c": no`:   `Post "https://h.example/…": no`,
		"https://h.example":                    "https://h.example/…",
		"https://h.example?key=1 and more":     "https://h.example/… and more",
		"(http://h.example:8080/a, /b/c) fail": "(http://h.example:8080/…, /…) fail",
		"/a moved to /b":                       "/… moved to /…",
		"HTTPS://h.example/a,b;c'd)e: no":      "HTTPS://h.example/… no",
		"calling https://h.example/a failed":   "calling https://h.example/… failed",
	} {
		if got := httpapi.ConcealText(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestPreconditions: a change refuses a precondition that it does not compare, so that no caller takes itself
// for protected. The document names the header If-Match of exactly the other changes.
func TestPreconditions(t *testing.T) {
	t.Parallel()
	d, err := the()
	if err != nil {
		t.Fatal(err)
	}
	c := serveFake(t, fake{}, nil)
	for _, route := range httpapi.Routes() {
		method, path, _ := strings.Cut(route, " ")
		if method == "GET" {
			continue
		}
		pointer, _ := d.operation(method, path)
		compares := false
		params, _ := d.at(pointer, "parameters")
		list, _ := params.([]any) // an operation may have none
		for i := range list {
			p, _ := d.at(pointer, "parameters", strconv.Itoa(i))
			compares = compares || p.(map[string]any)["name"] == "If-Match"
		}
		path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "x")
		c.send(t, method, path, "{}", "Content-Type", jsonType, "If-None-Match", "*").want(t, 400, `"pointer":"#/If-None-Match"`)
		want := "compares no revision"
		if compares {
			want = "is not the ETag of an answer"
		}
		c.send(t, method, path, "{}", "Content-Type", jsonType, "If-Match", "x").want(t, 400, `"pointer":"#/If-Match"`, want)
	}
}

// TestContentEncoding: a compressed body is refused, because it would be stored compressed.
func TestContentEncoding(t *testing.T) {
	t.Parallel()
	c := serveFake(t, fake{add: func() error { return nil }}, nil)
	for _, path := range []string{"/v1/timers?in=1h", "/v1/timers", "/v1/events", "/v1/dead-letters/replay"} {
		c.send(t, "POST", path, "{}", "Content-Type", jsonType, "Content-Encoding", "gzip").want(t, 415, `"unsupported_media_type"`, `"pointer":"#/Content-Encoding"`)
	}
	c.send(t, "POST", "/v1/timers?in=1h", "{}", "Content-Encoding", "identity").want(t, 201)
}

// TestStreamHead: HEAD of a stream, which has no end, is refused with the method that the path takes.
func TestStreamHead(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	newFakeAPI(t, fake{}).ServeHTTP(w, httptest.NewRequest("HEAD", "/v1/stream?service=x", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET" {
		t.Errorf("got %d and Allow %q, want 405 and GET", w.Code, w.Header().Get("Allow"))
	}
}

// TestSearchByError: without scope payload no search by errors is admitted, because what matches tells
// the paths of callbacks; no bulk operation selects by them.
func TestSearchByError(t *testing.T) {
	t.Parallel()
	for _, payload := range []bool{false, true} {
		c := fakeConfig(fake{})
		c.Authorize = func(*http.Request, string) (httpapi.Identity, error) {
			return httpapi.Identity{Name: "a", Payload: payload}, nil
		}
		api, err := httpapi.New(c)
		if err != nil {
			t.Fatal(err)
		}
		for target, refused := range map[string]bool{"/v1/timers?error=s3cret": true, "/v1/timers?q=order-17&error=s3cret": true, "/v1/timers?error=": true, "/v1/timers?host=shop.example": false} {
			want := http.StatusOK
			if refused && !payload {
				want = http.StatusForbidden
			}
			w := httptest.NewRecorder()
			api.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
			if w.Code != want || want == http.StatusForbidden && (!strings.Contains(w.Body.String(), "scope payload") || !strings.Contains(w.Body.String(), "#/error")) {
				t.Errorf("payload %v, %s: got %d: %s, want %d", payload, target, w.Code, w.Body, want)
			}
		}
		for _, path := range []string{"/v1/bulk/cancel", "/v1/bulk/replay"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"service":"orders","error":"s3cret"}`))
			r.Header.Set("Content-Type", "application/json")
			if api.ServeHTTP(w, r); w.Code != http.StatusBadRequest {
				t.Errorf("%s: got %d: %s, want 400", path, w.Code, w.Body)
			}
		}
	}
}
