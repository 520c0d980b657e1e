//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestMisbehavingCallbacks gives timers to callees that hang, fail, delay, refuse,
// redirect and flood. Each ends as documented, and the timers of another service stay on
// time.
func TestMisbehavingCallbacks(t *testing.T) { // not in parallel: it judges lateness
	a := node(t, func(o *app.Options) { o.Concurrency, o.TotalConcurrency = 16, 64 })
	c := connect(t, a.NATSURL())
	release := make(chan struct{})
	defer close(release)
	var redirected, flooded atomic.Int64
	secret := newCallee(t, func(int, http.ResponseWriter, *http.Request) { redirected.Add(1) })
	hang := newCallee(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	broken := newCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	busy := newCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	redirect := newCallee(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/?from="+secret.url, http.StatusFound)
	})
	loopback := newCallee(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, secret.url, http.StatusTemporaryRedirect)
	})
	flood := newCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		block := make([]byte, 1<<20)
		for range 100 {
			n, err := w.Write(block)
			flooded.Add(int64(n))
			if err != nil {
				return // the caller has closed the connection
			}
		}
	})
	gone := newCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGone)
		if _, err := io.WriteString(w, "no more"); err != nil {
			t.Error(err)
		}
	})
	good := newCallee(t, nil)
	refused := tcptest.FreeAddress(t)
	// Otherwise the events of these targets would wait for an answer to a probe.
	for _, key := range []string{refused, "service:nobody"} {
		if err := c.call("flow.set", schemas.FlowSetRequest{Key: key, Circuit: new(0)}, new(schemas.FlowReply)); err != nil {
			t.Fatal(err)
		}
	}

	cases := []struct {
		svc, callback string
		extra         attrs
		state         schemas.State
		attempts      uint32
		code          int32
		reason        string // in the dead letter
		check         func(id string)
	}{
		{svc: "hang", callback: hang.url, extra: attrs{"timertimeout": "300ms", "timermaxattempts": "2"}, state: schemas.StateFail, attempts: 2, reason: "timeout"},
		{svc: "broken", callback: broken.url, extra: attrs{"timermaxattempts": "3"}, state: schemas.StateFail, attempts: 3, code: 500, reason: "http_status"},
		{svc: "busy", callback: busy.url, extra: attrs{"timermaxattempts": "1"}, state: schemas.StateSuccess, attempts: 2, code: 200, check: func(id string) {
			calls := busy.of(id)
			if len(calls) != 2 || calls[1].at.Sub(calls[0].at) < 2*time.Second || calls[1].at.Sub(calls[0].at) > bound || calls[0].key != calls[1].key {
				t.Errorf("busy: %s was called %d times: %+v", id, len(calls), calls)
			}
		}},
		{svc: "refused", callback: "http://" + refused, extra: attrs{"timermaxattempts": "2"}, state: schemas.StateFail, attempts: 2, reason: "connection"},
		{svc: "redirect", callback: redirect.url, extra: attrs{"timermaxattempts": "2"}, state: schemas.StateFail, attempts: 2, code: 302, reason: "redirect"},
		{svc: "redirect-loopback", callback: loopback.url, extra: attrs{"timermaxattempts": "2"}, state: schemas.StateFail, attempts: 2, code: 307, reason: "redirect"},
		{svc: "metadata", callback: "http://169.254.169.254/latest/meta-data/", extra: attrs{"timermaxattempts": "2"}, state: schemas.StateFail, attempts: 2, reason: "address_refused"},
		{svc: "flood", callback: flood.url, state: schemas.StateSuccess, attempts: 1, code: 200},
		{svc: "gone", callback: gone.url, state: schemas.StateFail, attempts: 1, code: 410, reason: "http_status"},
		{svc: "nobody", callback: "nats:nobody.listens", extra: attrs{"timermaxattempts": "2"}, state: schemas.StateFail, attempts: 2, reason: "no_responders"},
	}
	const each, goodCount = 40, 400
	busyCount := testsize.Choose(t, "events of the busy service, which pauses 2 s for each", 8, 8, each)
	count := func(svc string) int {
		if svc == "busy" {
			return busyCount
		}
		return each
	}
	begin := time.Now().Add(2 * time.Second)
	for _, x := range cases {
		for n := range count(x.svc) {
			at := attrs{"id": fmt.Sprintf("%s-%d", x.svc, n), "timersvc": x.svc, "timercallback": x.callback, "timerbackoff": "50ms..200ms", "timerat": schemas.FormatTime(begin.Add(time.Duration(n) * 5 * time.Millisecond).UnixMilli())}
			for k, v := range x.extra {
				at[k] = v
			}
			c.publish(structured(at, `{}`))
		}
	}
	for n := range goodCount {
		c.publish(structured(attrs{"id": fmt.Sprintf("good-%d", n), "timersvc": "good", "timercallback": good.url, "timerat": schemas.FormatTime(begin.Add(time.Duration(n) * 10 * time.Millisecond).UnixMilli())}, `{}`))
	}

	events := c.firedEvents("good", goodCount)
	late := lateness(t, events)
	firedAt := map[string]time.Time{}
	for _, e := range events {
		firedAt[e.id] = e.at
	}
	waittest.Until(t, "every good callback made", func() bool { return good.count() >= goodCount })
	called := make([]time.Duration, 0, goodCount)
	good.mu.Lock()
	for _, call := range good.calls {
		called = append(called, call.at.Sub(firedAt[call.id]))
	}
	good.mu.Unlock()
	slices.Sort(called)
	t.Logf("the good service: fired p50 %s p99 %s, called after that p50 %s p99 %s", percentile(late, 50), percentile(late, 99), percentile(called, 50), percentile(called, 99))
	// Use the median of the stream's timestamps, because the machine may stop for a
	// while.
	if p := percentile(called, 50); p > 2*time.Second {
		t.Errorf("the good service was called %s after its timers had fired (p50)", p)
	}

	for _, x := range cases {
		for n := range count(x.svc) {
			id := fmt.Sprintf("%s-%d", x.svc, n)
			i := c.until(id, x.state)
			if i.Attempts != x.attempts {
				t.Errorf("%s: %d attempts, want %d", id, i.Attempts, x.attempts)
			}
			if i.Outcome == nil && x.code != 0 || i.Outcome != nil && i.Outcome.Code != x.code {
				t.Errorf("%s: outcome %+v, want code %d", id, i.Outcome, x.code)
			}
			if i.Outcome != nil && len(i.Outcome.Response) > schemas.MaxOutcomeResponse*4 {
				t.Errorf("%s: %d bytes of response were kept", id, len(i.Outcome.Response))
			}
			if x.check != nil {
				x.check(id)
			}
		}
		var dead schemas.DeadListReply
		if err := c.call("dead.list", schemas.DeadListRequest{Service: x.svc, Limit: 100}, &dead); err != nil {
			t.Fatal(err)
		}
		want := 0
		if x.state == schemas.StateFail {
			want = count(x.svc)
		}
		if len(dead.Dead) != want {
			t.Errorf("%s: %d dead letters, want %d", x.svc, len(dead.Dead), want)
		}
		for _, d := range dead.Dead {
			if d.ErrorCode != x.reason || d.Attempts != x.attempts || d.ErrorData == "" {
				t.Errorf("%s: dead letter %+v, want %s after %d attempts", x.svc, d, x.reason, x.attempts)
			}
		}
	}
	if n := redirected.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
	if n := flooded.Load(); n > int64(each)*(20<<20) {
		t.Errorf("%d MB of answers were read", n>>20)
	}
}

// TestReplay replays dead letters after their callee has recovered.
func TestReplay(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	var well atomic.Bool
	callee := newCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	for n := range 5 {
		c.publish(structured(attrs{"id": fmt.Sprint(n), "timersvc": "replay", "timercallback": callee.url, "timerafter": "1ms", "timermaxattempts": "1"}, `{"a":1}`))
	}
	for n := range 5 {
		c.until(fmt.Sprint(n), schemas.StateFail)
	}
	well.Store(true)
	var r schemas.ReplayReply
	if err := c.call("dead.replay", schemas.ReplayRequest{TimerRef: schemas.TimerRef{ID: "0", Source: "/e2e"}}, &r); err != nil || r.Replayed != 1 {
		t.Fatalf("replay of one: %+v %v", r, err)
	}
	if err := c.call("dead.replay", schemas.ReplayRequest{Service: "replay"}, &r); err != nil || r.Replayed != 4 {
		t.Fatalf("replay of the rest: %+v %v", r, err)
	}
	for n := range 5 {
		c.until(fmt.Sprint(n), schemas.StateSuccess)
		calls := callee.of(fmt.Sprint(n))
		if len(calls) != 2 || calls[0].key != calls[1].key || calls[1].body != `{"a":1}` {
			t.Errorf("%d: %d calls: %+v", n, len(calls), calls)
		}
	}
	if events := c.firedEvents("replay", 0); len(events) != 5 {
		t.Errorf("%d events on timers.fired: want 5: a replay publishes no fired event", len(events))
	}
}
