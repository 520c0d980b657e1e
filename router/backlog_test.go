package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// counting counts the reads of TIMERS_FIRED.
type counting struct {
	*store.Store
	reads atomic.Int64
}

func (c *counting) FiredAfter(ctx context.Context, subjects []string, after uint64, since time.Time, fn func(string, int64) bool) (uint64, error) {
	c.reads.Add(1)
	return c.Store.FiredAfter(ctx, subjects, after, since, fn)
}

// later is a cluster time that is ahead of the real one.
type later struct {
	*clustertime.Service
	by time.Duration
}

func (l later) LatestNs() int64 { return l.Service.LatestNs() + l.by.Nanoseconds() }

// TestBacklogOlderThanRetention: no router ran for longer than the retention. The first
// add of the backlog had been stored and had fired, and its record has expired: it is not
// stored again. Adds that no router can have stored before are not looked up.
func TestBacklogOlderThanRetention(t *testing.T) {
	t.Parallel()
	const retention, down, part = time.Hour, 2 * time.Hour, 4000
	f := newFixture(t, store.Config{Retention: retention})
	publish := func(from int) {
		t.Helper()
		f.publishAll(part, func(i int) []byte { return add(fmt.Sprint(from+i), `"timerafter":"1s"`) })
	}
	publish(0)
	first := schemas.NewTimerID("/test", "0")
	if _, _, err := f.store.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("default"), MsgID: first.MsgID(1)}); err != nil {
		t.Fatal(err)
	}
	s := &counting{Store: f.store}
	f.startWith(router.Options{Store: f.store, Dedup: store.NewDedupCheck(s, retention), Time: later{f.clock, down}, Log: zerolog.Nop()})
	stored := func() { waittest.Until(f.t, "all is stored", func() bool { return f.waiting() == 0 }) }
	stored()
	if s.reads.Load() == 0 {
		t.Error("the first adds of the backlog were not looked up")
	}
	n := part
	for ; n < store.RouterMaxAckPending+part; n += part {
		publish(n)
		stored()
	}
	reads := s.reads.Load()
	publish(n)
	stored()
	if more := s.reads.Load() - reads; more != 0 {
		t.Errorf("%d look-ups of adds that are known to be new", more)
	}
	f.await("/test", "1")
	f.await("/test", fmt.Sprint(n+part-1))
	if _, err := f.store.Get(t.Context(), first); schemas.CodeOf(err) != schemas.CodeNotFound {
		t.Errorf("the add that has fired was stored again: %v", err)
	}
}
