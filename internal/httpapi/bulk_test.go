package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testBulk: timers are cancelled and moved by filter, page by page, and a dry run changes none.
func testBulk(t *testing.T, n *node) {
	post := func(path, body string, header ...string) reply {
		t.Helper()
		return n.send(t, "POST", path, body, append([]string{"Content-Type", jsonType}, header...)...)
	}
	for i := range 3 {
		n.add(t, fmt.Sprintf(`{"in":"1h","svc":"bulk","group":"b","id":"b%d","source":"/bulk","callback":"http://127.0.0.1:1/hook"}`, i))
	}
	post("/v1/bulk/cancel", `{"service":"bulk","state":["pending"],"schedule":false,"dry_run":true}`).want(t, 200, `"matched":3`, `"done":0`, `"state":"pending"`)
	moved := into[schemas.BulkReply](t, post("/v1/bulk/reschedule", `{"service":"bulk","in":"3h","by":"anna","limit":2}`).want(t, 200, `"done":2`, `"op":"reschedule"`, `"by":"anna"`))
	for cursor := moved.Cursor; cursor != ""; {
		page := into[schemas.BulkReply](t, post("/v1/bulk/reschedule", `{"service":"bulk","in":"3h","limit":2,"cursor":`+quoted(cursor)+`}`).want(t, 200))
		moved.Add(page.BulkCounts)
		cursor = page.Cursor
	}
	if moved.Done != 3 || moved.Refused != 0 {
		t.Errorf("the reschedule has %+v, want 3 done", moved.BulkCounts)
	}
	post("/v1/bulk/reschedule", `{"service":"bulk","at":"2031-01-01T00:00:00Z"}`).want(t, 200, `"done":3`, `"due":"2031-01-01T00:00:00.000Z"`)
	post("/v1/bulk/cancel", `{"group":"b","by":"anna"}`).want(t, 200, `"done":3`, `"refused":0`, `"state":"cancelled"`)
	post("/v1/bulk/cancel", `{"group":"b","by":"anna"}`).want(t, 200, `"matched":0`)

	post("/v1/bulk/cancel", `{}`).want(t, 400, "by service or group")
	post("/v1/bulk/cancel", `{"service":"bulk","dryrun":true}`).want(t, 400, "unknown field")
	post("/v1/bulk/cancel", `{"service":"bulk","state":["gone"]}`).want(t, 400)
	post("/v1/bulk/cancel", `{"service":"bulk"}`, "If-Match", `"1"`).want(t, 400, `"pointer":"#/If-Match"`)
	post("/v1/groups/b/pause", ``, "If-Match", `"1"`).want(t, 400, `"pointer":"#/If-Match"`)
	post("/v1/bulk/reschedule", `{"service":"bulk"}`).want(t, 400, "either in or at")
	post("/v1/bulk/reschedule", `{"service":"bulk","in":"soon"}`).want(t, 422)
	n.send(t, "GET", "/v1/bulk/cancel", "").want(t, 405)
	n.send(t, "GET", "/v1/services?limit=1001", "").want(t, 400, `"pointer":"#/limit"`)
	waittest.Until(t, "the service is listed", func() bool {
		return strings.Contains(string(n.send(t, "GET", "/v1/services?limit=1000", "").want(t, 200).body), `{"service":"bulk","callbacks":true,`)
	})
}

// testBulkDead: dead letters are replayed and discarded by filter, and one by its sequence.
func testBulkDead(t *testing.T, n *node) {
	post := func(path, body string) reply {
		t.Helper()
		return n.send(t, "POST", path, body, "Content-Type", jsonType)
	}
	var timers []string
	for i := range 3 {
		timers = append(timers, n.add(t, fmt.Sprintf(`{"in":"1ms","svc":"bulkdead","id":"d%d","source":"/bulkdead","callback":"http://127.0.0.1:1/hook","maxattempts":1,"flow":"http:bulkdead"}`, i)).Timer)
	}
	var page schemas.BulkDeadReply
	waittest.Until(t, "the timers are dead letters", func() bool {
		page = into[schemas.BulkDeadReply](t, post("/v1/bulk/discard", `{"service":"bulkdead","dry_run":true}`).want(t, 200, `"done":0`))
		return page.Matched == 3
	})
	seq := func(timer string) string {
		for _, d := range page.Dead {
			if d.Timer.String() == timer {
				return fmt.Sprint(d.Sequence)
			}
		}
		t.Fatalf("no dead letter of %s in %+v", timer, page)
		return ""
	}
	code := page.Dead[0].ErrorCode
	path := "/v1/dead-letters/" + seq(timers[0])
	n.send(t, "DELETE", path+"?timer="+timers[1], "").want(t, 404)
	n.send(t, "DELETE", path, "", "If-Match", `"1"`).want(t, 400)
	n.send(t, "DELETE", path+"?timer="+timers[0]+"&by=anna", "").want(t, 200, `"id":"d0"`)
	n.send(t, "DELETE", path, "").want(t, 404, `"not_found"`)
	n.send(t, "DELETE", "/v1/dead-letters/0", "").want(t, 400)
	n.send(t, "DELETE", "/v1/dead-letters/x", "").want(t, 400)
	n.send(t, "GET", "/v1/timers/"+timers[0], "").want(t, 200, `"id":"d0"`)

	post("/v1/bulk/discard", `{}`).want(t, 400)
	post("/v1/bulk/discard", `{"service":"bulkdead","rate":"1/s"}`).want(t, 400)
	post("/v1/bulk/replay", `{"service":"bulkdead","rate":"fast"}`).want(t, 400)
	post("/v1/bulk/discard", `{"service":"bulkdead","error_code":"none"}`).want(t, 200, `"matched":0`)
	post("/v1/bulk/discard", `{"timer":"`+timers[1]+`","error_code":"`+code+`"}`).want(t, 200, `"done":1`, `"id":"d1"`)
	waittest.Until(t, "the result is written, and the letter is replayed", func() bool {
		r := post("/v1/bulk/replay", `{"sequences":[`+seq(timers[2])+`],"rate":"10/s","by":"anna"}`)
		return strings.Contains(string(r.want(t, 200, `"id":"d2"`, `"host":"127.0.0.1:1"`).body), `"done":1`)
	})
	n.send(t, "GET", "/v1/timers/"+timers[2], "").want(t, 200, `"op":"replay"`, `"by":"anna"`)
}
