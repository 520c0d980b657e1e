package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// testBound bounds what one test does in the browser.
const testBound = 8 * time.Minute

// chrome is the browser that all tests share; nil without one.
var chrome context.Context

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run starts the browser, runs the tests and ends the browser.
func run(m *testing.M) int {
	path := browserPath()
	if path == "" && os.Getenv("BELFRY_BROWSER") == "required" {
		fmt.Fprintln(os.Stderr, "BELFRY_BROWSER=required, and no Chromium was found: apt-get install chromium")
		return 1
	}
	ignored := append(natstest.ServerLeaks(), goleak.IgnoreCurrent())
	if path != "" {
		stop, err := start(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "start the browser:", err)
			return 1
		}
		defer stop()
	}
	code := m.Run()
	if path == "" && code == 0 {
		if err := goleak.Find(ignored...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// browserPath returns the path of a Chromium; "" if there is none.
func browserPath() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// start starts the browser with a profile of its own.
func start(path string) (stop func(), err error) {
	profile, err := os.MkdirTemp("", "belfry-browser-")
	if err != nil {
		return nil, err
	}
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(2*time.Minute))
	if os.Geteuid() == 0 {
		o = append(o, chromedp.NoSandbox) // Chromium refuses to run as root with it
	}
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), o...)
	ctx, cancel := chromedp.NewContext(alloc)
	stop = func() {
		closing, done := context.WithTimeout(ctx, time.Minute)
		defer done()
		_ = chromedp.Cancel(closing) // the next line kills it otherwise
		cancel()
		cancelAlloc()
		_ = os.RemoveAll(profile) // files of a browser that was killed
	}
	if err := chromedp.Do(ctx); err != nil {
		stop()
		return nil, err
	}
	chrome = ctx
	return stop, nil
}

// startNode starts a node; change may set further options.
func startNode(t *testing.T, change func(*app.Options)) *app.App {
	t.Helper()
	o := app.Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: app.ProfileFast, Shards: 2,
		AllowLoopback: true, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel),
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

// tab is a tab of the browser, with cookies of its own. A test fails if the browser reports an error in
// it.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu     sync.Mutex
	errors []string
	// questions are those of pages, which the tab has answered with yes.
	questions []string
}

// openTab opens a tab for the console of a node. It skips the test without a browser.
func openTab(t *testing.T, a *app.App) *tab {
	t.Helper()
	b := openPlainTab(t, "http://"+a.HTTPAddr())
	t.Cleanup(func() {
		for _, text := range b.reported() {
			t.Errorf("the browser reported: %s", text)
		}
	})
	return b
}

func openPlainTab(t *testing.T, base string) *tab {
	t.Helper()
	needBrowser(t)
	b := &tab{t: t, base: base}
	ctx, cancel := chromedp.NewContext(chrome, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.listen))
	t.Cleanup(cancel)
	var stop context.CancelFunc
	b.ctx, stop = context.WithTimeout(ctx, testBound)
	t.Cleanup(stop)
	b.do(chromedp.EmulateViewport(1200, 900))
	return b
}

// needBrowser skips a test without a browser, and says what is then not shown.
func needBrowser(t *testing.T) {
	t.Helper()
	if chrome == nil {
		t.Skipf("no Chromium was found, so %s did not show that the console works in a browser: apt-get install chromium", t.Name())
	}
}

// listen notes what the browser reports. It must not call the browser itself.
func (b *tab) listen(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, "exception: "+e.ExceptionDetails.Text+" "+asText(e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			b.errors = append(b.errors, fmt.Sprintf("console.%s: %s", e.Type, asText(e.Args)))
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Source == "security" {
			b.errors = append(b.errors, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *page.EventJavascriptDialogOpening:
		b.questions = append(b.questions, e.Message)
		go func() { // fails only if the tab is closed
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	}
}

func asText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// reported returns the errors that the browser has reported.
func (b *tab) reported() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.errors...)
}

// do carries out actions.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page is %s", err, b.describe())
	}
}

// open loads a page of the console.
func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// fill replaces the value of a field by typing.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	if text == "" {
		text = kb.Backspace
	}
	b.do(chromedp.WaitVisible(chromedp.CSS(selector)), chromedp.Focus(chromedp.CSS(selector)))
	eval[bool](b, fmt.Sprintf("document.querySelector(%q).select(), true", selector))
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// click clicks an element by a CSS selector.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(chromedp.CSS(selector)), chromedp.Click(chromedp.CSS(selector)))
}

// press clicks the button with a text.
func (b *tab) press(text string) {
	b.t.Helper()
	mark := fmt.Sprintf(`[...document.querySelectorAll("button")].filter((b) => b.textContent.trim() === %q).map((b) => b.id = b.id || "pressed-" + Math.random().toString(36).slice(2))[0] || ""`, text)
	id := ""
	waittest.Until(b.t, "there is a button "+text, func() bool {
		id = eval[string](b, mark)
		return id != ""
	}, b.describe)
	b.click("#" + id)
}

// until waits until a JavaScript expression is true, also in a page that loads meanwhile.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	waittest.Until(b.t, what, func() bool {
		return eval[bool](b, "document.readyState === 'complete' && !!("+expression+")")
	}, b.describe)
}

// sees waits until a text is visible on the page.
func (b *tab) sees(text string) {
	b.t.Helper()
	b.until("the page shows "+text, fmt.Sprintf("document.body && document.body.innerText.includes(%q)", text))
}

// eval returns the value of a JavaScript expression; the zero value if the page is about to change.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if b.ctx.Err() != nil || errors.Is(err, context.Canceled) {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// describe returns the address and the text of the page.
func (b *tab) describe() string {
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`location.href + "\n" + (document.body ? document.body.innerText : "")`))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(v)
}
