package browser

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/belfryio/belfry/internal/waittest"
)

// axe is axe-core, which finds barriers for people with disabilities.
//
//go:embed testdata/axe.min.js
var axe string

//go:embed testdata/vendored.txt
var vendored string

// TestVendored: axe-core has the checksum in vendored.txt.
func TestVendored(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(vendored) {
		if f := strings.Fields(line); !strings.HasPrefix(line, "#") && len(f) == 5 {
			if sum := sha256.Sum256([]byte(axe)); f[0] != "axe.min.js" || hex.EncodeToString(sum[:]) != f[4] {
				t.Errorf("got SHA-256 %x, want that of %s", sum, line)
			}
			return
		}
	}
	t.Fatal("vendored.txt has no file")
}

// TestReports: the tab notes an error of a script, what the content security policy stops, and a barrier.
func TestReports(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/policy" {
			w.Header().Set("Content-Security-Policy", "script-src 'none'")
		}
		fmt.Fprint(w, `<!doctype html><title>x</title><link rel="icon" href="data:,"><input name="unlabelled"><script>throw new Error("on purpose")</script>`)
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]string{"/script": "on purpose", "/policy": "Content Security Policy"} {
		b := openPlainTab(t, s.URL)
		b.open(path)
		if found := strings.Join(b.barriers(), "\n"); !strings.Contains(found, "label: ") {
			t.Errorf("%s: axe got %q, want the field without a label", path, found)
		}
		waittest.Until(t, "the tab notes "+want, func() bool { return strings.Contains(strings.Join(b.reported(), "\n"), want) }, func() string { return strings.Join(b.reported(), "\n") })
	}
}

// TestPages: each page has no barrier that axe finds, in light on a wide screen and in dark on a
// narrow one, and fits the screen.
func TestPages(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	a := startNode(t, nil)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the database is down", http.StatusGone)
	}))
	t.Cleanup(target.Close)
	add(t, a, `{"in":"1h","svc":"orders","id":"order-17","source":"/shop","type":"order.timeout","data":{"order":17}}`)
	add(t, a, `{"in":"2h","svc":"orders","id":"order-18","source":"/shop","type":"order.timeout","data":{"order":18}}`)
	add(t, a, `{"in":"10ms","svc":"orders","id":"order-16","source":"/shop","callback":"`+target.URL+`/expired"}`)
	add(t, a, `{"cron":"30 2 * * *","tz":"Europe/Berlin","svc":"reports","id":"nightly","source":"/reports"}`)
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(busy.Close)
	add(t, a, `{"in":"10ms","svc":"orders","id":"order-19","source":"/shop","group":"season","key":"customer-42","backoff":"1h","callback":"`+busy.URL+`/expired"}`)
	add(t, a, `{"in":"2h","svc":"orders","id":"order-20","source":"/shop","group":"season"}`)
	call(t, a, http.MethodPut, "/v1/flows/api.example.com", "application/json", `{"rate":"100/m","burst":10,"parallel":5}`)
	call(t, a, http.MethodPut, "/v1/flows/adds:orders", "application/json", `{"rate":"1000/s","pending":100000}`)
	call(t, a, http.MethodPut, "/v1/calendars/holidays", "application/json", `{"dates":["*-12-25","*-12-26","*-01-01","2027-03-26"]}`)
	b := openTab(t, a)
	waitForDead(b, 1)
	waittest.Until(t, "the ordering key is busy", func() bool {
		b.open("/orders")
		return eval[int](b, `document.querySelectorAll("tbody tr").length`) == 1
	}, b.describe)
	pages := map[string]string{
		"now": "/now", "upcoming": "/upcoming?span=day", "services": "/services", "service": "/services/orders",
		"timers": "/timers", "timer": "/timers?q=order-17&source=/shop", "failed": "/timers?q=order-16&source=/shop", "new": "/new?cron=30+2+*+*+MON-FRI&tz=Europe/Berlin&svc=reports",
		"schedules": "/schedules", "schedule": "/timers?q=nightly&source=/reports", "dead": "/dead", "rejected": "/rejected", "tail": "/tail?service=orders", "cluster": "/cluster", "doctor": "/cluster/doctor",
		"groups": "/groups", "orders": "/orders", "limits": "/limits", "limit": "/limits/key?key=api.example.com", "calendars": "/calendars", "calendar": "/calendars/holidays",
	}
	for _, look := range []struct {
		scheme string
		width  int64
	}{{"light", 1000}, {"dark", 360}} {
		b.scheme(look.scheme)
		b.do(chromedp.EmulateViewport(look.width, 800))
		for _, name := range slices.Sorted(maps.Keys(pages)) {
			b.open(pages[name])
			b.ready(name)
			if name == "services" {
				waittest.Until(t, "the search index has the services", func() bool {
					b.open(pages[name])
					return eval[int](b, `document.querySelectorAll("tbody tr").length`) == 2
				}, b.describe)
				b.ready(name)
			}
			if name == "service" {
				waittest.Until(t, "the search index has the call", func() bool {
					b.open(pages[name])
					return eval[bool](b, `document.body.innerText.includes("The slowest")`)
				}, b.describe)
				b.ready(name)
			}
			for _, text := range b.barriers() {
				t.Errorf("%s, %s, %d pixels: %s", name, look.scheme, look.width, text)
			}
			if wide := eval[int64](b, "document.documentElement.scrollWidth"); wide > look.width {
				t.Errorf("%s: got a page of %d pixels on a screen of %d", name, wide, look.width)
			}
			if look.scheme == "light" {
				b.screenshot(name)
			}
		}
	}
}

// waitForDead waits until n timers have failed, and the page of dead letters has n of them. A dead letter is there before
// the record of its timer says so, and cannot be replayed until then.
func waitForDead(b *tab, n int) {
	b.t.Helper()
	for _, path := range []string{"/timers?state=fail", "/dead"} {
		waittest.Until(b.t, fmt.Sprintf("there are %d dead letters", n), func() bool {
			b.open(path)
			return eval[int](b, `document.querySelectorAll("tbody tr").length`) == n
		}, b.describe)
	}
}

// scheme lets pages be light or dark.
func (b *tab) scheme(scheme string) {
	b.t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, p); err != nil {
		b.t.Fatal(err)
	}
}

// ready waits until a page has what its scripts add.
func (b *tab) ready(name string) {
	b.t.Helper()
	b.until("all times are local", `!document.querySelector("time[datetime]:not([data-local])")`)
	switch name {
	case "now":
		b.until("the problems are there", `document.querySelector(".problems, .good")`)
	case "cluster":
		b.until("the findings are there", `document.querySelector(".findings")`)
	case "schedules":
		b.until("the runs are there", `!document.querySelector("a[hx-trigger=revealed] ") || document.querySelector(".strip, td .none")`)
	case "tail":
		b.sees("Live.")
	}
}

// barriers returns what axe finds on the page.
func (b *tab) barriers() []string {
	b.t.Helper()
	if eval[bool](b, "typeof axe === 'undefined'") {
		eval[bool](b, axe+"; true")
	}
	found, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]string](
		`axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + v.help + ": " + n.html + " " + n.failureSummary)))`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("axe: %v; the page is %s", err, b.describe())
	}
	return found
}

// screenshots is the folder of the pictures in the documentation.
const screenshots = "../../docs/images"

// screenshot writes a picture of the page, if BELFRY_SCREENSHOTS asks for it.
func (b *tab) screenshot(name string) {
	b.t.Helper()
	if os.Getenv("BELFRY_SCREENSHOTS") == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	const most = 150_000
	if len(picture) > most || !bytes.HasPrefix(picture, []byte("\x89PNG")) {
		b.t.Errorf("the picture of %s has %d bytes; it must be a PNG of at most %d", name, len(picture), most)
	}
	if err := os.WriteFile(filepath.Join(screenshots, "console-"+name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
