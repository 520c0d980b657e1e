//go:build unix

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// manyAttributes leaves room for the event's own attributes below the limit of 64.
const manyAttributes = 56

// wide returns an add in binary mode with n long attributes.
func wide(id string, n, length int, more attrs) *nats.Msg {
	a := attrs{"id": id, "timerafter": "1ms", "timersvc": "wide"}
	for k, v := range more {
		a[k] = v
	}
	for i := range n {
		a[fmt.Sprintf("x%02d", i)] = strings.Repeat("x", length)
	}
	return binary(a, "application/json", `{}`)
}

// headed returns an add in structured mode with a header block of the given size.
func headed(id string, bytes int, more attrs) *nats.Msg {
	a := attrs{"id": id, "timerafter": "1ms", "timersvc": "wide"}
	for k, v := range more {
		a[k] = v
	}
	m := structured(a, `{"n":1}`)
	m.Header["X-Mine"] = []string{""}
	m.Header["X-Mine"] = []string{strings.Repeat("h", bytes-schemas.HeaderBytes(m.Header))}
	return m
}

// flows checks that both shards fire and that their low watermarks advance.
func flows(t *testing.T, a *app.App, c *client, svc string) {
	t.Helper()
	const n = 20
	for i := range n {
		c.publish(structured(attrs{"id": fmt.Sprint(svc, "-", i), "timersvc": svc, "timerafter": "10ms"}, `{}`))
	}
	if late := lateness(t, c.firedEvents(svc, n)); late[n-1] > lateBound {
		t.Errorf("other timers were %s late, want %s at most", late[n-1], lateBound)
	}
	waittest.Until(t, "the low watermarks are near", func() bool {
		for shard := range 2 {
			clock, _, err := a.Store().ReadClock(t.Context(), shard)
			if err != nil || time.Since(time.UnixMilli(clock.TimeMs)) > 10*time.Second {
				return false
			}
		}
		return true
	})
}

// TestTooManyHeaders: an add whose event, callback request or dead letter could not be
// stored is refused, through every entry and in every mode. Nothing stops.
func TestTooManyHeaders(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	request := structured(attrs{"id": "request", "timerafter": "1ms", "timersvc": "wide", "timercallback": "nats:wide"}, `{}`)
	for i := range manyAttributes {
		request.Data = bytes.Replace(request.Data, []byte("{"), fmt.Appendf(nil, `{"x%d":%q,`, i, strings.Repeat("x", 2000)), 1)
	}
	// JetStream itself refuses adds with more than 64 KiB of headers.
	api := []*nats.Msg{wide("many", manyAttributes, 2000, nil), wide("many-called", manyAttributes, 2000, attrs{"timercallback": "nats:wide"}), headed("70000", 70_000, nil)}
	both := []*nats.Msg{request, headed("65300", 65_300, nil), headed("65535", 65_535, nil), headed("65010", 65_010, attrs{"timercallback": "http://127.0.0.1:1/"}), headed("65200", 65_200, attrs{"timercallback": "http://127.0.0.1:1/"}), wide("30", 30, 2040, nil)}
	for _, m := range append(api, both...) {
		req := *m
		req.Subject = schemas.SubjectAPIPrefix + "add"
		var reply schemas.AddReply
		if err := c.callMsg(&req, &reply); schemas.CodeOf(err) != schemas.CodeTooLarge || !strings.Contains(err.Error(), fmt.Sprint(schemas.MaxEventHeaderBytes)) {
			t.Errorf("API: %v; want too_large, and the limit", err)
		}
	}
	want := map[string]badAdd{}
	for _, m := range both {
		c.publish(m)
		want[string(m.Data)] = badAdd{fmt.Sprint(schemas.HeaderBytes(m.Header), " bytes of headers"), m, schemas.CodeTooLarge}
	}
	// nats.go does not send such a header; clients in other languages may.
	raw := structured(attrs{"id": "name", "timerafter": "1ms", "timersvc": "wide"}, `{}`)
	publishRaw(t, a.NATSURL(), schemas.SubjectAdd, "NATS/1.0\r\na/b: c\r\n\r\n", raw.Data)
	flows(t, a, c, "beside")
	var page []*store.Letter
	s := a.Store()
	waittest.Until(t, "all are rejected", func() bool {
		p, err := s.RejectedList(t.Context(), store.RejectedQuery{})
		page = p.Adds
		return err == nil && len(page) == len(both)+1
	}, func() string { return fmt.Sprint(len(page), " of ", len(both)+1) })
	for _, m := range page {
		x, known := want[string(m.Data)]
		if !known {
			if m.Get("a/b") != "c" || m.Get(schemas.HeaderErrorCode) != string(schemas.CodeInvalidEvent) {
				t.Errorf("rejected with %.300v", m.Header)
			}
			continue
		}
		if m.Get(schemas.HeaderErrorCode) != string(schemas.CodeTooLarge) {
			t.Errorf("%s: %s", x.name, m.Get(schemas.HeaderErrorCode))
		}
		for name, v := range x.msg.Header {
			if !slices.Equal(m.Header[name], v) {
				t.Errorf("%s: header %s was not kept", x.name, name)
			}
		}
	}
	if n := len(c.firedEvents("wide", 0)); n != 0 {
		t.Errorf("%d refused timers fired", n)
	}
}

// publishRaw publishes without nats.go, which checks headers.
func publishRaw(t *testing.T, server, subject, header string, data []byte) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fmt.Fprintf(nc, "CONNECT {\"verbose\":false,\"headers\":true}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n", subject, len(header), len(header)+len(data), header, data)
	var got []byte
	for b := make([]byte, 4096); !bytes.Contains(got, []byte("PONG")); {
		n, err := nc.Read(b)
		if err != nil {
			t.Fatalf("%v after %s", err, got)
		}
		got = append(got, b[:n]...)
	}
}

// accepted stores a timer as a version without a limit of headers did.
func accepted(t *testing.T, s *store.Store, m *nats.Msg) schemas.Body {
	t.Helper()
	now := time.Now().UnixMilli()
	small := *m
	small.Header = nats.Header{}
	for name, v := range m.Header {
		if name != "X-Mine" && !strings.HasPrefix(name, "ce-x") {
			small.Header[name] = v
		}
	}
	body, spec, err := schemas.ParseAdd(small.Header, m.Data, now, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range m.Header {
		if small.Header[name] == nil {
			body.Headers = append(body.Headers, schemas.HeaderField{Name: name, Value: v[0]})
		}
	}
	slices.SortFunc(body.Headers, func(a, b schemas.HeaderField) int { return strings.Compare(a.Name, b.Name) })
	if spec.Callback != "" {
		if err := s.RegisterService(t.Context(), spec.Service); err != nil {
			t.Fatal(err)
		}
	}
	rec := &schemas.Record{
		Definition: schemas.Definition{AddedMs: now, Hash: spec.Hash, Service: spec.Service, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: spec.MaxAttempts, DueMs: spec.DueMs, ScheduledMs: spec.DueMs},
	}
	if res := s.Create(t.Context(), []store.Write{{ID: spec.Timer, Record: rec}})[0]; res.Err != nil {
		t.Fatal(res.Err)
	}
	return body
}

// TestUndeliverable: timers that an older version accepted, but whose event or dead
// letter JetStream does not store, end as dead letters with all their bytes. Other timers
// are on time, the low watermark advances, and a restart changes nothing.
func TestUndeliverable(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	options := func(o *app.Options) { o.Data = data }
	a := node(t, options)
	c := connect(t, a.NATSURL())
	s := a.Store()
	var heals atomic.Bool
	callee := newCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !heals.Load() {
			w.WriteHeader(http.StatusGone)
		}
	})
	call := attrs{"timercallback": callee.url}
	refused := map[string]*nats.Msg{"published": headed("published", 65_500, nil), "called": headed("called", 65_500, call), "binary": wide("binary", manyAttributes, 2000, nil), "binary-called": wide("binary-called", manyAttributes, 2000, call)}
	gone := map[string]*nats.Msg{}
	for _, n := range []int{65_010, 65_100, 65_200} {
		id := fmt.Sprint("gone-", n)
		gone[id] = headed(id, n, call)
	}
	bodies := map[string]schemas.Body{}
	for _, all := range []map[string]*nats.Msg{refused, gone} {
		for id, m := range all {
			bodies[id] = accepted(t, s, m)
		}
	}
	flows(t, a, c, "beside")
	for id := range refused {
		i := c.until(id, schemas.StateFail)
		if i.Attempts != 0 || i.Outcome == nil || !strings.Contains(i.Outcome.Error, "65535") {
			t.Errorf("%s: %d attempts, outcome %+v; want none, and the limit", id, i.Attempts, i.Outcome)
		}
		if n := len(callee.of(id)); n != 0 {
			t.Errorf("%s was called %d times", id, n)
		}
	}
	for id := range gone {
		if i := c.until(id, schemas.StateFail); i.Attempts != 1 || i.Outcome == nil || i.Outcome.Code != http.StatusGone {
			t.Errorf("%s: %d attempts, outcome %+v", id, i.Attempts, i.Outcome)
		}
	}
	checkLetters(t, c, s, refused, gone, bodies)
	if n := metrictest.Sum(t, a.Registry(), "belfry_undeliverable_timers_total"); int(n) != len(refused) {
		t.Errorf("%v are counted; want %d", n, len(refused))
	}

	var reply schemas.ReplayReply
	if err := c.call("dead.replay", schemas.ReplayRequest{TimerRef: schemas.TimerRef{ID: "published", Source: "/e2e"}}, &reply); schemas.CodeOf(err) != schemas.CodeTooLarge {
		t.Errorf("replay of what can never be published: %v %+v", err, reply)
	}
	heals.Store(true)
	for id := range gone {
		if err := c.call("dead.replay", schemas.ReplayRequest{TimerRef: schemas.TimerRef{ID: id, Source: "/e2e"}}, &reply); err != nil || reply.Replayed != 1 {
			t.Errorf("replay of %s: %v %+v", id, err, reply)
		}
		c.until(id, schemas.StateSuccess)
	}

	stop(t, a)
	a = node(t, options)
	c = connect(t, a.NATSURL())
	flows(t, a, c, "after")
	checkLetters(t, c, a.Store(), refused, nil, bodies)
}

// callbackMember is the timercallback member of a JSON document, with a comma.
var callbackMember = regexp.MustCompile(`,"timercallback":"[^"]*"|"timercallback":"[^"]*",`)

// withoutCallback returns the event as it is published, without its callback.
func withoutCallback(b schemas.Body) schemas.Body {
	if b.Mode == schemas.ModeStructured {
		b.Data = callbackMember.ReplaceAll(b.Data, nil)
	}
	b.Headers = slices.DeleteFunc(slices.Clone(b.Headers), func(h schemas.HeaderField) bool { return strings.EqualFold(h.Name, "ce-timercallback") })
	return b
}

// checkLetters compares all dead letters of service wide.
func checkLetters(t *testing.T, c *client, s *store.Store, refused, gone map[string]*nats.Msg, bodies map[string]schemas.Body) {
	t.Helper()
	var list schemas.DeadListReply
	if err := c.call("dead.list", schemas.DeadListRequest{Service: "wide", Limit: 100}, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Dead) != len(refused)+len(gone) {
		t.Errorf("%d dead letters; want %d", len(list.Dead), len(refused)+len(gone))
	}
	for _, d := range list.Dead {
		reason := "http_status"
		if refused[d.ID] != nil {
			reason = schemas.ReasonUndeliverable
		}
		if d.ErrorCode != reason || d.ErrorData == "" || d.Source != "/e2e" {
			t.Errorf("dead letter %+v; want reason %s", d, reason)
		}
		page, err := s.DeadList(context.WithoutCancel(t.Context()), store.DeadQuery{TimerID: d.Timer})
		i := slices.IndexFunc(page.Letters, func(m *store.Letter) bool { return m.Sequence == d.Sequence })
		if err != nil || i < 0 {
			t.Fatalf("dead letter %d is not listed: %v", d.Sequence, err)
		}
		m := page.Letters[i]
		body, err := schemas.StripFired(m.Header, m.Data)
		if want := withoutCallback(bodies[d.ID]); err != nil || !bytes.Equal(body.Data, want.Data) || len(body.Headers) < len(want.Headers) {
			t.Errorf("dead letter of %s: %d headers and %d bytes (%v); want %d and %d", d.ID, len(body.Headers), len(body.Data), err, len(want.Headers), len(want.Data))
		}
	}
}
