//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestStopUnderLoad stops nodes under load again and again. Nothing is lost and nothing
// is early.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it starts six nodes")
	server := natstest.Run(t)
	c := connect(t, server.URL())
	callee := newCallee(t, nil)
	var mu sync.Mutex
	acknowledged := 0
	stopAdding := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stopAdding:
					return
				default:
				}
				a := attrs{"id": fmt.Sprintf("%d-%d", w, n), "timersvc": "load", "timerat": at(time.Duration(n%500) * time.Millisecond), "timerbackoff": "50ms..200ms"}
				if n%2 == 0 {
					a["timercallback"] = callee.url
				}
				m := structured(a, `{}`)
				var err error
				if w%2 == 0 {
					// The stream exists only after the first node has started.
					if _, err = c.js.PublishMsg(t.Context(), m); err != nil {
						continue
					}
				} else {
					m.Subject = schemas.SubjectAPIPrefix + "add"
					var reply schemas.AddReply
					for try := 0; try < 1000; try++ { // until a node answers
						if err = c.tryMsg(m, &reply); err == nil {
							break
						}
						if !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, context.DeadlineExceeded) && schemas.CodeOf(err) != schemas.CodeUnavailable {
							t.Errorf("add: %v", err)
							return
						}
						time.Sleep(5 * time.Millisecond) // the client's pause between two tries
					}
					if err != nil {
						continue
					}
				}
				mu.Lock()
				acknowledged++
				mu.Unlock()
				time.Sleep(time.Millisecond) // the client's pace
			}
		})
	}
	for range 6 {
		a := node(t, func(o *app.Options) { o.NATSURL = server.URL() })
		time.Sleep(700 * time.Millisecond) // let the node work for a while
		stop(t, a)
	}
	a := node(t, func(o *app.Options) { o.NATSURL = server.URL() })
	close(stopAdding)
	wg.Wait()
	waittest.Until(t, "every add taken", func() bool { return c.left(schemas.StreamAdd) == 0 })
	events := c.firedEvents("load", acknowledged)
	waittest.Until(t, "nothing left", func() bool {
		return c.none(schemas.ListRequest{States: []schemas.State{schemas.StatePending, schemas.StateDelivered, schemas.StateRetrying}})
	})
	late := lateness(t, events)
	seen := map[string]bool{}
	events = c.firedEvents("load", 0)
	for _, e := range events {
		if seen[e.id] {
			t.Errorf("%s fired twice", e.id)
		}
		seen[e.id] = true
	}
	// An add whose answer was lost may be stored.
	if len(events) < acknowledged {
		t.Errorf("%d fired of %d acknowledged", len(events), acknowledged)
	}
	if n := metrictest.Sum(t, a.Registry(), "belfry_missed_timers_total"); n != 0 {
		t.Errorf("the sweeper fired %v timers, want none", n)
	}
	t.Logf("%d acknowledged, %d fired, %d callbacks; lateness p50 %s, max %s", acknowledged, len(events), callee.count(), percentile(late, 50), percentile(late, 100))
}
