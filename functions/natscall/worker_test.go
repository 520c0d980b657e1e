package natscall

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestWorkerAnswers: the outcomes of each answer that a worker can give.
func TestWorkerAnswers(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	callee, nc := s.Connect(), s.Connect()
	i := New(nc)
	t.Cleanup(i.Close)
	type answer struct {
		word, data string
		header     nats.Header
	}
	for name, c := range map[string]struct {
		answers []answer // to successive requests; "working" is followed by the next at once
		want    callback.Outcome
		text    string
	}{
		"done":          {[]answer{{schemas.WorkDone, "ok", nil}}, callback.Outcome{Success: true}, ""},
		"plain":         {[]answer{{"", "ok", nil}}, callback.Outcome{Success: true}, ""},
		"like a PubAck": {[]answer{{schemas.WorkDone, `{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`, nil}}, callback.Outcome{Success: true}, ""},
		"failed":        {[]answer{{schemas.WorkFailed, "closed", nil}}, callback.Outcome{Retryable: true, Reason: callback.ReasonHandler}, "closed"},
		"permanent":     {[]answer{{schemas.WorkPermanent, "never", nil}}, callback.Outcome{Reason: callback.ReasonHandlerPermanent}, "never"},
		"later":         {[]answer{{schemas.WorkLater, "", nil}}, callback.Outcome{Retryable: true, NotNow: true, Reason: callback.ReasonRetryLater}, "asked for a later attempt"},
		"later, when":   {[]answer{{schemas.WorkLater, "", nats.Header{schemas.HeaderRetryAfterMs: {"1500"}}}}, callback.Outcome{Retryable: true, NotNow: true, RetryAfter: 1500 * time.Millisecond, Reason: callback.ReasonRetryLater}, "asked for a later attempt"},
		"much later":    {[]answer{{schemas.WorkLater, "", nats.Header{schemas.HeaderRetryAfterMs: {"9223372036854775807"}}}}, callback.Outcome{Retryable: true, NotNow: true, RetryAfter: callback.MaxRetryAfter, Reason: callback.ReasonRetryLater}, "asked for a later attempt"},
		"working":       {[]answer{{schemas.WorkWorking, "", nil}, {schemas.WorkWorking, "", nil}, {schemas.WorkDone, "", nil}}, callback.Outcome{Success: true}, ""},
		"busy":          {[]answer{{schemas.WorkBusy, "", nil}, {schemas.WorkStopping, "", nil}, {schemas.WorkDone, "", nil}}, callback.Outcome{Success: true}, ""},
		"dies":          {[]answer{{schemas.WorkWorking, "", nil}}, callback.Outcome{Retryable: true, Reason: callback.ReasonTimeout}, "silent for 2s"},
		"nobody":        {nil, callback.Outcome{Retryable: true, NotNow: true, Unattempted: true, Reason: callback.ReasonNoResponders}, "no worker"},
	} {
		service := strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' {
				return r
			}
			return '_'
		}, strings.ToLower(name))
		left := c.answers
		if left != nil {
			if _, err := callee.QueueSubscribe(schemas.SubjectWork(service), schemas.QueueWorkers, func(m *nats.Msg) {
				for len(left) > 0 {
					a := left[0]
					left = left[1:]
					h := nats.Header{}
					for k, v := range a.header {
						h[k] = v
					}
					if a.word != "" {
						h.Set(schemas.HeaderWork, a.word)
					}
					if err := m.RespondMsg(&nats.Msg{Header: h, Data: []byte(a.data)}); err != nil {
						t.Error(err)
					}
					if a.word != schemas.WorkWorking {
						return
					}
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := callee.Flush(); err != nil {
			t.Fatal(err)
		}
		r := request(schemas.SubjectWork(service))
		r.Service = service
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		got := i.Invoke(ctx, r)
		cancel()
		if got.Success != c.want.Success || got.Retryable != c.want.Retryable || got.NotNow != c.want.NotNow || got.Unattempted != c.want.Unattempted ||
			got.Reason != c.want.Reason || got.RetryAfter != c.want.RetryAfter || !strings.Contains(got.Err, c.text) || len(left) > 0 {
			t.Errorf("%s: %+v; %d answers left", name, got, len(left))
		}
	}
	if len(i.workers.calls) != 0 {
		t.Errorf("%d requests are still registered", len(i.workers.calls))
	}
	// A worker that reports progress without end.
	if _, err := callee.Subscribe(schemas.SubjectWork("endless"), func(m *nats.Msg) {
		if err := m.RespondMsg(&nats.Msg{Header: nats.Header{schemas.HeaderWork: {schemas.WorkWorking}}}); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := callee.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r := request(schemas.SubjectWork("endless"))
	r.Service = "endless"
	if got := i.Invoke(ctx, r); !got.Retryable || got.Reason != callback.ReasonTimeout || got.Unattempted {
		t.Errorf("at the time limit of an attempt: %+v", got)
	}
}

// TestStoppedWorkIsGivenOn: a run whose worker stops during a long handler goes to another worker at once, although
// the delivery has lasted for longer than it waits for a free worker.
func TestStoppedWorkIsGivenOn(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	callee, nc := s.Connect(), s.Connect()
	i := New(nc)
	t.Cleanup(i.Close)
	i.busyMax = 200 * time.Millisecond
	requests := 0
	if _, err := callee.Subscribe(schemas.SubjectWork("long"), func(m *nats.Msg) {
		requests++
		answers := []string{schemas.WorkDone}
		if requests == 1 {
			answers = []string{schemas.WorkWorking, schemas.WorkStopping}
		}
		for _, word := range answers {
			if err := m.RespondMsg(&nats.Msg{Header: nats.Header{schemas.HeaderWork: {word}}}); err != nil {
				t.Error(err)
			}
			if word == schemas.WorkWorking {
				<-time.After(2 * i.busyMax) // the handler
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := callee.Flush(); err != nil {
		t.Fatal(err)
	}
	r := request(schemas.SubjectWork("long"))
	r.Service = "long"
	if got := i.Invoke(t.Context(), r); !got.Success {
		t.Errorf("after the worker has stopped: %+v", got)
	}
}
