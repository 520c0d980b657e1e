//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// operator stores limits as an operator does, beside the nodes.
type operator struct {
	t     *testing.T
	store *store.Store
}

func openOperator(t *testing.T, url string) *operator {
	t.Helper()
	return openOperatorWith(t, url, store.Config{})
}

// openOperatorWith is openOperator beside nodes whose settings of the streams are not the
// defaults: opening the store changes the streams to cfg.
func openOperatorWith(t *testing.T, url string, cfg store.Config) *operator {
	t.Helper()
	cfg.Node = "operator"
	s, err := store.Open(t.Context(), connect(t, url).nc, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &operator{t, s}
}

// set stores a limit; it is in force when set returns.
func (f *operator) set(pattern string, l flow.Limit) {
	f.t.Helper()
	waittest.Until(f.t, "limits may be stored", func() bool { return f.store.CanLimit() == nil })
	set, err := f.store.RefreshFlows(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	old, _ := set.Get(pattern)
	if _, err := f.store.PutLimit(f.t.Context(), store.FlowLimit{Pattern: pattern, Limit: l, AtMs: time.Now().UnixMilli()}, old.Rev); err != nil {
		f.t.Fatal(err)
	}
}

// pair starts two node processes on one server.
func pair(t *testing.T, url string) [2]*proc.Node {
	t.Helper()
	var nodes [2]*proc.Node
	for i := range nodes {
		nodes[i] = proc.New(t, proc.Options{NATSURL: url, Config: "lease: 3s\nshards: 2\nallow-loopback: true\n"})
		nodes[i].Start()
	}
	for _, n := range nodes {
		n.Ready(t.Context())
	}
	return nodes
}

// times returns when the calls arrived, in order.
func (c *callee) times() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]time.Time, 0, len(c.calls))
	for _, call := range c.calls {
		out = append(out, call.at)
	}
	slices.SortFunc(out, func(a, b time.Time) int { return a.Compare(b) })
	return out
}

// called returns the number of calls of each event.
func (c *callee) called() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, call := range c.calls {
		out[call.id]++
	}
	return out
}

// checkRate checks that in no window of length t more than rate·(t+slack)+burst calls arrived.
// slack is for the way from the node to the receiver: the nodes, the server and the receiver
// share a busy machine, and a call that is held up joins those after it.
func checkRate(t *testing.T, times []time.Time, l flow.Limit, slack time.Duration) {
	t.Helper()
	for i := range times {
		for j := i; j < len(times); j++ {
			window := times[j].Sub(times[i])
			most := float64(l.Rate.Count)*(window+slack).Seconds()/l.Rate.Per.Seconds() + float64(l.Burst)
			if n := float64(j - i + 1); n > most {
				t.Fatalf("%.0f calls within %s; the limit permits %.1f with a slack of %s", n, window, most, slack)
			}
		}
	}
}

// networkSlack is the slack of checkRate. The tests of package functions check the limit
// exactly, where the calls begin.
const networkSlack = time.Second

// TestFlowKill: 2,400 events of one key are due at once, over two nodes; they are planned, in the consumers and, if their
// slots are 30 s or more away, in the wheel. One node is killed meanwhile. The rate holds, each event is called, and events
// that were only planned are called once, with their first attempt. Another service is called as usual.
func TestFlowKill(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "2,400 events at 40 a second")
	server := natstest.Run(t)
	nodes := pair(t, server.URL())
	c := connect(t, server.URL())
	limited, free := newCallee(t, nil), newCallee(t, nil)
	l := flow.Limit{Rate: flow.Rate{Count: 40, Per: time.Second}, Burst: 10}
	openOperator(t, server.URL()).set("api", l)
	const events = 2400
	due := at(5 * time.Second)
	c.publishAll(events, func(n int) *nats.Msg {
		return structured(attrs{"id": fmt.Sprint(n), "timersvc": "limited", "timerflow": "api", "timercallback": limited.url, "timerat": due}, `{}`)
	})
	calls := func() int { limited.mu.Lock(); defer limited.mu.Unlock(); return len(limited.calls) }
	waittest.UntilWithin(t, 2*bound, "some are called", func() bool { return calls() >= events/10 })
	var deferred schemas.TimerInfo
	waittest.Until(t, "a timer waits in the wheel, with its slot in view", func() bool {
		i, found := c.find(schemas.ListRequest{Service: "limited", States: []schemas.State{schemas.StateRetrying}, Limit: 500}, func(i schemas.TimerInfo) bool {
			return i.Flow != nil && i.Flow.Deferrals > 0
		})
		deferred = i
		return found
	})
	if deferred.Flow.Key != "api" || deferred.Attempts != 0 || !deferred.Flow.Slot.After(deferred.Scheduled) {
		t.Errorf("a deferred timer: got %+v, flow %+v", deferred, deferred.Flow)
	}
	nodes[0].Kill()
	for n := range 20 { // while the events wait
		c.publish(structured(attrs{"id": fmt.Sprint("free", n), "timersvc": "free", "timercallback": free.url, "timerafter": "10ms"}, `{}`))
	}
	waittest.Until(t, "the other service is called", func() bool { return len(free.called()) == 20 })
	if n := calls(); n >= events {
		t.Fatal("all limited events were called before the other service: the test showed nothing")
	}
	waittest.UntilWithin(t, 4*bound, "every event is called", func() bool { return len(limited.called()) == events }, func() string {
		return fmt.Sprintf("%d events, %d calls", len(limited.called()), calls())
	})
	checkRate(t, limited.times(), l, networkSlack)
	twice := 0
	for _, n := range limited.called() {
		twice += n - 1
	}
	// A call whose result the killed node had not written is repeated: at most its calls in
	// flight.
	if twice > 64 {
		t.Errorf("%d calls were repeated", twice)
	}
	waittest.Until(t, "every timer has its result", func() bool {
		return c.none(schemas.ListRequest{Service: "limited", States: []schemas.State{schemas.StatePending, schemas.StateDelivered, schemas.StateRetrying}})
	})
	for n := 0; n < events; n += 97 {
		if i := c.until(fmt.Sprint(n), schemas.StateSuccess); i.Attempts != 1 {
			t.Errorf("event %d: got %d attempts, want 1", n, i.Attempts)
		}
	}
}

// TestFlowPauseAndResume: nothing is called while a key is paused; the timers wait with their
// slots in view, can be cancelled, and are called after the resume.
func TestFlowPauseAndResume(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	pair(t, server.URL())
	c := connect(t, server.URL())
	callee := newCallee(t, nil)
	f := openOperator(t, server.URL())
	f.set("job:*", flow.Limit{Paused: true})
	const events = 50
	c.publishAll(events, func(n int) *nats.Msg {
		return structured(attrs{"id": fmt.Sprint(n), "timersvc": "paused", "timerflow": fmt.Sprint("job:", n%2), "timercallback": callee.url, "timerafter": "10ms"}, `{}`)
	})
	for n := range events {
		i := c.until(fmt.Sprint(n), schemas.StateRetrying)
		if i.Flow == nil || i.Attempts != 0 || i.Flow.Key != fmt.Sprint("job:", n%2) {
			t.Fatalf("event %d: got %+v", n, i)
		}
	}
	if err := c.call("cancel", schemas.CancelRequest{TimerRef: schemas.TimerRef{ID: "0", Source: "/e2e"}}, &schemas.TimerInfo{}); err != nil {
		t.Fatal(err)
	}
	if n := len(callee.called()); n != 0 {
		t.Fatalf("%d events were called while their keys are paused", n)
	}
	f.set("job:*", flow.Limit{Rate: flow.Rate{Count: 50, Per: time.Second}, Burst: 5})
	waittest.UntilWithin(t, 2*bound, "the events are called", func() bool { return len(callee.called()) == events-1 })
	for id, n := range callee.called() {
		if n != 1 || id == "0" {
			t.Errorf("event %s was called %d times", id, n)
		}
	}
	c.until("0", schemas.StateCancelled)
}

// TestFlowPauseOfService: a service is paused under load, over two nodes of which one is killed
// during the pause. No event that is due after the answer is called, whatever its flow key;
// after the resume every event is called, with its first attempt.
func TestFlowPauseOfService(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	nodes := pair(t, server.URL())
	c := connect(t, server.URL())
	callee := newCallee(t, nil)
	publish := func(phase, svc string, n int) {
		c.publishAll(n, func(n int) *nats.Msg {
			e := attrs{"id": fmt.Sprint(phase, n), "timersvc": svc, "timercallback": callee.url, "timerafter": "10ms"}
			if n%2 == 1 {
				e["timerflow"] = fmt.Sprint("key:", n%7)
			}
			return structured(e, `{}`)
		})
	}
	called := func(phase string) (n int) {
		for id := range callee.called() {
			if strings.HasPrefix(id, phase) {
				n++
			}
		}
		return n
	}
	const events = 60
	publish("before", "mail", events)
	var r schemas.FlowReply
	if err := c.call("flow.pause", schemas.FlowRequest{Key: "service:mail", Note: "repair"}, &r); err != nil {
		t.Fatal(err)
	}
	publish("during", "mail", events)
	publish("other", "mails", 20)
	for n := range events {
		i := c.until(fmt.Sprint("during", n), schemas.StateRetrying)
		if i.Flow == nil || i.Flow.Key != "service:mail" || i.Attempts != 0 {
			t.Fatalf("event %d waits as %+v, want for service:mail without an attempt", n, i)
		}
	}
	waittest.Until(t, "another service is called", func() bool { return called("other") == 20 })
	nodes[0].Kill()
	var st schemas.FlowStatus
	var err error
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer of flow.get: %+v, error %v", st, err)
		}
	})
	waittest.Until(t, "the waiting events are counted", func() bool {
		st = schemas.FlowStatus{}
		// A request that the killed node had received gets no answer, so do not wait long for it.
		err = c.tryMsg(&nats.Msg{Subject: schemas.SubjectAPIPrefix + "flow.get", Data: []byte(`{"key":"service:mail"}`)}, &st)
		return err == nil && len(st.Keys) == 1 && st.Keys[0].Waiting >= events
	})
	if n := called("during"); n != 0 {
		t.Fatalf("%d events were called during the pause", n)
	}
	waittest.Until(t, "the service is resumed", func() bool {
		err := c.tryMsg(request("flow.resume", schemas.FlowRequest{Key: "service:mail"}), &r)
		return err == nil || schemas.CodeOf(err) == schemas.CodeNotFound // an answer may be lost
	})
	waittest.UntilWithin(t, 2*bound, "every event is called", func() bool { return len(callee.called()) == 2*events+20 })
	for n := range events {
		if i := c.until(fmt.Sprint("during", n), schemas.StateSuccess); i.Attempts != 1 {
			t.Errorf("event %d: got %d attempts, want 1", n, i.Attempts)
		}
	}
}

// gauge counts the calls that run at once.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) hold(r *http.Request, d time.Duration) {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	select {
	case <-time.After(d):
	case <-r.Context().Done(): // the caller is gone
	}
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
}

// TestFlowParallelKill: slow calls of one key, at most three at once, over two nodes of which
// one is killed. The receiver never sees more than three, and every event is called.
func TestFlowParallelKill(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	nodes := pair(t, server.URL())
	c := connect(t, server.URL())
	var g gauge
	callee := newCallee(t, func(_ int, _ http.ResponseWriter, r *http.Request) { g.hold(r, 500*time.Millisecond) })
	openOperator(t, server.URL()).set("slow", flow.Limit{Parallel: 3})
	events := testsize.Choose(t, "events, six a second", 45, 45, 90)
	c.publishAll(events, func(n int) *nats.Msg {
		return structured(attrs{"id": fmt.Sprint(n), "timersvc": "slow", "timerflow": "slow", "timercallback": callee.url, "timerafter": "10ms"}, `{}`)
	})
	waittest.UntilWithin(t, 2*bound, "some are called", func() bool { return len(callee.called()) >= 12 })
	nodes[0].Kill()
	if n := len(callee.called()); n >= events {
		t.Fatal("every event was called before the kill: the test showed nothing")
	}
	waittest.UntilWithin(t, 4*bound, "every event is called", func() bool { return len(callee.called()) == events })
	for n := range events {
		if i := c.until(fmt.Sprint(n), schemas.StateSuccess); i.Attempts != 1 {
			t.Errorf("event %d: got %d attempts, want 1", n, i.Attempts)
		}
	}
	if g.most != 3 {
		t.Errorf("the receiver saw %d calls at once, want 3", g.most)
	}
}
