package fake_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// contended is the transport of a client that calls before each of its requests to bucket clock.
type contended struct {
	*local
	before func()
}

func (c *contended) Do(ctx context.Context, r fake.Request) error {
	if r.Stream == fake.StreamClock {
		c.before()
	}
	return c.local.Do(ctx, r)
}

// TestReportConflicts: an inspection and a clock write start over if another client changes the damage
// report between their read and their write of it, up to five times. A clock write must not report that as
// a conflict of the clock. Package store has the same tests of the real store.
func TestReportConflicts(t *testing.T) {
	t.Parallel()
	const tries = 5
	for name, call := range map[string]struct {
		run  func(c *fake.Client, clock store.Clock, rev uint64) error
		fail error // after so many conflicts
	}{
		"inspection": {func(c *fake.Client, _ store.Clock, _ uint64) error {
			_, err := c.Inspect(t.Context(), 0, 0, 0, nil)
			return err
		}, store.ErrRevision},
		"clock write": {func(c *fake.Client, clock store.Clock, rev uint64) error {
			_, err := c.WriteClock(t.Context(), 0, clock, rev)
			return err
		}, schemas.ErrUnavailable},
	} {
		for conflicts, want := range map[int]error{1: nil, tries - 1: nil, tries: call.fail} {
			t.Run(fmt.Sprintf("%s with %d conflicts", name, conflicts), func(t *testing.T) {
				t.Parallel()
				l := open(t)
				ids := storetest.IDsOf(l.Geometry(), 0, 1+conflicts)
				for _, id := range ids {
					storetest.CreateAll(t, l, []store.Write{{ID: id, Record: storetest.Pending(storetest.NowMs(t, l))}})
					storetest.Overwrite(t, l, "KV_timers_0", "timer."+id.String(), []byte(storetest.PubAck))
				}
				damaged := func(c *fake.Client, id schemas.TimerID) {
					if _, err := c.Get(t.Context(), id); !errors.Is(err, schemas.ErrDamaged) {
						t.Errorf("get: %v, want %v", err, schemas.ErrDamaged)
					}
				}
				clock, rev, err := l.ReadClock(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				requests := 0
				busy := &contended{l, func() {
					// The requests read and write the report in turn.
					if requests++; requests%2 != 0 || requests > 2*conflicts {
						return
					}
					damaged(l.Client, ids[requests/2])
					if _, err := l.Inspect(t.Context(), 0, 0, 0, nil); err != nil {
						t.Error(err)
					}
				}}
				c := fake.NewClient(l.server, busy, "n2", func() int64 { return time.Now().UnixMilli() })
				damaged(c, ids[0])
				if err := call.run(c, clock, rev); !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Fatalf("%v, want %v", err, want)
				}
				if n := len(l.server.Reported(0)); want == nil && n != len(ids) {
					t.Errorf("%d records are reported, want %d", n, len(ids))
				}
			})
		}
	}
}
