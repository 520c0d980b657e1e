package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
)

// call sends a request with a JSON body to the API.
func call(t *testing.T, a *app.App, method, path, contentType, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: got status %d, want 200", method, path, resp.StatusCode)
	}
}

// usable fails the test for each barrier on a page that only a form leads to, in light and in dark.
func (b *tab) usable(name string) {
	b.t.Helper()
	for _, scheme := range []string{"dark", "light"} {
		b.scheme(scheme)
		for _, text := range b.barriers() {
			b.t.Errorf("%s, %s: %s", name, scheme, text)
		}
	}
}

// TestOperations: somebody discards dead letters, reschedules all timers of a service with a page that goes on by
// itself, stores a limit and a calendar, and pauses a group, each after a page that says what will change.
func TestOperations(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	a := startNode(t, nil)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	t.Cleanup(target.Close)
	for _, id := range []string{"order-1", "order-2"} {
		add(t, a, `{"in":"10ms","svc":"orders","id":"`+id+`","source":"/shop","callback":"`+target.URL+`/expired"}`)
	}
	const n = 320 // more than a step
	var events []string
	for i := range n {
		events = append(events, fmt.Sprintf(`{"specversion":"1.0","id":"reminder-%d","source":"/shop","type":"reminder","timerafter":"1h","timersvc":"reminders","timergroup":"season"}`, i))
	}
	for batch := range slices.Chunk(events, 40) { // small ones are stored in time on a busy machine, too
		call(t, a, http.MethodPost, "/v1/events", "application/cloudevents-batch+json", "["+strings.Join(batch, ",")+"]")
	}
	b := openTab(t, a)

	waitForDead(b, 2)
	b.press("Discard the selected…")
	b.sees("Discard 2 dead letters?")
	b.usable("discard")
	b.screenshot("discard")
	b.press("Discard them")
	b.sees("2 dead letters are discarded")

	b.open("/timers?service=reminders")
	b.fill("input[name=in]", "2h")
	b.press("Reschedule all that match…")
	b.sees("or more timers?")
	b.usable("reschedule")
	b.press("Reschedule them")
	b.until("it is done in several steps", `/^\d+ timers are rescheduled$/.test(document.querySelector("h1").innerText)`)
	b.usable("rescheduled")

	b.open("/limits")
	b.fill(`form[action="/limits/set"] input[name=key]`, "api.example.com")
	b.fill(`form[action="/limits/set"] input[name=rate]`, "100/m")
	b.press("What would change?")
	b.sees("Change the limit of api.example.com?")
	b.usable("limitchange")
	b.screenshot("limitchange")
	b.press("Store it")
	b.sees("The limit is stored.")

	b.open("/calendars")
	b.fill("input[name=name]", "holidays")
	b.fill("textarea[name=dates]", "*-12-25 *-01-01")
	b.press("What would change?")
	b.sees("Store calendar holidays?")
	b.usable("calendarchange")
	b.screenshot("calendarchange")
	b.press("Store it")
	b.sees("The calendar is stored.")

	b.open("/groups?group=season")
	b.fill("input[name=note]", "stocktaking")
	b.press("Pause…")
	b.sees("or more timers?")
	b.press("Pause them")
	b.until("it is done", `/^\d+ timers are paused$/.test(document.querySelector("h1").innerText)`)
}
