package jet

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
)

func TestParseAck(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Ack{
		`{"stream":"S", "seq":7}`:                                         {Seq: 7},
		`{"stream":"S","seq":18446744073709551615}`:                       {Seq: 1<<64 - 1},
		`{"stream":"S","seq":7,"duplicate": true}`:                        {Seq: 7, Duplicate: true},
		`{"stream":"S","domain":"d","seq":9}`:                             {Seq: 9},
		`{"type":"io.nats.jetstream.api.v1.x_response","success":true}`:   {},
		`{"stream":"seq","seq":3,"batch":"b","count":1}`:                  {Seq: 3},
		`{"error":{"code":400,"err_code":10071,"description":"d"}}`:       {refused: &jetstream.APIError{ErrorCode: 10071}},
		`{"error":{"err_code":10077,"description":"\"seq\":5}"},"seq":0}`: {refused: &jetstream.APIError{ErrorCode: 10077}},
	} {
		got, err := parseAck([]byte(in))
		if err != nil || got.Seq != want.Seq || got.Duplicate != want.Duplicate || (got.refused == nil) != (want.refused == nil) {
			t.Errorf("%s: %+v %v", in, got, err)
		} else if got.refused != nil && got.refused.ErrorCode != want.refused.ErrorCode {
			t.Errorf("%s: %+v", in, got.refused)
		}
	}
	for _, in := range []string{"", "+OK", "-ERR", `{"seq":`, `{"seq":x}`} {
		if a, err := parseAck([]byte(in)); err == nil && a.Seq != 0 {
			t.Errorf("%q: %+v", in, a)
		}
	}
}

// TestLateAck checks that an answer which comes after its call has timed out is not passed
// to the next call with that slot.
func TestLateAck(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	p, err := newPublisher(nc, nil, 1, 50*time.Millisecond, errorMapper{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	sub, err := nc.SubscribeSync("slow") // answers when told to
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 4)
	call := func() string {
		t.Helper()
		p.send("op", "slow", nil, nil, func(a Ack, err error) {
			if err == nil && a.Seq != 2 {
				err = errors.New("another call's answer")
			}
			results <- err
		})
		m, err := sub.NextMsg(30 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return m.Reply
	}
	late := call()
	if err := <-results; !errors.Is(err, ErrUnavailable) {
		t.Fatalf("no answer: %v", err)
	}
	for answered := false; !answered; {
		next := call()
		if err := nc.Publish(late, []byte(`{"stream":"S","seq":1}`)); err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish(next, []byte(`{"stream":"S","seq":2}`)); err != nil {
			t.Fatal(err)
		}
		switch err := <-results; {
		case err == nil:
			answered = true
		case errors.Is(err, ErrUnavailable):
			late = next // the machine was busy, so this answer comes too late as well
		default:
			t.Fatal(err)
		}
	}
	if len(results) != 0 {
		t.Fatal("answered more than once")
	}
}
