package console_test

import (
	"bufio"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/console"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestConsole runs the tests that share a node on loopback, where no token is needed.
func TestConsole(t *testing.T) {
	t.Parallel()
	a := startNode(t, nil)
	b := newBrowser(t, a)
	waittest.Until(t, "the search index is open", func() bool { return !a.Visibility().Progress().AsOf.IsZero() })
	t.Run("on one node", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *browser){
			"timer": testTimer, "schedule": testSchedule, "pages": testPages, "xss": testXSS, "cross site": testCrossSite, "tricks": testTricks, "dead": testDead, "tail": testTail, "history": testHistory,
			"discard": testDiscard, "bulk": testBulk, "limits": testLimits, "calendars": testCalendars, "groups": testGroups, "orders": testOrders, "service": testService,
			"rejected": func(t *testing.T, b *browser) { testRejected(t, b, a) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, b)
			})
		}
	})
	if t.Failed() || testing.Short() || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // not all have run
	}
	for _, name := range console.Templates() {
		if name != "login" && name != "reopen" && !b.seen(name) { // TestLogin loads these two
			t.Errorf("no test has loaded the page %s", name)
		}
	}
}

// testTimer: a timer is added, found, moved and cancelled without JavaScript.
func testTimer(t *testing.T, b *browser) {
	b.get(t, "/new?in=15m&svc=orders").want(t, 200, "Fires once at")
	added := b.add(t, "in", "15m", "svc", "orders", "id", "order-17", "source", "/shop", "type", "order.timeout", "data", `{"order":17}`).want(t, 200, "The timer is stored.", "order-17", "&#34;order&#34;: 17")
	id := added.timer(t)
	b.get(t, "/timers?q=order-17&source=/shop").want(t, 200, "What happened", id)
	b.get(t, "/timers?q="+id).want(t, 200, "What happened")
	waittest.Until(t, "the search index has the timer", func() bool { return strings.Contains(b.get(t, "/timers?q=order-17").body, id) })
	b.get(t, "/timers?q=order-17").want(t, 200, "From the search index.", id, "/shop")
	b.get(t, "/timers?q=order-1*").want(t, 200, id)
	b.get(t, "/timers?q=order-19").want(t, 200, "The search index has no such timer")
	b.post(t, "/timers/"+id+"/move", form("in", "30m")).want(t, 200, "another due time", "reschedule")
	b.post(t, "/timers/"+id+"/pause", form("note", "wait for the bank")).want(t, 200, "wait for the bank", "paused")
	b.post(t, "/timers/"+id+"/resume", form()).want(t, 200, "pending")
	b.post(t, "/timers/cancel", form("timer", id)).want(t, 200, "Cancel 1 timers?")
	b.get(t, "/timers/"+id).want(t, 200, "pending")
	b.post(t, "/timers/cancel", form("timer", id, "confirm", "yes")).want(t, 200, "1 timers are cancelled")
	b.get(t, "/timers/"+id).want(t, 200, "cancelled").without(t, "Reschedule", "Change it", "hx-get=\"/timers")
	b.post(t, "/timers/"+id+"/cancel", form()).want(t, 200, "cancelled") // as in the API, a repeated cancel is none
}

// testSchedule: a schedule is made, paused, asked why, edited, triggered and backfilled.
func testSchedule(t *testing.T, b *browser) {
	b.get(t, "/new?cron=30+2+*+*+*&tz=Europe/Berlin").want(t, 200, "Times in Europe/Berlin")
	b.get(t, "/new?cron=30+2+*+*").want(t, 200, `class="problem"`)
	page := b.add(t, "cron", "30 2 * * *", "tz", "Europe/Berlin", "svc", "reports", "id", "nightly", "source", "/reports").want(t, 200, "Next runs", "The next year", "the clocks change")
	id := page.timer(t)
	waittest.Until(t, "the schedule is in the list", func() bool { return strings.Contains(b.get(t, "/schedules").body, "nightly") })
	b.get(t, "/schedules").want(t, 200, "nightly", "30 2 * * *")
	b.post(t, "/timers/"+id+"/pause", form("note", "migration")).want(t, 200, "Paused: migration")
	b.get(t, "/timers/"+id+"?at=2027-03-28").want(t, 200, "2027-03-28")
	b.get(t, "/timers/"+id+"?at=nonsense").want(t, 200, "nonsense")
	b.post(t, "/timers/"+id+"/resume", form("catchup", "skip")).want(t, 200, "It is resumed.")
	b.post(t, "/timers/"+id+"/edit", form("cron", "15 4 * * *", "tz", "Europe/Berlin")).want(t, 200, "Before", "After", "04:15")
	b.post(t, "/timers/"+id+"/edit", form("cron", "15 4 * * *", "tz", "Europe/Berlin", "confirm", "yes", "revision", "1")).want(t, 409, "revision")
	b.post(t, "/timers/"+id+"/edit", form("cron", "15 4 * * *", "tz", "Europe/Berlin", "confirm", "yes")).want(t, 200, "The schedule is changed.", "15 4 * * *")
	b.post(t, "/timers/"+id+"/trigger", form()).want(t, 200, "A run was asked for.")
	b.post(t, "/timers/"+id+"/backfill", form("from", "2027-01-01T00:00:00Z", "to", "2027-01-03T00:00:00Z")).want(t, 400)
	past := []string{"from", "2026-01-01T00:00:00Z", "to", "2026-01-03T23:00:00Z"}
	b.post(t, "/timers/"+id+"/backfill", form(past...)).want(t, 200, "Backfill 3 runs?")
	b.post(t, "/timers/"+id+"/backfill", form(append(past, "confirm", "yes")...)).want(t, 200, "The runs were asked for.")
	b.get(t, "/timers/"+id+"/runs").want(t, 200, "Runs of")
	b.post(t, "/timers/"+id+"/cancel", form()).want(t, 200, "cancelled")
}

// testPages: every page loads without JavaScript, with the headers that protect it.
func testPages(t *testing.T, b *browser) {
	for _, path := range []string{"/", "/timers", "/timers?state=fail", "/new", "/schedules", "/dead", "/rejected", "/now", "/upcoming", "/upcoming?span=month", "/upcoming?span=nonsense", "/services", "/tail", "/cluster", "/cluster/doctor", "/groups", "/orders", "/limits", "/limits/key?key=api.example.com", "/calendars"} {
		p := b.get(t, path).want(t, http.StatusOK, "<main")
		if got := p.header.Get("Content-Security-Policy"); got == "" {
			t.Errorf("%s has no Content-Security-Policy", path)
		}
		p.without(t, "<script>", "<style", " style=", "onclick")
	}
	b.get(t, "/nothing").want(t, 404, "no such page")
	b.get(t, "/timers/nonsense").want(t, 400, "nonsense")
}

// testDead: dead letters are grouped by cause, and replayed as a group.
func testDead(t *testing.T, b *browser) {
	var repaired atomic.Bool
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !repaired.Load() {
			w.WriteHeader(http.StatusGone)
		}
	}))
	t.Cleanup(target.Close)
	ids, letters := form(), form()
	for _, id := range []string{"dead-1", "dead-2"} {
		ids.Add("timer", b.add(t, "in", "1ms", "svc", "deadly", "id", id, "callback", target.URL).timer(t))
	}
	b.failed(t, "deadly", 2)
	letters["letter"] = b.get(t, "/dead?service=deadly").want(t, 200, "Replay these 2").letters()
	b.get(t, "/dead?service=deadly").want(t, 200, strings.TrimPrefix(target.URL, "http://"), "Looked at 2 dead letters: all of service deadly.")
	b.get(t, "/dead?service=deadly&host=other.example").want(t, 200, "No dead letters here.")
	repaired.Store(true)
	b.post(t, "/dead/replay", letters).want(t, 200, "2 dead letters are replayed")
	for _, id := range ids["timer"] {
		waittest.Until(t, "the replay succeeds", func() bool { return strings.Contains(b.get(t, "/timers/"+id).body, "state success") })
	}
	b.post(t, "/dead/replay", letters).want(t, 200, "0 dead letters are replayed")
	b.post(t, "/timers/"+ids.Get("timer")+"/replay", form()).want(t, 404)
}

// open opens a stream of events, which is closed at the end of the test.
func (b *browser) open(t *testing.T, path string) io.ReadCloser {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("got status %d and %s, want a stream", resp.StatusCode, got)
	}
	return resp.Body
}

// testTail: the tail has the stream of the API.
func testTail(t *testing.T, b *browser) {
	b.get(t, "/tail").want(t, 200, "Name a service").without(t, "data-events")
	b.get(t, "/tail?service=tailed").want(t, 200, `data-events="/tail/events?service=tailed"`)
	stream := b.open(t, "/tail/events?service=tailed")
	b.add(t, "in", "1ms", "svc", "tailed", "id", "tailed-1")
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"id":"tailed-1"`) {
			return
		}
	}
	t.Fatalf("the stream ended without the event: %v", lines.Err())
}

// testHistory: the search index shows a timer on the pages of numbers, and finds it by its host and error.
func testHistory(t *testing.T, b *browser) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	t.Cleanup(target.Close)
	host := strings.TrimPrefix(target.URL, "http://")
	b.add(t, "in", "1ms", "svc", "counted", "id", "counted-1", "callback", target.URL)
	b.add(t, "in", "10m", "svc", "counted", "id", "counted-2")
	b.add(t, "in", "10m", "svc", "counted", "id", "counted-3")
	b.add(t, "in", "10m", "svc", "counted", "id", "counted-4")
	for _, one := range []struct{ path, want string }{
		{"/timers?host=" + host, "counted-1"}, {"/timers?error=410&host=" + host, "counted-1"}, {"/services", " HTTP status 410 (Gone)<"}, {"/services/counted", "1 call of"}, {"/now", "p50"}, {"/upcoming", "counted"},
	} {
		waittest.Until(t, one.path+" shows "+one.want, func() bool { return strings.Contains(b.get(t, one.path).body, one.want) }, func() string { return b.get(t, one.path).body })
	}
}

// testService: the page of a service has its numbers, its last call with the answer, and the slowest ones;
// the page of a timer has the node and the place of its event.
func testService(t *testing.T, b *browser) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte("no such order"))
	}))
	t.Cleanup(target.Close)
	id := b.add(t, "in", "1ms", "svc", "called", "id", "called-1", "callback", target.URL+"/hook").timer(t)
	b.add(t, "in", "10m", "svc", "called", "id", "called-2")
	waittest.Until(t, "the page has the call", func() bool {
		p := b.get(t, "/services/called")
		return strings.Contains(p.body, "1 call of") && strings.Contains(p.body, "<dd>1</dd>")
	}, func() string { return b.get(t, "/services/called").body })
	b.get(t, "/services/called?tenant=").want(t, 200, "The last call", target.URL+"/hook", "HTTP status 410 (Gone) after", "no such order", "100.0 % failed", "The slowest", "called-1", "1 failed")
	b.get(t, "/services").want(t, 200, `href="/services/called"`, "a minute", "100.0 %")
	b.get(t, "/services/unknown").want(t, 404, "no timer of service")
	b.get(t, "/services/called?tenant=acme").want(t, 404)
	b.get(t, "/timers/"+id).want(t, 200, "Node ", "the owner of its shard in epoch", "of TIMERS_FIRED")
}

// TestNoHistory: a node without a search index says so, and how to get it.
func TestNoHistory(t *testing.T) {
	t.Parallel()
	a := startNode(t, func(o *app.Options) { o.Roles = app.SharedRoles() })
	b := newBrowser(t, a)
	for _, path := range []string{"/now", "/upcoming", "/services", "/services/orders"} {
		b.get(t, path).want(t, 200, "keeps no search index", "role visibility")
	}
	b.get(t, "/timers").want(t, 200).without(t, `name="error"`)
	b.get(t, "/timers?q=order-17").want(t, 200, "keeps no search index")
}

// TestForgotten: a timer whose record has expired is on its page from the history.
func TestForgotten(t *testing.T) {
	t.Parallel()
	a := startNode(t, func(o *app.Options) { o.Retention = time.Second })
	b := newBrowser(t, a)
	id := b.add(t, "in", "1ms", "svc", "orders", "id", "order-17", "source", "/shop").timer(t)
	waittest.Until(t, "the page is from the history", func() bool { return strings.Contains(b.get(t, "/timers/"+id).body, "From history") }, func() string { return b.get(t, "/timers/"+id).body })
	b.get(t, "/timers/"+id).want(t, 200, "order-17", "claimed", "success").without(t, "hx-get=\"/timers", "Change it")
	b.get(t, "/timers?q=order-17").want(t, 200, id)
}
