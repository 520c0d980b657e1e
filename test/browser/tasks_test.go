package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/waittest"
)

// add adds a timer by HTTP, as a program does.
func add(t *testing.T, a *app.App, fields string, header ...string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.HTTPAddr()+"/v1/timers", strings.NewReader(fields))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("got status %d, want 201", resp.StatusCode)
	}
}

// TestFindAndCancel: somebody finds a timer by the order's number and cancels it before it fires.
func TestFindAndCancel(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	a := startNode(t, nil)
	add(t, a, `{"in":"1h","svc":"orders","id":"order-17","source":"/shop","data":{"order":17}}`)
	b := openTab(t, a)
	b.open("/")
	waittest.Until(t, "the search index has the timer", func() bool {
		b.fill("#find", "order-17")
		b.do(chromedp.SendKeys(chromedp.CSS("#find"), kb.Enter))
		b.sees("From the search index.")
		return eval[bool](b, `!!document.querySelector("tbody a")`)
	}, b.describe)
	b.click("tbody a")
	b.sees("What happened")
	b.until("the times are local", `document.querySelector("time[data-local]")`)
	b.press("Cancel the timer")
	b.sees("The timer is cancelled.")
	b.until("the state is cancelled", `document.querySelector("h1 .state.cancelled")`)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.questions) != 1 || b.questions[0] != "Cancel this timer?" {
		t.Errorf("got the questions %q, want one", b.questions)
	}
}

// TestReplay: an endpoint fails for good, is repaired, and its dead letters are replayed.
func TestReplay(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	a := startNode(t, nil)
	var repaired atomic.Bool
	var calls atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !repaired.Load() {
			http.Error(w, "no such order", http.StatusGone) // no attempt follows
			return
		}
		calls.Add(1)
	}))
	t.Cleanup(target.Close)
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		add(t, a, `{"in":"10ms","svc":"orders","id":"`+id+`","source":"/shop","callback":"`+target.URL+`/expired"}`)
	}
	b := openTab(t, a)
	waitForDead(b, 3)
	if groups := eval[int](b, `document.querySelectorAll("section.group").length`); groups != 1 {
		t.Errorf("got %d groups, want one of the same cause: %s", groups, b.describe())
	}
	repaired.Store(true)
	b.press("Replay these 3")
	b.sees("3 dead letters are replayed")
	waittest.Until(t, "the endpoint is called for each", func() bool { return calls.Load() == 3 }, b.describe)
	b.open("/timers?q=order-2&source=/shop")
	b.until("the page becomes a success by itself", `document.querySelector("h1 .state.success")`)
	b.sees("replay")
}

// TestScheduleTask: a schedule is made from an expression, with a preview that follows the typing;
// it is paused, and the console says why it did not run.
func TestScheduleTask(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	a := startNode(t, nil)
	b := openTab(t, a)
	b.open("/new")
	b.fill("input[name=cron]", "30 2 * * *")
	b.fill("input[name=tz]", "Europe/Berlin")
	b.until("the preview has the runs", `document.querySelectorAll("#preview .ahead li").length === 20 && document.querySelector("#preview").innerText.includes("02:30")`)
	b.fill("input[name=cron]", "30 2 * *")
	b.until("the preview has the mistake", `document.querySelector("#preview .problem")`)
	b.fill("input[name=cron]", "")
	b.fill("input[name=every]", "1s")
	b.until("the preview follows", `document.querySelectorAll("#preview .ahead li").length === 20 && !document.querySelector("#preview .problem")`)
	b.fill("input[name=svc]", "reports")
	b.fill("input[name=id]", "every-second")
	b.press("Add")
	b.sees("The timer is stored.")
	b.fill("input[name=note]", "the database moves")
	b.press("Pause")
	b.sees("Paused: the database moves")
	b.until("the page says why it did not run", `/paused/i.test(document.querySelector(".answers").innerText)`)
}

// TestPayloadIsHidden: the token of a second user, without scope payload, shows the timer and not what
// its event carries, on no page and in no tail.
func TestPayloadIsHidden(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	secrets := map[string]string{}
	var lines []string
	for _, tok := range []token.Token{{Name: "anna", Scopes: token.AllScopes()}, {Name: "bert", Scopes: token.Scopes{token.ScopeRead}}} {
		secrets[tok.Name] = token.Generate()
		tok.Hash = token.HashOf(secrets[tok.Name])
		lines = append(lines, tok.String())
	}
	set, err := token.Parse([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	a := startNode(t, func(o *app.Options) { o.HTTPTokens = set })
	const private = "card-4711"
	auth := "Bearer " + secrets["anna"]
	add(t, a, `{"in":"1h","svc":"orders","id":"order-17","source":"/shop","data":{"secret":"`+private+`"}}`, "Authorization", auth)
	for user, sees := range map[string]bool{"anna": true, "bert": false} {
		b := openTab(t, a)
		b.open("/timers?q=order-17&source=/shop")
		b.sees("Log in")
		for _, text := range b.barriers() {
			t.Errorf("the login: %s", text)
		}
		b.fill("#token", secrets[user])
		b.press("Log in")
		b.sees("What happened")
		if got := strings.Contains(eval[string](b, "document.documentElement.outerHTML"), private); got != sees {
			t.Errorf("%s: got the payload on the page: %v, want %v", user, got, sees)
		}
		if got := eval[bool](b, `!!document.querySelector("form[action$='/cancel']")`); got != sees {
			t.Errorf("%s: got a form to cancel: %v, want %v", user, got, sees)
		}
		b.open("/tail?service=orders")
		b.sees("Live.")
		add(t, a, `{"in":"10ms","svc":"orders","id":"for-`+user+`","source":"/shop","data":{"secret":"`+private+`"}}`, "Authorization", auth)
		b.sees("for-" + user)
		if got := strings.Contains(eval[string](b, "document.documentElement.outerHTML"), private); got != sees {
			t.Errorf("%s: got the payload in the tail: %v, want %v", user, got, sees)
		}
		b.press("Log out")
		b.until("the session has ended", `location.pathname === "/login"`)
		b.open("/timers")
		b.until("another page needs a login", `location.pathname === "/login"`)
	}
}
