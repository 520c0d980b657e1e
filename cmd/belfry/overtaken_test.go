package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestOvertakenConsumerIsReported: status and doctor name a durable consumer of
// timers.fired that stopped reading and has lost events to the limit of its service.
func TestOvertakenConsumerIsReported(t *testing.T) {
	t.Parallel()
	n := serve(t, "", "--fired-max-per-service", "1000")
	js := connectJS(t, n)
	fire := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := js.PublishAsync(schemas.SubjectAdd, drillEvent(fmt.Sprintf("flood-%d", i), `"timerafter":"0s","timersvc":"flood"`)); err != nil {
				t.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
	}
	fire(0, 2)
	cons, err := js.CreateOrUpdateConsumer(t.Context(), schemas.StreamFired, jetstream.ConsumerConfig{Durable: "reader", FilterSubject: schemas.SubjectFired("flood"), AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	m, err := cons.Next(jetstream.FetchMaxWait(bound))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := ok[status](t, n, "status")[0]; len(st.Overtaken) > 0 {
		t.Errorf("status before the flood: got overtaken readers %+v, want none", st.Overtaken)
	}
	fire(2, 1300)
	waittest.Until(t, "status names the reader", func() bool {
		return strings.Contains(strings.Join(ok[status](t, n, "status")[0].Problems, ";"), "reader")
	})
	if r := n.client(t, "doctor", "--nats-url", n.nats); !strings.Contains(r.out, "reader") {
		t.Errorf("doctor: got %v, want a finding that names the reader", r)
	}
}
