//go:build unix

package e2e

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// target counts the calls of many events. It remembers less of a call than a callee.
type target struct {
	url string

	mu        sync.Mutex
	at        []time.Time
	ids       map[string]time.Time // first calls
	now, most int                  // calls at once
}

// newTarget starts a target whose calls take a duration.
func newTarget(t *testing.T, takes time.Duration) *target {
	t.Helper()
	x := &target{ids: map[string]time.Time{}}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		x.enter(r.Header.Get("Ce-Id"))
		defer x.leave()
		if takes > 0 {
			select {
			case <-time.After(takes):
			case <-r.Context().Done(): // the caller is gone
			}
		}
	}))
	t.Cleanup(s.Close)
	x.url = s.URL
	return x
}

func (x *target) enter(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	x.at = append(x.at, now)
	if _, known := x.ids[id]; !known {
		x.ids[id] = now
	}
	x.now++
	x.most = max(x.most, x.now)
}

func (x *target) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now--
}

// called returns the number of events that were called, and the number of calls.
func (x *target) called() (events, calls int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.ids), len(x.at)
}

// excess returns by how many calls the fullest window exceeds rate × t + burst; below 0 if none
// does.
func excess(times []time.Time, l flow.Limit) float64 {
	slices.SortFunc(times, time.Time.Compare)
	perSecond := float64(l.Rate.Count) / l.Rate.Per.Seconds()
	worst, least := math.Inf(-1), math.Inf(1)
	for i, at := range times {
		ahead := float64(i) - perSecond*at.Sub(times[0]).Seconds()
		least = min(least, ahead)
		worst = max(worst, ahead-least+1-float64(l.Burst))
	}
	return worst
}

// TestFlowRun: three nodes. 2,000 events without a limit are due at one instant, for comparison. Then
// 2,000 events of one key are due at one instant, at 500 a second with a burst of 50; then slow calls
// of another key, at most eight at once, while the nodes are killed one after the other. A service
// without limits is called before and meanwhile; its lateness is logged for each of these phases.
// BELFRY_FLOW_RUN is the number of events, for a long run such as 50000.
func TestFlowRun(t *testing.T) {
	t.Parallel()
	events, slow := 2000, 48
	if text := os.Getenv("BELFRY_FLOW_RUN"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("BELFRY_FLOW_RUN is %q; it must be a number of events", text)
		}
		events, slow = n, max(slow, n/100)
	} else {
		testsize.Long(t, "4,000 events on three nodes")
	}
	server := natstest.Run(t)
	// The default of fired-max-per-service is a share of the stream, and the server of a test has
	// a small one.
	firedMax := 6*events + 1000
	config := fmt.Sprintf("lease: 3s\nshards: 2\nallow-loopback: true\nfired-max-per-service: %d\n", firedMax)
	var nodes [3]*proc.Node
	for i := range nodes {
		nodes[i] = proc.New(t, proc.Options{NATSURL: server.URL(), Config: config})
		nodes[i].Start()
	}
	for _, n := range nodes {
		n.Ready(t.Context())
	}
	c, operator := connect(t, server.URL()), openOperatorWith(t, server.URL(), store.Config{FiredMaxPerService: firedMax})
	fast := flow.Limit{Rate: flow.Rate{Count: 500, Per: time.Second}, Burst: 50}
	operator.set("fast", fast)
	operator.set("slow", flow.Limit{Parallel: 8})
	unlimited, limited, parallel, free := newTarget(t, 0), newTarget(t, 0), newTarget(t, 300*time.Millisecond), newTarget(t, 0)

	// The service without limits whose lateness is logged.
	other := connect(t, server.URL())
	due := map[string]time.Time{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			id := fmt.Sprint("free", n)
			due[id] = time.Now().Add(time.Second).Truncate(time.Millisecond)
			if _, err := other.js.PublishMsg(t.Context(), structured(attrs{"id": id, "timersvc": "free", "timercallback": free.url, "timerat": schemas.FormatTime(due[id].UnixMilli())}, `{}`)); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()

	waittest.Until(t, "the service without limits is called", func() bool { n, _ := free.called(); return n >= 20 })

	// burst adds the events of one service that are all due at one instant, which it returns.
	burst := func(service, prefix string, to *target) time.Time {
		instant := time.Now().Add(3*time.Second + time.Duration(events)*time.Millisecond/2).Truncate(time.Millisecond)
		c.publishAll(events, func(n int) *nats.Msg {
			return structured(attrs{"id": fmt.Sprint(prefix, n), "timersvc": service, "timerflow": service, "timercallback": to.url, "timerat": schemas.FormatTime(instant.UnixMilli())}, `{}`)
		})
		return instant
	}
	compareFrom := time.Now()
	compared := burst("unlimited", "unlimited", unlimited)
	waittest.UntilWithin(t, time.Duration(events)*time.Millisecond+4*bound, "every event without a limit is called", func() bool { n, _ := unlimited.called(); return n == events })
	comparedAll := time.Now()

	busyFrom := time.Now() // by the adds of the next events
	start := burst("fast", "", limited)
	all := time.Duration(events/fast.Rate.Count) * time.Second
	waittest.UntilWithin(t, 2*all+4*bound, "every event is called", func() bool { n, _ := limited.called(); return n == events })
	began := operator.began(events)
	atNodes, atTarget := excess(began, fast), excess(limited.at, fast)
	t.Logf("rate: %d events in %s; the fullest window has %.1f calls more than rate × t + burst at the nodes, %.1f at the target (below 0: fewer)",
		events, began[len(began)-1].Sub(began[0]).Round(time.Millisecond), atNodes, atTarget)
	// The nodes' estimates of the time differ by a few milliseconds; on the way to the target a
	// call that is held up joins those after it.
	if perSecond := float64(fast.Rate.Count); atNodes > perSecond*clockSlack.Seconds() || atTarget > perSecond*networkSlack.Seconds() {
		t.Errorf("the fullest window exceeds the limit by %.1f calls at the nodes and %.1f at the target", atNodes, atTarget)
	}
	if _, calls := limited.called(); calls != events {
		t.Errorf("got %d calls for %d events", calls, events)
	}

	killsFrom := time.Now()
	c.publishAll(slow, func(n int) *nats.Msg {
		return structured(attrs{"id": fmt.Sprint("slow", n), "timersvc": "slow", "timerflow": "slow", "timercallback": parallel.url, "timerafter": "10ms"}, `{}`)
	})
	done := func() int { n, _ := parallel.called(); return n }
	for i := range 2 {
		waittest.UntilWithin(t, 4*bound, "some slow calls are made", func() bool { return done() >= slow*(i+1)/4 })
		nodes[i].Kill()
		nodes[i].Start()
		nodes[i].Ready(t.Context())
	}
	waittest.UntilWithin(t, 8*bound+time.Duration(slow)*100*time.Millisecond, "every slow event is called", func() bool { return done() == slow })
	_, calls := parallel.called()
	t.Logf("parallel: %d events, %d calls, at most %d at once", slow, calls, parallel.most)
	if parallel.most != 8 {
		t.Errorf("the target saw %d calls at once, want 8", parallel.most)
	}

	close(stop)
	<-stopped
	waittest.Until(t, "the service without limits is called", func() bool { n, _ := free.called(); return n == len(due) })
	for _, phase := range []struct {
		name     string
		from, to time.Time
	}{
		{"while nothing else happens", time.Time{}, compareFrom},
		{"while events without a limit are added", compareFrom, compared},
		{"for as long as they are called", compared, comparedAll},
		{"while events with a limit are added", busyFrom, start},
		{"for as long after their instant", start, start.Add(comparedAll.Sub(compared))},
		{"from then on, while they are called at their rate", start.Add(comparedAll.Sub(compared)), killsFrom},
		{"while nodes are killed", killsFrom, time.Now().Add(time.Hour)},
	} {
		var late []time.Duration
		var latest time.Time
		for id, at := range free.ids {
			if d := due[id]; !d.Before(phase.from) && d.Before(phase.to) {
				if late = append(late, at.Sub(d)); at.Sub(d) == slices.Max(late) {
					latest = d
				}
			}
		}
		if slices.Sort(late); len(late) > 0 {
			t.Logf("without limits, %s: %d calls, late by %s (half), %s (99 %%), %s (most, due %s after the phase began)",
				phase.name, len(late), late[len(late)/2], late[len(late)*99/100], late[len(late)-1], latest.Sub(phase.from).Round(time.Millisecond))
		}
	}
}

// clockSlack is the slack of a bound on the begin of calls over several nodes: how much their
// estimates of the cluster's time may differ on a busy machine.
const clockSlack = 50 * time.Millisecond

// began returns when the only attempts of the events 0 to count-1 began, by the cluster's time,
// once all have succeeded.
func (f *operator) began(count int) (all []time.Time) {
	f.t.Helper()
	for n := range count {
		var rec schemas.Record
		waittest.UntilWithin(f.t, 4*bound, fmt.Sprintf("event %d has its result", n), func() bool {
			t, err := f.store.Get(f.t.Context(), schemas.NewTimerID("/e2e", fmt.Sprint(n)))
			rec = t.Record
			return err == nil && rec.State == schemas.StateSuccess
		})
		if rec.Attempt != 1 || len(rec.Attempts) != 1 {
			f.t.Fatalf("event %d: got %d attempts, want 1", n, rec.Attempt)
		}
		all = append(all, time.UnixMilli(rec.Attempts[0].AtMs))
	}
	return all
}
