package belfry_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// TestAttemptsOfATimer: Get has the last ten attempts. The scheduler sends the retry policy
// with the event unless it is the default.
func TestAttemptsOfATimer(t *testing.T) {
	t.Parallel()
	c, url := connectURL(t)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	fired, err := nc.SubscribeSync(schemas.SubjectFired("w"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	const attempts = 13
	worker(t, c, "w", func(_ context.Context, run *belfry.Run) error {
		if run.Event.ID() == "fails" && run.Attempt < attempts {
			return fmt.Errorf("failure %d", run.Attempt)
		}
		return nil
	}, belfry.WithErrorHandler(quiet))

	policy := schemas.RetryPolicy{MaxAttempts: 20, BackoffFirst: 20 * time.Millisecond, BackoffTo: 40 * time.Millisecond, Timeout: 7 * time.Second}
	id := addWork(t, c, "w", "fails", belfry.WithBackoff(policy.BackoffFirst, policy.BackoffTo), belfry.WithMaxAttempts(20), belfry.WithAttemptTimeout(policy.Timeout))
	got := untilState(t, c, id, belfry.StateSuccess)
	if got.Attempts != attempts || len(got.LastAttempts) != schemas.MaxKeptAttempts {
		t.Fatalf("%d attempts, %d kept: %+v", got.Attempts, len(got.LastAttempts), got.LastAttempts)
	}
	for i, a := range got.LastAttempts {
		n := uint32(attempts - schemas.MaxKeptAttempts + 1 + i)
		want := fmt.Sprintf("failure %d", n)
		if n == attempts {
			want = ""
		}
		if a.Attempt != n || a.Error != want || a.At.Before(got.Added) || a.At.After(got.Done.Add(time.Second)) {
			t.Errorf("attempt %d: %+v", n, a)
		}
	}
	msg, err := fired.NextMsg(bound)
	if err != nil {
		t.Fatal(err)
	}
	if h := msg.Header.Get(schemas.HeaderRetry); h != policy.RetryHeader() {
		t.Errorf("the event has the policy %q, want %q", h, policy.RetryHeader())
	}

	r, err := c.Add(t.Context(), newEvent("works"), belfry.After(0), belfry.ToWorker("w"))
	if err != nil {
		t.Fatal(err)
	}
	if got := untilState(t, c, r.Timer, belfry.StateSuccess); len(got.LastAttempts) != 1 || got.LastAttempts[0].Attempt != 1 || got.LastAttempts[0].At.Before(got.Fired) {
		t.Errorf("got %+v", got.LastAttempts)
	}
	msg, err = fired.NextMsg(bound)
	if err != nil {
		t.Fatal(err)
	}
	if _, has := msg.Header[schemas.HeaderRetry]; has || msg.Header.Get(schemas.HeaderExtended) != "" {
		t.Errorf("headers %v: a default timer needs neither a policy nor a read", msg.Header)
	}
	for x, err := range c.List(t.Context(), belfry.ListQuery{}) {
		if err != nil || x.LastAttempts != nil {
			t.Errorf("a list has attempts: %+v (%v)", x.LastAttempts, err)
		}
	}
}
