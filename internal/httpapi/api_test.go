package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const jsonType = "application/json"

// timerAttributes returns the attributes that an add can have and that Belfry defines.
func timerAttributes(t *testing.T) (names []string) {
	t.Helper()
	b, err := schemas.Files.ReadFile("json/add.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal(b, &schema); err != nil {
		t.Fatal(err)
	}
	for name := range schema.Properties {
		if strings.HasPrefix(name, "timer") {
			names = append(names, name)
		}
	}
	if len(names) < 20 {
		t.Fatalf("the schema has only %v", names)
	}
	return names
}

// testAdd: an add answers 201, the same add 200, and another timer of the same name 409.
func testAdd(t *testing.T, n *node) {
	const timer = `{"in":"1h","id":"17","source":"/add","data":{"n":1}}`
	r := n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType).want(t, 201, `"id":"17"`, `"source":"/add"`, `"duplicate":false`)
	a := into[added](t, r)
	if want := schemas.NewTimerID("/add", "17").String(); a.Timer != want || r.header.Get("Location") != "/v1/timers/"+want {
		t.Errorf("got timer %s at %s, want %s", a.Timer, r.header.Get("Location"), want)
	}
	n.send(t, "GET", r.header.Get("Location"), "").want(t, 200, `"state":"pending"`)
	n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType).want(t, 200, a.Timer, `"duplicate":true`)
	// curl -d says that its body is a form.
	n.send(t, "POST", "/v1/timers", timer).want(t, 200)
	n.send(t, "POST", "/v1/timers", strings.Replace(timer, "1h", "2h", 1), "Content-Type", jsonType).want(t, 409, `"code":"conflict"`)
	// A null field is absent.
	if b := n.add(t, `{"in":"1h","svc":null}`); b.ID == "" || b.Source != "/http" {
		t.Errorf("without id and source: got %+v, want a random id and source /http", b)
	}
	n.send(t, "POST", "/v1/timers", `{"at":"2020-01-01T00:00:00Z"}`, "Content-Type", jsonType).want(t, 201, "fires now")
}

// testIdempotencyKey: the header is the id of an event that has none.
func testIdempotencyKey(t *testing.T, n *node) {
	const timer = `{"in":"1h","data":"a"}`
	a := into[added](t, n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType, "Idempotency-Key", "key-1").want(t, 201, `"id":"key-1"`))
	n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType, "Idempotency-Key", `"key-1"`).want(t, 200, a.Timer)
	n.send(t, "POST", "/v1/timers?in=1h", "", "Idempotency-Key", "key-1").want(t, 422, `"code":"conflict"`, `"pointer":"#/Idempotency-Key"`)
	n.send(t, "POST", "/v1/timers", `{"in":"1h","id":"own"}`, "Content-Type", jsonType, "Idempotency-Key", "key-1").want(t, 201, `"id":"own"`)
	n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType, "Idempotency-Key", "").want(t, 400, `"pointer":"#/Idempotency-Key"`)
	n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType, "Idempotency-Key", "a", "Idempotency-Key", "b").want(t, 400)
	for _, key := range []string{"lat1-\xe9", "lat1-\xe8"} { // which would both become lat1-\ufffd
		n.send(t, "POST", "/v1/timers", timer, "Content-Type", jsonType, "Idempotency-Key", key).want(t, 422, `"code":"invalid_event"`, `"pointer":"#/Idempotency-Key"`)
	}
}

// hook is a callee. It returns its URL, and a channel with the requests and their bodies.
func hook(t *testing.T) (string, <-chan call) {
	calls := make(chan call, 16)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		calls <- call{r.Header, string(b)}
	}))
	t.Cleanup(s.Close)
	return s.URL, calls
}

type call struct {
	header http.Header
	body   string
}

// testFields: each field arrives where it belongs, and the data and the user's own attributes reach
// the callee.
func testFields(t *testing.T, n *node) {
	url, calls := hook(t)
	n.add(t, `{"in":"1ms","svc":"fields","callback":`+quoted(url)+`,"type":"order.timeout","subject":"s","attributes":{"orderid":"17","urgent":true,"copies":3},"data":{"n": 1}}`)
	got := waittest.Receive(t, "the callback", calls)
	for name, want := range map[string]string{"Ce-Type": "order.timeout", "Ce-Subject": "s", "Ce-Orderid": "17", "Ce-Urgent": "true", "Ce-Copies": "3", "Ce-Source": "/http", "Ce-Timersvc": "fields"} {
		if got.header.Get(name) != want {
			t.Errorf("callback: got %s %q, want %q", name, got.header.Get(name), want)
		}
	}
	if got.body != `{"n": 1}` {
		t.Errorf("callback: got data %q, want it as sent", got.body)
	}
	n.add(t, `{"in":"1ms","svc":"fields","callback":`+quoted(url)+`,"data_base64":"AAH/","datacontenttype":"application/octet-stream"}`)
	if got := waittest.Receive(t, "the callback", calls); got.body != "\x00\x01\xff" || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("callback: got data %q of type %q, want three bytes", got.body, got.header.Get("Content-Type"))
	}
	s := n.add(t, `{"cron":"0 9 * * *","tz":"Europe/Berlin","svc":"fields","group":"g","callback":"nats:x.y","maxattempts":3,"backoff":"1s..2s","timeout":"5s","start":"2027-01-01T00:00:00Z",
		"end":"2037-01-01T00:00:00Z","limit":5,"jitter":"1m","days":"and","misfire":"all","grace":"1h","overlap":"queue","expect":"10m"}`)
	r := n.send(t, "GET", "/v1/timers/"+s.Timer, "").want(t, 200)
	for _, want := range []string{`"cron":"0 9 * * *"`, `"tz":"Europe/Berlin"`, `"service":"fields"`, `"group":"g"`, `"callback":"nats:x.y"`, `"maxattempts":3`, `"start":"2027`, `"end":"2037`, `"limit":5`, `"jitter_ms":60000`, `"days":"and"`, `"misfire":"all"`, `"grace_ms":3600000`, `"overlap":"queue"`, `"expect_ms":600000`} {
		r.want(t, 200, want)
	}
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// testQuery: the fields can be parameters, and the body is then the data, byte by byte.
func testQuery(t *testing.T, n *node) {
	hookURL, calls := hook(t)
	q := url.Values{"in": {"1ms"}, "svc": {"query"}, "callback": {hookURL + "/päth?a=%20b"}, "subject": {"50 % \"x\""}, "id": {"q1"}}
	n.send(t, "POST", "/v1/timers?"+q.Encode(), "a\x00b\xff", "Content-Type", "application/x-thing").want(t, 201, `"id":"q1"`)
	got := waittest.Receive(t, "the callback", calls)
	if got.body != "a\x00b\xff" || got.header.Get("Content-Type") != "application/x-thing" || got.header.Get("Ce-Subject") != "50%20%25%20%22x%22" {
		t.Errorf("callback: got %q %v", got.body, got.header)
	}
}

// testRefusals: a mistake is refused with its code, its place and no effect.
func testRefusals(t *testing.T, n *node) {
	large := `{"in":"1h","data":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, tt := range []struct {
		method, path, body string
		status             int
		code, pointer      string
	}{
		{"POST", "/v1/timers", `{"in":"15"}`, 422, "invalid_attribute", "#/in"},
		{"POST", "/v1/timers", `{"cron":"x"}`, 422, "invalid_attribute", "#/cron"},
		{"POST", "/v1/timers", `{"in":"1h","svc":"a b"}`, 422, "invalid_attribute", "#/svc"},
		{"POST", "/v1/timers", `{"in":"1h","callback":"ftp://x"}`, 422, "invalid_attribute", "#/callback"},
		{"POST", "/v1/timers", `{"in":"1h","maxattempts":0}`, 422, "invalid_attribute", "#/maxattempts"},
		{"POST", "/v1/timers", `{"in":"1h","attributes":{"timerx":"1"}}`, 422, "invalid_attribute", "#/attributes/timerx"},
		{"POST", "/v1/timers", `{"svc":"x"}`, 422, "invalid_attribute", ""},
		{"POST", "/v1/timers", `{}`, 422, "invalid_attribute", ""},
		{"POST", "/v1/timers", `{"in":"1h","attributes":{"order-id":"1"}}`, 422, "invalid_event", "#/attributes/order-id"},
		{"POST", "/v1/timers", `{"in":"1h","attributes":{"a/b":"1"}}`, 422, "invalid_event", "#/attributes/a~1b"},
		{"POST", "/v1/timers", `{"in":"1h","time":"now"}`, 422, "invalid_event", "#/time"},
		{"POST", "/v1/timers", `{"in":"1h","source":" /s"}`, 422, "invalid_event", "#/source"},
		{"POST", "/v1/timers?in=15", ``, 422, "invalid_attribute", "#/in"},
		{"POST", "/v1/timers", `{"in":"1h","delay":"1h"}`, 400, "bad_request", "#/delay"},
		{"POST", "/v1/timers", `{"in":"1h","in":"2h"}`, 400, "bad_request", "#/in"},
		{"POST", "/v1/timers", `{"in":{"h":1}}`, 400, "bad_request", "#/in"},
		{"POST", "/v1/timers", `{"in":"1h","attributes":{"id":"1"}}`, 400, "bad_request", "#/attributes/id"},
		{"POST", "/v1/timers", `{"in":"1h","attributes":7}`, 400, "bad_request", "#/attributes"},
		{"POST", "/v1/timers", `{"in":"1h","attributes":{"a":"1","a":"2"}}`, 400, "bad_request", "#/attributes/a"},
		{"POST", "/v1/timers", `{"in":"1h","a/b c~d":1}`, 400, "bad_request", "#/a~1b%20c~0d"},
		{"POST", "/v1/timers", `{"in":"1h"} x`, 400, "bad_request", ""},
		{"POST", "/v1/timers", `{"in":"1h"`, 400, "bad_request", ""},
		{"POST", "/v1/timers", `[]`, 400, "bad_request", ""},
		{"POST", "/v1/timers", ``, 400, "bad_request", ""},
		{"POST", "/v1/timers?in=1h&unknown=1", ``, 400, "bad_request", ""},
		{"POST", "/v1/timers?in=1h&in=2h", ``, 400, "bad_request", ""},
		{"POST", "/v1/timers?in=%zz", ``, 400, "bad_request", ""},
		{"POST", "/v1/timers", large, 413, "too_large", ""},
		{"POST", "/v1/timers?in=1h", large, 413, "too_large", ""},
		{"POST", "/v1/events", `{"specversion":"1.0"}`, 422, "invalid_event", ""},
		{"POST", "/v1/events", `x`, 422, "invalid_event", ""},
		{"POST", "/v1/events", `{"specversion":"1.0","a/b-c":"1"}`, 422, "invalid_event", "#/a~1b-c"},
		{"GET", "/v1/timers/none", "", 400, "invalid_timer_id", ""},
		{"GET", "/v1/timers/" + schemas.NewTimerID("/none", "1").String(), "", 404, "not_found", ""},
		{"GET", "/v1/timers?limit=0", "", 400, "bad_request", "#/limit"},
		{"GET", "/v1/timers?limit=1001", "", 400, "bad_request", "#/limit"},
		{"GET", "/v1/timers?state=late", "", 400, "bad_request", "#/state"},
		{"GET", "/v1/timers?schedule=maybe", "", 400, "bad_request", "#/schedule"},
		{"GET", "/v1/timers?cursor=x", "", 400, "bad_request", ""},
		{"DELETE", "/v1/timers", "", 400, "bad_request", ""},
		{"PATCH", "/v1/timers?id=1&source=/none", `{"in":"1h","at":"2030-01-01T00:00:00Z"}`, 400, "bad_request", ""},
		{"PATCH", "/v1/timers?id=1&source=/none", `{"in":7}`, 400, "bad_request", "#/in"},
		{"PATCH", "/v1/timers?id=1&source=/none", `{"due":"1h"}`, 400, "bad_request", "#/due"},
		{"PATCH", "/v1/timers?id=1&source=/none", `{"in":"30m","IN":"5h"}`, 400, "bad_request", "#/IN"},
		{"PATCH", "/v1/timers?id=1&source=/none", `{"in":"30m","in":"5h"}`, 400, "bad_request", "#/in"},
		{"PATCH", "/v1/timers?id=1&source=/none", "{\"in\":\"30m\",\"by\":\"\xe9\"}", 400, "bad_request", ""},
		{"PATCH", "/v1/timers?id=1&source=/none", `{"in":"1h"}`, 404, "not_found", ""},
		{"PUT", "/v1/timers", "", 405, "method_not_allowed", ""},
		{"GET", "/v1/events", "", 405, "method_not_allowed", ""},
		{"GET", "/v1/nothing", "", 404, "no_route", ""},
		{"GET", "/v1/timers/", "", 404, "no_route", ""},
	} {
		got := n.send(t, tt.method, tt.path, tt.body, "Content-Type", jsonType)
		p := into[added](t, got)
		if got.status != tt.status || p.Code != tt.code || p.Pointer != tt.pointer || p.Detail == "" || p.Type != "https://github.com/belfryio/belfry/blob/main/docs/http.md#"+tt.code {
			t.Errorf("%s %s %.60s: got %d %.300s, want %d %s %s", tt.method, tt.path, tt.body, got.status, got.body, tt.status, tt.code, tt.pointer)
		}
	}
	n.send(t, "POST", "/v1/timers", "<x/>", "Content-Type", "application/xml").want(t, 415, `"unsupported_media_type"`)
	n.send(t, "POST", "/v1/events", "", "Content-Type", "application/cloudevents-batch+xml").want(t, 415)
	// Fields in the query and a whole event in the body would be two timers.
	const inner = `{"specversion":"1.0","id":"inner","source":"/inner","type":"t","timerafter":"1h"}`
	for _, contentType := range []string{"application/cloudevents+json", "Application/CloudEvents; charset=utf-8", "application/cloudevents-batch+json", "application/cloudevents+avro"} {
		n.send(t, "POST", "/v1/timers?in=15m&svc=orders&id=outer&source=/outer", inner, "Content-Type", contentType).want(t, 415, `"unsupported_media_type"`, "/v1/events")
		n.send(t, "POST", "/v1/timers", inner, "Content-Type", contentType).want(t, 415, `"unsupported_media_type"`, "/v1/events")
	}
	n.send(t, "GET", "/v1/timers?id=inner&source=/inner", "").want(t, 404)
	n.send(t, "POST", "/v1/timers", `{"in":"15m","id":"outer","source":"/outer","datacontenttype":"application/cloudevents+json","data":`+inner+`}`, "Content-Type", jsonType).want(t, 201, `"outer"`)
	if allow := n.send(t, "PUT", "/v1/timers", "").header.Get("Allow"); allow != "GET, POST, PATCH, DELETE" {
		t.Errorf("got Allow %q, want the four methods", allow)
	}
	n.send(t, "DELETE", "/v1/timers?id=1&source=/none", "", "If-Match", "17").want(t, 400, `"pointer":"#/If-Match"`)
}

// testOneTimer: a timer is named by its id, by a run, or by source and id, and shown, moved and
// cancelled.
func testOneTimer(t *testing.T, n *node) {
	a := n.add(t, `{"in":"1h","id":"one","source":"/s?a=b","svc":"one"}`)
	byName := "/v1/timers?" + url.Values{"id": {"one"}, "source": {"/s?a=b"}}.Encode()
	n.send(t, "GET", byName, "").want(t, 200, a.Timer)
	n.send(t, "PATCH", byName, `{"in":"2h","by":"anna"}`, "Content-Type", jsonType).want(t, 200, `"by":"anna"`, `"op":"reschedule"`)
	n.send(t, "PATCH", "/v1/timers/"+a.Timer, `{"at":"2033-01-01T00:00:00Z"}`, "Content-Type", jsonType).want(t, 200, `"due":"2033-01-01T00:00:00.000Z"`)
	n.send(t, "PATCH", "/v1/timers/"+a.Timer, `{"at":"tomorrow"}`, "Content-Type", jsonType).want(t, 422, `"invalid_attribute"`)
	n.send(t, "DELETE", "/v1/timers/"+a.Timer+"?by=anna", "").want(t, 200, `"state":"cancelled"`)
	n.send(t, "DELETE", byName, "").want(t, 200, `"state":"cancelled"`)
	n.send(t, "PATCH", byName, `{"in":"2h"}`, "Content-Type", jsonType).want(t, 409, `"already_done"`)
	b := n.add(t, `{"in":"1ms","svc":"one"}`)
	waittest.Until(t, "the timer fires", func() bool {
		return strings.Contains(string(n.send(t, "GET", "/v1/timers/"+b.Timer+".1", "").body), `"state":"success"`)
	})
	n.send(t, "DELETE", "/v1/timers/"+b.Timer, "").want(t, 409, `"already_fired"`)
	fired := into[schemas.TimerInfo](t, n.send(t, "GET", "/v1/timers/"+b.Timer+"?claim=true", "").want(t, 200))
	if c := fired.Claim; c == nil || c.Epoch == 0 || c.Node == "" || c.Message != b.Timer+".1" || c.Sequence == 0 {
		t.Errorf("got claim %+v, want node, epoch, message and sequence", c)
	}
	if plain := into[schemas.TimerInfo](t, n.send(t, "GET", "/v1/timers/"+b.Timer, "").want(t, 200)); plain.Claim != nil {
		t.Errorf("got claim %+v, want none unless it is asked for", plain.Claim)
	}
	n.send(t, "GET", byName+"&claim=true", "").want(t, 200) // it has not fired
	for _, path := range []string{"/v1/timers?claim=true", "/v1/timers/" + b.Timer + "?claim=maybe"} {
		n.send(t, "GET", path, "").want(t, 400, "#/claim")
	}
}

// testRevision: If-Match changes a timer only at its revision.
func testRevision(t *testing.T, n *node) {
	a := n.add(t, `{"in":"1h","svc":"revision"}`)
	path := "/v1/timers/" + a.Timer
	first := n.send(t, "GET", path, "").header.Get("ETag")
	moved := n.send(t, "PATCH", path, `{"in":"2h"}`, "Content-Type", jsonType, "If-Match", first).want(t, 200)
	second := moved.header.Get("ETag")
	if first == second || n.send(t, "GET", path, "").header.Get("ETag") != second {
		t.Errorf("got ETag %s, then %s: want another one, that of the timer", first, second)
	}
	n.send(t, "PATCH", path, `{"in":"3h"}`, "Content-Type", jsonType, "If-Match", first).want(t, 412, `"precondition_failed"`)
	n.send(t, "DELETE", path, "", "If-Match", first).want(t, 412, `"precondition_failed"`)
	if after := n.send(t, "GET", path, ""); after.header.Get("ETag") != second || string(after.body) != string(moved.body) {
		t.Errorf("after two refusals: got %s, want %s", after.body, moved.body)
	}
	n.send(t, "DELETE", path, "", "If-Match", second).want(t, 200, `"state":"cancelled"`)
	b := n.add(t, `{"in":"1h","svc":"revision"}`)
	n.send(t, "DELETE", "/v1/timers/"+b.Timer, "", "If-Match", "*").want(t, 200)
}

// testList: filters and cursors select what they say.
func testList(t *testing.T, n *node) {
	var ids []string
	for i := range 5 {
		ids = append(ids, n.add(t, fmt.Sprintf(`{"in":"1h","svc":"list","group":"l%d"}`, i%2)).Timer)
	}
	s := n.add(t, `{"cron":"0 9 * * *","svc":"list","group":"l0"}`)
	n.send(t, "DELETE", "/v1/timers/"+ids[4], "").want(t, 200)
	list := func(query string) (found []string) {
		t.Helper()
		cursor := ""
		for {
			page := into[schemas.ListReply](t, n.send(t, "GET", "/v1/timers?service=list"+query+cursor, "").want(t, 200))
			for _, timer := range page.Timers {
				found = append(found, timer.Timer.String())
			}
			if page.Cursor == "" {
				return found
			}
			cursor = "&cursor=" + url.QueryEscape(page.Cursor)
		}
	}
	for query, want := range map[string][]string{
		"":                               append([]string{s.Timer}, ids...),
		"&limit=2":                       append([]string{s.Timer}, ids...),
		"&group=l1":                      {ids[1], ids[3]},
		"&state=cancelled":               {ids[4]},
		"&state=cancelled&state=pending": append([]string{s.Timer}, ids...),
		"&schedule=true":                 {s.Timer},
		"&schedule=false&group=l0":       {ids[0], ids[2], ids[4]},
	} {
		got := list(query)
		if len(got) != len(want) {
			t.Errorf("%s: got %v, want %v", query, got, want)
		}
		for _, id := range want {
			if !strings.Contains(strings.Join(got, " "), id) {
				t.Errorf("%s: got %v, want %s in it", query, got, id)
			}
		}
	}
}

// testEvents: an event is the same timer in each mode, and on NATS.
func testEvents(t *testing.T, n *node) {
	id := schemas.NewTimerID("/a%7Eb", "e1").String()
	structured := `{"specversion":"1.0","id":"e1","source":"/a%7Eb","type":"t","timerafter":"1h","timersvc":"events","datacontenttype":"text/plain","data":"x"}`
	n.send(t, "POST", "/v1/events", structured, "Content-Type", "application/cloudevents+json; charset=utf-8").want(t, 201, id)
	n.send(t, "POST", "/v1/events", "x", "Content-Type", "text/plain", "ce-specversion", "1.0", "ce-id", "e1", "ce-source", "/a%257Eb", "ce-type", "t", "ce-timerafter", "1h", "ce-timersvc", "events").want(t, 200, id, `"duplicate":true`)
	nc, err := n.app.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	msg, err := nc.Request(schemas.SubjectAPIPrefix+"add", []byte(structured), waittest.Bound)
	if err != nil || !strings.Contains(string(msg.Data), id) || !strings.Contains(string(msg.Data), `"duplicate":true`) {
		t.Errorf("the same event by NATS: got %v (%v), want a duplicate of %s", msg, err, id)
	}
	n.send(t, "POST", "/v1/events", "", "ce-specversion", "1.0", "ce-id", "e2", "ce-id", "e3", "ce-source", "/s", "ce-type", "t", "ce-timerafter", "1h").want(t, 422, `"invalid_event"`)
	n.send(t, "POST", "/v1/events", structured, "Content-Type", "application/cloudevents+avro").want(t, 422)
	// Headers about the request are not part of the event.
	sub, err := nc.SubscribeSync(schemas.SubjectFiredPrefix + "events")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	n.send(t, "POST", "/v1/events", "x", "ce-specversion", "1.0", "ce-id", "e4", "ce-source", "/s", "ce-type", "t", "ce-timerafter", "1ms", "ce-timersvc", "events",
		"Authorization", "Bearer secret", "Cookie", "c=secret", "X-Other", "1").want(t, 201)
	fired, err := sub.NextMsg(waittest.Bound)
	if err != nil {
		t.Fatal(err)
	}
	for name := range fired.Header {
		if !strings.HasPrefix(name, "ce-") && name != "content-type" && !schemas.ReservedHeader(name) {
			t.Errorf("the fired event has header %s", name)
		}
	}
}

// testBatch: each event of a batch has its verdict, in order, and the status is that of the worst.
func testBatch(t *testing.T, n *node) {
	event := func(id, more string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/batch","type":"t",%s}`, id, more)
	}
	post := func(events ...string) reply {
		t.Helper()
		return n.send(t, "POST", "/v1/events", "["+strings.Join(events, ",")+"]", "Content-Type", "application/cloudevents-batch+json")
	}
	var many []string
	for i := range 300 {
		many = append(many, event(fmt.Sprint(i), `"timerafter":"1h"`))
	}
	for range 2 {
		r := into[added](t, post(many...).want(t, 200))
		for i, v := range r.Results {
			if want := schemas.NewTimerID("/batch", fmt.Sprint(i)).String(); v.Timer != want {
				t.Fatalf("verdict %d: got %+v, want timer %s", i, v, want)
			}
		}
		if len(r.Results) != len(many) {
			t.Errorf("got %d verdicts, want %d", len(r.Results), len(many))
		}
	}
	got := into[added](t, post(event("new", `"timerafter":"1h"`), event("bad", `"timerafter":"1"`), event("1", `"timerafter":"1h"`), event("2", `"timerafter":"2h"`), `7`).want(t, 422, "3 of 5 events"))
	for i, want := range []int{201, 422, 200, 409, 422} {
		if len(got.Results) != 5 || got.Results[i].Status != want {
			t.Fatalf("verdict %d: got %+v, want status %d", i, got.Results, want)
		}
	}
	post().want(t, 200, `"results":[]`)
	post(strings.Repeat("1,", 500)+"1").want(t, 413, `"too_large"`)
	n.send(t, "POST", "/v1/events", "{}", "Content-Type", "application/cloudevents-batch+json").want(t, 400)
	n.send(t, "POST", "/v1/events", "[1", "Content-Type", "application/cloudevents-batch+json").want(t, 400)
}

// testSDK: the HTTP client of the CloudEvents SDK adds events in both modes.
func testSDK(t *testing.T, n *node) {
	c, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(n.base+"/v1/events"), cloudevents.WithRoundTripper(n.http.Transport))
	if err != nil {
		t.Fatal(err)
	}
	for i, mode := range []struct {
		id    string
		event func(cloudevents.Event) error
	}{
		{"binary", func(e cloudevents.Event) error { return c.Send(cloudevents.WithEncodingBinary(t.Context()), e) }},
		{"structured", func(e cloudevents.Event) error { return c.Send(cloudevents.WithEncodingStructured(t.Context()), e) }},
	} {
		e := cloudevents.NewEvent()
		e.SetID(mode.id)
		e.SetSource("/sdk")
		e.SetType("t")
		e.SetExtension("timerafter", "1h")
		if err := e.SetData(jsonType, map[string]int{"n": i}); err != nil {
			t.Fatal(err)
		}
		if err := mode.event(e); !cloudevents.IsACK(err) {
			t.Errorf("%s: got %v, want it accepted", mode.id, err)
		}
		n.send(t, "GET", "/v1/timers?source=/sdk&id="+mode.id, "").want(t, 200, `"state":"pending"`)
		e.SetExtension("timerafter", "x")
		if err := mode.event(e); cloudevents.IsACK(err) {
			t.Errorf("%s: an event with an error is accepted", mode.id)
		}
	}
}

// testGuard: without a token no web site reaches a node on loopback through a browser.
func testGuard(t *testing.T, n *node) {
	const timer = `{"in":"1h","id":"guard","source":"/guard"}`
	for _, attack := range [][]string{
		{"Host", "evil.example"}, {"Host", "127.0.0.1.evil.example"}, {"Host", "localhost.evil.example:8420"}, {"Host", "10.0.0.7:8420"}, {"Host", "[::2]"},
		{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "null"},
	} {
		n.send(t, "POST", "/v1/timers", timer, attack...).want(t, 403, `"forbidden"`)
		if attack[0] == "Host" { // a request that only reads says nothing to another site without CORS headers
			n.send(t, "GET", "/v1/timers", "", attack...).want(t, 403, `"forbidden"`)
		}
	}
	if h := n.send(t, "GET", "/v1/timers?limit=1", "", "Origin", "https://evil.example").header; h.Get("Access-Control-Allow-Origin") != "" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got headers %v, want none of CORS, and nosniff", h)
	}
	n.send(t, "GET", "/v1/timers?source=/guard&id=guard", "").want(t, 404)
	n.send(t, "GET", "/v1/openapi.yaml", "").want(t, 200, "openapi: 3.1")
	for _, good := range [][]string{{"Host", "localhost:8420"}, {"Host", "LOCALHOST"}, {"Host", "[::1]:8420"}, {"Host", "127.0.0.2"}, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}} {
		if r := n.send(t, "POST", "/v1/timers", timer, good...); r.status >= 300 {
			t.Errorf("%v: got status %d: %s", good, r.status, r.body)
		}
	}
}
