package httpapi_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testSearch: what became of an order, by its id alone; counts; refusals.
func testSearch(t *testing.T, n *node) {
	first := n.add(t, `{"in":"1h","svc":"search","group":"sg","id":"find-1","source":"/search"}`)
	n.add(t, `{"in":"2h","svc":"search","id":"find-2","source":"/search","callback":"https://search.example/x"}`)
	n.send(t, "DELETE", "/v1/timers/"+first.Timer, "").want(t, 200)
	find := func(query string, want ...string) {
		t.Helper()
		var got []string
		waittest.Until(t, fmt.Sprintf("%s finds %v", query, want), func() bool {
			page := into[schemas.SearchReply](t, n.send(t, "GET", "/v1/timers?"+query, "").want(t, 200, `"from":"history"`))
			got = nil
			for _, timer := range page.Timers {
				got = append(got, timer.ID+" "+timer.State.String())
			}
			return fmt.Sprint(got) == fmt.Sprint(want)
		}, func() string { return fmt.Sprint(got) })
	}
	find("q=find-1", "find-1 cancelled")
	find("id=find-2", "find-2 pending")
	find("q=find-*", "find-1 cancelled", "find-2 pending")
	find("source=/search&order=desc", "find-2 pending", "find-1 cancelled")
	find("host=search.example", "find-2 pending")
	find("service=search&sort=done", "find-1 cancelled")
	find("q=find-1&state=pending")
	find("error=nothing+has+this+error")
	find("service=search&due_from="+url.QueryEscape(time.Now().Add(90*time.Minute).Format(time.RFC3339)), "find-2 pending")
	counts := into[schemas.CountsReply](t, n.send(t, "GET", "/v1/counts?service=search&by_service=true&bucket=1h&from="+
		url.QueryEscape(time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))+"&to="+url.QueryEscape(time.Now().Add(4*time.Hour).UTC().Format(time.RFC3339)), "").want(t, 200))
	if len(counts.Totals) != 2 || len(counts.Buckets) < 2 {
		t.Errorf("got %+v, want two states and the buckets of two due times", counts)
	}
	for _, query := range []string{"sort=up", "order=up", "attribute=x", "due_from=now", "cursor=x&q=y", "runs_of=1", "limit=101&q=x"} {
		n.send(t, "GET", "/v1/timers?"+query, "").want(t, 400)
	}
	for _, query := range []string{"from=now", "bucket=5", "by_service=7", "from=2027-01-01T00:00:00Z", "from=2027-01-01T00:00:00Z&to=2028-01-01T00:00:00Z"} {
		n.send(t, "GET", "/v1/counts?"+query, "").want(t, 400)
	}
}
