package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestOrderKill: eight keys of twelve events are due, over two nodes, while the first event of
// each key is called; some of the others fail once, some for good. One node is killed while calls run. Within each key the events are
// concluded in due order, no other event of the key is called while one runs or fails, and
// another service is called meanwhile.
func TestOrderKill(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	nodes := pair(t, server.URL())
	c := connect(t, server.URL())
	const keys, events = 8, 12
	var mu sync.Mutex
	running := map[string]int{} // event by key
	last := map[string]int{}    // the last event that ended for good
	arrived, killed := make(chan struct{}), make(chan struct{})
	callee := newCallee(t, func(n int, w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Ce-Timerkey")
		var e int
		if _, err := fmt.Sscan(strings.TrimPrefix(r.Header.Get("Ce-Id"), key+"-"), &e); err != nil {
			t.Error(err)
		}
		mu.Lock()
		if other, busy := running[key]; busy && other != e {
			t.Errorf("key %s: event %d is called while %d is", key, e, other)
		}
		if e < last[key] || e > last[key]+1 {
			t.Errorf("key %s: event %d is called after %d", key, e, last[key])
		}
		running[key] = e
		mu.Unlock()
		if e == 1 { // until all others wait
			<-arrived
		}
		if e == 5 && n == 1 { // until a node is killed with some of these calls
			select {
			case <-killed:
			case <-r.Context().Done():
			}
		}
		mu.Lock()
		defer mu.Unlock()
		delete(running, key)
		switch {
		case r.Context().Err() != nil: // the caller died
		case e%6 == 3 && n == 1, e%6 == 0 && n < 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		case e%6 == 0: // the last of its three attempts
			last[key] = e
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			last[key] = e
		}
	})
	base := time.Now()
	for _, e := range []int{1, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2} {
		if e == 12 {
			waittest.UntilWithin(t, 2*bound, "the first event of each key is called", func() bool { return callee.count() == keys })
		}
		c.publishAll(keys, func(k int) *nats.Msg {
			key := fmt.Sprint("k", k)
			return structured(attrs{
				"id": fmt.Sprint(key, "-", e), "timersvc": "ordered", "timerkey": key, "timercallback": callee.url, "timermaxattempts": "3", "timertimeout": "5m", "timerbackoff": "50ms",
				"timerat": schemas.FormatTime(base.Add(time.Duration(e) * time.Millisecond).UnixMilli()),
			}, `{}`)
		})
	}
	waittest.UntilWithin(t, 2*bound, "all but the first wait", func() bool { return c.awaitTurns() == keys*(events-1) })
	close(arrived)
	waittest.UntilWithin(t, 2*bound, "each key is at the event that is called when a node dies", func() bool {
		return c.heads(keys, 5)
	})
	free := newCallee(t, nil)
	for n := range 20 {
		c.publish(structured(attrs{"id": fmt.Sprint("free", n), "timersvc": "free", "timercallback": free.url, "timerafter": "10ms"}, `{}`))
	}
	waittest.Until(t, "the other service is called", func() bool { return len(free.called()) == 20 })
	nodes[0].Kill()
	close(killed)
	waittest.UntilWithin(t, 4*bound, "every event is concluded", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for k := range keys {
			if last[fmt.Sprint("k", k)] != events {
				return false
			}
		}
		return true
	}, func() string { mu.Lock(); defer mu.Unlock(); return fmt.Sprint(last) })
	waittest.Until(t, "every timer has its result", func() bool {
		return c.none(schemas.ListRequest{Service: "ordered", States: []schemas.State{schemas.StatePending, schemas.StateDelivered, schemas.StateRetrying}})
	})
	for k := range keys {
		for _, e := range []int{6, 12} {
			c.until(fmt.Sprint("k", k, "-", e), schemas.StateFail)
		}
		c.until(fmt.Sprint("k", k, "-", 1), schemas.StateSuccess)
	}
}

// awaitTurns returns the number of timers that wait for their turn.
func (c *client) awaitTurns() (n int) {
	var page schemas.ListReply
	if err := c.callOnce(request("list", schemas.ListRequest{Service: "ordered", States: []schemas.State{schemas.StateRetrying}, Limit: 500}), &page); err != nil {
		return 0
	}
	for _, i := range page.Timers {
		if i.Order != nil && i.Order.Waits {
			n++
		}
	}
	return n
}

// heads reports whether the event number e of each of the keys k0, k1 … has its turn, and the
// next one waits for it.
func (c *client) heads(keys, e int) bool {
	for k := range keys {
		i, err := c.info(fmt.Sprint("k", k, "-", e+1))
		if err != nil || i.Order == nil || !i.Order.Waits {
			return false
		}
		if i.Order.Head != schemas.NewTimerID("/e2e", fmt.Sprint("k", k, "-", e)).String() {
			return false
		}
	}
	return true
}
