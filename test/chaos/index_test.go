//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// TestKillNineIndex kills a node again and again while its search index is written. Each time the index
// opens and follows on, and in the end it has what the records have.
func TestKillNineIndex(t *testing.T) {
	testsize.Long(t, "kills with a search index")
	t.Parallel()
	const batches, perBatch, kills = 20, 50, 3
	sd := seed(t)
	t.Logf("seed %d", sd)
	rng := rand.New(rand.NewPCG(sd, 9))
	n := proc.New(t, proc.Options{Config: "profile: fast\nshards: 2\n"})
	n.Start()
	n.Ready(t.Context())
	c, err := belfry.Connect(t.Context(), n.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)

	var stored atomic.Int64
	added := make(chan struct{})
	go func() {
		defer close(added)
		for k := range batches {
			events, ids := indexBatch(t, k, perBatch)
			untilDone(t, func(ctx context.Context) error { return c.AddBatch(ctx, events) })
			stored.Add(1)
			// Pending ones of the batch are cancelled, so that their rows change.
			for _, id := range ids {
				untilDone(t, func(ctx context.Context) error {
					_, err := c.Cancel(ctx, id)
					if schemas.CodeOf(err) == schemas.CodeNotFound {
						return err // not routed yet
					}
					if schemas.CodeOf(err) == schemas.CodeUnavailable || err == nil {
						return err
					}
					return nil // it was cancelled before the node was killed
				})
			}
		}
	}()
	for k := range kills {
		// One kill in each part of the adds, at a random moment after it has begun.
		begun := int64(k * batches / (kills + 1))
		eventually(t, 2*time.Minute, fmt.Sprintf("%d batches", begun), func(context.Context) (bool, error) { return stored.Load() > begun, nil })
		pause.For(t.Context(), time.Duration(rng.Int64N(int64(1200*time.Millisecond))))
		n.Kill()
		n.Start()
		n.Ready(t.Context())
	}
	<-added
	var got, want map[string]string
	last := errors.New("neither was read")
	waittest.UntilWithin(t, 4*time.Minute, "an index that has what the records have", func() bool {
		if want, last = recordsOf(t.Context(), c); last != nil {
			return false
		}
		got, last = indexOf(t.Context(), c)
		return last == nil && len(want) == batches*perBatch && maps.Equal(got, want)
	}, func() string {
		for id := range want {
			if got[id] != want[id] {
				return fmt.Sprintf("the index has %d timers and the records %d (error %v); the index has %s, the record is %s", len(got), len(want), last, got[id], want[id])
			}
		}
		return fmt.Sprintf("the index has %d timers and the records %d (error %v)", len(got), len(want), last)
	})
}

// indexBatch returns the events of one batch, and the timers of it that are to be cancelled. A third is due at
// once, a third within seconds.
func indexBatch(t *testing.T, batch, size int) (events []event.Event, cancel []belfry.TimerID) {
	t.Helper()
	for i := range size {
		e := event.New()
		e.SetID(fmt.Sprintf("order-%d-%d", batch, i))
		e.SetSource("/chaos/index")
		e.SetType("order.due")
		e.SetExtension("timersvc", fmt.Sprintf("s%d", i%3))
		e.SetExtension("timerafter", []string{"PT0.001S", "PT2S", "PT1H"}[i%3])
		if i%10 == 5 {
			e.SetExtension("timerafter", "PT1H")
			cancel = append(cancel, belfry.NewTimerID(e.Source(), e.ID()))
		}
		events = append(events, e)
	}
	return events, cancel
}

// untilDone repeats an operation until it has no error.
func untilDone(t *testing.T, f func(context.Context) error) {
	for t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		err := f(ctx)
		cancel()
		if err == nil {
			return
		}
		pause.For(t.Context(), 50*time.Millisecond)
	}
}

// recordsOf returns all timers by event id, as their records are.
func recordsOf(ctx context.Context, c *belfry.Client) (map[string]string, error) {
	all := map[string]string{}
	for timer, err := range c.List(ctx, belfry.ListQuery{}) {
		if err != nil {
			return nil, err
		}
		all[timer.ID] = string(timer.Append(nil))
	}
	return all, nil
}

// indexOf returns all timers by event id, as the search index has them.
func indexOf(ctx context.Context, c *belfry.Client) (map[string]string, error) {
	all := map[string]string{}
	for q := (belfry.SearchQuery{Limit: 100}); ; {
		page, err := c.Search(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Timers {
			all[page.Timers[i].ID] = string(page.Timers[i].Append(nil))
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all, nil
		}
	}
}
