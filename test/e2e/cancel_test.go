package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

func decode[T any](t *testing.T, b []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCancelRace cancels 10,000 timers in the millisecond in which they are due,
// or one beside it: each was either cancelled or fired, never both, never neither.
func TestCancelRace(t *testing.T) { // not in parallel: it needs the milliseconds
	const (
		workers = 32
		svc     = "race"
	)
	// A second: below what the machine can do, or all cancels are late.
	count, rate := 10_000, 1000
	if testing.Short() {
		count, rate = 2000, 250
	}
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	rec := check.NewRecorder(nil)
	begin := time.Now().Add(8 * time.Second).Truncate(time.Millisecond)
	due := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second / time.Duration(rate)) }
	dueMs := func(n int) int64 { return due(n).UnixMilli() }
	id := func(n int) string { return fmt.Sprintf("race-%d", n) }

	// Added well ahead: by a publish each, so that only the race is a race.
	calls := make([]int64, count)
	for n := range count {
		calls[n] = rec.Put(check.Event{Kind: check.Add, Via: "publish", Source: "/e2e", ID: id(n), DueMs: dueMs(n), Data: "x"})
		m := binary(attrs{"id": id(n), "timersvc": svc, "timerat": schemas.FormatTime(dueMs(n))}, "text/plain", "x")
		if _, err := c.js.PublishMsgAsync(m); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-c.js.PublishAsyncComplete():
	case <-time.After(bound):
		t.Fatal("adds were not acknowledged")
	}
	for n := range count {
		rec.Put(check.Event{Kind: check.Answer, Call: calls[n], OK: true})
	}

	eventually(t, "every add stored", func() bool { return c.left(schemas.StreamAdd) == 0 }, nil)
	if time.Now().After(begin) {
		t.Fatal("the first timers were due before the last was added: this machine is too slow, or too busy, for a race")
	}

	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(1, uint64(w)))
		wg.Go(func() {
			for n := w; n < count; n += workers {
				// The call takes a part of a millisecond to arrive.
				time.Sleep(time.Until(due(n)) - time.Duration(rng.Int64N(int64(3*time.Millisecond))) + 500*time.Microsecond)
				call := rec.Put(check.Event{Kind: check.Cancel, Via: "api", Source: "/e2e", ID: id(n)})
				var info schemas.TimerInfo
				err := c.call("cancel", schemas.TimerRef{ID: id(n), Source: "/e2e"}, &info)
				if err != nil && schemas.CodeOf(err) == "" {
					t.Errorf("%s: %v", id(n), err)
				}
				rec.Put(check.Event{Kind: check.Answer, Call: call, OK: err == nil, Code: string(schemas.CodeOf(err))})
			}
		})
	}
	wg.Wait()
	eventually(t, "nothing is pending", func() bool {
		return c.none(schemas.ListRequest{States: []schemas.State{schemas.StatePending, schemas.StateDelivered}, Service: svc})
	}, nil)
	for _, e := range c.firedEvents(svc, 0) {
		rec.Put(check.Event{Kind: check.Fired, Source: e.source, ID: e.id, TimeNs: e.at.UnixNano(), Key: e.msgID, Data: e.data, Sequence: e.seq})
	}
	events, err := rec.Events()
	if err != nil {
		t.Fatal(err)
	}
	r := check.Check(events)
	t.Logf("\n%s", r)
	for i, v := range r.Violations {
		if i == 20 {
			break
		}
		t.Error(v)
	}
	if r.Cancelled+r.Fired != count || r.Cancelled+r.CancelsTooLate != count {
		t.Errorf("cancelled %d, too late %d, fired %d: of %d timers", r.Cancelled, r.CancelsTooLate, r.Fired, count)
	}
	if r.Cancelled == 0 || r.CancelsTooLate == 0 {
		t.Errorf("no race: %d cancelled, %d too late", r.Cancelled, r.CancelsTooLate)
	}
}
