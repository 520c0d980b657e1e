package jet

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestParseAckReply compares with the parser of nats.go.
func TestParseAckReply(t *testing.T) {
	sub, err := natstest.Run(t).Connect().SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	const from = "TIMERS_ADD.router."
	for _, reply := range []string{
		"$JS.ACK.TIMERS_ADD.router.1.22.333.1795359905294614656.4",
		"$JS.ACK._.ACCHASH.TIMERS_ADD.router.7.22.333.1795359905294614656.4.token",
		"$JS.ACK.hub.ACCHASH.TIMERS_ADD.router.7.22.333.1795359905294614656.0",
	} {
		meta, err := (&nats.Msg{Sub: sub, Reply: reply}).Metadata()
		if err != nil {
			t.Fatal(err)
		}
		want := deliveryMeta{deliveries: meta.NumDelivered, sequence: meta.Sequence.Stream, consumerSeq: meta.Sequence.Consumer, time: meta.Timestamp}
		if got, ok := parseAckReply(reply, from); !ok || got != want {
			t.Errorf("%s: %+v, %t; want %+v", reply, got, ok, want)
		}
	}
	for _, reply := range []string{
		"", ".", "$JS.ACK", "$JS.ACK.", "_INBOX.abc.1", "$JS.ACK.TIMERS_ADD.router.", "$JS.ACK.TIMERS_ADD.router.1.2.3.4",
		"$JS.ACK.TIMERS_ADD.other.1.2.3.4.5", "$JS.ACK.OTHER.router.1.2.3.4.5", "$JS.ACK.a.b.c.TIMERS_ADD.router.1.2.3.4.5",
		"$JS.ACK.TIMERS_ADD.router.1.2.3.x.5", "$JS.ACK.TIMERS_ADD.router.1.-2.3.4.5", "$JS.ACK.TIMERS_ADD.router.1..3.4.5",
		"$JS.ACK.TIMERS_ADD.router.1.2.3.9223372036854775808.5", "$JS.ACK.TIMERS_ADD.router.1.2.3.18446744073709551617.5",
	} {
		if got, ok := parseAckReply(reply, from); ok {
			t.Errorf("%q is taken for %+v", reply, got)
		}
	}
	reply := "$JS.ACK.hub.ACCHASH.TIMERS_ADD.router.7.22.333.1795359905294614656.0"
	if n := testing.AllocsPerRun(100, func() { parseAckReply(reply, from) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
