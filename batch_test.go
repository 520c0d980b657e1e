package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// addStream runs a server with the stream TIMERS_ADD and without a router, so adds stay in the
// stream.
func addStream(t testing.TB, change func(*jetstream.StreamConfig), options ...natstest.Option) (*belfry.Client, jetstream.Stream) {
	t.Helper()
	nc := natstest.Run(t, options...).Connect()
	js := natstest.JetStream(t, nc)
	cfg := jetstream.StreamConfig{Name: schemas.StreamAdd, Subjects: []string{schemas.SubjectAdd}, Retention: jetstream.WorkQueuePolicy, AllowAtomicPublish: true}
	change(&cfg)
	s, err := js.CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := belfry.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func events(n int) (out []event.Event) {
	for i := range n {
		out = append(out, newEvent(fmt.Sprint(i)))
	}
	return out
}

// stored checks that the stream holds n different events, and returns how many
// were stored in atomic batches.
func stored(t *testing.T, s jetstream.Stream, n int) (batched int) {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != uint64(n) {
		t.Fatalf("%d adds are stored, not %d", info.State.Msgs, n)
	}
	seen := map[string]bool{}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		_, spec, err := schemas.ParseAdd(m.Header, m.Data, m.Time.UnixMilli(), schemas.Limits{})
		if err != nil || seen[spec.EventID] {
			t.Fatalf("%s twice: %v; %v", spec.EventID, seen[spec.EventID], err)
		}
		seen[spec.EventID] = true
		if m.Header.Get("Nats-Batch-Id") != "" {
			batched++
		}
	}
	return batched
}

func TestAddBatch(t *testing.T) {
	t.Parallel()
	const n = 1510
	c, s := addStream(t, func(*jetstream.StreamConfig) {})
	if err := c.AddBatch(t.Context(), events(n), belfry.After(time.Hour)); err != nil {
		t.Fatal(err)
	}
	stored(t, s, n) // whether they came in batches depends on the disk
	if err := c.AddBatch(t.Context(), nil); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// TestAddBatchAlone: a stream without atomic batches stores all adds.
func TestAddBatchAlone(t *testing.T) {
	t.Parallel()
	c, s := addStream(t, func(cfg *jetstream.StreamConfig) { cfg.AllowAtomicPublish = false })
	for range 2 {
		if err := c.AddBatch(t.Context(), events(600), belfry.After(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if batched := stored(t, s, 600); batched != 0 {
			t.Errorf("%d came in batches", batched)
		}
		purge(t, s)
	}
}

// purge removes all adds from the stream.
func purge(t *testing.T, s jetstream.Stream) {
	t.Helper()
	if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAddBatchTooLarge: the error has the number of the event that the stream refuses. The
// events before it are stored.
func TestAddBatchTooLarge(t *testing.T) {
	t.Parallel()
	c, s := addStream(t, func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2000 })
	batch := events(100)
	if err := batch[70].SetData("text/plain", make([]byte, 4000)); err != nil {
		t.Fatal(err)
	}
	err := c.AddBatch(t.Context(), batch, belfry.After(time.Hour))
	if !errors.Is(err, belfry.ErrTooLarge) {
		t.Fatalf("got error %v", err)
	}
	if want := "add 71 of 100"; err.Error()[:len(want)] != want {
		t.Errorf("%v does not begin with %q", err, want)
	}
	stored(t, s, 99)
	if err := batch[70].SetData("text/plain", make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	// An event over max_payload fails before the first publish.
	purge(t, s)
	if err := c.AddBatch(t.Context(), batch, belfry.After(time.Hour)); !errors.Is(err, belfry.ErrTooLarge) {
		t.Errorf("got error %v", err)
	}
	stored(t, s, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.AddBatch(ctx, events(100), belfry.After(time.Hour)); !errors.Is(err, belfry.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
}
