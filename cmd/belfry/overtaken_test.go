package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tcptest"
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
			if _, err := js.PublishAsync(schemas.SubjectAdd, drillEvent(fmt.Sprintf("flood-%d", i), `"timerafter":"0s","timersvc":"flood"`), jetstream.WithStallWait(bound)); err != nil {
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
	if st := ok[statusJSON](t, n, "status")[0]; len(st.Overtaken) > 0 {
		t.Errorf("status before the flood: got overtaken readers %+v, want none", st.Overtaken)
	}
	fire(2, 1300)
	waittest.Until(t, "status names the reader", func() bool {
		return strings.Contains(strings.Join(ok[statusJSON](t, n, "status")[0].Problems, ";"), "reader")
	})
	if r := n.client(t, "doctor", "--nats-url", n.nats); !strings.Contains(r.out, "reader") {
		t.Errorf("doctor: got %v, want a finding that names the reader", r)
	}
}

// TestSlowCallbacksAreReported: if the callbacks of a service are so slow that its events leave
// TIMERS_FIRED before Belfry reads them, status and doctor say so, and which limit to raise.
func TestSlowCallbacksAreReported(t *testing.T) {
	t.Parallel()
	const most, events = 1000, 1300
	release := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(hook.Close)
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	n := serve(t, "", "--allow-loopback", "--fired-max-per-service", strconv.Itoa(most), "--concurrency", "2")
	js := connectJS(t, n)
	callback := fmt.Sprintf(`"timerafter":"0s","timersvc":"slow","timercallback":%q`, hook.URL)
	for i := range events {
		if _, err := js.PublishAsync(schemas.SubjectAdd, drillEvent(fmt.Sprintf("slow-%d", i), callback), jetstream.WithStallWait(bound)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	var own store.Overtaken
	waittest.Until(t, "status names the service", func() bool {
		for _, o := range ok[statusJSON](t, n, "status")[0].Overtaken {
			own = o
		}
		return own.Lost > 0
	})
	if !own.Belfry || own.Subject != schemas.SubjectFired("slow") || own.Why != store.LimitService {
		t.Errorf("overtaken: %+v, want Belfry's consumer of the service, by its limit", own)
	}
	for _, command := range []string{"status", "doctor"} {
		r := n.client(t, command, "--nats-url", n.nats)
		for _, part := range []string{"callbacks of timers.fired.slow are slower", "fired-max-per-service"} {
			if !strings.Contains(r.out, part) {
				t.Errorf("%s does not say %q: %v", command, part, r)
			}
		}
	}
}

// TestOpenCircuitIsReported: status and doctor name a target that cannot be reached, and why, also if its
// circuit opens again after a reset.
func TestOpenCircuitIsReported(t *testing.T) {
	t.Parallel()
	n := serve(t, "", "--allow-loopback")
	target := tcptest.FreeAddress(t)
	call := func(from int) {
		t.Helper()
		for i := range flow.DefaultCircuit {
			if r := n.client(t, "add", "--in", "0s", "--svc", "down", "--id", strconv.Itoa(from+i), "--source", "/circuit", "--callback", "http://"+target); r.code != exitOK {
				t.Fatal(r)
			}
		}
	}
	want := "flow key " + target + " cannot be reached since "
	named := func() bool {
		return strings.Contains(strings.Join(ok[statusJSON](t, n, "status")[0].Problems, ";"), want)
	}
	call(0)
	waittest.Until(t, "status names the target", named)
	if r := n.client(t, "flow", "reset", target); r.code != exitOK {
		t.Fatal(r)
	}
	call(flow.DefaultCircuit)
	waittest.Until(t, "status names the target again", named)
	if r := n.client(t, "doctor", "--nats-url", n.nats); !strings.Contains(r.out, want) || !strings.Contains(r.out, "refused") {
		t.Errorf("doctor: %v, want %q and the error", r, want)
	}
}
