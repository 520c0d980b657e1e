package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const (
	// pendingEnv is the number of timers that wait while TestPagesWithPending loads the pages; 300 by
	// default.
	pendingEnv = "BELFRY_CONSOLE_PENDING"
	// pendingLoads is the number of times that it loads each page if pendingEnv is set.
	pendingLoads = 20
	// pendingWindow bounds the adds that wait for their answer.
	pendingWindow = 4096
)

// timed are the pages of the console and the lists of the API. {timer}, {schedule}, {from}, {hour}, {day} and
// {month} are replaced.
var timed = []string{
	"/", "/now", "/timers", "/timers?state=pending", "/timers?state=fail", "/timers?service=svc3&state=pending", "/timers?service=svc3&state=fail", "/timers?group=group-3", "/timers?group=none",
	"/timers?q=order-17", "/timers?q=order-1*", "/timers?error=410", "/timers?host={host}", "/timers/{timer}", "/upcoming?span=hour", "/upcoming?span=day", "/upcoming?span=month",
	"/new", "/schedules", "/timers/{schedule}", "/timers/{schedule}/runs", "/dead", "/rejected", "/services", "/tail", "/cluster", "/cluster/doctor",

	"/v1/timers", "/v1/timers?limit=100&state=pending", "/v1/timers?limit=100&service=svc3", "/v1/timers?limit=100&state=fail", "/v1/timers?q=order-17", "/v1/timers?q=order-1*&limit=100",
	"/v1/timers?sort=due&limit=100", "/v1/timers?sort=due&limit=100&service=svc3&state=pending", "/v1/timers?sort=done&order=desc&limit=100&state=fail", "/v1/timers?error=410&limit=100",
	"/v1/timers/{timer}", "/v1/timers/{timer}/why", "/v1/counts", "/v1/counts?bucket=1m&from={from}&to={hour}", "/v1/counts?bucket=1m&from={from}&to={day}",
	"/v1/counts?bucket=15m&by_service=true&from={from}&to={day}", "/v1/counts?bucket=6h&by_service=true&from={from}&to={month}",
	"/v1/dead-letters", "/v1/rejections", "/v1/order-keys", "/v1/services", "/v1/flows", "/v1/status", "/v1/doctor",
}

// TestPagesWithPending loads each page of the console, and each list of the API, while many timers wait, and logs
// how long each takes.
func TestPagesWithPending(t *testing.T) {
	t.Parallel()
	count, loads := 300, 1
	if text := os.Getenv(pendingEnv); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		loads = pendingLoads
	}
	a := startNode(t, func(o *app.Options) { o.Shards = 0 })
	gone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusGone) }))
	t.Cleanup(gone.Close)
	begun := time.Now()
	addPending(t, a, count, gone.URL)
	t.Logf("%d timers added after %s", count, time.Since(begun).Round(time.Second))
	waittest.UntilWithin(t, max(waittest.Bound, time.Duration(count)*10*time.Millisecond), "an index with all timers", func() bool {
		p := a.Visibility().Progress()
		return p.Rows >= int64(count) && !p.CatchingUp && !p.CountsOnly && p.Behind == 0
	}, func() string { return fmt.Sprintf("%+v", a.Visibility().Progress()) })
	t.Logf("%d entries in the index after %s", a.Visibility().Progress().Rows, time.Since(begun).Round(time.Second))
	b := newBrowser(t, a)
	now := time.Now().UTC()
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	replace := strings.NewReplacer("{timer}", schemas.NewTimerID("/shop", "order-17").String(), "{schedule}", schemas.NewTimerID("/shop", "daily-1").String(),
		"{host}", strings.TrimPrefix(gone.URL, "http://"), "{from}", at(0), "{hour}", at(time.Hour), "{day}", at(24*time.Hour), "{month}", at(30*24*time.Hour))
	for _, path := range timed {
		path = replace.Replace(path)
		times := make([]time.Duration, 0, loads)
		for range loads {
			begun := time.Now()
			b.get(t, path).want(t, http.StatusOK)
			times = append(times, time.Since(begun))
		}
		slices.Sort(times)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		t.Logf("%8.1f ms least %8.1f ms median %8.1f ms worst: %s", ms(times[0]), ms(times[len(times)/2]), ms(times[len(times)-1]), path)
	}
}

// addPending adds count timers of 20 services, most of which are due in the next 30 days and a tenth in the next
// hours. One of 500 has failed, and one of 1000 is a schedule.
func addPending(t *testing.T, a *app.App, count int, gone string) {
	t.Helper()
	nc, err := a.Connect("pending")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(pendingWindow))
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		id, rest := fmt.Sprintf("order-%d", i), fmt.Sprintf(`"timerafter":"PT%dS"`, 7200+i*7919%(30*24*3600))
		switch {
		case i%500 == 5:
			rest = `"timerafter":"PT0S","timermaxattempts":1,"timercallback":"` + gone + `/hook"`
		case i%1000 == 1:
			id, rest = fmt.Sprintf("daily-%d", i), `"timercron":"0 9 * * *"`
		case i%10 == 0:
			rest = fmt.Sprintf(`"timerafter":"PT%dS"`, 600+i*7%7200)
		}
		event := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/shop","type":"order.due","timersvc":"svc%d","timergroup":"group-%d",%s,"data":{"order":%d}}`, id, i%20, i%5000, rest, i)
		if _, err := js.PublishAsync(schemas.SubjectAdd, []byte(event), jetstream.WithStallWait(waittest.Bound)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Bound)
	defer cancel()
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("not all adds were answered")
	}
}
