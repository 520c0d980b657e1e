//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"net/url"
	"testing"
	"time"

	cenats "github.com/cloudevents/sdk-go/protocol/nats/v2"
	cejs "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestPlainPublish adds timers with a plain NATS publish in both modes. The events fire
// unchanged, on time, on their subject, and their callbacks are made.
func TestPlainPublish(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	http := newCallee(t, nil)
	natsCalls := make(chan *nats.Msg, 10)
	if _, err := c.nc.Subscribe("my.function", func(m *nats.Msg) {
		if err := m.Respond([]byte("thanks")); err != nil {
			t.Error(err)
		}
		natsCalls <- m
	}); err != nil {
		t.Fatal(err)
	}
	live, err := c.nc.SubscribeSync("timers.fired.>")
	if err != nil {
		t.Fatal(err)
	}
	msgs := map[string]*nats.Msg{
		"structured": structured(attrs{"id": "structured", "timersvc": "orders", "timerafter": "300ms", "timercallback": http.url, "subject": "s ü", "myext": "42"}, `{"n":1, "spaced" : [1,2]}`),
		"binary":     binary(attrs{"id": "binary", "timersvc": "orders", "timerat": at(300 * time.Millisecond), "timercallback": "nats:my.function", "myext": "42"}, "text/plain", "b\x00\xff"),
		"no-headers": {Subject: schemas.SubjectAdd, Data: structured(attrs{"id": "no-headers", "timersvc": "orders", "timerafter": "PT0.3S"}, `"x"`).Data},
	}
	for _, m := range msgs {
		if err := c.nc.PublishMsg(m); err != nil { // without an acknowledgement
			t.Fatal(err)
		}
	}
	events := c.firedEvents("orders", 3)
	lateness(t, events)
	for _, e := range events {
		if e.source != "/e2e" || e.msgID != timerID(e.id).MsgID(1) || e.subject != "timers.fired.orders" {
			t.Errorf("%s: source %s, Msg-Id %s, subject %s", e.id, e.source, e.msgID, e.subject)
		}
	}
	byID := map[string]fired{}
	for _, e := range events {
		byID[e.id] = e
	}
	if got := byID["structured"]; got.data != `{"n":1, "spaced" : [1,2]}` && got.data != `{"n":1,"spaced":[1,2]}` || got.extensions["myext"] != "42" {
		t.Errorf("structured: data %s, extensions %v", got.data, got.extensions)
	}
	if got := byID["binary"]; got.data != "b\x00\xff" || got.headers.Get("ce-myext") != "42" || got.headers.Get("content-type") != "text/plain" {
		t.Errorf("binary: data %q, headers %v", got.data, got.headers)
	}
	for range 3 {
		if _, err := live.NextMsg(bound); err != nil {
			t.Fatalf("live subscriber: %v", err)
		}
	}
	for _, id := range []string{"structured", "binary", "no-headers"} {
		c.until(id, schemas.StateSuccess)
	}
	calls := http.of("structured")
	if len(calls) != 1 {
		t.Fatalf("%d HTTP callbacks, want 1", len(calls))
	}
	if h := calls[0].header; h.Get("Ce-Specversion") != "1.0" || h.Get("Ce-Myext") != "42" || calls[0].key != timerID("structured").MsgID(1) || h.Get("Ce-Timerattempt") != "1" {
		t.Errorf("HTTP callback: %v", h)
	}
	if subject, err := url.PathUnescape(calls[0].header.Get("Ce-Subject")); err != nil || subject != "s ü" {
		t.Errorf("subject came as %q (%v)", subject, err)
	}
	m := <-natsCalls
	if string(m.Data) != "b\x00\xff" || m.Header.Get("ce-id") != "binary" || m.Header.Get("Idempotency-Key") != timerID("binary").MsgID(1) {
		t.Errorf("NATS callback: %v %q", m.Header, m.Data)
	}
}

// TestSDKModules adds and receives with the CloudEvents SDK's protocol modules for NATS.
func TestSDKModules(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	e := event.New()
	e.SetSource("/e2e")
	e.SetType("sdk.test")
	e.SetSubject("a subject, 100 % ünïcode")
	e.SetTime(time.Now())
	if err := e.SetData("application/json", map[string]any{"hello": "world"}); err != nil {
		t.Fatal(err)
	}
	e.SetExtension(schemas.AttrService, "sdk")
	e.SetExtension(schemas.AttrAfter, "200ms")

	core, err := cenats.NewSenderFromConn(c.nc, schemas.SubjectAdd)
	if err != nil {
		t.Fatal(err)
	}
	durable, err := cejs.NewSenderFromConn(c.nc, schemas.StreamAdd, schemas.SubjectAdd, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	send := func(id string, s interface {
		Send(context.Context, binding.Message, ...binding.Transformer) error
	}, mode func(context.Context) context.Context) {
		e := e.Clone()
		e.SetID(id)
		if err := s.Send(mode(ctx), binding.ToMessage(&e)); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	send("core-structured", core, binding.WithForceStructured)
	send("js-structured", durable, binding.WithForceStructured)
	send("js-binary", durable, binding.WithForceBinary)

	events := c.firedEvents("sdk", 3)
	lateness(t, events)
	for _, f := range events {
		got, err := binding.ToEvent(ctx, cejs.NewMessage(&nats.Msg{Header: f.headers, Data: f.raw}))
		if err != nil {
			t.Errorf("%s: the SDK cannot read it: %v", f.id, err)
			continue
		}
		var data map[string]any
		if err := json.Unmarshal(got.Data(), &data); err != nil || data["hello"] != "world" {
			t.Errorf("%s: data %s (%v)", f.id, got.Data(), err)
		}
		subject := got.Subject()
		if u, err := url.PathUnescape(subject); err == nil && got.Subject() != e.Subject() {
			subject = u // the SDK does not decode binary headers, though the spec requires it
		}
		if got.ID() != f.id || got.Source() != "/e2e" || got.Type() != "sdk.test" || subject != e.Subject() || got.Extensions()[schemas.AttrScheduled] == nil {
			t.Errorf("%s: came back as %s", f.id, got)
		}
		c.until(f.id, schemas.StateSuccess)
	}
}

// TestAddsAreIdempotent adds the same event again, and another event with the same ID.
func TestAddsAreIdempotent(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	m := structured(attrs{"id": "once", "timersvc": "idem", "timerat": at(400 * time.Millisecond)}, `1`)
	api := *m
	api.Subject = schemas.SubjectAPIPrefix + "add"
	c.publish(m)
	c.publish(m)
	var reply schemas.AddReply
	waittest.Until(t, "a duplicate", func() bool {
		err := c.callOnce(&api, &reply)
		if err != nil && schemas.CodeOf(err) != schemas.CodeUnavailable {
			t.Fatal(err)
		}
		return err == nil && reply.Duplicate
	})
	other := structured(attrs{"id": "once", "timersvc": "idem", "timerat": at(time.Hour)}, `2`)
	other.Subject = api.Subject
	if err := c.callMsg(other, &reply); schemas.CodeOf(err) != schemas.CodeConflict {
		t.Errorf("another event with the same ID: %v, want a conflict", err)
	}
	c.firedEvents("idem", 1)
	c.until("once", schemas.StateSuccess)
	if err := c.callMsg(&api, &reply); err != nil || !reply.Duplicate || reply.State != schemas.StateSuccess {
		t.Errorf("the same event after it fired: %+v %v", reply, err)
	}
	if events := c.firedEvents("idem", 0); len(events) != 1 {
		t.Errorf("fired %d times", len(events))
	}
}

// TestServiceIsFound shows that the API is an ordinary NATS micro service.
func TestServiceIsFound(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	m, err := c.nc.Request("$SRV.INFO.timers", nil, bound)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"add", "get", "cancel", "reschedule", "list"} {
		contains(t, "$SRV.INFO", string(m.Data), `"timers.api.`+verb+`"`)
	}
	kv, err := c.js.KeyValue(t.Context(), schemas.BucketClock)
	if err != nil {
		t.Fatal(err)
	}
	var clock jetstream.KeyValueEntry
	if clock, err = kv.Get(t.Context(), "clock.0"); err != nil {
		t.Fatal(err)
	}
	contains(t, "clock.0", string(clock.Value()), `"owner"`)
}
