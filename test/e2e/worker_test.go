//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func workEvent(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/e2e")
	e.SetType("test")
	return e
}

// TestWorkerWithProductionConfig: a Go worker in a team's account of the shipped
// nats.conf adds timers and handles them. One handler runs for longer than timertimeout.
func TestWorkerWithProductionConfig(t *testing.T) {
	t.Parallel()
	s := natstest.RunProduction(t, "../../nats.conf", nil)
	node(t, func(o *app.Options) { o.NATSURL, o.TLS.CA = s.URLOf("belfry"), s.CA })
	c, err := belfry.New(s.ConnectAs("orders", nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) })))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := c.Work(ctx, "orders", func(_ context.Context, run *belfry.Run) error {
			switch {
			case run.Event.ID() == "long":
				work := time.NewTimer(schemas.MinWorkSilence + time.Second) // the work
				defer work.Stop()
				<-work.C
			case run.Attempt == 1:
				return errors.New("once")
			}
			return nil
		}, belfry.WithErrorHandler(func(*belfry.Run, error) {}))
		if err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer cancel()
	for id, want := range map[string]uint32{"long": 1, "fails-once": 2} {
		r, err := c.Add(ctx, workEvent(id), belfry.After(0), belfry.ToWorker("orders"), belfry.WithAttemptTimeout(time.Second), belfry.WithBackoff(10*time.Millisecond, time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var got belfry.Timer
		waittest.Until(t, "timer "+id+" succeeds", func() bool {
			if got, err = c.Get(ctx, r.Timer); err != nil {
				t.Fatal(err)
			}
			return got.State == belfry.StateSuccess
		}, func() string { return fmt.Sprintf("%+v %+v", got, got.Outcome) })
		// An attempt before Work has subscribed finds no worker and does not count.
		if used := got.Attempts - (got.MaxAttempts - schemas.DefaultMaxAttempts); used != want {
			t.Errorf("%s: %d attempts, want %d", id, used, want)
		}
	}
}
