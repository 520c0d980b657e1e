package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testDead: a timer whose callback fails is listed as a dead letter, and replayed.
func testDead(t *testing.T, n *node) {
	a := n.add(t, `{"in":"1ms","svc":"dead","id":"d","source":"/dead","callback":"http://127.0.0.1:1/hook-1","maxattempts":1,"flow":"http:dead"}`)
	var page schemas.DeadListReply
	waittest.Until(t, "the timer is a dead letter", func() bool {
		page = into[schemas.DeadListReply](t, n.send(t, "GET", "/v1/dead-letters?service=dead&limit=10", "").want(t, 200))
		return len(page.Dead) == 1
	})
	if d := page.Dead[0]; d.Timer.String() != a.Timer || d.ErrorCode == "" || !strings.Contains(d.ErrorData, "127.0.0.1:1") {
		t.Errorf("got dead letter %+v, want that of timer %s with its error", d, a.Timer)
	}
	n.send(t, "GET", "/v1/dead-letters?timer="+a.Timer, "").want(t, 200, a.Timer)
	n.send(t, "GET", "/v1/dead-letters?id=d&source=/dead", "").want(t, 200, a.Timer)
	n.send(t, "GET", "/v1/dead-letters?service=none", "").want(t, 200, `"dead":[]`)
	n.send(t, "GET", "/v1/dead-letters?service=a.b", "").want(t, 400)
	waittest.Until(t, "the result is written", func() bool {
		r := n.send(t, "POST", "/v1/dead-letters/replay", `{"timer":"`+a.Timer+`","by":"anna"}`, "Content-Type", jsonType)
		return strings.Contains(string(r.want(t, 200, a.Timer).body), `"replayed":1`)
	})
	n.send(t, "GET", "/v1/timers/"+a.Timer, "").want(t, 200, `"op":"replay"`, `"by":"anna"`)
	n.send(t, "POST", "/v1/dead-letters/replay", `{"service":"none"}`, "Content-Type", jsonType).want(t, 200, `"replayed":0`)
	n.send(t, "POST", "/v1/dead-letters/replay", `{}`, "Content-Type", jsonType).want(t, 400)
	n.send(t, "POST", "/v1/dead-letters/replay", ``).want(t, 400)
	n.send(t, "POST", "/v1/dead-letters/replay", `{"timer":"`+schemas.NewTimerID("/dead", "none").String()+`"}`, "Content-Type", jsonType).want(t, 404)
}

// testRejected: an add that the router rejects is listed with its reason.
func testRejected(t *testing.T, n *node) {
	nc, err := n.app.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if _, err := nc.Request(schemas.SubjectAdd, []byte(`{"specversion":"1.0","id":"r","source":"/rejected","type":"t","timerafter":"soon","data":"data-1"}`), waittest.Bound); err != nil {
		t.Fatal(err)
	}
	seen := ""
	waittest.Until(t, "the add is rejected", func() bool {
		seen = string(n.send(t, "GET", "/v1/rejections?limit=10", "").want(t, 200).body)
		return strings.Contains(seen, `"source":"/rejected"`)
	})
	if !strings.Contains(seen, `"code":"invalid_attribute"`) || !strings.Contains(seen, "data-1") {
		t.Errorf("got %s, want the code and the data", seen)
	}
}

// testOrderKeys: an ordering key is listed while it has events.
func testOrderKeys(t *testing.T, n *node) {
	leave := make(chan struct{})
	called := make(chan struct{}, 8)
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		called <- struct{}{}
		<-leave
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(leave) })
	a := n.add(t, `{"in":"1ms","svc":"order","key":"customer-1","flow":"http:order","callback":"`+s.URL+`"}`)
	waittest.Receive(t, "the callback", called)
	n.send(t, "GET", "/v1/order-keys?service=order&limit=200", "").want(t, 200, `"key":"customer-1"`, `"timer":"`+a.Timer+`"`)
	n.send(t, "GET", "/v1/order-keys?limit=201", "").want(t, 400, `"pointer":"#/limit"`)
}
