package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// testFlows: a limit is stored, shown, paused and deleted, each only at its revision.
func testFlows(t *testing.T, n *node) {
	testsize.NotShort(t, "it waits until changes are in force")
	do := func(method, path, body string, header ...string) reply {
		t.Helper()
		return n.send(t, method, "/v1/flows/"+path, body, append([]string{"Content-Type", jsonType}, header...)...)
	}
	const key = "http:flows%2Fa" // http:flows/a
	do("PUT", key, `{"rate":"5/s","dry_run":true}`).want(t, 200, `"rate":"5/1s"`)
	n.send(t, "GET", "/v1/flows/"+key, "").want(t, 200, `"keys":[`)
	first := do("PUT", key, `{"rate":"5/s","parallel":2,"by":"anna"}`).want(t, 200, `"key":"http:flows/a"`, `"rate":"5/1s"`, `"by":"anna"`).header.Get("ETag")
	if got := n.send(t, "GET", "/v1/flows/"+key, "").want(t, 200, `"parallel":2`).header.Get("ETag"); got != first || got == "" {
		t.Errorf("got ETag %s, want that of the change, %s", got, first)
	}
	do("PUT", "http:flows-none", `{"rate":"5/s"}`, "If-Match", "*").want(t, 412, `"precondition_failed"`, `"pointer":"#/If-Match"`)
	do("POST", "http:flows-none/pause", ``, "If-Match", "*").want(t, 412, `"precondition_failed"`)
	if got := n.send(t, "GET", "/v1/flows", "").want(t, 200); strings.Contains(string(got.body), "http:flows-none") {
		t.Errorf("got %s, want no limit of http:flows-none", got.body)
	}
	do("POST", key+"/pause", `{"note":"repair"}`, "If-Match", first).want(t, 200, `"pause_note":"repair"`)
	do("PUT", key, `{"rate":"6/s"}`, "If-Match", first).want(t, 412, `"precondition_failed"`)
	n.send(t, "DELETE", "/v1/flows/"+key, "", "If-Match", "*").want(t, 409, `"conflict"`, "resume it first")
	n.send(t, "GET", "/v1/flows", "").want(t, 200, `"key":"http:flows/a"`)
	do("POST", key+"/resume", ``, "If-Match", "*").want(t, 200)
	do("PUT", key, `{"rate":"7/s"}`, "If-Match", "*").want(t, 200, `"rate":"7/1s"`)
	do("POST", "http:flows-none/resume", ``, "If-Match", "*").want(t, 404)
	n.send(t, "DELETE", "/v1/flows/"+key+"?by=anna", "").want(t, 200, `"before":{`)
	n.send(t, "DELETE", "/v1/flows/"+key, "").want(t, 404)
	do("PUT", "a%20b", `{"rate":"5/s"}`).want(t, 400)
	do("PUT", key, `{"rate":"often"}`).want(t, 400)
	do("PUT", key, `{"speed":"5/s"}`).want(t, 400)
}

// testFlowReset: the calls of a key that its target has stopped begin again.
func testFlowReset(t *testing.T, n *node) {
	testsize.NotShort(t, "it waits until changes are in force")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(s.Close)
	n.add(t, `{"in":"1ms","svc":"reset","flow":"http:reset","callback":"`+s.URL+`/hook-1"}`)
	waittest.Until(t, "the target has stopped the key", func() bool {
		return strings.Contains(string(n.send(t, "GET", "/v1/flows/http:reset", "").want(t, 200).body), `"hold":{`)
	})
	n.send(t, "POST", "/v1/flows/http:reset/reset", `{"by":"anna"}`, "Content-Type", jsonType).want(t, 200, `"before":{"key":"http:reset"`)
	n.send(t, "POST", "/v1/flows/http:none/reset", "").want(t, 404)
}

// testCalendars: a calendar is stored, shown and deleted, each only at its revision.
func testCalendars(t *testing.T, n *node) {
	testsize.NotShort(t, "it waits until changes are in force")
	put := func(body string, header ...string) reply {
		t.Helper()
		return n.send(t, "PUT", "/v1/calendars/http", body, append([]string{"Content-Type", jsonType}, header...)...)
	}
	put(`{"dates":["2027-12-25"],"dry_run":true}`).want(t, 200, `"schedules":0`)
	put(`{"dates":["2027-12-25"]}`, "If-Match", "*").want(t, 412, `"precondition_failed"`, `"pointer":"#/If-Match"`)
	n.send(t, "GET", "/v1/calendars/http", "").want(t, 404)
	first := put(`{"dates":["2027-12-25"],"by":"anna"}`).want(t, 200, `"count":1`, `"by":"anna"`).header.Get("ETag")
	n.send(t, "GET", "/v1/calendars", "").want(t, 200, `"name":"http"`)
	if got := n.send(t, "GET", "/v1/calendars/http", "").want(t, 200, `"dates":["2027-12-25"]`).header.Get("ETag"); got != first {
		t.Errorf("got ETag %s, want that of the change, %s", got, first)
	}
	put(`{"dates":["2027-01-01"]}`, "If-Match", `"999999"`).want(t, 412, `"precondition_failed"`)
	first = put(`{"dates":["2027-12-26"]}`, "If-Match", "*").want(t, 200, `"count":1`).header.Get("ETag")
	n.send(t, "DELETE", "/v1/calendars/http", "", "If-Match", `"999999"`).want(t, 412)
	s := n.add(t, `{"cron":"0 9 * * *","svc":"calendars","exclude":"http"}`)
	n.send(t, "DELETE", "/v1/calendars/http", "", "If-Match", "*").want(t, 409, `"conflict"`)
	n.send(t, "DELETE", "/v1/timers/"+s.Timer, "").want(t, 200)
	n.send(t, "DELETE", "/v1/calendars/http?by=anna", "", "If-Match", first).want(t, 200, `"count":1`)
	put(`{"dates":["yesterday"]}`).want(t, 400)
	put(`{"dates":[]}`).want(t, 400)
}

// testOverview: the status names the node, and the doctor has findings.
func testOverview(t *testing.T, n *node) {
	waittest.Until(t, "the node has sent a heartbeat", func() bool {
		r := n.send(t, "GET", "/v1/status", "")
		return r.status == http.StatusOK && strings.Contains(string(r.body), `"roles":["`)
	})
	n.send(t, "GET", "/v1/status", "").want(t, 200, `"name":"TIMERS_FIRED"`, `"problems":[`, `"shards":[{"shard":0`)
	n.send(t, "GET", "/v1/doctor", "").want(t, 200, `"check":"version","level":"ok"`, `"check":"shards"`, `"errors":`)
}

// TestOverviewLimit: the requests that read the state of everything are bounded.
func TestOverviewLimit(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}, httpapi.MaxOverviews), make(chan struct{})
	c := serveFake(t, fake{}, func(o *httpapi.Config) {
		o.Doctor = func(context.Context) ([]doctor.Finding, error) {
			entered <- struct{}{}
			<-leave
			return []doctor.Finding{{Check: "x", Level: doctor.Error, Text: "x"}}, nil
		}
	})
	var served sync.WaitGroup
	for range httpapi.MaxOverviews {
		served.Go(func() { c.send(t, "GET", "/v1/doctor", "").want(t, 200, `"errors":1`) })
	}
	for range httpapi.MaxOverviews {
		waittest.Receive(t, "a request", entered)
	}
	for _, path := range []string{"/v1/doctor", "/v1/status"} {
		if r := c.send(t, "GET", path, "").want(t, 503, "which is the limit"); r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	close(leave)
	served.Wait()
}
