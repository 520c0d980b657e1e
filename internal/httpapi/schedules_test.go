package httpapi_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testSchedule: each operation on a schedule has its effect.
func testSchedule(t *testing.T, n *node) {
	post := func(path, body string, header ...string) reply {
		t.Helper()
		return n.send(t, "POST", path, body, append([]string{"Content-Type", jsonType}, header...)...)
	}
	s := n.add(t, `{"cron":"0 9 * * *","tz":"Europe/Berlin","svc":"schedule","id":"s","source":"/schedule","type":"report","data":1}`)
	path := "/v1/timers/" + s.Timer

	first := n.send(t, "GET", path, "").header.Get("ETag")
	post(path+"/pause", `{"note":"holiday","by":"anna"}`, "If-Match", first).want(t, 200, `"state":"paused"`, `"pause_note":"holiday"`, `"by":"anna"`)
	post(path+"/resume", `{"catchup":"skip"}`, "If-Match", first).want(t, 412, `"precondition_failed"`)
	post(path+"/resume", `{"catchup":"most"}`).want(t, 400)
	// A request without a body has no options.
	n.send(t, "POST", path+"/resume", "").want(t, 200, `"state":"pending"`)

	for range 2 {
		post(path+"/trigger", `{"by":"anna"}`, "Idempotency-Key", "once").want(t, 200, `"op":"trigger"`)
	}
	waittest.Until(t, "the run fires", func() bool {
		return strings.Contains(string(n.send(t, "GET", path+"/runs?limit=5", "").want(t, 200).body), `"trigger":"manual"`)
	})
	if runs := into[schemas.RunsReply](t, n.send(t, "GET", path+"/runs", "").want(t, 200)); len(runs.Runs) != 1 {
		t.Errorf("after two triggers with the same key: got %d runs, want 1", len(runs.Runs))
	}
	post(path+"/trigger", "", "Idempotency-Key", "").want(t, 400, `"pointer":"#/Idempotency-Key"`)

	const past = `"from":"2026-01-01T00:00:00Z","to":"2026-01-03T23:00:00Z"`
	post(path+"/backfill", `{`+past+`,"dry_run":true}`).want(t, 200, `"count":3`, `"times":["2026-01-01T08:00:00.000Z"`)
	post(path+"/backfill", `{`+past+`}`).want(t, 200, `"count":3`)
	post(path+"/backfill", `{"from":"2026-01-01T00:00:00Z"}`).want(t, 400)

	n.send(t, "GET", path+"/why", "").want(t, 200, `"fate":"planned"`)
	n.send(t, "GET", path+"/why?at=2026-01-01", "").want(t, 200, `"answers":[`)
	n.send(t, "GET", path+"/preview?n=2&from=2027-03-27T00:00:00Z", "").want(t, 200, `"at":"2027-03-27T08:00:00.000Z"`, `"at":"2027-03-28T07:00:00.000Z"`)
	n.send(t, "GET", path+"/preview?n=0", "").want(t, 400, `"pointer":"#/n"`)
	q := url.Values{"cron": {"30 2 * * *"}, "tz": {"Europe/Berlin"}, "from": {"2027-03-27T12:00:00Z"}, "n": {"1"}}
	n.send(t, "GET", "/v1/preview?"+q.Encode(), "").want(t, 200, `"local":"2027-03-28T03:00:00+02:00"`)
	n.send(t, "GET", "/v1/preview?cron=x", "").want(t, 422, `"pointer":"#/cron"`)
	n.send(t, "GET", "/v1/preview", "").want(t, 400)
}

// testUpdate: PUT replaces a schedule, and no other timer.
func testUpdate(t *testing.T, n *node) {
	put := func(path, body string, header ...string) reply {
		t.Helper()
		return n.send(t, "PUT", path, body, append([]string{"Content-Type", jsonType}, header...)...)
	}
	s := n.add(t, `{"cron":"0 9 * * *","svc":"update","id":"u","source":"/update","type":"report","data":1}`)
	path := "/v1/timers/" + s.Timer
	first := n.send(t, "GET", path, "").header.Get("ETag")
	const next = `{"cron":"0 10 * * *","svc":"update","data":2}`
	changed := put(path+"?by=anna", next, "If-Match", first).want(t, 200, `"cron":"0 10 * * *"`, `"type":"report"`, `"op":"update"`, `"by":"anna"`, `"before":["`, `"after":["`)
	second := n.send(t, "GET", path, "").header.Get("ETag")
	if changed.header.Get("ETag") != second || second == first {
		t.Errorf("got ETag %s after %s, and %s with GET: want another one, and the same", changed.header.Get("ETag"), first, second)
	}
	// The client that lost the answer repeats the request.
	put(path, next, "If-Match", first).want(t, 200)
	put(path, `{"cron":"0 11 * * *","svc":"update"}`, "If-Match", first).want(t, 412, `"precondition_failed"`)
	put(path, `{"cron":"0 11 * * *","id":"other"}`).want(t, 400, "leave both out")
	put(path, `{"cron":"0 11 * * *","cron":"0 12 * * *"}`).want(t, 400)
	put(path, `{"cron":"x"}`).want(t, 422, `"pointer":"#/cron"`)
	put(path, `{"in":"1h"}`).want(t, 400, "reschedule")
	put("/v1/timers/"+schemas.NewTimerID("/update", "none").String(), next).want(t, 404)
	one := n.add(t, `{"in":"1h","svc":"update"}`)
	put("/v1/timers/"+one.Timer, next).want(t, 400)
	n.send(t, "GET", path, "").want(t, 200, `"cron":"0 10 * * *"`)
}

// testGroup: the timers of a group are paused and resumed together.
func testGroup(t *testing.T, n *node) {
	var paths []string
	for range 3 {
		paths = append(paths, "/v1/timers/"+n.add(t, `{"in":"1h","svc":"group","group":"together"}`).Timer)
	}
	outside := n.add(t, `{"in":"1h","svc":"group"}`)
	change := func(op, body, field string) {
		t.Helper()
		changed, cursor := 0, ""
		for {
			page := into[schemas.GroupReply](t, n.send(t, "POST", "/v1/groups/together/"+op, `{`+body+`"cursor":`+quoted(cursor)+`}`, "Content-Type", jsonType).want(t, 200))
			changed += page.Changed
			if cursor = page.Cursor; cursor == "" {
				break
			}
		}
		if changed != 3 {
			t.Errorf("%s changed %d timers, want 3", op, changed)
		}
		for _, path := range paths {
			n.send(t, "GET", path, "").want(t, 200, field)
		}
	}
	change("pause", `"note":"stop",`, `"state":"paused"`)
	n.send(t, "GET", "/v1/timers/"+outside.Timer, "").want(t, 200, `"state":"pending"`)
	change("resume", "", `"state":"pending"`)
}

// testNotModified: a timer whose revision the client has is not sent again.
func testNotModified(t *testing.T, n *node) {
	a := n.add(t, `{"in":"1h","svc":"modified","id":"m","source":"/modified"}`)
	for _, path := range []string{"/v1/timers/" + a.Timer, "/v1/timers?source=/modified&id=m"} {
		etag := n.send(t, "GET", path, "").header.Get("ETag")
		for _, same := range []string{etag, "W/" + etag, `"1", ` + etag} {
			if r := n.send(t, "GET", path, "", "If-None-Match", same).want(t, 304); r.header.Get("ETag") != etag || len(r.body) != 0 || r.header.Get("Content-Type") != "" {
				t.Errorf("If-None-Match %s: got %v %q, want the ETag and nothing else", same, r.header, r.body)
			}
		}
		n.send(t, "PATCH", path, `{"in":"2h"}`, "Content-Type", jsonType).want(t, 200)
		n.send(t, "GET", path, "", "If-None-Match", etag).want(t, 200, a.Timer)
	}
}
