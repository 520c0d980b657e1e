package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
)

// TestSweeperFiresAgainWhatIsAcknowledged: an event that is acknowledged while its record has no result is published
// again, also if older events are still in TIMERS_FIRED, and also a retry. An event that is not acknowledged is not.
func TestSweeperFiresAgainWhatIsAcknowledged(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	n := start(t, srv, "n1", store.Config{DedupWindow: time.Second}, func(o *scheduler.Options) { o.SweepDelay, o.Lease = 2*time.Second, bound })
	// No functions run: the test reads the events in their place.
	read := func(kind store.Kind) *store.FeedReader {
		t.Helper()
		r, err := n.store.ReadFeed(t.Context(), store.Feed{Service: "svc", Kind: kind}, store.FeedOptions{AckWait: time.Hour, MaxAckPending: 10, Most: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	next := func(r *store.FeedReader) *store.Delivery {
		t.Helper()
		if err := r.Request(1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		d, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	ack := func(d *store.Delivery) string {
		t.Helper()
		if err := d.AckConfirmed(t.Context()); err != nil {
			t.Fatal(err)
		}
		return d.Get(jetstream.MsgIDHeader)
	}
	first, second, deferred := timer("first", nowMs()), timer("second", nowMs()), timer("deferred", nowMs())
	for _, w := range []store.Write{first, second, deferred} {
		w.Record.Callback, w.Record.MaxAttempt = "http://127.0.0.1:9/", 3
	}
	fired, retry := read(store.KindFired), read(store.KindRetry)
	create(t, n.store, first, second)
	acknowledged, open := ack(next(fired)), next(fired)
	if again := ack(next(fired)); again != acknowledged {
		t.Fatalf("fired again: %s, want %s, which is acknowledged", again, acknowledged)
	}
	// Now TIMERS_FIRED has acknowledged events only, all of them older than the claim of a retry.
	ack(open)
	deferred.Record.FiredMs, deferred.Record.DueMs = nowMs(), nowMs()
	deferred.Record.Defer("key", 1, nowMs(), true)
	create(t, n.store, deferred)
	want := ack(next(retry))
	if again := next(retry).Get(jetstream.MsgIDHeader); again != want || again != deferred.Record.RunID(deferred.ID).RetryMsgIDAfter(1, 1) {
		t.Errorf("the retry fired again as %s, want %s", again, want)
	}
}
