package natscall

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/natstest"
)

func TestMain(m *testing.M) {
	// Some goroutines of the embedded server end only after its shutdown.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).startGoRoutine.func1"))
}

func request(subject string) callback.Request {
	e := event.New()
	e.SetID("1")
	e.SetSource("/a")
	e.SetType("t")
	e.SetExtension("timerattempt", int32(1))
	_ = e.SetData("text/plain", []byte("hello"))
	return callback.Request{Service: "s", Target: Scheme + subject, Event: &e, Key: "tid.1", Timeout: 200 * time.Millisecond, Trace: map[string]string{"traceparent": "00-1-2-01"}}
}

func TestReplies(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	callee, nc := s.Connect(), s.Connect()
	answer := func(subject string, h nats.Header, data string) {
		if _, err := callee.Subscribe(subject, func(m *nats.Msg) {
			if err := m.RespondMsg(&nats.Msg{Header: h, Data: []byte(data)}); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	answer("ok", nil, strings.Repeat("r", 5000))
	answer("error", nats.Header{"Nats-Service-Error": {"no stock"}, "Nats-Service-Error-Code": {"409"}}, "detail")
	answer("timers.work.s", nil, "")
	answer("code", nats.Header{"Nats-Service-Error-Code": {"oops"}}, "")
	answer("later", nats.Header{"Retry-After": {"7"}}, "")
	answer("errlater", nats.Header{"Nats-Service-Error": {"busy"}, "Nats-Service-Error-Code": {"503"}, "Retry-After": {"2"}}, "")
	if _, err := callee.SubscribeSync("hang"); err != nil {
		t.Fatal(err)
	}
	svc, err := micro.AddService(callee, micro.Config{Name: "m", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.AddEndpoint("micro", micro.HandlerFunc(func(r micro.Request) { _ = r.Error("500", "from micro", nil) })); err != nil {
		t.Fatal(err)
	}
	if err := callee.Flush(); err != nil {
		t.Fatal(err)
	}
	i := New(nc)
	for subject, want := range map[string]callback.Outcome{
		"ok":               {Success: true},
		"error":            {Retryable: true, Reason: callback.ReasonServiceError, Code: 409},
		"code":             {Retryable: true, Reason: callback.ReasonServiceError},
		"later":            {Retryable: true, Reason: callback.ReasonRetryLater, NotNow: true, RetryAfter: 7 * time.Second},
		"errlater":         {Retryable: true, Reason: callback.ReasonRetryLater, NotNow: true, RetryAfter: 2 * time.Second, Code: 503},
		"hang":             {Retryable: true, Reason: callback.ReasonTimeout},
		"micro":            {Retryable: true, Reason: callback.ReasonServiceError, Code: 500},
		"nobody":           {Retryable: true, Reason: callback.ReasonNoResponders},
		"":                 {Reason: callback.ReasonBadTarget},
		"a.*":              {Reason: callback.ReasonBadTarget},
		"a b":              {Reason: callback.ReasonBadTarget},
		"a..b":             {Reason: callback.ReasonBadTarget},
		"$JS.API.>":        {Reason: callback.ReasonBadTarget},
		"$KV.t.x":          {Reason: callback.ReasonBadTarget},
		"_INBOX.x":         {Reason: callback.ReasonBadTarget},
		"timers.add":       {Reason: callback.ReasonBadTarget},
		"//timers.add":     {Reason: callback.ReasonBadTarget},
		"_INBOX_orders.x":  {Reason: callback.ReasonBadTarget},
		"_anything.x":      {Reason: callback.ReasonBadTarget},
		"timers.work.else": {Reason: callback.ReasonBadTarget},
		"timers.work.s":    {Success: true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if want.Reason != callback.ReasonTimeout {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		}
		got := i.Invoke(ctx, request(subject))
		cancel()
		if got.Success != want.Success || got.Retryable != want.Retryable || got.Reason != want.Reason || got.NotNow != want.NotNow ||
			got.RetryAfter != want.RetryAfter || got.Code != want.Code || (got.Err == "") != want.Success || len(got.Response) > 1024 {
			t.Errorf("%s: %+v", subject, got)
		}
	}
}

// TestErrorText: the text of an error in a reply names the subject, and the code if there is one.
func TestErrorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ code, text, want string }{
		{"500", "no stock", "NATS subject orders.pay answered with error code 500: no stock"},
		{"500", "", "NATS subject orders.pay answered with error code 500"},
		{"", "no stock", "NATS subject orders.pay answered with error: no stock"},
	} {
		m := &nats.Msg{Header: nats.Header{}}
		for name, value := range map[string]string{headerErrorCode: c.code, headerError: c.text} {
			if value != "" {
				m.Header.Set(name, value)
			}
		}
		if got := outcomeOf(m, "orders.pay", 0); got.Err != c.want {
			t.Errorf("got %q, want %q", got.Err, c.want)
		}
	}
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	callee, nc := s.Connect(), s.Connect()
	got := make(chan *nats.Msg, 1)
	if _, err := callee.Subscribe("orders.new", func(m *nats.Msg) { got <- m; _ = m.Respond(nil) }); err != nil {
		t.Fatal(err)
	}
	if err := callee.Flush(); err != nil {
		t.Fatal(err)
	}
	if out := New(nc).Invoke(t.Context(), request("orders.new")); !out.Success {
		t.Fatalf("got outcome %+v", out)
	}
	m := <-got
	for k, want := range map[string]string{"ce-id": "1", "ce-timerattempt": "1", "Idempotency-Key": "tid.1", "Nats-Msg-Id": "tid.1", "traceparent": "00-1-2-01"} {
		if v := m.Header.Get(k); v != want {
			t.Errorf("%s: %q; want %q", k, v, want)
		}
	}
	if string(m.Data) != "hello" {
		t.Errorf("data %q", m.Data)
	}
}

func TestConnectionLost(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	nc := s.Connect()
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if out := New(nc).Invoke(ctx, request("x")); !out.Retryable {
		t.Fatalf("got outcome %+v", out)
	}
	nc.Close()
	if out := New(nc).Invoke(t.Context(), request("x")); !out.Retryable || out.Reason != callback.ReasonConnection {
		t.Fatalf("got outcome %+v", out)
	}
}
