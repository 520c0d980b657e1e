package belfry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestLimitedAdds: an add over the limit of its service is ErrLimited with the time after which to try
// again; of a batch, the events that found no place are rejections.
func TestLimitedAdds(t *testing.T) {
	t.Parallel()
	c := connect(t)
	ctx := t.Context()
	var err error
	waittest.Until(t, "a limit of adds is stored", func() bool {
		_, err = c.SetFlow(ctx, "adds:limited", belfry.FlowLimit{Rate: "1/1h", Burst: 1})
		return err == nil
	}, func() string { return err.Error() })
	if _, err := c.Add(ctx, newEvent("limited-1"), belfry.After(time.Hour), belfry.WithService("limited")); err != nil {
		t.Fatal(err)
	}
	_, err = c.Add(ctx, newEvent("limited-2"), belfry.After(time.Hour), belfry.WithService("limited"))
	var e *belfry.Error
	if !errors.Is(err, belfry.ErrLimited) || !errors.As(err, &e) || e.RetryAfter < 50*time.Minute || e.RetryAfter > 62*time.Minute {
		t.Errorf("an add over the limit: %v, want ErrLimited and an hour in %+v", err, e)
	}
	if _, err := c.Add(ctx, newEvent("limited-3"), belfry.After(time.Hour), belfry.WithService("unlimited")); err != nil {
		t.Errorf("an add of another service: %v", err)
	}
	if err := c.AddBatch(ctx, []event.Event{newEvent("limited-4"), newEvent("limited-5")}, belfry.After(time.Hour), belfry.WithService("limited")); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the events of the batch are rejections", func() bool {
		found := map[string]bool{}
		for r, err := range c.Rejections(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Code == "limited" {
				found[r.ID] = true
			}
		}
		return found["limited-4"] && found["limited-5"]
	})
}
