package jet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
)

const mostRead = 1024

// reads makes a stream with a durable consumer and a reader of it.
func reads(t *testing.T, pace Pace) (*Client, *Reader) {
	t.Helper()
	c, err := New(natstest.Run(t).InProcess(), Options{Timeout: 5 * time.Second, Window: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s.>"}, Retention: WorkQueuePolicy, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnsureDurable(t.Context(), Durable{Stream: "S", Name: "c", AckWait: time.Minute, MaxAckPending: 10_000}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Read(ReaderOptions{Stream: "S", Consumer: "c", Pace: pace, Most: mostRead, MaxBytes: 32 << 20, Expiry: 30 * time.Second, Heartbeat: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return c, r
}

// TestReaderStatus checks what each status message of the server does to the number of
// requested messages, and which ones end the reader.
func TestReaderStatus(t *testing.T) {
	t.Parallel()
	_, r := reads(t, Refill)
	if err := r.refill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.Requested(); got != mostRead {
		t.Fatalf("%d are requested", got)
	}
	for _, c := range []struct {
		status, why, pending string
		took                 int
		ends                 error
	}{
		{"100", "Idle Heartbeat", "", 0, nil},
		{"409", "Batch Completed", "0", 0, nil},
		{"408", "Request Timeout", "24", 24, nil},
		{"409", "Message Size Exceeds MaxBytes", "100", 100, nil},
		{"408", "Request Timeout", "", 0, ErrReaderLost},
		{"409", "Message Size Exceeds MaxBytes", fmt.Sprint(mostRead), 0, ErrTooLarge}, // none of the request came: none ever will
		{"409", "Leadership Change", "", 0, ErrReaderLost},
		{"409", "Server Shutdown", "", 0, ErrReaderLost},
		{"409", "Consumer Deleted", "", 0, ErrReaderLost},
		{"503", "", "", 0, ErrReaderLost},
		{"408", "Request Timeout", "100000", mostRead - 124, nil}, // never below 0
	} {
		m := &nats.Msg{Header: nats.Header{"Status": {c.status}, "Description": {c.why}, "Nats-Pending-Messages": {c.pending}}}
		before := r.Requested()
		if _, err := r.accept(m); !errors.Is(err, c.ends) || before-r.Requested() != c.took {
			t.Errorf("%+v: %v, %d less to come", c, err, before-r.Requested())
		}
	}
}

// TestReaderForeign checks that a message which the consumer did not deliver is ignored,
// and that its reply subject is not used.
func TestReaderForeign(t *testing.T) {
	t.Parallel()
	_, r := reads(t, Refill)
	for _, reply := range []string{"private", "$JS.ACK.S.other.1.1.1.1.0", "$JS.ACK.OTHER.c.1.1.1.1.0"} {
		if d, err := r.accept(&nats.Msg{Sub: r.sub, Reply: reply, Data: []byte("x")}); d != nil || err != nil {
			t.Errorf("%s: %v %v", reply, d, err)
		}
	}
}

// TestReaderDemand checks that a reader without requests is not lost however long that
// takes, and that a request from another goroutine wakes Next.
func TestReaderDemand(t *testing.T) {
	t.Parallel()
	c, r := reads(t, Demand)
	for i := range 3 {
		if _, err := c.Publish(t.Context(), "publish", fmt.Sprintf("s.%d", i), nil, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if d, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v came without a request: %v", d, err)
	}
	got := make(chan *Delivery, 3)
	go func() {
		defer close(got)
		for range 3 {
			d, err := r.Next(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			got <- d
		}
	}()
	for _, n := range []int{1, 2} {
		if err := r.Request(n); err != nil {
			t.Fatal(err)
		}
	}
	want := uint64(1)
	for d := range got {
		if d.Sequence != want || d.Deliveries != 1 {
			t.Errorf("%+v, want sequence %d", d, want)
		}
		want++
	}
	if want != 4 || r.Requested() != 0 {
		t.Errorf("%d came, %d are requested still", want-1, r.Requested())
	}
}

// TestReaderDemandEnds checks that Next reports a request that ended short, and a consumer
// that was deleted.
func TestReaderDemandEnds(t *testing.T) {
	t.Parallel()
	c, _ := reads(t, Demand)
	r, err := c.Read(ReaderOptions{Stream: "S", Consumer: "c", Pace: Demand, Most: 10, Expiry: 2 * time.Second, Heartbeat: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Request(10); err != nil {
		t.Fatal(err)
	}
	if d, err := r.Next(t.Context()); !errors.Is(err, ErrRequestEnded) || r.Requested() != 0 {
		t.Fatalf("an expired request: %v, %v, %d are requested still", d, err, r.Requested())
	}
	if _, err := r.accept(&nats.Msg{Header: nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}}); !errors.Is(err, ErrReaderLost) || !errors.Is(err, ErrNoConsumer) {
		t.Errorf("a deleted consumer: %v", err)
	}
}

// TestDeliverySettlesOnce checks that nothing is sent after a delivery is settled: the
// message stays away for the delay of its Nak.
func TestDeliverySettlesOnce(t *testing.T) {
	t.Parallel()
	c, r := reads(t, Demand)
	if _, err := c.Publish(t.Context(), "publish", "s.1", nil, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.Request(2); err != nil {
		t.Fatal(err)
	}
	d, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Nak(0), d.Ack(), d.Working(), d.Term("late"), d.AckConfirmed(t.Context())); err != nil {
		t.Fatal(err)
	}
	if d, err = r.Next(t.Context()); err != nil || d.Deliveries != 2 {
		t.Fatalf("after the Nak: %+v, %v", d, err)
	}
	if err := d.AckConfirmed(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stream(t.Context(), "S"); err != nil || info.State.Msgs != 0 {
		t.Errorf("%d messages are left (%v)", info.State.Msgs, err)
	}
}
