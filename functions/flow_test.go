package functions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// limit stores a limit and returns its revision. The first limit of a store waits until the
// store knows that all nodes know limits.
func (r *rig) limit(pattern string, l flow.Limit) uint64 {
	r.t.Helper()
	if _, err := r.store.Beat(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	waittest.Until(r.t, "flow limits may be stored", func() bool { return r.store.CanLimit() == nil })
	set, err := r.store.RefreshFlows(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	old, _ := set.Get(pattern)
	rev, err := r.store.PutLimit(r.t.Context(), store.FlowLimit{Pattern: pattern, Limit: l, AtMs: nowMs()}, old.Rev)
	if err != nil {
		r.t.Fatal(err)
	}
	return rev
}

// delete removes a limit.
func (r *rig) delete(pattern string) {
	r.t.Helper()
	set, err := r.store.RefreshFlows(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	old, _ := set.Get(pattern)
	if _, err := r.store.DeleteLimit(r.t.Context(), store.FlowLimit{Pattern: pattern}, old.Rev); err != nil {
		r.t.Fatal(err)
	}
}

// node opens one more store on the rig's server, as another node does.
func (r *rig) node(name string) *store.Store {
	r.t.Helper()
	s, err := store.Open(r.t.Context(), r.server.Connect(), store.Config{Node: name, Timeout: time.Minute}, zerolog.Nop())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.Close)
	return s
}

// host returns the flow key of a callee.
func (c *callee) host(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func ok(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// checkRate checks that in no window of length t are more than rate·(t+slack)+burst of the
// times.
func checkRate(t *testing.T, what string, times []time.Time, l flow.Limit, slack time.Duration) {
	t.Helper()
	slices.SortFunc(times, func(a, b time.Time) int { return a.Compare(b) })
	perSecond := float64(l.Rate.Count) / l.Rate.Per.Seconds()
	for i := range times {
		for j := i; j < len(times); j++ {
			window := times[j].Sub(times[i])
			if n, most := float64(j-i+1), perSecond*(window+slack).Seconds()+float64(l.Burst); n > most+1e-9 {
				t.Fatalf("%s: %.0f calls within %s, the limit permits %.2f", what, n, window, most)
			}
		}
	}
}

// TestFlowRate: two nodes call 2,000 events of one key at 200 a second with a burst of 20. In
// no window begin more calls than the limit permits. At the receiver the bound holds with the
// time that the slowest call took to arrive: a call that is late joins the calls after it.
func TestFlowRate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	l := flow.Limit{Rate: flow.Rate{Count: 200, Per: time.Second}, Burst: 20}
	r.limit(c.host(t), l)
	// A short AckWait on a busy machine repeats calls.
	r.start(func(o *Options) { o.Node, o.AckWait = "one", DefaultAckWait })
	r.start(func(o *Options) { o.Node, o.AckWait, o.Store = "two", DefaultAckWait, r.node("two") })
	const events = 2000
	ids := make([]schemas.TimerID, 0, events)
	for range events {
		ids = append(ids, r.fire(timer{callback: c.URL}))
	}
	waittest.UntilWithin(t, 2*waittest.Bound, "all events are called", func() bool { return c.count() >= events })
	began := make([]time.Time, 0, events)
	for _, id := range ids {
		rec := r.await(id, schemas.StateSuccess)
		if rec.Attempt != 1 || rec.Deferral != nil {
			t.Fatalf("timer %s: got %d attempts and deferral %+v, want 1 attempt and none", id, rec.Attempt, rec.Deferral)
		}
		began = append(began, time.UnixMilli(rec.Attempts[0].AtMs))
	}
	if n := c.count(); n != events {
		t.Fatalf("got %d calls for %d events", n, events)
	}
	// The times of records are whole milliseconds.
	checkRate(t, "begun calls", began, l, 2*time.Millisecond)
	slices.SortFunc(c.times, func(a, b time.Time) int { return a.Compare(b) })
	slices.SortFunc(began, func(a, b time.Time) int { return a.Compare(b) })
	var late time.Duration
	for i := range began {
		late = max(late, c.times[i].Sub(began[i]))
	}
	checkRate(t, "received calls", c.times, l, late)
	span := began[len(began)-1].Sub(began[0])
	t.Logf("%d calls in %s, the latest arrived after %s", events, span, late)
}

// TestFlowPause: a paused key is not called and uses no attempt; the timer waits in the wheel
// with its place in view, can be cancelled, and is called after the resume.
func TestFlowPause(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	r.limit("job-*", flow.Limit{Paused: true})
	r.start(nil)
	var ids []schemas.TimerID
	for range 2 {
		ids = append(ids, r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": "job-1"}}))
	}
	for _, id := range ids {
		rec := r.await(id, schemas.StateRetrying)
		if !rec.Queued || rec.Attempt != 0 || rec.Deferrals() != 1 || rec.Deferral.Flow != "job-1" || rec.DueMs < nowMs()+30_000 {
			t.Fatalf("got %+v, deferral %+v", rec.RunState, rec.Deferral)
		}
	}
	r.settled("s") // both events were acknowledged
	cancelled := r.get(ids[0])
	if _, err := cancelled.Record.Cancel(nowMs(), schemas.Caller{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Update(t.Context(), store.Write{ID: ids[0], Rev: cancelled.Rev, Record: &cancelled.Record, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	r.claim(r.get(ids[1])) // still paused: deferred again, for longer
	waittest.Until(t, "the second deferral", func() bool {
		rec := r.get(ids[1]).Record
		return rec.Deferrals() == 2 && rec.DueMs > nowMs()+90_000
	})
	r.settled("s")
	if n := c.count(); n != 0 {
		t.Fatalf("got %d calls while the key is paused", n)
	}
	r.limit("job-*", flow.Limit{Rate: flow.Rate{Count: 100, Per: time.Second}, Burst: 10})
	r.claim(r.get(ids[1]))
	rec := r.await(ids[1], schemas.StateSuccess)
	if rec.Attempt != 1 || c.count() != 1 {
		t.Fatalf("after the resume: got %d attempts and %d calls, want 1 and 1", rec.Attempt, c.count())
	}
}

// TestFlowOtherKeys: events of a key at its limit hold up neither another key of their service
// nor another service, although they are more than the service's permits.
func TestFlowOtherKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	r.limit("slow", flow.Limit{Rate: flow.Rate{Count: 1, Per: 12 * time.Hour}, Burst: 1})
	r.limit("near", flow.Limit{Rate: flow.Rate{Count: 5, Per: time.Second}, Burst: 2})
	r.start(func(o *Options) { o.Concurrency, o.Total = 2, 4 })
	for range 20 {
		r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": "slow"}})
		r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": "near"}})
	}
	for _, svc := range []string{"s", "other"} {
		for range 10 {
			r.await(r.fire(timer{svc: svc, callback: c.URL}), schemas.StateSuccess)
		}
	}
	waittest.Until(t, "the events of the other limited key are called, and one of the slow key", func() bool { return c.count() == 20+1+20 })
}

// brokenFlows loses answers of the calls that change the states of keys.
type brokenFlows struct {
	*store.Store
	stale atomic.Bool
	cut   atomic.Bool
	hang  atomic.Bool
	every int32
	takes time.Duration // of each change
	n     atomic.Int32
}

func (b *brokenFlows) FlowsNow() (*store.FlowSet, bool) {
	set, fresh := b.Store.FlowsNow()
	return set, fresh && !b.stale.Load()
}

func (b *brokenFlows) PutFlowState(ctx context.Context, s store.FlowKeyState, ttl time.Duration) (uint64, error) {
	if b.cut.Load() {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "cut")
	}
	for b.hang.Load() { // the request has no answer
		if !pause.For(ctx, 10*time.Millisecond) {
			return 0, schemas.Errorf(schemas.CodeUnavailable, "no answer")
		}
	}
	time.Sleep(b.takes) // the store is that slow
	n := b.n.Add(1)
	if b.every > 0 && n%b.every == 0 {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "lost before")
	}
	rev, err := b.Store.PutFlowState(ctx, s, ttl)
	if b.every > 0 && n%b.every == 1 {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "lost after")
	}
	return rev, err
}

// TestFlowLostAnswers: requests and answers of state changes are lost; the limit holds, and
// every event is called once.
func TestFlowLostAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	l := flow.Limit{Rate: flow.Rate{Count: 100, Per: time.Second}, Burst: 10}
	r.limit(c.host(t), l)
	r.start(func(o *Options) { o.Store, o.AckWait = &brokenFlows{Store: r.store, every: 3}, DefaultAckWait })
	var ids []schemas.TimerID
	for range 200 {
		ids = append(ids, r.fire(timer{callback: c.URL}))
	}
	began := make([]time.Time, 0, len(ids))
	for _, id := range ids {
		began = append(began, time.UnixMilli(r.await(id, schemas.StateSuccess).Attempts[0].AtMs))
	}
	checkRate(t, "begun calls", began, l, 2*time.Millisecond)
	if n := c.count(); n != len(ids) {
		t.Fatalf("got %d calls for %d events", n, len(ids))
	}
}

// TestFlowSlowStore: a store that takes longer than an admission is valid delays a lone event, and
// does not starve it.
func TestFlowSlowStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	r.limit(c.host(t), flow.Limit{Rate: flow.Rate{Count: 500, Per: time.Second}, Burst: 50})
	r.start(func(o *Options) { o.Store = &brokenFlows{Store: r.store, takes: 130 * time.Millisecond} })
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
}

// TestFlowStaleLimits: a node whose copy of the limits is not fresh makes no calls, even if it
// knows no limit.
func TestFlowStaleLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	s := &brokenFlows{Store: r.store}
	s.stale.Store(true)
	r.start(func(o *Options) { o.Store = s })
	id := r.fire(timer{callback: c.URL})
	waittest.Until(t, "the event arrives", func() bool {
		info, err := r.lookUp("s", store.KindFired)
		return err == nil && info.NumAckPending == 1
	})
	time.Sleep(300 * time.Millisecond) // no wait for a condition: nothing may happen
	if n := c.count(); n != 0 {
		t.Fatalf("got %d calls without a fresh copy of the limits", n)
	}
	s.stale.Store(false)
	r.await(id, schemas.StateSuccess)
}

// TestFlowOldEvent: the event from before a deferral comes again after the scheduler has
// published the next one. It makes no call.
func TestFlowOldEvent(t *testing.T) {
	t.Parallel()
	c := schemas.Claim{Run: 1}
	rec := deliveredRecord()
	rec.Deferral = &schemas.Deferral{Count: 1, SlotMs: 900, Flow: "k"}
	for _, tt := range []struct {
		deferred uint32
		run      bool
	}{{0, false}, {1, true}} {
		c.Deferred = tt.deferred
		if a := Admit(c, &store.Timer{Record: rec}, 1000); a.Run != tt.run || a.Wait != 0 {
			t.Errorf("claim with %d deferrals: got %+v, want run %v", tt.deferred, a, tt.run)
		}
	}
	rec.State, rec.Queued = schemas.StateRetrying, true
	if a := Admit(c, &store.Timer{Record: rec}, 1000); a.Run || a.Wait != 0 {
		t.Errorf("an event whose record waits in the wheel: got %+v, want nothing to do", a)
	}
	if got, _ := ResolveConflict(schemas.Claim{Run: 1}, 1, false, &store.Timer{Record: rec}, 1000); got != nil {
		t.Error("a failure of the event before the deferral must not be written")
	}
	p := Policy{ShortDelay: time.Second}
	if plan := p.Next(rec, callback.Retry(callback.ReasonStatus, "500"), testSpec, 1000, 0); plan.Record.Deferrals() != 1 || plan.Record.Deferral.SlotMs != 0 || plan.Record.Attempt != 1 {
		t.Errorf("after a failed call: got deferral %+v and %d attempts", plan.Record.Deferral, plan.Record.Attempt)
	}
}

// TestSlotsAhead: the events that wait in the consumers are bounded, and no longer counted when
// their wait has ended.
func TestSlotsAhead(t *testing.T) {
	t.Parallel()
	var s slotsAhead
	now := time.Unix(1000, 0)
	for i := range 10 {
		if !s.add(now, time.Duration(rand.IntN(5)+1)*time.Second, 10) {
			t.Fatalf("event %d was refused", i)
		}
	}
	if s.add(now, time.Second, 10) {
		t.Fatal("the event beyond the limit was counted")
	}
	if now = now.Add(7 * time.Second); !s.add(now, time.Second, 1) || s.sum != 1 {
		t.Fatalf("after the waits: got %d events", s.sum)
	}
}

// TestFlowReplan: when a limit is raised, resumed or deleted, the events that wait in the wheel
// get new slots, in order, at the new rate; a cancelled one stays cancelled.
func TestFlowReplan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	slow := flow.Limit{Rate: flow.Rate{Count: 1, Per: 10 * time.Minute}, Burst: 1}
	for _, key := range []string{"raised", "resumed", "deleted"} {
		l := slow
		l.Paused = key == "resumed"
		r.limit(key, l)
	}
	r.start(nil)
	ids := map[string][]schemas.TimerID{}
	for range 8 {
		for _, key := range []string{"raised", "resumed", "deleted"} {
			id := r.fire(timer{svc: key, callback: c.URL, attributes: map[string]string{"timerflow": key}})
			r.awaitDeferredOrCalled(id)
			if rec := r.get(id).Record; rec.Deferred() {
				ids[key] = append(ids[key], id)
			}
		}
	}
	before := nowMs()
	fast := flow.Limit{Rate: flow.Rate{Count: 1, Per: 5 * time.Second}, Burst: 1}
	now := map[string]uint64{"raised": r.limit("raised", fast), "resumed": r.limit("resumed", fast), "deleted": 0}
	r.delete("deleted")
	for key, all := range ids {
		var last int64
		for i, id := range all {
			var rec schemas.Record
			waittest.Until(t, "a new slot for "+key, func() bool {
				rec = r.get(id).Record
				return rec.Deferral.Generation == now[key]
			})
			if !rec.Queued || rec.Deferrals() != 1 || rec.Attempt != 0 || rec.DueMs < before {
				t.Fatalf("%s: got %+v, deferral %+v", key, rec.RunState, rec.Deferral)
			}
			if gap := rec.DueMs - last; i > 0 && key != "deleted" && (gap < 4_990 || gap > 5_200) {
				t.Errorf("%s: event %d has its slot %d ms after the one before, want 5 s, or up to the validity of an admission more", key, i, gap)
			}
			last = rec.DueMs
		}
	}
	waittest.Until(t, "the work is marked as done", func() bool {
		set, _ := r.store.FlowsNow()
		return !slices.ContainsFunc(set.Raised(), func(l store.FlowLimit) bool {
			p, err := r.store.FlowReplan(t.Context(), l.Pattern)
			return err != nil || !p.Done || p.Generation != l.Rev
		})
	})
	r.claim(r.get(ids["raised"][0])) // its slot is respected
	r.await(ids["raised"][0], schemas.StateSuccess)
}

// awaitDeferredOrCalled waits until an event was called or waits in the wheel.
func (r *rig) awaitDeferredOrCalled(id schemas.TimerID) {
	r.t.Helper()
	waittest.Until(r.t, "the event is called or waits in the wheel", func() bool {
		rec := r.get(id).Record
		return rec.State == schemas.StateSuccess || rec.Deferred() && rec.Queued
	})
}

// gauge counts the calls that run at once.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

// greatest returns the most calls that have run at once.
func (g *gauge) greatest() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most
}

func (g *gauge) hold(d time.Duration) {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	time.Sleep(d)
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
}

// TestFlowParallel: over two nodes never more than three calls of a key run at once, and three
// do; the calls of each customer are bounded by themselves.
func TestFlowParallel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all, customers gauge
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { all.hold(20 * time.Millisecond) })
	k := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { customers.hold(20 * time.Millisecond) })
	r.limit(c.host(t), flow.Limit{Parallel: 3})
	r.limit("customer:*", flow.Limit{Parallel: 1})
	r.start(func(o *Options) { o.Node, o.AckWait = "one", DefaultAckWait })
	r.start(func(o *Options) { o.Node, o.AckWait, o.Store = "two", DefaultAckWait, r.node("two") })
	const events = 90
	for n := range events {
		r.fire(timer{callback: c.URL})
		if n < 20 {
			r.fire(timer{callback: k.URL, attributes: map[string]string{"timerflow": fmt.Sprint("customer:", n%2)}})
		}
	}
	waittest.UntilWithin(t, 2*waittest.Bound, "every event is called", func() bool { return c.count() >= events && k.count() >= 20 })
	if all.greatest() != 3 || customers.greatest() > 2 || c.count() != events || k.count() != 20 {
		t.Errorf("got %d calls at once and %d of two customers, of %d and %d; want 3 and at most 2, of %d and 20", all.greatest(), customers.greatest(), c.count(), k.count(), events)
	}
	// The slots are returned when the calls have ended.
	for _, key := range []string{c.host(t), "customer:0", "customer:1"} {
		waittest.Until(t, "the slots of "+key+" are returned", func() bool {
			s, err := r.store.FlowState(t.Context(), key)
			return err == nil && s.Rev > 0 && len(s.State.Leases) == 0
		})
	}
}

// TestFlowSlotsLost: a node that cannot renew its slots cancels its calls before another node
// may take the slots, also if the store does not answer at all. The attempts are not counted.
func TestFlowSlotsLost(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(*brokenFlows) *atomic.Bool{
		"errors":    func(b *brokenFlows) *atomic.Bool { return &b.cut },
		"no answer": func(b *brokenFlows) *atomic.Bool { return &b.hang },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ended := make(chan time.Duration, 100)
			c := httpCallee(t, func(n int, w http.ResponseWriter, req *http.Request) {
				if n > 1 {
					return
				}
				began := time.Now()
				<-req.Context().Done()
				ended <- time.Since(began)
			})
			r.limit(c.host(t), flow.Limit{Parallel: 1})
			s := &brokenFlows{Store: r.store}
			r.start(func(o *Options) { o.Store, o.AckWait = s, DefaultAckWait })
			id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timertimeout": "1m"}})
			waittest.Until(t, "the call begins", func() bool { return c.count() == 1 })
			broken(s).Store(true)
			if d := waittest.Receive(t, "the end of the call", ended); d >= flow.LeaseFor {
				t.Errorf("the call was cancelled after %s; the lease ends after %s", d, flow.LeaseFor)
			}
			broken(s).Store(false)
			if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 {
				t.Errorf("got %d attempts, want 1: the cancelled call does not count", rec.Attempt)
			}
		})
	}
}

// TestFlowClockStep: after a step of the cluster's clock a node decides nothing until every node
// knows the step, and keeps the slots of another node, although their lease has ended by the new
// clock.
func TestFlowClockStep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-release
		}
	})
	r.limit(c.host(t), flow.Limit{Parallel: 1})
	r.start(func(o *Options) { o.Node, o.AckWait = "one", DefaultAckWait })
	r.fire(timer{callback: c.URL})
	waittest.Until(t, "the first call begins", func() bool { return c.count() == 1 })
	two := &brokenFlows{Store: r.node("two")}
	var settled atomic.Bool
	r.start(func(o *Options) {
		o.Node, o.AckWait, o.Store = "two", DefaultAckWait, two
		o.Now = func() int64 { return nowMs() + time.Hour.Milliseconds() }
		o.SteadyFor = func() time.Duration {
			if settled.Load() {
				return flow.StepSettle
			}
			return 0
		}
	})
	const events = 20 // some for each node
	for range events - 1 {
		r.fire(timer{callback: c.URL})
	}
	waittest.Until(t, "all events are delivered", func() bool {
		info, err := r.lookUp("s", store.KindFired)
		return err == nil && info.NumAckPending == events
	})
	time.Sleep(200 * time.Millisecond) // no wait for a condition: nothing may happen
	if n := two.n.Load(); n != 0 {
		t.Errorf("the node made %d decisions before the step was known everywhere", n)
	}
	settled.Store(true)
	waittest.Until(t, "the other node has asked", func() bool { return two.n.Load() > 0 })
	time.Sleep(200 * time.Millisecond)
	if n := c.count(); n != 1 {
		t.Errorf("got %d calls while the first one runs, want 1", n)
	}
	close(release)
	waittest.Until(t, "every event is called", func() bool { return c.count() == events })
}

// TestFlowOlderLimit: after the limit of a key was deleted, the older limit of a pattern applies
// to the state that the deleted limit left.
func TestFlowOlderLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	l := flow.Limit{Rate: flow.Rate{Count: 10, Per: time.Second}, Burst: 2}
	r.limit("k*", l)
	rev := r.limit("k1", l)
	r.start(nil)
	for range 2 {
		r.await(r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": "k1"}}), schemas.StateSuccess)
		if set, _ := r.store.FlowsNow(); len(set.All()) == 2 {
			if _, err := r.store.DeleteLimit(t.Context(), store.FlowLimit{Pattern: "k1"}, rev); err != nil {
				t.Fatal(err)
			}
		}
	}
}
