package natscall

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/natstest"
)

// TestStreamsAnswer: a stream that captures the callback's subject answers with a PubAck.
func TestStreamsAnswer(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	nc := s.Connect()
	js := natstest.JetStream(t, nc)
	for _, c := range []jetstream.StreamConfig{
		{Name: "FULL", Subjects: []string{"orders.in"}, MaxMsgs: 1, Discard: jetstream.DiscardNew},
		{Name: "FULLBYTES", Subjects: []string{"orders.bytes"}, MaxBytes: 100, Discard: jetstream.DiscardNew},
		{Name: "SMALL", Subjects: []string{"orders.small"}, MaxMsgSize: 10},
		{Name: "ROOM", Subjects: []string{"orders.room"}},
		{Name: "SEALED", Subjects: []string{"orders.sealed"}},
	} {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "SEALED", Subjects: []string{"orders.sealed"}, Sealed: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "orders.in", []byte("the only message that fits")); err != nil {
		t.Fatal(err)
	}
	i := New(nc)
	for subject, want := range map[string]callback.Outcome{
		"orders.in":     {Retryable: true, Reason: callback.ReasonStreamRefused, Code: 503},
		"orders.bytes":  {Retryable: true, Reason: callback.ReasonStreamRefused, Code: 503},
		"orders.small":  {Reason: callback.ReasonStreamRefused, Code: 400},
		"orders.sealed": {Reason: callback.ReasonStreamRefused, Code: 400},
		"orders.room":   {Success: true},
	} {
		// The second request has the same Nats-Msg-Id and is a duplicate.
		for range 2 {
			got := i.Invoke(t.Context(), request(subject))
			if got.Success != want.Success || got.Retryable != want.Retryable || got.Reason != want.Reason || got.Code != want.Code {
				t.Errorf("%s: %+v", subject, got)
			}
		}
	}
	full, err := js.Stream(t.Context(), "FULL")
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := i.Invoke(t.Context(), request("orders.in")); !got.Success {
		t.Errorf("after the stream was drained: %+v", got)
	}
}

func TestPubAckShapes(t *testing.T) {
	t.Parallel()
	retry, permanent, success := "retry", "permanent", "success"
	for reply, want := range map[string]string{
		// PubAcks.
		`{"stream":"S","seq":1}`:                                 success,
		`{"stream":"S","seq":1,"domain":"hub","duplicate":true}`: success,
		`{"stream":"S","seq":0}`:                                 retry,
		`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`:                  retry,
		`{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"},"stream":"S","seq":0}`:      retry,
		`{"error":{"code":503,"err_code":10077,"description":"message too large"},"stream":"S","seq":0}`:                          permanent,
		`{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}`:                                          retry,
		`{"error":{"code":500,"err_code":10047,"description":"insufficient storage resources available"},"stream":"S","seq":0}`:   retry,
		`{"error":{"code":400,"err_code":10002,"description":"resource limits exceeded for account"},"stream":"S","seq":0}`:       retry,
		`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S","seq":0}`:         retry,
		`{"error":{"code":429,"err_code":10167,"description":"too many requests"},"stream":"S","seq":0}`:                          retry,
		`{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"S","seq":0}`:       permanent,
		`{"error":{"code":400,"err_code":10097,"description":"header size exceeds maximum allowed of 64k"},"stream":"S","seq":0}`: permanent,
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"S","seq":0}`:                     permanent,
		`{"error":{"code":400,"err_code":10999,"description":"a code that this version does not know"},"stream":"S","seq":0}`:     permanent,
		`{"error":{"code":500,"err_code":10999,"description":"a code that this version does not know"},"stream":"S","seq":0}`:     retry,
		// Replies of handlers.
		``:                                   success,
		`{}`:                                 success,
		`null`:                               success,
		`[1]`:                                success,
		`"error"`:                            success,
		`{"error"`:                           success,
		`not JSON`:                           success,
		`{"seq":7}`:                          success,
		`{"stream":"S"}`:                     success,
		`{"stream":7,"seq":0}`:               success,
		`{"stream":"S","seq":0,"mine":true}`: success,
		`{"error":null}`:                     success,
		`{"error":"no stock"}`:               success,
		`{"error":{"code":503}}`:             success,
		`{"error":{"code":503,"message":"busy"}}`:           success,
		`{"error":{"code":503,"description":"busy"}}`:       success,
		`{"error":{"code":503,"err_code":7}}`:               success,
		`{"error":{"code":200,"err_code":10077}}`:           success,
		`{"error":{"code":"503","err_code":10077}}`:         success,
		`{"error":{"code":503,"err_code":10077},"order":1}`: success,
		`{"error":{"code":503,"err_code":10077,"why":"x"}}`: success,
		`{"stream":"S","seq":0} {"stream":"S","seq":0}`:     success,
	} {
		out := outcomeOf(&nats.Msg{Data: []byte(reply)}, "orders.in", time.Now().UnixMilli())
		got := permanent
		switch {
		case out.Success:
			got = success
		case out.Retryable:
			got = retry
		}
		if got != want {
			t.Errorf("%s is %s; want %s: %+v", reply, got, want, out)
		}
	}
}
