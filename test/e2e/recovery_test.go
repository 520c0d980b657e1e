//go:build unix

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// TestDueWhileDown lets timers become due while no node runs. After the start they fire
// at once, from the low watermark on, and their events tell how late they are.
func TestDueWhileDown(t *testing.T) {
	t.Parallel()
	for name, abrupt := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Run(t)
			c := connect(t, server.URL())
			lease := func(o *app.Options) { o.NATSURL, o.Lease = server.URL(), 600*time.Millisecond }
			const count = 300
			add := func() {
				for n := range count {
					// Some are in the node's memory when it stops, some are not.
					c.publish(structured(attrs{"id": fmt.Sprint(n), "timersvc": "down", "timerat": at(1500*time.Millisecond + time.Duration(n)*20*time.Millisecond)}, `{}`))
				}
				waittest.Until(t, "every add stored", func() bool { return c.left(schemas.StreamAdd) == 0 })
			}
			if abrupt {
				p := proc.New(t, proc.Options{NATSURL: server.URL(), Config: "lease: 600ms\nshards: 2\n"})
				p.Start()
				p.Ready(t.Context())
				add()
				p.Kill()
			} else {
				first := node(t, lease)
				add()
				stop(t, first)
			}
			before := len(c.firedEvents("down", 0))
			time.Sleep(3 * time.Second) // the down time
			up := time.Now()
			second := node(t, lease)
			events := c.firedEvents("down", count)
			lateness(t, events)
			if d := events[len(events)-1].at.Sub(up); d > bound {
				t.Errorf("the last fired %s after the start", d)
			}
			if before == count {
				t.Error("everything had fired before the down time: the test showed nothing")
			}
			for _, e := range events[before:] {
				firedMs, err := schemas.ParseTime(fmt.Sprint(e.extensions[schemas.AttrFired]))
				if err != nil {
					t.Fatal(err)
				}
				if at := time.UnixMilli(firedMs); at.Before(up.Add(-time.Second)) || at.After(e.at.Add(time.Second)) {
					t.Errorf("%s says that it fired at %s; the node came up at %s and the stream says %s", e.id, at, up, e.at)
				}
			}
			if got := c.firedEvents("down", 0); len(got) != count {
				t.Errorf("%d events, want %d", len(got), count)
			}
			if n := metrictest.Sum(t, second.Registry(), "belfry_missed_timers_total"); n != 0 {
				t.Errorf("the sweeper fired %v of them, want none: the low watermark includes them", n)
			}
		})
	}
}

// left returns the number of messages in a stream.
func (c *client) left(stream string) uint64 {
	c.t.Helper()
	s, err := c.js.Stream(c.t.Context(), stream)
	if err != nil {
		c.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// TestTakeover starts a second node. It receives one of two shards while timers fire, and
// takes the other when the first node stops without releasing it.
func TestTakeover(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	first := proc.New(t, proc.Options{NATSURL: server.URL(), Config: "lease: 3s\nshards: 2\nroles: [scheduler]\n"})
	first.Start()
	first.Ready(t.Context())
	c := connect(t, server.URL())
	waittest.Until(t, "the first node owns every shard", func() bool { return c.owned(2) == 2 })
	second := node(t, func(o *app.Options) { o.NATSURL, o.Lease = server.URL(), 3*time.Second })
	const early, count = 2000, 2300
	for n := range early {
		c.publish(structured(attrs{"id": fmt.Sprint(n), "timersvc": "takeover", "timerat": at(time.Second + time.Duration(n)*3*time.Millisecond)}, `{}`))
	}
	waittest.Until(t, "some of them fired", func() bool { return c.left(schemas.StreamFired) > 100 })
	waittest.Until(t, "the second node has its share", func() bool { return metrictest.Sum(t, second.Registry(), "belfry_shard_takeovers_total") >= 1 })
	var a, b string
	waittest.Until(t, "each node owns a shard", func() bool {
		a, b = c.owner(0), c.owner(1)
		return a != b && (a == second.Node() || b == second.Node())
	}, func() string { return a + " and " + b + " own the shards" })
	for n := early; n < count; n++ { // due after the kill, even on a slow machine
		c.publish(structured(attrs{"id": fmt.Sprint(n), "timersvc": "takeover", "timerat": at(7 * time.Second)}, `{}`))
	}
	killed := time.Now()
	first.Kill()
	before := c.left(schemas.StreamFired)
	events := c.firedEvents("takeover", count)
	late := lateness(t, events)
	if got := c.firedEvents("takeover", 0); len(got) != count {
		t.Errorf("%d events, want %d", len(got), count)
	}
	if before >= count {
		t.Fatal("everything had fired before the kill: the test showed nothing")
	}
	seen := map[string]bool{}
	for _, e := range events {
		if seen[e.msgID] {
			t.Errorf("%s fired twice", e.id)
		}
		seen[e.msgID] = true
	}
	if n := metrictest.Sum(t, second.Registry(), "belfry_shard_takeovers_total"); n < 2 { // more, if the machine stopped for longer than a lease
		t.Errorf("%v take-overs, want 2", n)
	}
	if n := metrictest.Sum(t, second.Registry(), "belfry_missed_timers_total"); n != 0 {
		t.Errorf("the sweeper fired %v timers, want none", n)
	}
	t.Logf("killed at %d of %d; first event after it %s later; lateness p50 %s, max %s", before, count,
		events[min(int(before), count-1)].at.Sub(killed).Round(time.Millisecond), percentile(late, 50), percentile(late, 100))
	if worst := percentile(late, 100); worst > bound {
		t.Errorf("the latest timer was %s late", worst)
	}
}

func (c *client) owner(shard int) string {
	c.t.Helper()
	kv, err := c.js.KeyValue(c.t.Context(), schemas.BucketClock)
	if err != nil {
		c.t.Fatal(err)
	}
	e, err := kv.Get(c.t.Context(), fmt.Sprintf("clock.%d", shard))
	if err != nil {
		c.t.Fatal(err)
	}
	return decode[store.Clock](c.t, e.Value()).Owner
}

// owned returns the number of shards that have an owner.
func (c *client) owned(shards int) int {
	n := 0
	for shard := range shards {
		if c.owner(shard) != "" {
			n++
		}
	}
	return n
}

// TestSweeperFindsAnOrphan plants a state that must not occur: a pending timer behind the
// low watermark. The sweeper fires it and counts it.
func TestSweeperFindsAnOrphan(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	nc := server.Connect()
	s, err := store.Open(t.Context(), nc, store.Config{Node: "planter", Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMilli()
	m := binary(attrs{"id": "orphan", "timersvc": "orphans", "timerat": schemas.FormatTime(now - 30_000)}, "text/plain", "found")
	body, spec, err := schemas.ParseAdd(m.Header, m.Data, now, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: now, Hash: spec.Hash, Service: spec.Service, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, MaxAttempt: spec.MaxAttempts, DueMs: spec.DueMs, ScheduledMs: spec.DueMs},
	}
	res := s.Create(t.Context(), []store.Write{{ID: spec.Timer, Record: &rec}})
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	clock, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	// The clock claims that everything until now has fired, and that the sweeper has
	// checked all until a minute ago.
	clock.TimeMs, clock.Tail, clock.Seen, clock.SweptMs = now/1000*1000, res[0].Rev, res[0].Rev, now/1000*1000-60_000
	if _, err := s.WriteClock(t.Context(), 0, clock, rev); err != nil {
		t.Fatal(err)
	}
	s.Close()

	a := node(t, func(o *app.Options) {
		o.NATSURL, o.Shards, o.Retention, o.SweepDelay = server.URL(), 0, 30*time.Second, 23*time.Second
		o.Log = zerolog.Nop() // a missed timer is logged as an error
	})
	c := connect(t, server.URL())
	events := c.firedEvents("orphans", 1)
	lateness(t, events)
	if events[0].id != "orphan" || events[0].data != "found" {
		t.Errorf("%+v", events[0])
	}
	c.until("orphan", schemas.StateSuccess)
	if n := metrictest.Sum(t, a.Registry(), "belfry_missed_timers_total"); n < 1 {
		t.Errorf("the sweeper counted %v missed timers, want 1", n)
	}
	if got := c.firedEvents("orphans", 0); len(got) != 1 {
		t.Errorf("the timer fired %d times, want once", len(got))
	}
}
