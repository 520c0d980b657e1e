package browser

import (
	"net/http"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
)

// add adds a timer by HTTP, as a program does.
func add(t *testing.T, a *app.App, fields string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.HTTPAddr()+"/v1/timers", strings.NewReader(fields))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
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
	b.fill("main input[name=q]", "order-17")
	b.fill("main input[name=source]", "/shop")
	b.press("Find")
	b.sees("What happened")
	b.until("the times are local", `document.querySelector("time[data-local]")`)
	b.press("Cancel the timer")
	b.sees("The timer is cancelled.")
	b.until("the state is cancelled", `document.querySelector("h1 .state.cancelled")`)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.dialogs) != 1 || b.dialogs[0] != "Cancel this timer?" {
		t.Errorf("got the questions %q, want one", b.dialogs)
	}
}
